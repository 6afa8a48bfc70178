"""Static members in groups of the new protocol (KIP-345 in KIP-848)."""

from __future__ import annotations

import pytest
from consumer_clients import Consumer
from consumer_world import SESSION_MS, ConsumerWorld

from broker.groups import ConsumerGroupState
from wire.errors import ErrorCode


@pytest.fixture
def world() -> ConsumerWorld:
    return ConsumerWorld()


@pytest.fixture
def pair(world: ConsumerWorld) -> tuple[Consumer, Consumer]:
    anna, ben = world.consumer("anna", instance="a"), world.consumer("ben")
    world.settle(anna, ben)
    assert anna.has == {"orders": {0, 1}}
    return anna, ben


Pair = tuple[Consumer, Consumer]


def test_its_place_is_kept_while_it_is_away(world: ConsumerWorld, pair: Pair) -> None:
    anna, ben = pair
    epoch = world.epoch
    assert anna.leave(-2).answer.member_epoch == -2
    assert world.group_state is ConsumerGroupState.RECONCILING
    ben.beat()
    assert ben.has == {"orders": {2, 3}}
    again = world.consumer("anna2", instance="a")
    answer = again.join().answer
    assert (answer.member_epoch, world.by_name(answer.assignment)) == (epoch, {"orders": {0, 1}})
    assert world.group_state is ConsumerGroupState.STABLE
    assert [member.member_id for member in world.description.members] == ["ben", "anna2"]


def test_it_may_return_under_its_old_member_id(world: ConsumerWorld, pair: Pair) -> None:
    anna, _ = pair
    epoch = anna.epoch
    anna.leave(-2)
    assert anna.join().answer.member_epoch == epoch
    assert anna.has == {"orders": {0, 1}}
    anna.leave(-2)
    assert anna.join(instance_id=None).answer.member_epoch == epoch, "even if it forgets its instance id"
    assert anna.has == {"orders": {0, 1}}


def test_its_place_is_free_when_it_does_not_return_in_time(world: ConsumerWorld, pair: Pair) -> None:
    anna, ben = pair
    anna.leave(-2)
    for _ in range(SESSION_MS // 1_000):
        assert ben.has == {"orders": {2, 3}}
        world.advance(1_000)
        ben.beat()
    assert ben.has == {"orders": {0, 1, 2, 3}}
    assert anna.beat(member_epoch=3).answer.error is ErrorCode.unknown_member_id


def test_it_may_leave_for_good(world: ConsumerWorld, pair: Pair) -> None:
    anna, ben = pair
    anna.leave(-2)
    anna.leave(-1)
    ben.beat()
    assert ben.has == {"orders": {0, 1, 2, 3}}


def test_what_it_was_giving_up_is_free_when_it_goes_away(world: ConsumerWorld) -> None:
    anna, ben = world.consumer("anna", instance="a", stubborn=True), world.consumer("ben")
    anna.join()
    ben.join()
    anna.beat()
    anna.leave(-2)
    ben.beat()
    assert ben.has == {"orders": {2, 3}}
    again = world.consumer("anna2", instance="a")
    again.join()
    assert again.has == {"orders": {0, 1}}


def test_nobody_takes_the_place_of_one_that_is_there(world: ConsumerWorld, pair: Pair) -> None:
    anna, _ = pair
    thief = world.consumer("thief", instance="a")
    assert thief.join().answer.error is ErrorCode.unreleased_instance_id
    assert anna.beat().answer.error is ErrorCode.none


def test_the_one_that_was_there_is_fenced(world: ConsumerWorld, pair: Pair) -> None:
    anna, _ = pair
    epoch = anna.epoch
    anna.leave(-2)
    again = world.consumer("anna2", instance="a")
    again.join()
    for request in ({"member_epoch": epoch}, {"member_epoch": -1}, {"member_epoch": -2}):
        assert anna.request(**request).answer.error is ErrorCode.fenced_instance_id
    assert again.beat().answer.error is ErrorCode.none


def test_a_static_member_that_lost_track_joins_again(world: ConsumerWorld, pair: Pair) -> None:
    anna, _ = pair
    anna.epoch = 99
    assert anna.beat().answer.error is ErrorCode.fenced_member_epoch
    assert anna.join().answer.error is ErrorCode.none
    assert anna.has == {"orders": {0, 1}}


def test_a_member_away_keeps_its_place_over_a_restart(world: ConsumerWorld, pair: Pair) -> None:
    anna, ben = pair
    epoch = anna.epoch
    anna.leave(-2)
    world.restart()
    ben.beat()
    assert ben.has == {"orders": {2, 3}}
    again = world.consumer("anna2", instance="a")
    assert again.join().answer.member_epoch == epoch
    assert again.has == {"orders": {0, 1}}


def test_it_comes_back_to_a_group_that_has_moved_on(world: ConsumerWorld, pair: Pair) -> None:
    anna, ben = pair
    anna.leave(-2)
    carl = world.consumer("carl")
    carl.join()
    again = world.consumer("anna2", instance="a")
    world.settle(again, ben, carl)
    assert sorted(len(member.has["orders"]) for member in (again, ben, carl)) == [1, 1, 2]
    assert again.has["orders"] <= {0, 1}


def test_it_comes_back_with_another_subscription(world: ConsumerWorld, pair: Pair) -> None:
    anna, ben = pair
    world.topics.make("bills", 2)
    anna.leave(-2)
    again = world.consumer("anna2", instance="a", topics=("bills",))
    world.settle(again, ben)
    assert (again.has, ben.has) == ({"bills": {0, 1}}, {"orders": {0, 1, 2, 3}})


def test_a_dynamic_member_that_takes_a_name(world: ConsumerWorld) -> None:
    (anna,) = world.consumers("anna")
    anna.join()
    anna.instance = "a"
    assert anna.join().answer.error is ErrorCode.none
    anna.leave(-2)
    again = world.consumer("anna2", instance="a")
    again.join()
    assert again.has == {"orders": {0, 1, 2, 3}}


def test_a_static_member_that_changes_its_name(world: ConsumerWorld, pair: Pair) -> None:
    anna, _ = pair
    anna.instance = "other"
    assert anna.join().answer.error is ErrorCode.none
    assert anna.request(member_epoch=-2, instance_id="a").answer.error is ErrorCode.unknown_member_id
    new = world.consumer("new", instance="a")
    assert new.join().answer.error is ErrorCode.none


def test_it_comes_back_to_a_full_group() -> None:
    world = ConsumerWorld(classic={"max_members_per_group": 1})
    anna = world.consumer("anna", instance="a")
    anna.join()
    anna.leave(-2)
    assert world.consumer("ben").join().answer.error is ErrorCode.group_max_size_reached
    assert world.consumer("anna2", instance="a").join().answer.error is ErrorCode.none
    assert world.classic("old", instance="a").join().answer.error is ErrorCode.none
