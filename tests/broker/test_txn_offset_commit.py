"""Who may commit offsets of a group in a transaction (KIP-447), on the wire: by generation, member and instance, in
classic groups and in those of the new protocol. The rules alone: test_groups_errors.py, test_consumer_commits.py.

Whoever is refused holds nothing, and its transaction goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.sim_groups import Member, committed, subscription
from support.sim_node import SimNode
from support.sim_producer import Producer, create_topic
from support.sim_transactions import Caller
from test_node_consumer_groups import Member as ConsumerMember

from wire.apis import ApiKey
from wire.errors import ErrorCode

OK = ErrorCode.none
GENERATION = ErrorCode.illegal_generation
UNKNOWN = ErrorCode.unknown_member_id
FENCED = ErrorCode.fenced_instance_id

MEMBER_VERSION = 3
"""Below it TxnOffsetCommit says nothing of members, and is trusted."""


class Who:
    """The member that is in the group, as its own requests name it."""

    def __init__(self, member: str = "", generation: int = -1, instance: str | None = None) -> None:
        self.member = member
        self.generation = generation
        self.instance = instance


def no_group(_: SimNode) -> Who:
    return Who("somebody", 1)


def empty_classic(world: SimNode) -> Who:
    member = Member(world.client(), "g", "t").settle()
    member.leave()
    return Who(member.member_id, member.generation_id)


def stable_classic(world: SimNode) -> Who:
    member = Member(world.client(), "g", "t").settle()
    return Who(member.member_id, member.generation_id)


def rebalancing_classic(world: SimNode) -> Who:
    """A second member wants in: the first may still commit for its generation."""
    who = stable_classic(world)
    newcomer = Member(world.client(), "g", "t")
    first = newcomer.client.ask(ApiKey.JOIN_GROUP, 5, **newcomer.join_fields())
    newcomer.member_id = first.member_id
    newcomer.client.send(ApiKey.JOIN_GROUP, 5, **newcomer.join_fields())
    world.scheduler.run_ready()
    return who


def static_classic(world: SimNode) -> Who:
    client = world.client()
    joined = client.ask(
        ApiKey.JOIN_GROUP,
        5,
        group_id="g",
        session_timeout=30_000,
        rebalance_timeout=60_000,
        member_id="",
        group_instance_id="i",
        protocol_type="consumer",
        protocols=({"name": "range", "metadata": subscription("t")},),
    )
    assert joined.error_code is OK
    synced = client.ask(
        ApiKey.SYNC_GROUP,
        3,
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        group_instance_id="i",
        assignments=({"member_id": joined.member_id, "assignment": b"mine"},),
    )
    assert synced.error_code is OK
    return Who(joined.member_id, joined.generation_id, "i")


def consumer(world: SimNode, instance: str | None = None) -> Who:
    member = ConsumerMember(world.client(), "anna", group="g", instance=instance)
    assert member.join("t").error_code is OK
    assert member.beat().error_code is OK
    return Who("anna", member.epoch, instance)


def static_consumer(world: SimNode) -> Who:
    return consumer(world, "i")


def empty_consumer(world: SimNode) -> Who:
    member = ConsumerMember(world.client(), "anna", group="g")
    assert member.join("t").error_code is OK
    epoch = member.epoch
    assert member.ask(member_epoch=-1).error_code is OK
    return Who("anna", epoch)


GROUPS: dict[str, Callable[[SimNode], Who]] = {
    "no group": no_group,
    "empty classic": empty_classic,
    "stable classic": stable_classic,
    "rebalancing classic": rebalancing_classic,
    "static classic": static_classic,
    "consumer": consumer,
    "static consumer": static_consumer,
    "empty consumer": empty_consumer,
}

CHANGES: dict[str, Callable[[Who], dict[str, Any]]] = {
    "itself": lambda who: {},
    "nobody in particular": lambda who: {"member": "", "generation": -1, "instance": None},
    "an older generation": lambda who: {"generation": who.generation - 1},
    "a newer generation": lambda who: {"generation": who.generation + 1},
    "another member": lambda who: {"member": "another"},
    "no member id": lambda who: {"member": ""},
    "no generation": lambda who: {"generation": -1},
    "an unknown instance": lambda who: {"instance": "unknown"},
    "another member of the instance": lambda who: {"member": "another", "instance": who.instance},
}

LIVING = {
    "itself": OK,
    "nobody in particular": OK,
    "an older generation": GENERATION,
    "a newer generation": GENERATION,
    "another member": UNKNOWN,
    "no member id": UNKNOWN,
    "no generation": GENERATION,
    "an unknown instance": UNKNOWN,
    "another member of the instance": UNKNOWN,
}
NOBODY_THERE = {
    "itself": UNKNOWN,
    "nobody in particular": OK,
    "an older generation": UNKNOWN,
    "a newer generation": UNKNOWN,
    "another member": UNKNOWN,
    "no member id": UNKNOWN,
    "no generation": OK,
    "an unknown instance": UNKNOWN,
    "another member of the instance": UNKNOWN,
}
# Only classic groups look at the instance; those of the new protocol know their static members by epochs.
TABLE: dict[str, dict[str, ErrorCode]] = {
    "no group": dict.fromkeys(CHANGES, GENERATION) | {"nobody in particular": OK, "no generation": OK},
    "empty classic": NOBODY_THERE,
    "stable classic": LIVING,
    "rebalancing classic": LIVING,
    "static classic": LIVING
    | {"another member": FENCED, "no member id": FENCED, "another member of the instance": FENCED},
    "consumer": LIVING | {"an unknown instance": OK},
    "static consumer": LIVING | {"an unknown instance": OK},
    "empty consumer": NOBODY_THERE,
}


@pytest.mark.parametrize("version", [0, 2, 3, 4, 5])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("group", GROUPS)
def test_who_may_commit(group: str, change: str, version: int) -> None:
    world = SimNode()
    create_topic(world.client(), "t", 2)
    who = GROUPS[group](world)
    named = vars(who) | CHANGES[change](who)
    producer = Producer(world.client(), "p", v2=version == 5)
    assert producer.init() is OK
    caller = Caller.of(producer)
    if version < 5:
        assert caller.add_offsets(3) is OK
    assert producer.send("t", {0: [b"a"]}) == {0: OK}
    code = caller.commit_offset(version, 7, **named)
    assert code is (TABLE[group][change] if version >= MEMBER_VERSION else OK)
    assert caller.commit(5 if version == 5 else 3) is OK, "the transaction is none the worse"
    assert committed(world.client(), "g") == ({("t", 0): 7} if code is OK else {})


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_restarted_instance_fences_the_one_before(version: int) -> None:
    """A static member comes back under a new member id: what its former self sends is refused for good."""
    world = SimNode()
    create_topic(world.client(), "t", 2)
    former, present = static_classic(world), static_classic(world)
    assert former.member != present.member
    producer = Producer(world.client(), "p", v2=version == 5)
    assert producer.init() is OK
    caller = Caller.of(producer)
    if version < 5:
        assert caller.add_offsets(3) is OK
    assert caller.commit_offset(version, 7, **vars(former)) is FENCED
    assert caller.commit_offset(version, 8, **vars(present)) is OK
    assert caller.commit(5 if version == 5 else 3) is OK
    assert committed(world.client(), "g") == {("t", 0): 8}


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_member_that_the_group_has_moved_on_from(version: int) -> None:
    """KIP-447's own case: an owner that slept through a rebalance must not commit what its successor works on."""
    world = SimNode()
    create_topic(world.client(), "t", 2)
    sleeper = Member(world.client(), "g", "t", session_timeout_ms=6_000).settle()
    producer = Producer(world.client(), "sleeper", v2=version == 5)
    assert producer.init() is OK
    assert producer.send("t", {0: [b"twice"]}) == {0: OK}
    world.scheduler.advance(7_000)
    successor = Member(world.client(), "g", "t").settle()
    caller = Caller.of(producer)
    if version < 5:
        assert caller.add_offsets(3) is OK
    late = {"member": sleeper.member_id, "generation": sleeper.generation_id}
    assert caller.commit_offset(version, 7, **late) is UNKNOWN
    assert caller.abort(5 if version == 5 else 3) is OK
    assert successor.commit({("t", 0): 5}) is OK
    assert committed(world.client(), "g") == {("t", 0): 5}


@pytest.mark.parametrize("version", [3, 4])
def test_a_member_that_the_group_moves_on_from_while_its_commit_waits(version: int) -> None:
    """Another transaction holds the offset, so this one waits; when its turn comes its generation is over."""
    world = SimNode()
    create_topic(world.client(), "t", 2)
    other = Producer(world.client(), "other")
    assert other.init() is OK
    assert other.commit_offsets("g", {("t", 0): 50}) is OK
    sleeper = Member(world.client(), "g", "t", session_timeout_ms=6_000).settle()
    producer = Producer(world.client(), "sleeper", v2=False)
    assert producer.init() is OK
    caller = Caller.of(producer)
    assert caller.add_offsets(3) is OK
    waiting = caller.send_offset(version, 7, member=sleeper.member_id, generation=sleeper.generation_id)
    world.scheduler.advance(7_000)
    Member(world.client(), "g", "t").settle()
    assert waiting not in caller.client.answers
    assert other.end() is OK
    world.scheduler.run_until(lambda: waiting in caller.client.answers)
    assert caller.client.answers[waiting].topics[0].partitions[0].error_code is UNKNOWN
    assert caller.commit(3) is OK
    assert committed(world.client(), "g") == {("t", 0): 50}
