"""The group scenarios once more with the Java client's other ways to share: cooperative rebalancing (KIP-429), and
the new group protocol (KIP-848), in which it has another consumer inside than librdkafka's."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.clients.adapter_base import READ_COMMITTED, Consumer
from tests.clients.adapter_java import Java
from tests.clients.fixtures import Broker, Opened
from tests.clients.test_client_groups import (
    test_a_group_without_members_keeps_offsets_of_assigned_readers,
    test_a_static_member_comes_back_to_its_partitions,
    test_committed_offsets_resume,
    test_exactly_once_loop_with_redo,
    test_members_share_and_the_one_left_takes_all,
    test_offsets_of_an_aborted_transaction_are_not_committed,
)
from tests.clients.test_client_java import GROUPS

__all__ = (
    "test_a_group_without_members_keeps_offsets_of_assigned_readers",
    "test_a_static_member_comes_back_to_its_partitions",
    "test_committed_offsets_resume",
    "test_exactly_once_loop_with_redo",
    "test_members_share_and_the_one_left_takes_all",
    "test_offsets_of_an_aborted_transaction_are_not_committed",
)


class Sharing(Java):
    """Consumers that share in one of the ways of GROUPS, in the driver of all Java clients."""

    def __init__(self, bootstrap: str, kind: str) -> None:
        super().__init__(bootstrap)
        self.kind = kind

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
