"""Members of both protocols that do what clients do, and what they should not, over a store that is slow and fails,
and topics that come, grow and go.

After every step the books of the coordinator are checked, and that no partition is in use by two clients that the
group knows; in the end the members that are left share everything, and those that vanish leave nothing behind.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from consumer_clients import ClassicConsumer, Consumer
from consumer_world import GROUP, ConsumerWorld

from broker.groups.consumer.group import PARTITION_BYTES, ConsumerGroup, size_bytes
from broker.groups.consumer.member import MemberState
from broker.groups.group import PENDING_BYTES
from wire.errors import ErrorCode

STEPS = 250
TOPICS = ("orders", "orders.eu", "bills", "bills.eu", "other")
SUBSCRIPTIONS: tuple[tuple[tuple[str, ...] | None, str | None], ...] = (
    (("orders",), None),
    (("orders", "bills"), None),
    (TOPICS, None),
    (None, "orders.*"),
    (None, ".*[.]eu"),
    (("other",), "bills.*"),
)


class NewClient(Consumer):
    """A client of the new protocol, which may be slow to give up what it should."""

    alive = True

    def live(self) -> None:
        if hasattr(self, "last") and self.last.held:
            return
        if self.errors and self.errors[-1] in FATAL:
            self.alive = False
            return
        super().live()

    def _all(self) -> dict[str, Any]:
        return super()._all() | {"topics": self.topics or (), "pattern": self.pattern or ""}

    @property
    def uses(self) -> dict[tuple[UUID, int], str]:
        return {(topic_id, n): self.member_id for topic_id, numbers in self.owned.items() for n in numbers}


class OldClient(ClassicConsumer):
    """A client of the classic protocol."""

    alive = True

    def _joined(self, result: Any) -> None:
        super()._joined(result)
        if result.error in FATAL:
            self.alive = False


FATAL = (
    ErrorCode.fenced_instance_id,
    ErrorCode.unreleased_instance_id,
    ErrorCode.group_max_size_reached,
    ErrorCode.group_id_not_found,
    ErrorCode.inconsistent_group_protocol,
)

Client = NewClient | OldClient


class Chaos:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = ConsumerWorld(
            {"orders": 4, "bills": 3},
            slow_store=self.random.random() < 0.7,
            classic={"max_members_per_group": self.random.choice([3, 100])},
            migration=self.random.choice(["bidirectional", "bidirectional", "upgrade", "downgrade"]),
            assignment_interval_ms=self.random.choice([0, 1_000]),
        )
        self.classic_share = self.random.choice([0.0, 0.3, 0.6])
        self.wildness = self.random.choice([0.1, 0.3, 1.0])
        self.clients: list[Client] = []
        self.names = 0
        self.seen: Counter[str] = Counter()

    @property
    def alive(self) -> list[Client]:
        return [client for client in self.clients if client.alive]

    def new_client(self) -> None:
        self.names += 1
        name = f"c{self.names}"
        instance = f"i{self.random.randrange(3)}" if self.random.random() < 0.3 else None
        topics, pattern = self.random.choice(SUBSCRIPTIONS)
        if self.random.random() < self.classic_share:
            self.clients.append(
                OldClient(
                    self.world,
                    name,
                    topics or ("orders",),
                    instance=instance,
                    eager=self.random.random() < 0.4,
                    session_ms=self.random.choice([6_000, 45_000]),
                    rebalance_ms=self.random.choice([8_000, 60_000]),
                )
            )
            return
        self.clients.append(
            NewClient(
                self.world,
                name,
                topics=topics,
                pattern=pattern,
                instance=instance,
                rebalance_ms=self.random.choice([5_000, 60_000]),
                assignor=self.random.choice([None, "uniform", "range"]),
                stubborn=self.random.random() < 0.2,
            )
        )

    def step(self) -> None:
        if self.random.random() > self.wildness:
            self.orderly()
            return
        world, roll, alive = self.world, self.random.random(), self.alive
        if (roll < 0.08 and len(alive) < 6) or not alive:
            self.new_client()
        elif roll < 0.18:
            world.advance(self.random.choice([1, 500, 3_000, 7_000, 20_000]))
        elif roll < 0.28:
            self.finish_stores()
        elif roll < 0.30:
            self.restart()
        elif roll < 0.33:
            self.random.choice(alive).alive = False  # vanishes without a word
        elif roll < 0.37:
            self.leave(self.random.choice(alive))
        elif roll < 0.43:
            self.change_topics()
        elif roll < 0.53:
            self.misbehave(self.random.choice(alive))
        else:
            self.random.choice(alive).live()

    def orderly(self) -> None:
        """Half a second in which every client does its next thing."""
        if self.random.random() < 0.8:
            self.finish_stores()
        self.world.advance(500)
        for client in self.alive:
            client.live()

    def finish_stores(self) -> None:
        self.world.finish_stores(OSError("EIO") if self.random.random() < 0.05 else None)

    def restart(self) -> None:
        self.seen["restart"] += 1
        self.world.restart()
        for client in self.clients:  # connections are gone, and what was asked on them
            if isinstance(client, OldClient):
                lost = client.last_join.held or client.last_sync.held
                client.must_join = client.must_join or lost
                for call in (client.last_join, client.last_sync):
                    if call.held:
                        call.answers.append(None)
            elif hasattr(client, "last") and client.last.held:
                client.last.answers.append(None)
                client.lost_track = True

    def leave(self, client: Client) -> None:
        if isinstance(client, OldClient):
            client.leave()
        elif client.instance is not None and self.random.random() < 0.6:
            client.leave(-2)
            if self.random.random() < 0.7:
                again = NewClient(
                    self.world, f"{client.name}'", topics=client.topics, pattern=client.pattern,
                    instance=client.instance,
                )  # fmt: skip
                self.clients.append(again)
        else:
            client.leave()
        client.alive = False

    def change_topics(self) -> None:
        topics, name = self.world.topics, self.random.choice(TOPICS)
        known = topics.get(name)
        if known is None:
            topics.make(name, self.random.randrange(1, 5))
        elif self.random.random() < 0.5:
            topics.grow(name, len(known.partitions) + self.random.randrange(1, 4))
        else:
            topics.delete(name)
        self.seen["topics"] += 1

    def misbehave(self, client: Client) -> None:
        roll = self.random.randrange(5)
        if isinstance(client, OldClient):
            if roll == 0:
                client.must_join = True
            elif roll == 1:
                client.topics = self.random.choice([("orders",), TOPICS])
                client.must_join = True
            elif roll == 2 and client.generation_id >= 0 and not client.last_sync.held:
                client.sync(generation_id=client.generation_id - 1)
            elif roll == 3:
                client.commit(transactional=self.random.random() < 0.5)
            elif not client.last_join.held:
                client.join_once(member_id=f"nobody-{client.name}")
                client.must_join = True
            return
        if hasattr(client, "last") and client.last.held:
            return
        if roll == 0:
            client.join()
        elif roll == 1:
            client.epoch += self.random.choice([-1, 1])
            client.request()
        elif roll == 2:
            client.topics, client.pattern = self.random.choice(SUBSCRIPTIONS)
            client.request(topics=client.topics or (), pattern=client.pattern or "")
        elif roll == 3:
            client.stubborn = not client.stubborn
        elif client.epoch > 0:
            client.beat_in_full()  # as if its last answer got lost


# -- what must hold


def check_books(chaos: Chaos) -> None:
    world = chaos.world
    core = world.coordinator._consumer._core
    used_bytes = 0
    for group in core.groups.values():
        check_group(group)
        used_bytes += group.size_bytes
        chaos.seen[f"group {group.state.value}"] += 1
        for member in group.members.values():
            chaos.seen[f"member {member.state.value}"] += 1
    for classic in world.coordinator._shared.groups.values():
        used_bytes += sum(member.size_bytes for member in classic.members.values())
        used_bytes += PENDING_BYTES * len(classic.pending)
        chaos.seen["classic"] += bool(classic.members)
    assert not core.groups.keys() & world.coordinator._shared.groups.keys()
    if not world.changes_in_flight:  # a classic group that was upgraded counts until that is durable
        assert core.shared.budget.used_bytes == used_bytes
        assert core.books.members == sum(len(group.members) for group in core.groups.values())
    patterns = Counter(p for group in core.groups.values() for p in group.patterns.elements())
    assert core.patterns._users == dict(patterns)


def check_group(group: ConsumerGroup) -> None:
    owners: dict[UUID, dict[int, str]] = {}
    for member in group.members.values():
        for epochs in (member.assigned, member.revoking):
            for topic_id, numbers in epochs.items():
                assert numbers
                for number, epoch in numbers.items():
                    assert number not in owners.setdefault(topic_id, {}), "one owner"
                    assert epoch <= max(member.epoch, group.epoch)
                    owners[topic_id][number] = member.member_id
        timers = group.timers[member.member_id]
        assert timers.session.due_ms is not None, "a member that would live for ever"
        revoking = member.state is MemberState.REVOKING
        assert bool(member.revoking) == revoking
        if not member.speaks_classic:
            assert (timers.rebalance.due_ms is not None) == revoking
        assert member.epoch <= group.assignment_epoch <= group.epoch
    assert group._owners == owners
    assert group.timers.keys() == group.members.keys()
    assert group.target.keys() <= group.members.keys()
    targets = Counter(
        (topic_id, number)
        for partitions in group.target.values()
        for topic_id, numbers in partitions.items()
        for number in numbers
    )
    assert set(targets.values()) <= {1}, "a target has one owner for each partition"
    assert group.static_ids == {
        member.profile.instance_id: member.member_id
        for member in group.members.values()
        if member.profile.instance_id is not None
    }
    assert group.names == Counter(t for member in group.members.values() for t in member.profile.topics)
    assert group.classic_members == sum(member.speaks_classic for member in group.members.values())
    assert group.size_bytes == sum(map(size_bytes, group.members.values())) + PARTITION_BYTES * len(targets)


def check_use(chaos: Chaos) -> None:
    """No partition is used by two clients that the group counts as members in their present epoch."""
    group = chaos.world.coordinator._consumer.groups.get(GROUP)
    if group is None:
        return
    used: dict[tuple[UUID, int], str] = {}
    for client in chaos.clients:
        member = group.members.get(client.member_id)
        if not isinstance(client, NewClient) or member is None or client.epoch != member.epoch:
            continue
        if client.last.held:
            continue
        for at, member_id in client.uses.items():
            assert used.setdefault(at, member_id) == member_id, f"{at} is used twice"
            if chaos.world.topics.get_by_id(at[0]) is not None:
                assert member.given_in(*at) is not None, "nothing is used that the group could give to others"


def calm(chaos: Chaos) -> None:
    """The store works again and every client behaves: they must come to rest together, with everything shared."""
    world = chaos.world
    world.finish_stores()
    world.slow_store = False
    for client in chaos.clients:
        if isinstance(client, NewClient):
            client.stubborn = False
    for _ in range(200):
        world.advance(1_000)
        if not chaos.alive:
            chaos.new_client()
        for _ in range(3):
            for client in chaos.alive:
                client.live()
        check_books(chaos)
        check_use(chaos)
    assert world.unanswered == []
    described = world.coordinator.describe(GROUP)
    assert described.state.value == "Stable", described
    assert {client.member_id for client in chaos.alive} == {one.member_id for one in described.members}
    shared = Counter(
        (topic, number)
        for client in chaos.alive
        for topic, numbers in client.has.items()
        for number in numbers
    )
    assert set(shared.values()) <= {1}
    wanted = {
        (topic.name, number)
        for topic in world.topics
        if any(subscribes(world, client, topic.name) for client in chaos.alive)
        for number in topic.partitions
    }
    if described.group_type == "consumer":
        assert set(shared) == wanted
        chaos.seen["consumer at last"] += 1
    else:
        chaos.seen["classic at last"] += 1


def subscribes(world: ConsumerWorld, client: Client, topic: str) -> bool:
    patterns = world.coordinator._consumer._core.patterns
    if isinstance(client, NewClient) and client.pattern and topic in patterns.matches(client.pattern):
        return True
    return topic in (client.topics or ())


def silence(chaos: Chaos) -> None:
    """Every client vanishes: sessions end, and nothing is left but an empty group."""
    world = chaos.world
    world.advance(1_000_000)
    assert world.unanswered == []
    assert world.coordinator.describe(GROUP).state.value == "Empty"
    assert world.coordinator.describe(GROUP).members == ()
    assert not world.stored[GROUP].state["members"]
    assert world.stored[GROUP].members == world.stored[GROUP].assignments == {}
    assert world.coordinator.next_deadline() is None
    assert world.coordinator._shared.budget.used_bytes == 0
    check_books(chaos)


@pytest.mark.parametrize("seed", range(80))
def test_whatever_happens(seed: int) -> None:
    chaos = Chaos(seed)
    for _ in range(STEPS):
        chaos.step()
        check_books(chaos)
        check_use(chaos)
    calm(chaos)
    silence(chaos)


def test_the_chaos_reaches_every_corner() -> None:
    """The test above is worth nothing if its members never meet what it is about."""
    errors: Counter[ErrorCode] = Counter()
    seen: Counter[str] = Counter()
    for seed in range(40):
        chaos = Chaos(seed)
        for _ in range(STEPS):
            chaos.step()
            check_books(chaos)
        seen += chaos.seen
        for _, answer in chaos.world.transcript:
            if hasattr(answer, "error"):
                errors[answer.error] += 1
    assert {
        ErrorCode.none,
        ErrorCode.fenced_member_epoch,
        ErrorCode.unknown_member_id,
        ErrorCode.unreleased_instance_id,
        ErrorCode.fenced_instance_id,
        ErrorCode.coordinator_not_available,
        ErrorCode.group_max_size_reached,
        ErrorCode.rebalance_in_progress,
        ErrorCode.member_id_required,
    } <= set(errors)
    for state in MemberState:
        assert seen[f"member {state.value}"] > 20 or state is MemberState.JOINING
    for name in ("group Empty", "group Assigning", "group Reconciling", "group Stable", "classic", "topics"):
        assert seen[name] > 50, name
