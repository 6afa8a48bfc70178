"""The group scenarios once more with the Java client's other ways to share: cooperative rebalancing (KIP-429), and
the new group protocol (KIP-848), in which it has another consumer inside than librdkafka's."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.clients.adapter_base import READ_COMMITTED, Consumer, Record
from tests.clients.adapter_java import Java
from tests.clients.driver_process import DriverRefused
from tests.clients.fixtures import Broker, Opened
from tests.clients.scenario_tools import eventually
from tests.clients.test_client_groups import (
    PARTITIONS,
    fill,
    next_offsets,
    poll_all,
    settle,
    test_a_group_without_members_keeps_offsets_of_assigned_readers,
    test_a_static_member_comes_back_to_its_partitions,
    test_committed_offsets_resume,
    test_exactly_once_loop_with_redo,
    test_members_share_and_the_one_left_takes_all,
    test_offsets_of_an_aborted_transaction_are_not_committed,
)
from tests.clients.test_client_java import GROUPS, java

__all__ = (
    "java",
    "test_a_group_without_members_keeps_offsets_of_assigned_readers",
    "test_a_static_member_comes_back_to_its_partitions",
    "test_committed_offsets_resume",
    "test_exactly_once_loop_with_redo",
    "test_members_share_and_the_one_left_takes_all",
    "test_offsets_of_an_aborted_transaction_are_not_committed",
)


SHOWN = {"cooperative": "cooperative rebalancing", "new": "groups of KIP-848"}


class Sharing(Java):
    """Consumers that share in one of the ways of GROUPS, in the driver of all Java clients."""

    def __init__(self, bootstrap: str, kind: str) -> None:
        super().__init__(bootstrap)
        self.kind = kind
        self.shows = SHOWN[kind]

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
            config=GROUPS[self.kind] if group is not None else {},
            **more,
        )


@pytest.fixture(params=["cooperative", "new"])
def clients(request: pytest.FixtureRequest, broker: Broker) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield Opened(Sharing(broker.bootstrap, request.param), stack)


@pytest.mark.parametrize("old", ["classic", "cooperative"])
def test_one_after_the_other_changes_its_protocol(
    java: Opened, topic: Callable[..., str], unique: Callable[[str], str], old: str
) -> None:
    """A rolling upgrade to the new protocol, and back again, while records come: all of them are read."""
    name, group = topic(partitions=PARTITIONS), unique("group")
    members: list[Consumer] = []
    read: list[Record] = []

    def step() -> None:
        found = poll_all(members)
        read.extend(found)
        for member in members:
            mine = {at: end for at, end in next_offsets(found).items() if at in member.assignment()}
            with contextlib.suppress(DriverRefused):  # it may be another's by now
                member.commit(mine)

    written = 0
    for kind in (old, old, "new", "new", old, old):
        if len(members) == 2:
            members.pop(0).close()
        members.append(java.consumer(group=group, config=GROUPS[kind]))
        members[-1].subscribe(name)
        read += settle(members, [PARTITIONS] if len(members) == 1 else [2, 2])
        fill(java, name, 5)
        written += 5
        everything = {(partition, offset) for partition in range(PARTITIONS) for offset in range(written)}
        eventually(
            lambda: {(record.partition, record.offset) for record in read} == everything,  # noqa: B023
            f"all of {written} in each",
            step=step,
        )
