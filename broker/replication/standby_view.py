"""What a node that does not lead knows of the cluster: a `broker.cluster_view.ClusterView` for hints alone (KIP-951).

Everything else is answered by the leader, with its own view.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from broker.cluster_view import NOBODY, Broker, Leadership, RangeStatus
from broker.read_replica import Replica
from txn.partition import Partition
from wire.errors import ErrorCode, KafkaError


class StandbyView:
    """`leader` gives (node, raft term), or (None, term) where none is known."""

    def __init__(
        self,
        node_id: int,
        leader: Callable[[], tuple[int | None, int]],
        brokers: Callable[[], Sequence[Broker]],
    ) -> None:
        self.node_id = node_id
        self._leader = leader
        self._brokers = brokers

    @property
    def fixed_members(self) -> bool:
        return True

    def brokers(self) -> Sequence[Broker]:
        return self._brokers()

    def controller(self) -> int:
        leader, _ = self._leader()
        return NOBODY if leader is None else leader

    def coordinator(self, kind: int, key: str) -> int:
        return self.controller()

    def leads(self, partition: Partition) -> bool:
        return False

    def knows_end(self, partition: Partition) -> bool:
        return False

    def led_lately(self, partition: Partition) -> bool:
        return False

    def goes_on(self, partition: Partition) -> bool:
        return False

    def replicas(self, partition: Partition) -> Sequence[Replica]:
        return ()

    def leadership(self, partition: Partition | None) -> Leadership:
        """A leader's epochs are its term or above; a client does not go by a hint that is older than what it knows."""
        leader, term = self._leader()
        return Leadership(NOBODY if leader is None else leader, term, (), ())

    def ranges(self) -> Sequence[RangeStatus]:
        return ()

    def away(self) -> Collection[int]:
        return ()

    def replication_factor(self, wanted: int) -> int:
        raise KafkaError(ErrorCode.not_controller)
