"""What a node knows of its cluster, as the handlers ask for it: who is there, who leads what, who can be read from.

A broker by itself is a cluster of one: `Alone`. In a cluster the node has a `ClusterView` in its attribute `cluster`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from broker.placement import RangeView
from broker.read_replica import Replica
from txn.partition import Partition
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node

NOBODY = -1
"""In place of a node's number: none is known."""

METADATA = "metadata"
"""The name of the metadata's group, where ranges have groups of their own; all nodes are members of it."""

CURRENT_LAG = 1000
"""Entries: a replica that is not further behind can be made the leader at once."""

GROUP, TRANSACTION = 0, 1
"""What a coordinator is for (FindCoordinator)."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A node as clients reach it."""

    id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Leadership:
    """Of one partition: `leader` may be NOBODY; `epoch` is its range's term; `in_sync` have what is committed."""

    leader: int
    epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RangeStatus:
    """Of one replicated log, as this node sees it. `lag`: entries behind, by replica, where this node leads."""

    name: str
    replicas: tuple[int, ...]
    leader: int
    epoch: int
    learners: tuple[int, ...] = ()
    lag: Mapping[int, int] = field(default_factory=dict)
    led_since_ms: int = 0
    wanted: int | None = None
    barred: frozenset[int] = frozenset()
    is_fixed: bool = False
    is_moving: bool = False
    """These as `RangeView` has them."""

    def for_placement(self) -> RangeView:
        """A replica of which nothing is known counts as current: a transfer to it would wait, or be given up."""
        current = frozenset(node for node in self.replicas if self.lag.get(node, 0) <= CURRENT_LAG)
        leader = self.leader if self.leader != NOBODY else None
        return RangeView(
            self.name,
            self.replicas,
            leader,
            self.learners,
            current,
            self.led_since_ms,
            self.wanted,
            self.barred,
            self.is_fixed,
            self.is_moving,
        )


class ClusterView(Protocol):
    """As this node sees it at the moment; it may be behind. No call waits for anything."""

    @property
    def node_id(self) -> int: ...

    @property
    def fixed_members(self) -> bool:
        """Whether nodes cannot be added or removed while the cluster runs."""
        ...

    def brokers(self) -> Sequence[Broker]:
        """Those that are named to clients; some may be away."""
        ...

    def controller(self) -> int:
        """The node that takes changes of topics and of the cluster, or NOBODY."""
        ...

    def leadership(self, partition: Partition | None) -> Leadership:
        """None: of whatever partition, on a node that leads none."""
        ...

    def leads(self, partition: Partition) -> bool:
        """Whether this node leads it, so far as it knows."""
        ...

    def knows_end(self, partition: Partition) -> bool:
        """Whether its high watermark, on the node that leads it, is no lower than any leader before has told."""
        ...

    def led_lately(self, partition: Partition) -> bool:
        """Whether clients may still have batches under way to, or failing at, the node that led it before this one."""
        ...

    def goes_on(self, partition: Partition) -> bool:
        """Whether transactions came here lately, from a leader to which clients may still have batches under way."""
        ...

    def replicas(self, partition: Partition) -> Sequence[Replica]:
        """All that hold it, as the leader knows them; of use on the leader alone."""
        ...

    def ranges(self) -> Sequence[RangeStatus]:
        """Everything that is replicated, the metadata too."""
        ...

    def away(self) -> Collection[int]:
        """The nodes that do not answer this one."""
        ...

    def coordinator(self, kind: int, key: str) -> int:
        """The node of a GROUP's or a TRANSACTION id's coordinator, or NOBODY."""
        ...

    def replication_factor(self, wanted: int) -> int:
        """Of a new topic; -1: whatever is usual.

        Raises:
            KafkaError: INVALID_REPLICATION_FACTOR: there are not so many nodes.
        """
        ...


class Alone:
    """A cluster of one broker."""

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def node_id(self) -> int:
        return self._node.config.node_id

    @property
    def fixed_members(self) -> bool:
        return True

    def brokers(self) -> Sequence[Broker]:
        config = self._node.config
        return (Broker(config.node_id, *self._node.advertised, config.broker_rack or None),)

    def controller(self) -> int:
        return self.node_id

    def leadership(self, partition: Partition | None) -> Leadership:
        here = (self.node_id,)
        return Leadership(self.node_id, partition.log.term if partition is not None else -1, here, here)

    def leads(self, partition: Partition) -> bool:
        return True

    def knows_end(self, partition: Partition) -> bool:
        return True

    def led_lately(self, partition: Partition) -> bool:
        return False

    def goes_on(self, partition: Partition) -> bool:
        return False

    def replicas(self, partition: Partition) -> Sequence[Replica]:
        return ()

    def ranges(self) -> Sequence[RangeStatus]:
        here = (self.node_id,)
        return [
            RangeStatus(range_name(topic.name, log.first, log.last), here, self.node_id, log.term)
            for topic in self._node.topics
            for log in topic.ranges
        ]

    def away(self) -> Collection[int]:
        return ()

    def coordinator(self, kind: int, key: str) -> int:
        return self.node_id

    def replication_factor(self, wanted: int) -> int:
        if wanted not in (-1, 1):
            raise KafkaError(
                ErrorCode.invalid_replication_factor,
                f"replication factor {wanted} is refused: there is one broker",
            )
        return 1


def range_name(topic: str, first: int, last: int) -> str:
    """What people read: the topic and its partitions."""
    return f"{topic} {first}" if first == last else f"{topic} {first}-{last}"


def of(node: Node) -> ClusterView:
    """The node's view of its cluster."""
    view: ClusterView | None = getattr(node, "cluster", None)
    return view if view is not None else Alone(node)
