"""Nothing is told that is not durable; what is durable is there after a restart; what fails is undone."""

from __future__ import annotations

from typing import Any

import pytest
from consumer_world import GROUP, REBALANCE_MS, SESSION_MS, ConsumerWorld

from broker.groups import BadGroupRecord, ConsumerGroupState, GroupState
from broker.groups.consumer.record import StoredGroup, read_group
from wire.errors import ErrorCode, KafkaError


def books(world: ConsumerWorld) -> tuple[Any, ...]:
    """All there is to say of the group, whatever the order of its members."""
    group = world.description
    return group.state, group.epoch, group.assignment_epoch, {one.member_id: one for one in group.members}


def test_an_answer_waits_until_what_it_tells_is_durable() -> None:
    world = ConsumerWorld(slow_store=True)
    anna = world.consumer("anna")
    call = anna.join()
    assert call.held
    world.finish_stores()
    assert anna.has == {"orders": {0, 1, 2, 3}}


def test_an_answer_without_news_waits_for_what_is_on_its_way() -> None:
    world = ConsumerWorld(slow_store=True)
    anna, ben = world.consumers("anna", "ben")
    anna.join()
    world.finish_stores()
    assert not anna.beat().held or world.changes_in_flight
    world.finish_stores()
    joining = ben.join()
    beat = anna.request()
    assert joining.held
    assert beat.held
    world.finish_stores()
    assert (joining.answer.member_epoch, beat.answer.member_epoch) == (3, 2)


def test_a_call_is_one_atomic_change() -> None:
    world = ConsumerWorld(slow_store=True)
    anna, ben = world.consumers("anna", "ben")
    anna.join()
    world.finish_stores()
    ben.join()
    assert len(world.changes_in_flight) == 1


def test_members_go_on_after_a_restart() -> None:
    world = ConsumerWorld({"orders": 4, "bills": 2})
    anna, ben = world.consumers("anna", "ben", topics=None, pattern=".*")
    carl = world.consumer("carl", topics=("orders",), instance="c", assignor="range")
    world.settle(anna, ben, carl)
    before, epochs = world.description, [member.epoch for member in (anna, ben, carl)]
    world.advance(SESSION_MS - 1_000)
    world.restart()
    assert world.description == before
    world.advance(SESSION_MS - 1)
    for member in (anna, ben, carl):
        assert member.beat().answer.error is ErrorCode.none
    assert [member.epoch for member in (anna, ben, carl)] == epochs
    assert world.description == before


def test_sessions_start_afresh_with_a_restart() -> None:
    world = ConsumerWorld()
    anna, ben = world.consumers("anna", "ben")
    world.settle(anna, ben)
    world.restart()
    world.advance(SESSION_MS)
    assert world.group_state is ConsumerGroupState.EMPTY


def test_a_revocation_goes_on_after_a_restart() -> None:
    world = ConsumerWorld()
    anna, ben = world.consumers("anna", "ben")
    anna.join()
    anna.stubborn = True
    ben.join()
    anna.beat()
    world.restart()
    ben.beat()
    assert ben.has == {}
    anna.give_up()
    anna.beat()
    ben.beat()
    assert ben.has == {"orders": {2, 3}}


def test_its_time_is_kept_after_a_restart() -> None:
    world = ConsumerWorld()
    anna, ben = world.consumers("anna", "ben")
    anna.join()
    anna.stubborn = True
    ben.join()
    anna.beat()
    world.restart()
    for _ in range(REBALANCE_MS // 1_000):
        world.advance(1_000)
        anna.beat()
        ben.beat()
    assert ben.has == {"orders": {0, 1, 2, 3}}


def test_topics_that_changed_while_the_broker_was_down() -> None:
    world = ConsumerWorld()
    anna, ben = world.consumers("anna", "ben")
    world.settle(anna, ben)
    world.restart()
    world.topics.grow("orders", 6)
    world.topics.changes = 1  # a start counts anew
    world.settle(anna, ben)
    assert [len(member.has["orders"]) for member in (anna, ben)] == [3, 3]


def test_an_empty_group_is_there_after_a_restart() -> None:
    world = ConsumerWorld()
    (anna,) = world.consumers("anna")
    anna.join()
    anna.leave()
    epoch = world.epoch
    world.restart()
    assert (world.group_state, world.epoch) == (ConsumerGroupState.EMPTY, epoch)


def test_a_group_that_is_deleted() -> None:
    world = ConsumerWorld(slow_store=True)
    (anna,) = world.consumers("anna")
    anna.join()
    codes: list[ErrorCode] = []
    world.coordinator.delete(GROUP, codes.append)
    assert codes == [ErrorCode.non_empty_group]
    anna.leave()
    world.coordinator.delete(GROUP, codes.append)
    assert len(codes) == 1
    world.finish_stores()
    assert codes[1:] == [ErrorCode.none]
    assert world.stored == {}
    world.coordinator.delete(GROUP, codes.append)
    assert codes[2:] == [ErrorCode.group_id_not_found]


# -- a store that fails


def test_a_group_that_cannot_be_stored_is_none() -> None:
    world = ConsumerWorld(slow_store=True)
    (anna,) = world.consumers("anna")
    call = anna.join()
    world.finish_stores(OSError("EIO"))
    assert call.answer.error is ErrorCode.coordinator_not_available
    assert world.description is None
    assert world.coordinator._shared.budget.used_bytes == 0
    assert world.coordinator.next_deadline() is None
    call = anna.join()
    world.finish_stores()
    assert call.answer.error is ErrorCode.none


def test_a_change_that_cannot_be_stored_is_undone() -> None:
    world = ConsumerWorld(slow_store=True)
    anna, ben, carl = world.consumers("anna", "ben", "carl")
    anna.join()
    world.finish_stores()
    ben.join()
    world.finish_stores()
    before = books(world)
    joining, leaving, beat = carl.join(), ben.leave(), anna.beat_in_full()
    assert len(world.changes_in_flight) == 3
    world.finish_stores(OSError("EIO"))
    for call in (joining, leaving, beat):
        assert call.answer.error is ErrorCode.coordinator_not_available
    assert books(world) == before
    world.slow_store = False
    ben.epoch = 3
    assert ben.beat_in_full().answer.error is ErrorCode.none
    assert carl.beat(member_epoch=4).answer.error is ErrorCode.unknown_member_id


def test_what_was_stored_before_the_failure_stays() -> None:
    world = ConsumerWorld(slow_store=True)
    anna, ben = world.consumers("anna", "ben")
    first = anna.join()
    second = ben.join()
    group_id, data, done = world.changes_in_flight.pop(0)
    world._apply(group_id, data)
    done(None)
    world.finish_stores(OSError("EIO"))
    assert first.answer.error is ErrorCode.none
    assert second.answer.error is ErrorCode.coordinator_not_available
    assert [member.member_id for member in world.description.members] == ["anna"]


def test_a_member_whose_removal_failed_has_its_session_again() -> None:
    world = ConsumerWorld(slow_store=True)
    (anna,) = world.consumers("anna")
    anna.join()
    world.finish_stores()
    world.advance(SESSION_MS)
    assert world.group_state is ConsumerGroupState.EMPTY
    world.finish_stores(OSError("EIO"))
    assert world.group_state is ConsumerGroupState.STABLE
    world.advance(SESSION_MS - 1)
    assert world.group_state is ConsumerGroupState.STABLE
    world.advance(1)
    world.finish_stores()
    assert world.group_state is ConsumerGroupState.EMPTY


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaError(ErrorCode.kafka_storage_error), ErrorCode.not_coordinator),
        (KafkaError(ErrorCode.record_list_too_large), ErrorCode.unknown_server_error),
        (RuntimeError("?"), ErrorCode.coordinator_not_available),
    ],
)
def test_what_members_hear_of_it(error: Exception, code: ErrorCode) -> None:
    world = ConsumerWorld(slow_store=True)
    call = world.consumer("anna").join()
    world.finish_stores(error)
    assert call.answer.error is code


# -- records


@pytest.fixture
def stored() -> StoredGroup:
    world = ConsumerWorld()
    anna, ben = world.consumer("anna", instance="a"), world.consumer("ben")
    world.settle(anna, ben)
    return world.stored[GROUP]


def change(part: Any, *path: Any, to: Any) -> None:
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = to


BAD: dict[str, Any] = {
    "no state": lambda s: setattr(s, "state", None),
    "a version of the future": lambda s: change(s.state, "version", to=99),
    "a kind of the future": lambda s: change(s.state, "kind", to="share"),
    "a member too few": lambda s: s.members.pop("anna"),
    "an assignment too few": lambda s: s.assignments.pop("anna"),
    "a member for another": lambda s: s.members.update(carl=s.members.pop("anna")),
    "a count that is wrong": lambda s: change(s.state, "members", to=3),
    "no topics": lambda s: s.members["anna"].pop("topics"),
    "a state that is none": lambda s: change(s.assignments, "anna", "state", to="lost"),
    "a topic id that is none": lambda s: change(s.assignments, "anna", "target", to=[[b"short", [0]]]),
    "epochs too few": lambda s: change(s.assignments, "anna", "assigned", 0, 2, to=[]),
    "a partition of two owners": lambda s: change(
        s.assignments, "anna", "assigned", to=s.assignments["ben"]["assigned"]
    ),
    "no map": lambda s: s.assignments.update(anna=[]),
}


@pytest.mark.parametrize("name", BAD)
def test_records_that_are_refused(stored: StoredGroup, name: str) -> None:
    read_group(GROUP, stored)
    BAD[name](stored)
    with pytest.raises(BadGroupRecord):
        read_group(GROUP, stored)


def test_classic_groups_are_read_beside_them() -> None:
    world = ConsumerWorld()
    classic, anna = world.classic("ben", group_id="classic"), world.consumer("anna")
    classic.live()
    anna.join()
    world.restart()
    assert {group.group_id: group.state for group in world.coordinator.list_groups()} == {
        "classic": GroupState.STABLE,
        GROUP: ConsumerGroupState.STABLE,
    }
    assert classic.heartbeat() is ErrorCode.none
    assert anna.beat().answer.error is ErrorCode.none
