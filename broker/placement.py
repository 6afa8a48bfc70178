"""Which nodes hold and lead which ranges: pure functions over plain data (design, section 7).

`place` names the replicas of a new range. `decide` compares what is with what should be and names the next moves, each
with its reason in words; it is called again when they are done, or when something changed. What it guarantees:

- Never two replicas of a range on one node; none is put on a node that is not up, but for `place`'s minority.
- A range is moved replica by replica: the new one is added and has caught up before the old one goes. At most
  `max_replica_moves` ranges are on the move at a time, and one range makes one move at a time.
- No replica is removed if those that stay would have no majority on nodes that are up.
- Every replica move lowers what `placement_cost` sums up, and every leader move for the sake of balance makes the
  fuller of two nodes less full, so moves come to an end: nothing goes to and fro. Cooldowns keep a node that comes and
  goes, and a range whose leader has just changed, from being moved for balance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from broker.placement_cost import NOTHING, Cost, Costs, racks_of

State = Literal["up", "draining", "leaving", "away"]
"""draining: its leaders go, and its replicas where another node can take them. leaving: its replicas go in any case."""


GIVING_UP: tuple[State, ...] = ("draining", "leaving")


class NoPlace(Exception):
    """There are not enough nodes for the replicas that were asked for; says how many there are."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as placement sees it. One that is in no list counts as leaving."""

    id: int
    rack: str | None = None
    """None: a rack of its own."""
    state: State = "up"
    since_ms: int = 0
    """When it came to be in that state."""


@dataclass(frozen=True, slots=True)
class RangeView:
    """A range as placement sees it: whatever is replicated as one log, the metadata too."""

    name: str
    """Unique; it is what people read in reasons."""
    replicas: tuple[int, ...]
    """Voters."""
    leader: int | None = None
    learners: tuple[int, ...] = ()
    """Replicas that are catching up; they become voters by themselves."""
    current: frozenset[int] = frozenset()
    """Voters that have nearly all of the log, so that they can take over at once."""
    led_since_ms: int = 0
    wanted: int | None = None
    """How many replicas it should have; None: as many as the policy says."""
    barred: frozenset[int] = frozenset()
    """Nodes that cannot be given a replica of it."""
    is_fixed: bool = False
    """Its replicas are no matter of placement; its leader is."""
    is_moving: bool = False
    """A change of its replicas is ordered and not done: no other one is decided but to give that one up."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits of moves. Times in milliseconds."""

    replication_factor: int = 3
    leader_cooldown_ms: int = 30_000
    """A leader that is younger is not moved for balance."""
    return_cooldown_ms: int = 10_000
    """A node that came up later than that gets no leaders for balance."""
    max_leader_moves: int = 8
    max_replica_moves: int = 1


@dataclass(frozen=True, slots=True)
class AddReplica:
    """Make `node` a learner of the range, and a voter when it has caught up."""

    range: str
    node: int
    reason: str = field(compare=False)

    def __str__(self) -> str:
        return f"{self.range}: add a replica on node {self.node}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RemoveReplica:
    """Take `node`, a voter or a learner, out of the range's group."""

    range: str
    node: int
    reason: str = field(compare=False)

    def __str__(self) -> str:
        return f"{self.range}: remove the replica on node {self.node}: {self.reason}"


@dataclass(frozen=True, slots=True)
class MoveLeader:
    """Transfer the leadership of the range."""

    range: str
    source: int
    target: int
    reason: str = field(compare=False)

    def __str__(self) -> str:
        return f"{self.range}: move the leader from node {self.source} to node {self.target}: {self.reason}"


Move = AddReplica | RemoveReplica | MoveLeader
"""Two moves are equal if they do the same, for whatever reason."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`moves` may be made at the same time. `waiting` says in words what should be done and cannot be, and why."""

    moves: tuple[Move, ...] = ()
    waiting: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The dry run: a line per move, then what waits."""
        if not self.moves and not self.waiting:
            return ["nothing to move: every range is where it should be"]
        return [str(move) for move in self.moves] + [f"waiting: {one}" for one in self.waiting]


def place(nodes: Sequence[NodeView], ranges: Sequence[RangeView], replication_factor: int) -> tuple[int, ...]:
    """The replicas of a new range, over as many racks as can be, on the nodes that hold least; the first should lead.

    A node that is away is named only where there are not enough others, and never for more than a minority.

    Raises:
        NoPlace: fewer nodes than replicas can be had.
    """
    held = Counter(node for one in ranges for node in one.replicas + one.learners)
    led = Counter(one.leader for one in ranges)
    racks = racks_of((node.id, node.rack) for node in nodes)
    chosen: list[int] = []
    for state in ("up", "away"):
        left = [node.id for node in nodes if node.state == state]
        while left and len(chosen) < replication_factor:
            used = Counter(racks[node] for node in chosen)
            best = min(left, key=lambda node: (used[racks[node]], held[node], led[node], node))
            chosen.append(best)
            left.remove(best)
    up = {node.id for node in nodes if node.state == "up"}
    if len(chosen) < replication_factor or not _majority(chosen, up):
        raise NoPlace(
            f"{replication_factor} replicas are asked for; of {len(nodes)} nodes {len(up)} are up and not draining"
        )
    return tuple(sorted(chosen, key=lambda node: (node not in up, led[node], chosen.index(node))))


def decide(nodes: Sequence[NodeView], ranges: Sequence[RangeView], policy: Policy, now_ms: int) -> Plan:
    """The next moves, the most urgent first: at most one per range."""
    return _Decision(nodes, ranges, policy, now_ms).plan()


def _majority(replicas: Iterable[int], up: set[int]) -> bool:
    members = tuple(replicas)
    return sum(node in up for node in members) > len(members) // 2


class _Decision:
    """The work of one `decide`."""

    def __init__(
        self, nodes: Sequence[NodeView], ranges: Sequence[RangeView], policy: Policy, now_ms: int
    ) -> None:
        self.nodes = {node.id: node for node in nodes}
        self.ranges = ranges
        self.policy = policy
        self.now_ms = now_ms
        self.up = {node.id for node in nodes if node.state == "up"}
        self.led = Counter(one.leader for one in ranges if one.leader is not None)
        """Leaders per node, with the moves that were decided so far."""
        self.moves: list[Move] = []
        self.touched: set[str] = set()
        self.waiting: list[str] = []
        assert len(self.nodes) == len(nodes), "a node is named twice"
        assert len({one.name for one in ranges}) == len(ranges), "a range is named twice"

    def plan(self) -> Plan:
        self._drain_leaders()
        self._move_replicas()
        self._spread_leaders()
        return Plan(tuple(self.moves), tuple(self.waiting))

    def _move(self, move: Move) -> None:
        self.moves.append(move)
        self.touched.add(move.range)
        if isinstance(move, MoveLeader):
            self.led[move.source] -= 1
            self.led[move.target] += 1

    def _gives_up_leaders(self, node_id: int) -> bool:
        return node_id in self.nodes and self.nodes[node_id].state in GIVING_UP

    def _leaving(self, node_id: int) -> bool:
        return node_id not in self.nodes or self.nodes[node_id].state == "leaving"

    def _why_not(self, node_id: int) -> str:
        node = self.nodes.get(node_id)
        return f"node {node_id} was removed" if node is None else f"node {node_id} is {node.state}"

    # -- leaders

    def _room_for_leaders(self) -> bool:
        return sum(isinstance(move, MoveLeader) for move in self.moves) < self.policy.max_leader_moves

    def _successors(self, one: RangeView) -> list[int]:
        """Who could lead it instead: the least busy first."""
        able = [
            node for node in one.replicas if node in self.up and node in one.current and node != one.leader
        ]
        return sorted(able, key=lambda node: (self.led[node], node))

    def _drain_leaders(self) -> None:
        """Off nodes that are draining: at once, whatever their age."""
        for one in self.ranges:
            if one.leader is None or not self._gives_up_leaders(one.leader):
                continue
            able = self._successors(one)
            if not able:
                self.waiting.append(
                    f"{one.name}: {self._why_not(one.leader)}, but no other replica can lead yet"
                )
            elif self._room_for_leaders():
                self._move(MoveLeader(one.name, one.leader, able[0], self._why_not(one.leader)))

    def _spread_leaders(self) -> None:
        """From a node to another that leads at least two ranges less, until no such move is left or allowed."""
        while self._room_for_leaders():
            widest: tuple[int, RangeView, int] | None = None
            for one in self.ranges:
                found = self._lighter(one)
                if found is not None and (widest is None or found[0] > widest[0]):
                    widest = found[0], one, found[1]
            if widest is None:
                return
            _, one, target = widest
            assert one.leader is not None
            source = one.leader
            counts = f"node {source} leads {self.led[source]} ranges, node {target} leads {self.led[target]}"
            self._move(MoveLeader(one.name, source, target, counts))

    def _lighter(self, one: RangeView) -> tuple[int, int] | None:
        """(how many ranges less it leads, node) of the replica that the range's leader should move to for balance."""
        policy = self.policy
        if one.leader not in self.up or one.name in self.touched or one.learners:
            return None
        if self.now_ms - one.led_since_ms < policy.leader_cooldown_ms:
            return None
        for target in self._successors(one):
            gap = self.led[one.leader] - self.led[target]
            if gap >= 2 and self.now_ms - self.nodes[target].since_ms >= policy.return_cooldown_ms:
                return gap, target
        return None

    # -- replicas

    def _move_replicas(self) -> None:
        moving = [one for one in self.ranges if not one.is_fixed and self._is_moving(one)]
        staying = {node.id: node.rack for node in self.nodes.values() if node.state not in GIVING_UP}
        held = Counter(node for one in self.ranges for node in one.replicas + one.learners)
        costs = Costs(staying, held, self.policy.replication_factor)
        for one in moving:
            if one.name not in self.touched:
                self._go_on(one, costs)
        for _ in range(self.policy.max_replica_moves - len(moving)):
            found = self._next_replica_move(costs)
            if found is None:
                return
            self._move(found)
            costs.held[found.node] += 1 if isinstance(found, AddReplica) else -1

    def _wanted(self, one: RangeView) -> int:
        return self.policy.replication_factor if one.wanted is None else one.wanted

    def _is_moving(self, one: RangeView) -> bool:
        return one.is_moving or bool(one.learners) or len(one.replicas) > self._wanted(one)

    def _go_on(self, one: RangeView, costs: Costs) -> None:
        """What a range that is on the move needs next."""
        for node_id in one.learners:
            if node_id not in self.up:
                reason = f"{self._why_not(node_id)}, and was only catching up"
                self._move(RemoveReplica(one.name, node_id, reason))
                return
        if one.learners or one.is_moving:
            return
        # It has one more than it should: the one without which the whole is best.
        choices = [node for node in one.replicas if _majority(_less(one.replicas, node), self.up)]
        if not choices:
            self.waiting.append(
                f"{one.name}: has too many replicas, but without one of them it had no majority"
            )
            return

        def order(node: int) -> tuple[Cost, bool, int]:
            rest = _less(one.replicas, node)
            return costs.change(one.replicas, rest, self._wanted(one)), node == one.leader, node

        self._remove(one, min(choices, key=order))

    def _remove(self, one: RangeView, node_id: int) -> None:
        """The leader hands over first."""
        node = self.nodes.get(node_id)
        if node is None or node.state != "up":
            reason = f"{self._why_not(node_id)}, and another node has taken its place"
        else:
            reason = f"it has {len(one.replicas)} replicas, {self._wanted(one)} are wanted"
        if one.leader != node_id:
            self._move(RemoveReplica(one.name, node_id, reason))
            return
        able = self._successors(one)
        if able:
            self._move(MoveLeader(one.name, node_id, able[0], f"its replica on node {node_id} goes next"))
        else:
            self.waiting.append(f"{one.name}: the replica on node {node_id} goes, but no other can lead yet")

    def _next_replica_move(self, costs: Costs) -> AddReplica | RemoveReplica | None:
        """The move of a range that is at rest that makes the whole best, or None: nothing gets better."""
        best: tuple[Cost, str, int] | None = None
        found: AddReplica | RemoveReplica | None = None
        for one in self.ranges:
            if one.name in self.touched or one.is_fixed or self._is_moving(one):
                continue
            wanted = self._wanted(one)
            candidates = sorted(self.up - one.barred.union(one.replicas))
            lost = [node for node in one.replicas if node not in costs.racks]
            if not candidates and (lost or len(one.replicas) < wanted):
                found = found or self._shrink(one, lost)
                continue
            for target in candidates:
                for gone in [None] if len(one.replicas) < wanted else one.replicas:
                    goal = (*_less(one.replicas, gone), target)
                    order = costs.change(one.replicas, goal, wanted), one.name, target
                    if order[0] < NOTHING and (best is None or order < best):
                        best = order
                        found = AddReplica(one.name, target, self._why_add(one, gone, target, costs))
        return found

    def _shrink(self, one: RangeView, lost: list[int]) -> RemoveReplica | None:
        """No node is left to take a replica: a leaving node's goes all the same, a draining node keeps its own."""
        for node in lost:
            rest = _less(one.replicas, node)
            if self._leaving(node) and node != one.leader and _majority(rest, self.up):
                return RemoveReplica(
                    one.name, node, f"{self._why_not(node)}, and no other node can take its place"
                )
        if lost:
            why = f"its replica on node {lost[0]} should go ({self._why_not(lost[0])}), but no other node can take it"
        else:
            have = f"{len(one.replicas)} of {self._wanted(one)}"
            why = f"it has {have} replicas, and no node is free for one more"
        self.waiting.append(f"{one.name}: {why}")
        return None

    def _why_add(self, one: RangeView, gone: int | None, target: int, costs: Costs) -> str:
        if gone is None:
            return f"it has {len(one.replicas)} of {self._wanted(one)} replicas"
        if gone not in costs.racks:
            return f"in place of node {gone}: {self._why_not(gone)}"
        racks = Counter(costs.racks[node] for node in one.replicas if node in costs.racks)
        crowd = racks[costs.racks[gone]]
        if crowd > racks[costs.racks[target]] + 1:
            return f"in place of node {gone}: {crowd} replicas of it are in rack {self.nodes[gone].rack}"
        counts = f"holds {costs.held[gone]} replicas; node {target} holds {costs.held[target]}"
        return f"in place of node {gone}, which {counts}"


def _less(replicas: Sequence[int], gone: int | None) -> tuple[int, ...]:
    return tuple(node for node in replicas if node != gone)
