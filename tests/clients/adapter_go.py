"""Clients in Go: franz-go, sarama and segmentio's kafka-go, each behind a program of one Go module."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tests.clients.remote import RemoteClient
from tests.support.drivers import go_programs

MODULE = Path(__file__).parent / "drivers" / "go"


class GoClient(RemoteClient):
    program: ClassVar[str]

    @classmethod
    def command(cls) -> Sequence[str]:
        return [str(go_programs(MODULE) / cls.program)]


class FranzGo(GoClient):
    """Its position() is what its control records tell, for which it has to be asked."""

    name = "franz-go"
    program = "franz"
    lacks: ClassVar[Mapping[str, str]] = {
        "send_offsets": "one client is both ends of its transactions; test_franz_go has it",
    }
    elsewhere = frozenset(
        (feature, "send_offsets")
        for feature in ("offsets in transactions", "exactly-once loop", "riding over a kill")
    )


class Sarama(GoClient):
    """On the newest protocol version it knows. Its transactions are those of the first protocol."""

    name = "sarama"
    program = "sarama"
    lacks: ClassVar[Mapping[str, str]] = {
        "transactions v2 (KIP-890)": "it knows the first protocol alone",
        "groups of KIP-848": "it knows the classic protocol alone",
        "position": "it tells what it delivered, and the high watermark",
        "seek_in_group": "a member begins where its group left off",
    }


class KafkaGo(GoClient):
    """Reads a group through its ConsumerGroup: a Reader with a group tells neither what it holds nor takes a seek."""

    name = "kafka-go"
    program = "kafkago"
    lacks: ClassVar[Mapping[str, str]] = {
        "transactions v2 (KIP-890)": "its Writer knows no transactions",
        "groups of KIP-848": "it knows the classic protocol alone",
        "transactional_id": "its Writer knows no transactions",
        "idempotent": "its Writer has no producer id",
        "empty_value": "its Reader gives an empty value as none",
        "instance_id": "it knows no static members",
    }
    elsewhere = frozenset({("read_committed", "transactional_id"), ("compression", "transactional_id")})
