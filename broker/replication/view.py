"""What the leader's handlers know of the cluster: who is there, who leads. In a node's attribute `cluster`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from broker.cluster_view import CURRENT_LAG, Broker, Leadership, RangeStatus
from broker.read_replica import Replica
from raftish.host import Group
from storage.clock import Scheduler
from txn.partition import Partition
from wire.errors import ErrorCode, KafkaError

LATELY_MS: Final = 60_000
"""As long as librdkafka waits for an answer by default (`socket.timeout.ms`): what a client had under way to the leader
of before has failed by then, and is being sent again."""


class View:
    """As the leader sees it."""

    def __init__(
        self,
        node_id: int,
        group: Group,
        named: Callable[[], Sequence[Broker]],
        here: Callable[[], Collection[int]],
        clock: Scheduler,
    ) -> None:
        """`named` gives the nodes that clients hear of, `here` the numbers of those that were heard lately."""
        self.node_id = node_id
        self._group = group
        self._named = named
        self._here = here
        self._clock = clock
        self._led_since_ms = clock.now_ms()
        self._began_ms = clock.monotonic_ms()

    @property
    def fixed_members(self) -> bool:
        return False

    @property
    def _voters(self) -> tuple[int, ...]:
        return tuple(sorted(self._group.raft.membership.voters))

    def brokers(self) -> Sequence[Broker]:
        return self._named()

    def controller(self) -> int:
        return self.node_id

    def coordinator(self, kind: int, key: str) -> int:
        return self.node_id

    def leads(self, partition: Partition) -> bool:
        return True

    def knows_end(self, partition: Partition) -> bool:
        return True

    def led_lately(self, partition: Partition) -> bool:
        return self._clock.monotonic_ms() - self._began_ms < LATELY_MS

    def goes_on(self, partition: Partition) -> bool:
        return False

    def replicas(self, partition: Partition) -> Sequence[Replica]:
        """None but the leader can be read from."""
        return ()

    def leadership(self, partition: Partition | None) -> Leadership:
        lag = self.lag()
        in_sync = tuple(node for node in self._voters if lag.get(node, 0) <= CURRENT_LAG)
        epoch = partition.log.term if partition is not None else -1
        return Leadership(self.node_id, epoch, self._voters, in_sync)

    def lag(self) -> dict[int, int]:
        """Of each node: how many entries it is behind. A node that is away counts as behind by all."""
        raft = self._group.raft
        here = self._here()
        lag = {self.node_id: 0}
        if raft.leadership is not None:
            for node, progress in raft.leadership.progress.items():
                if node != self.node_id:
                    away = 0 if node in here else CURRENT_LAG + 1
                    lag[node] = max(raft.log.last_index - progress.match, away)
        return lag

    def ranges(self) -> Sequence[RangeStatus]:
        """Everything is one log."""
        raft = self._group.raft
        return [
            RangeStatus(
                "everything",
                self._voters,
                self.node_id,
                raft.term,
                tuple(sorted(raft.membership.learners)),
                self.lag(),
                self._led_since_ms,
            )
        ]

    def away(self) -> Collection[int]:
        here = self._here()
        return [node for node in self._group.raft.membership if node not in here]

    def replication_factor(self, wanted: int) -> int:
        """All nodes have everything."""
        count = len(self._voters)
        if wanted == -1 or 1 <= wanted <= count:
            return count
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"replication factor {wanted} is refused: the cluster has {count} nodes, which have everything",
        )
