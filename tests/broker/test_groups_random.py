"""Many members that do what clients do, and what they should not, over a store that is slow and fails.

After every step the books of the coordinator are checked; every answer is checked against all that was said before;
in the end the members that are left must find a stable group, and those that vanish must leave nothing behind.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pytest
from groups_world import GROUP, Call, FakeMember, World

from broker.groups import GroupState, JoinResult, SyncResult
from broker.groups.group import PENDING_BYTES, Group
from wire.errors import ErrorCode

STEPS = 250
PROTOCOLS = (
    (("range", b"r"),),
    (("range", b"r"), ("sticky", b"s")),
    (("sticky", b"s"), ("range", b"r")),
    (("sticky", b"s2"), ("range", b"r2")),
)


class Auditor:
    """Remembers what members were told and finds contradictions. It knows nothing of how groups work inside."""

    def __init__(self, world: World) -> None:
        self.world = world
        # A generation that was not durable may be counted again after a restart, so they are told apart by life.
        self.life = 0
        self.leaders: dict[tuple[int, int], set[str]] = defaultdict(set)
        self.protocols: dict[tuple[int, int], set[tuple[str | None, str | None]]] = defaultdict(set)
        self.views: dict[tuple[int, int], set[str]] = {}
        self.dynamic: dict[tuple[int, int], set[str]] = defaultdict(set)

    def joined(self, member: FakeMember, offered: set[str], result: JoinResult) -> None:
        if result.error is not ErrorCode.none:
            return
        generation = (self.life, result.generation_id)
        self.protocols[generation].add((result.protocol_type, result.protocol_name))
        assert len(self.protocols[generation]) == 1, "one protocol for all members of a generation"
        assert result.protocol_name in offered
        if member.instance is None:
            self.dynamic[generation].add(result.member_id)
        if result.members and not result.skip_assignment:
            assert result.leader_id == result.member_id, "only a leader sees the members"
            self.leaders[generation].add(result.member_id)
            assert len(self.leaders[generation]) == 1, "at most one leader"
            self.views.setdefault(generation, {joined.member_id for joined in result.members})
        if generation in self.views:
            assert self.dynamic[generation] <= self.views[generation], "nobody the leader does not know of"

    def synced(self, instance: str | None, member_id: str, generation_id: int, result: SyncResult) -> None:
        if result.error is not ErrorCode.none:
            return
        if result.assignment:
            generation, owner = result.assignment.decode().split(" for ")
            assert generation == f"g{generation_id}", "no assignment from another generation"
            mine = owner == member_id if instance is None else owner.startswith(f"{instance}-")
            assert mine, "nobody else's assignment"
        stored = self.world.record()
        assert stored["generation"] == generation_id, "nothing is told that is not durable"
        assert stored["members"][member_id]["assignment"] == result.assignment


class Client(FakeMember):
    """A member with a will: `step` is the next thing a proper client would do."""

    def __init__(self, world: World, auditor: Auditor, name: str, **settings: Any) -> None:
        super().__init__(world, name, **settings)
        self.auditor = auditor
        self.alive = True
        self.must_join = True
        self.synced_generation = -1
        self.last_join = self.last_sync = Call(world, "nothing")
        self.last_join(JoinResult(member_id="", error=ErrorCode.unknown_member_id))

    def step(self) -> None:
        if self.last_join.held or (self.last_sync.held and not self.must_join):
            return
        if self.must_join:
            self.must_join = False
            self.ask_join()
        elif self.synced_generation != self.generation_id:
            self.ask_sync()
        else:
            self.heed(self.heartbeat())

    def heed(self, error: ErrorCode) -> None:
        if error is ErrorCode.fenced_instance_id or error is ErrorCode.group_max_size_reached:
            self.alive = False
        elif error is ErrorCode.unknown_member_id:
            self.member_id = ""
            self.must_join = True
        elif error is not ErrorCode.none:
            self.must_join = True

    def ask_join(self) -> None:
        offered = {name for name, _ in self.protocols}
        call = self.join_once()

        def told(result: JoinResult) -> None:
            self.auditor.joined(self, offered, result)
            if call is self.last_join:
                self.heed(result.error)

        _then(call, told)

    def ask_sync(self) -> None:
        generation_id, member_id = self.generation_id, self.member_id
        call = self.sync()

        def told(result: SyncResult) -> None:
            self.auditor.synced(self.instance, member_id, generation_id, result)
            if call is self.last_sync and generation_id == self.generation_id:
                self.heed(result.error)
                if result.error is ErrorCode.none:
                    self.synced_generation = generation_id

        _then(call, told)


def _then(call: Call, told: Any) -> None:
    """Run `told` with the call's answer, when there is one."""
    if call.held:
        call.then = told
    else:
        told(call.answer)


class Chaos:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        delay_ms = self.random.choice([0, 0, 3_000])
        limit = self.random.choice([3, 100])
        self.world = World(
            slow_store=self.random.random() < 0.7,
            initial_rebalance_delay_ms=delay_ms,
            max_members_per_group=limit,
        )
        self.wildness = self.random.choice([0.1, 0.3, 1.0])
        self.auditor = Auditor(self.world)
        self.clients: list[Client] = []
        self.names = 0

    def new_client(self) -> None:
        self.names += 1
        instance = f"i{self.random.randrange(3)}" if self.random.random() < 0.4 else None
        self.clients.append(
            Client(
                self.world,
                self.auditor,
                f"c{self.names}",
                instance=instance,
                protocols=self.random.choice(PROTOCOLS),
                session_ms=self.random.choice([6_000, 10_000, 45_000]),
                rebalance_ms=self.random.choice([-1, 8_000, 60_000]),
                two_steps=self.random.random() < 0.7,
                can_skip=self.random.random() < 0.8,
            )
        )

    def step(self) -> None:
        if self.random.random() > self.wildness:
            return self.orderly()
        world, roll = self.world, self.random.random()
        alive = [client for client in self.clients if client.alive]
        if (roll < 0.08 and len(alive) < 6) or not alive:
            self.new_client()
        elif roll < 0.20:
            world.advance(self.random.choice([1, 500, 3_000, 3_000, 7_000, 20_000]))
        elif roll < 0.30:
            self.finish_stores()
        elif roll < 0.31:
            world.restart()
            self.auditor.life += 1
            for client in self.clients:  # connections are gone, and what was asked on them
                lost = client.last_join.held or client.last_sync.held
                client.must_join = client.must_join or lost
                client.last_join = client.last_sync = Call(world, "nothing")
                client.last_join(JoinResult(member_id=client.member_id))
        elif roll < 0.34:
            self.random.choice(alive).alive = False  # vanishes without a word
        elif roll < 0.37:
            leaver = self.random.choice(alive)
            leaver.leave()
            leaver.alive = False
        elif roll < 0.47:
            self.misbehave(self.random.choice(alive))
        else:
            self.random.choice(alive).step()
        return None

    def orderly(self) -> None:
        """Half a second in which every client does its next thing."""
        if self.random.random() < 0.8:
            self.finish_stores()
        self.world.advance(500)
        for client in self.clients:
            if client.alive:
                client.step()

    def finish_stores(self) -> None:
        self.world.finish_stores(OSError("EIO") if self.random.random() < 0.05 else None)

    def misbehave(self, client: Client) -> None:
        roll = self.random.randrange(7)
        if roll == 0:
            client.ask_join()  # again, whatever it waits for
        elif roll == 1 and client.generation_id >= 0:
            client.ask_sync()
        elif roll == 2:
            client.protocols = self.random.choice(PROTOCOLS)
            client.must_join = True
        elif roll == 3:
            client.sync(generation_id=client.generation_id - 1)
        elif roll == 4:
            client.commit(transactional=self.random.random() < 0.5)
        elif roll == 5:
            client.join_once(member_id="nobody")
            client.must_join = True
        else:
            for restarting in self.clients:
                if restarting.alive and restarting.instance is not None:
                    restarting.member_id = ""  # the process restarts
                    restarting.must_join = True


def check_books(world: World) -> None:
    """The coordinator's counts against what they count."""
    rebalancer = world.coordinator._rebalancer
    used_bytes = 0
    for group in rebalancer.groups.values():
        check_group(group)
        used_bytes += sum(member.size_bytes for member in group.members.values())
        used_bytes += PENDING_BYTES * len(group.pending)
        if group.state is GroupState.STABLE and group.joins_held:
            assert world.stores_in_flight, "a join held for nothing"
    assert rebalancer.budget.used_bytes == used_bytes


def check_group(group: Group) -> None:
    members = list(group.members.values())
    held_joins = [member for member in members if member.join_reply is not None]
    held_syncs = [member for member in members if member.sync_reply is not None]
    assert group.joins_held == len(held_joins)
    assert group._support == Counter(name for member in members for name in member.protocol_names)
    assert {m.group_instance_id: m.member_id for m in members if m.is_static} == group.static_ids
    assert not group.pending.keys() & group.members.keys()
    assert group.unsynced <= group.members.keys()
    assert all(deadline.due_ms is not None for deadline in group.pending.values())
    for member in members:
        spared = not member.is_new and (member.join_reply or member.sync_reply)
        assert member.session.due_ms is not None or spared, "a member that would live for ever"
    if members:
        assert group.leader_id in group.members
        assert any(count == len(members) for count in group._support.values())
    state = group.state
    assert bool(members) or state in (GroupState.EMPTY, GroupState.PREPARING_REBALANCE)
    assert not held_syncs or state is GroupState.COMPLETING_REBALANCE
    assert not held_joins or state in (GroupState.PREPARING_REBALANCE, GroupState.STABLE)
    assert (group.join_deadline.due_ms is not None) is (state is GroupState.PREPARING_REBALANCE)
    if state is GroupState.EMPTY:
        assert group.generation_id > 0 or group.pending
        assert not members
    if state is GroupState.COMPLETING_REBALANCE:
        assert group.sync_deadline.due_ms is not None or group.storing_generation == group.generation_id
    if state in (GroupState.EMPTY, GroupState.PREPARING_REBALANCE):
        assert group.sync_deadline.due_ms is None


def calm(chaos: Chaos) -> None:
    """The store works again and every client behaves: they must come to rest together."""
    world = chaos.world
    world.finish_stores()
    world.slow_store = False
    if not any(client.alive for client in chaos.clients):
        chaos.new_client()
    for _ in range(200):
        world.advance(1_000)
        for client in chaos.clients:
            for _ in range(3):
                if client.alive:
                    client.step()
        check_books(world)
        alive = [client for client in chaos.clients if client.alive]
        if not alive:
            chaos.new_client()
    assert world.state() is GroupState.STABLE
    assert {client.member_id for client in alive} == set(world.member_ids())
    assert {client.synced_generation for client in alive} == {world.generation()}
    plan = world.record()["members"]
    assert {member_id: member["assignment"] for member_id, member in plan.items()} == {
        member.member_id: member.assignment for member in world.coordinator.describe(GROUP).members
    }


def silence(chaos: Chaos) -> None:
    """Every client vanishes: sessions end, and nothing is left but an empty group."""
    world = chaos.world
    world.advance(1_000_000)
    assert world.unanswered == []
    assert world.state() is GroupState.EMPTY
    assert world.record()["members"] == {}
    assert world.coordinator.next_deadline() is None
    assert world.coordinator._rebalancer.budget.used_bytes == 0
    check_books(world)


@pytest.mark.parametrize("seed", range(150))
def test_whatever_happens(seed: int) -> None:
    chaos = Chaos(seed)
    for _ in range(STEPS):
        chaos.step()
        check_books(chaos.world)
    calm(chaos)
    silence(chaos)


def test_the_chaos_reaches_every_corner() -> None:
    """The test above is worth nothing if its members never meet what it is about."""
    errors: Counter[ErrorCode] = Counter()
    seen = Counter[str]()
    for seed in range(80):
        chaos = Chaos(seed)
        for _ in range(STEPS):
            chaos.step()
            seen[f"state {chaos.world.state()}"] += 1
        for _, answer in chaos.world.transcript:
            errors[answer.error] += 1
            seen["skip"] += isinstance(answer, JoinResult) and answer.skip_assignment
            seen["assignment"] += isinstance(answer, SyncResult) and bool(answer.assignment)
    assert {
        ErrorCode.none,
        ErrorCode.member_id_required,
        ErrorCode.rebalance_in_progress,
        ErrorCode.unknown_member_id,
        ErrorCode.fenced_instance_id,
        ErrorCode.illegal_generation,
        ErrorCode.coordinator_not_available,
        ErrorCode.group_max_size_reached,
    } <= set(errors)
    assert seen["skip"] > 3
    assert seen["assignment"] > 200
    for state in GroupState:
        assert seen[f"state {state}"] > 20 or state is GroupState.DEAD
