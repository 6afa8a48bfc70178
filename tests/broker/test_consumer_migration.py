"""Groups that change their protocol, and classic members in groups of the new one (KIP-848)."""

from __future__ import annotations

from typing import Any

import pytest
from consumer_clients import ClassicConsumer
from consumer_world import GROUP, ConsumerWorld

from broker.groups import ConsumerGroupState, GroupState, JoinResult
from broker.groups.consumer.embedded import read_assignment, write_assignment
from wire.errors import ErrorCode


def classic_group(world: ConsumerWorld, *names: str, **settings: Any) -> list[ClassicConsumer]:
    """A stable classic group."""
    members = [world.classic(name, **settings) for name in names]
    world.settle(*members)
    assert world.coordinator.describe(GROUP).state is GroupState.STABLE
    return members


def all_shares(*members: Any) -> list[tuple[str, int]]:
    return sorted(
        (topic, number) for member in members for topic, numbers in member.has.items() for number in numbers
    )


EVERYTHING = [("orders", number) for number in range(4)]


# -- up


@pytest.mark.parametrize("eager", [False, True])
def test_a_classic_group_takes_a_member_of_the_new_protocol(eager: bool) -> None:
    world = ConsumerWorld()
    anna, ben = classic_group(world, "anna", "ben", eager=eager)
    generation = anna.generation_id
    carl = world.consumer("carl")
    assert carl.join().answer.error is ErrorCode.none
    assert carl.has == {}
    assert (carl.epoch, world.epoch) == (generation + 1, generation + 1)
    assert world.owners() == {("orders", n): [(anna, ben)[n % 2].member_id] for n in range(4)}
    world.settle(anna, ben, carl)
    assert all_shares(anna, ben, carl) == EVERYTHING
    assert sorted(len(member.has["orders"]) for member in (anna, ben, carl)) == [1, 1, 2]
    kinds = {member.member_id: member.speaks_classic for member in world.description.members}
    assert kinds == {anna.member_id: True, ben.member_id: True, "carl": False}
    assert world.coordinator.describe(GROUP).group_type == "consumer"


def test_the_upgrade_is_one_change() -> None:
    world = ConsumerWorld()
    anna, _ = classic_group(world, "anna", "ben")
    stored = world.changes_stored
    world.consumer("carl").join()
    assert world.changes_stored == stored + 1
    assert world.stored[GROUP].is_consumer_group
    assert len(world.stored[GROUP].members) == 3
    world.restart()
    assert anna.heartbeat() is ErrorCode.rebalance_in_progress


def test_a_rolling_upgrade() -> None:
    world = ConsumerWorld()
    old = classic_group(world, "anna", "ben", "carl")
    members: list[Any] = list(old)
    for position, leaver in enumerate(old):
        leaver.leave()
        members[position] = world.consumer(f"new-{position}")
        world.settle(*members)
        assert all_shares(*members) == EVERYTHING
    assert world.group_state is ConsumerGroupState.STABLE
    assert {member.speaks_classic for member in world.description.members} == {False}


def test_held_joins_and_syncs_are_told_to_join_again() -> None:
    world = ConsumerWorld()
    anna, ben = classic_group(world, "anna", "ben")
    ben.topics = ("orders", "bills")
    joining = ben.join_once()
    assert joining.held
    world.consumer("carl").join()
    assert joining.answer.error is ErrorCode.rebalance_in_progress
    assert joining.answer.member_id == ben.member_id

    world = ConsumerWorld()
    anna, ben = world.classic("anna"), world.classic("ben")
    anna.join()
    ben.join()
    anna.join()
    syncing = ben.sync()
    assert syncing.held
    carl = world.consumer("carl")
    carl.join()
    assert syncing.answer.error is ErrorCode.rebalance_in_progress
    anna.must_join = ben.must_join = True
    world.settle(anna, ben, carl)
    assert all_shares(anna, ben, carl) == EVERYTHING


def test_ids_that_were_handed_out_are_good_in_the_new_group() -> None:
    world = ConsumerWorld()
    (anna,) = classic_group(world, "anna")
    ben = world.classic("ben")
    assert ben.join_once().answer.error is ErrorCode.member_id_required
    carl = world.consumer("carl")
    carl.join()
    assert ben.join_once().answer.error is ErrorCode.none
    world.settle(anna, ben, carl)


def test_a_group_in_its_first_rebalance_is_upgraded() -> None:
    world = ConsumerWorld(classic={"initial_rebalance_delay_ms": 3_000})
    ben = world.classic("ben")
    joining = ben.join()
    assert joining.held
    carl = world.consumer("carl")
    assert carl.join().answer.error is ErrorCode.none
    assert joining.answer.error is ErrorCode.rebalance_in_progress
    ben.must_join = True
    world.settle(ben, carl)
    assert all_shares(ben, carl) == EVERYTHING


def test_an_empty_classic_group_gives_way() -> None:
    world = ConsumerWorld()
    (anna,) = classic_group(world, "anna")
    anna.leave()
    carl = world.consumer("carl")
    assert carl.join().answer.member_epoch == 2
    assert carl.has == {"orders": {0, 1, 2, 3}}
    assert world.coordinator._shared.groups == {}


REFUSED: dict[str, Any] = {
    "another protocol type": {"protocol_type": "connect"},
    "metadata that is none": {"protocols": (("range", b"?"),)},
}


@pytest.mark.parametrize("name", REFUSED)
def test_classic_groups_that_are_left_alone(name: str) -> None:
    world = ConsumerWorld()
    anna = world.classic("anna")
    anna.join_once()
    anna.join_once(**REFUSED[name])
    anna.leads = False  # it makes no plan of its own
    anna.sync(assignments=[(anna.member_id, b"")])
    answer = world.consumer("carl").join().answer
    assert answer.error is ErrorCode.group_id_not_found
    assert answer.message
    assert anna.heartbeat() is ErrorCode.none
    assert world.coordinator.describe(GROUP).state is GroupState.STABLE


@pytest.mark.parametrize(
    "assignment",
    [
        pytest.param(write_assignment(1, {"orders": frozenset({0})})[:-4] + b"\0\0\0\1x", id="user data"),
        pytest.param(b"\0\1\xff\xff\xff\xff", id="no assignment"),
    ],
)
def test_assignments_that_only_their_assignor_understands(assignment: bytes) -> None:
    world = ConsumerWorld()
    anna = world.classic("anna")
    anna.join()
    anna.sync(assignments=[(anna.member_id, assignment)])
    assert world.consumer("carl").join().answer.error is ErrorCode.group_id_not_found
    assert anna.heartbeat() is ErrorCode.none


def test_a_group_whose_leader_gave_a_partition_twice_is_left_alone() -> None:
    world = ConsumerWorld()
    anna, ben = world.classic("anna"), world.classic("ben")
    anna.join()
    ben.join()
    anna.join()
    twice = write_assignment(1, {"orders": frozenset({0})})
    ben.sync()
    anna.sync(assignments=[(anna.member_id, twice), (ben.member_id, twice)])
    answer = world.consumer("carl").join().answer
    assert answer.error is ErrorCode.group_id_not_found
    assert "orders" not in answer.message or anna.heartbeat() is ErrorCode.none


def test_an_assignment_of_what_is_not_there_is_let_go() -> None:
    world = ConsumerWorld()
    anna = world.classic("anna")
    anna.join()
    plan = write_assignment(1, {"orders": frozenset({0, 99}), "nothing": frozenset({1})})
    anna.sync(assignments=[(anna.member_id, plan)])
    world.consumer("carl").join()
    owners = world.owners()
    assert [at for at, (owner,) in owners.items() if owner == anna.member_id] == [("orders", 0)]
    assert ("nothing", 1) not in owners


def test_the_policy_forbids_it() -> None:
    for policy in ("disabled", "downgrade"):
        world = ConsumerWorld(migration=policy)
        (anna,) = classic_group(world, "anna")
        assert world.consumer("carl").join().answer.error is ErrorCode.group_id_not_found
        assert anna.heartbeat() is ErrorCode.none


def test_a_full_classic_group() -> None:
    world = ConsumerWorld(classic={"max_members_per_group": 1})
    (anna,) = classic_group(world, "anna")
    assert world.consumer("carl").join().answer.error is ErrorCode.group_max_size_reached
    assert anna.heartbeat() is ErrorCode.none


def test_an_upgrade_that_cannot_be_stored_is_undone() -> None:
    world = ConsumerWorld()
    anna, ben = classic_group(world, "anna", "ben")
    budget = world.coordinator._shared.budget
    used = budget.used_bytes
    world.slow_store = True
    call = world.consumer("carl").join()
    world.finish_stores(OSError("EIO"))
    assert call.answer.error is ErrorCode.coordinator_not_available
    world.slow_store = False
    assert world.coordinator.describe(GROUP).state is GroupState.PREPARING_REBALANCE
    assert budget.used_bytes == used
    world.settle(anna, ben)
    assert all_shares(anna, ben) == EVERYTHING


def test_an_upgrade_in_mid_rebalance_that_cannot_be_stored() -> None:
    world = ConsumerWorld()
    anna, ben = classic_group(world, "anna", "ben")
    ben.topics = ("orders", "bills")
    ben.join_once()
    world.slow_store = True
    world.consumer("carl").join()
    world.finish_stores(OSError("EIO"))
    world.slow_store = False
    ben.must_join = True
    world.settle(anna, ben)
    assert world.coordinator.describe(GROUP).group_type == "classic"


def test_the_classic_group_s_memory_is_given_back() -> None:
    world = ConsumerWorld()
    anna, ben = classic_group(world, "anna", "ben")
    carl = world.consumer("carl")
    carl.join()
    for member in (anna, ben, carl):
        member.leave()
    assert world.coordinator._shared.budget.used_bytes == 0
    assert world.coordinator.next_deadline() is None


# -- down


def test_the_last_of_the_new_protocol_leaves() -> None:
    world = ConsumerWorld()
    anna, ben = classic_group(world, "anna", "ben")
    carl = world.consumer("carl")
    carl.join()
    world.settle(anna, ben, carl)
    epoch = world.epoch
    assert carl.leave().answer.error is ErrorCode.none
    described = world.coordinator.describe(GROUP)
    assert (described.group_type, described.generation_id) == ("classic", epoch)
    assert not world.stored[GROUP].is_consumer_group
    assert world.stored[GROUP].members == {}
    assert anna.heartbeat() is ErrorCode.rebalance_in_progress
    anna.must_join = ben.must_join = True
    world.settle(anna, ben)
    assert anna.generation_id == epoch + 1
    assert all_shares(anna, ben) == EVERYTHING


def test_the_last_of_the_new_protocol_vanishes() -> None:
    world = ConsumerWorld(session_timeout_ms=20_000)
    anna, ben = classic_group(world, "anna", "ben")
    carl = world.consumer("carl")
    carl.join()
    world.settle(anna, ben, carl)
    for _ in range(20):
        world.advance(1_000)
        anna.live()
        ben.live()
    assert world.coordinator.describe(GROUP).group_type == "classic"
    world.settle(anna, ben)
    assert all_shares(anna, ben) == EVERYTHING


def test_the_downgrade_is_durable_before_it_is_answered() -> None:
    world = ConsumerWorld()
    anna, ben = classic_group(world, "anna", "ben")
    carl = world.consumer("carl")
    carl.join()
    world.settle(anna, ben, carl)
    world.slow_store = True
    leaving = carl.leave()
    assert leaving.held
    assert len(world.changes_in_flight) == 1
    world.slow_store = False
    world.finish_stores()
    assert leaving.answer.error is ErrorCode.none
    world.restart()
    assert world.coordinator.describe(GROUP).group_type == "classic"
    assert anna.heartbeat() is ErrorCode.rebalance_in_progress, "what the leaver had is still nobody's"
    world.settle(anna, ben)
    assert all_shares(anna, ben) == EVERYTHING
    world.restart()
    assert anna.heartbeat() is ErrorCode.none, "the rebalance is over"


def test_the_policy_keeps_the_group() -> None:
    world = ConsumerWorld()
    anna, ben = classic_group(world, "anna", "ben")
    carl = world.consumer("carl")
    carl.join()
    world.settle(anna, ben, carl)
    world = restarted(world, "upgrade")
    anna.world = ben.world = carl.world = world
    carl.leave()
    assert world.group_state is ConsumerGroupState.ASSIGNING
    world.settle(anna, ben)
    assert all_shares(anna, ben) == EVERYTHING
    assert world.group_state is ConsumerGroupState.STABLE


def restarted(world: ConsumerWorld, policy: str) -> ConsumerWorld:
    other = ConsumerWorld(migration=policy)
    other.topics, other.stored, other.now_ms = world.topics, world.stored, world.now_ms
    other.restart()
    return other


def test_classic_members_alone_notice_that_topics_change() -> None:
    world = ConsumerWorld(migration="upgrade")
    anna, ben = classic_group(world, "anna", "ben")
    carl = world.consumer("carl")
    carl.join()
    carl.leave()
    world.settle(anna, ben)
    world.topics.grow("orders", 6)
    world.settle(anna, ben)
    assert [len(member.has["orders"]) for member in (anna, ben)] == [3, 3]


def test_an_empty_group_of_the_new_protocol_gives_way() -> None:
    world = ConsumerWorld()
    carl = world.consumer("carl")
    carl.join()
    carl.leave()
    anna = world.classic("anna", two_steps=False)
    anna.live()
    described = world.coordinator.describe(GROUP)
    assert (described.group_type, described.state) == ("classic", GroupState.STABLE)
    assert anna.has == {"orders": {0, 1, 2, 3}}
    assert world.stored[GROUP].members == {}
    assert world.coordinator._consumer.groups == {}


def test_an_empty_group_does_not_give_way_to_a_ghost() -> None:
    world = ConsumerWorld()
    carl = world.consumer("carl")
    carl.join()
    carl.leave()
    ghost = world.classic("ghost")
    ghost.member_id, ghost.generation_id = "ghost-1", 3
    assert ghost.join_once().answer.error is ErrorCode.unknown_member_id
    assert ghost.sync().answer.error is ErrorCode.unknown_member_id
    assert ghost.heartbeat() is ErrorCode.unknown_member_id
    assert ghost.leave() is ErrorCode.unknown_member_id
    assert world.group_state is ConsumerGroupState.EMPTY


# -- static members change sides


def test_a_static_member_is_upgraded_in_place() -> None:
    world = ConsumerWorld()
    anna, ben = classic_group(world, "anna", "ben")
    static = world.classic("static", instance="s")
    world.settle(anna, ben, static)
    had = dict(static.has)
    new = world.consumer("new", instance="s")
    assert new.join().answer.error is ErrorCode.none
    assert new.has == had
    assert static.heartbeat() is ErrorCode.fenced_instance_id
    world.settle(anna, ben, new)
    assert new.has == had


def test_a_static_member_is_downgraded_in_place_without_a_rebalance() -> None:
    world = ConsumerWorld()
    anna = world.classic("anna", instance="a")
    new = world.consumer("new", instance="s")
    world.settle(new)
    world.settle(anna, new)
    had, kept = dict(new.has), dict(anna.has)
    old = world.classic("old", instance="s")
    answer = old.join_once().answer
    assert (answer.error, answer.leader_id) == (ErrorCode.none, "")
    described = world.coordinator.describe(GROUP)
    assert (described.group_type, described.state) == ("classic", GroupState.STABLE)
    old.sync()
    assert read_assignment(old.last_sync.answer.assignment)[0] == had
    assert new.beat().answer.error is ErrorCode.group_id_not_found
    assert anna.heartbeat() is ErrorCode.none
    assert anna.has == kept


def test_with_a_rebalance_while_others_have_yet_to_give_up() -> None:
    world = ConsumerWorld()
    anna = world.classic("anna")
    anna.live()
    new = world.consumer("new", instance="s")
    new.join()
    assert new.has == {}
    old = world.classic("old", instance="s")
    joining = old.join_once()
    assert joining.held, "what it should have is still Anna's"
    assert world.coordinator.describe(GROUP).group_type == "classic"
    anna.must_join = True
    old.must_join = False
    world.settle(anna, old)
    assert joining.answer.error is ErrorCode.none
    assert all_shares(anna, old) == EVERYTHING


def test_a_downgrade_by_a_join_that_cannot_be_stored() -> None:
    world = ConsumerWorld()
    new = world.consumer("new", instance="s")
    new.join()
    world.slow_store = True
    joining = world.classic("old", instance="s").join_once()
    assert joining.held
    world.finish_stores(OSError("EIO"))
    assert joining.answer == JoinResult(error=ErrorCode.coordinator_not_available, member_id="")
