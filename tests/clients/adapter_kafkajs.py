"""kafkajs, a client in JavaScript without native parts.

It reads as a member of a group alone: assign() makes a group of one, of a name of its own where none is given.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tests.clients.remote import RemoteClient
from tests.support.drivers import node_package

PACKAGE = Path(__file__).parent / "drivers" / "node"


class KafkaJs(RemoteClient):
    name = "kafkajs"
    lacks: ClassVar[Mapping[str, str]] = {
        "transactions v2 (KIP-890)": "it knows the first protocol alone",
        "groups of KIP-848": "it knows the classic protocol alone",
        "compression=lz4": "it has no codec for it, and the package that does is native code of old",
        "compression=zstd": "it has no codec for it, and the package that does is native code of old",
        "instance_id": "it knows no static members",
    }

    @classmethod
    def command(cls) -> Sequence[str]:
        return ["node", str(node_package(PACKAGE) / "driver.js")]
