"""The group scenarios once more with franz-go's ServerSideBalancer: the new group protocol (KIP-848).

It has to be asked for; without it this client stays with the classic protocol. A static member of it does not come back
before its session ends: 1.22.3 leaves with epoch -2 and no instance id, which Apache Kafka refuses as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.clients.adapter_base import READ_COMMITTED, Consumer
from tests.clients.adapter_go import FranzGo
from tests.clients.features import shows
from tests.clients.fixtures import Broker, Opened
from tests.clients.raw_kafka import RawKafka
from tests.clients.test_client_groups import (
    settle,
    test_committed_offsets_resume,
    test_members_share_and_the_one_left_takes_all,
)

__all__ = (
    "test_committed_offsets_resume",
    "test_members_share_and_the_one_left_takes_all",
)


class NewProtocol(FranzGo):
    """In the driver of all of this client."""

    shows = "groups of KIP-848"

    def consumer(
        self,
        *,
        isolation: str = READ_COMMITTED,
        group: str | None = None,
        instance_id: str | None = None,
        session_timeout_ms: int = 10_000,
        max_wait_ms: int = 100,
        **more: object,
    ) -> Consumer:
        return super().consumer(
            isolation=isolation,
            group=group,
            instance_id=instance_id,
            session_timeout_ms=session_timeout_ms,
            max_wait_ms=max_wait_ms,
            group_protocol="consumer",
            **more,
        )


@pytest.fixture
def clients(broker: Broker) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield Opened(NewProtocol(broker.bootstrap), stack)


@shows("groups of KIP-848")
def test_it_is_the_new_protocol(
    clients: Opened, raw: RawKafka, topic: Callable[..., str], unique: Callable[[str], str]
) -> None:
    name, group = topic(partitions=2), unique("group")
    member = clients.consumer(group=group)
    member.subscribe(name)
    settle([member], [2])
    found = raw.call("consumer_group_describe", 1, group_ids=[group]).groups[0]
    assert (found.group_state, found.assignor_name, len(found.members)) == ("Stable", "uniform", 1)
