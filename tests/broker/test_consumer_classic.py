"""Classic members in a group of the new protocol: what they are given, told and refused (KIP-848)."""

from __future__ import annotations

from typing import Any

import pytest
from consumer_clients import ClassicConsumer, subscription
from consumer_world import GROUP, ConsumerWorld
from groups_world import SESSION_MS

from broker.groups import LeaveRequest, LeavingMember
from wire.errors import ErrorCode

EVERYTHING = [("orders", number) for number in range(4)]


def all_shares(*members: Any) -> list[tuple[str, int]]:
    return sorted(
        (topic, number) for member in members for topic, numbers in member.has.items() for number in numbers
    )


@pytest.fixture
def mixed() -> tuple[ConsumerWorld, ClassicConsumer, Any]:
    world = ConsumerWorld()
    carl, anna = world.consumer("carl"), world.classic("anna")
    carl.join()
    world.settle(anna, carl)
    return world, anna, carl


Mixed = tuple[ConsumerWorld, ClassicConsumer, Any]


def test_a_classic_member_that_vanishes(mixed: Mixed) -> None:
    world, _, carl = mixed
    for _ in range(SESSION_MS // 1_000 + 1):
        world.advance(1_000)
        carl.beat()
    assert carl.has == {"orders": {0, 1, 2, 3}}


def test_a_classic_member_that_does_not_join_again_in_time(mixed: Mixed) -> None:
    world, anna, carl = mixed
    ben = world.consumer("ben")
    ben.join()
    for _ in range(61):
        world.advance(1_000)
        assert anna.heartbeat() in (ErrorCode.rebalance_in_progress, ErrorCode.unknown_member_id)
        carl.beat()
        ben.beat()
    assert anna.heartbeat() is ErrorCode.unknown_member_id
    assert all_shares(carl, ben) == EVERYTHING


def test_a_classic_member_that_joins_and_never_syncs(mixed: Mixed) -> None:
    world, anna, carl = mixed
    anna.join()
    for _ in range(60):
        world.advance(1_000)
        anna.heartbeat()
        carl.beat()
    assert anna.heartbeat() is ErrorCode.unknown_member_id
    assert carl.has == {"orders": {0, 1, 2, 3}}


def test_a_member_that_waits_hears_when_its_partitions_are_free(mixed: Mixed) -> None:
    world, anna, carl = mixed
    carl.stubborn = True
    carl.subscribe("orders")
    world.topics.grow("orders", 5)
    ben = world.classic("ben")
    ben.live()
    ben.live()
    assert ben.heartbeat() is ErrorCode.none, "coming again could not help"
    carl.stubborn = False
    world.settle(anna, ben, carl)
    assert all_shares(anna, ben, carl) == [("orders", number) for number in range(5)]


def test_sync_in_a_rebalance(mixed: Mixed) -> None:
    world, anna, _ = mixed
    world.consumer("ben").join()
    assert anna.sync().answer.error is ErrorCode.rebalance_in_progress


def test_a_classic_member_changes_its_subscription(mixed: Mixed) -> None:
    world, anna, carl = mixed
    world.topics.make("bills", 2)
    anna.topics = ("bills",)
    anna.must_join = True
    world.settle(anna, carl)
    assert (anna.has, carl.has) == ({"bills": {0, 1}}, {"orders": {0, 1, 2, 3}})


JOIN_REFUSED: dict[str, tuple[dict[str, Any], ErrorCode]] = {
    "another type": ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
    "no protocols": ({"protocols": ()}, ErrorCode.inconsistent_group_protocol),
    "none in common": (
        {"protocols": (("sticky", subscription(("orders",))),)},
        ErrorCode.inconsistent_group_protocol,
    ),
    "metadata that is none": ({"protocols": (("range", b"\0"),)}, ErrorCode.inconsistent_group_protocol),
    "a short session": ({"session_timeout_ms": 1}, ErrorCode.invalid_session_timeout),
    "an unknown instance": (
        {"member_id": "x", "group_instance_id": "nobody"},
        ErrorCode.unknown_member_id,
    ),
}


@pytest.mark.parametrize("name", JOIN_REFUSED)
def test_classic_joins_that_are_refused(mixed: Mixed, name: str) -> None:
    world, _, _ = mixed
    fields, code = JOIN_REFUSED[name]
    before, stored = world.description, world.changes_stored
    ben = world.classic("ben")
    assert ben.join_once(**fields).answer.error is code
    assert (world.description, world.changes_stored) == (before, stored)


def test_more_classic_joins_that_are_refused() -> None:
    world = ConsumerWorld(migration="disabled")
    world.consumer("carl").join()
    assert world.classic("anna").join_once().answer.error is ErrorCode.inconsistent_group_protocol
    world = ConsumerWorld(classic={"max_members_per_group": 1})
    world.consumer("carl").join()
    assert world.classic("anna").join_once().answer.error is ErrorCode.group_max_size_reached
    world = ConsumerWorld(classic={"max_memory_bytes": 10_000})
    world.consumer("carl").join()
    many = tuple(f"topic-{number}" for number in range(500))
    assert world.classic("anna", *many).join().answer.error is ErrorCode.group_max_size_reached


def test_what_classic_requests_hear(mixed: Mixed) -> None:
    world, anna, _ = mixed
    other = world.consumer("static", instance="s")
    other.join()
    heartbeat = world.coordinator.heartbeat
    generation = anna.generation_id
    assert (
        heartbeat(GROUP, generation + 1, anna.member_id, None, world.now_ms) is ErrorCode.illegal_generation
    )
    assert heartbeat(GROUP, generation, "nobody", None, world.now_ms) is ErrorCode.unknown_member_id
    assert heartbeat(GROUP, generation, "carl", None, world.now_ms) is ErrorCode.unknown_member_id
    assert heartbeat(GROUP, generation, "x", "s", world.now_ms) is ErrorCode.fenced_instance_id
    assert heartbeat(GROUP, generation, "x", "none", world.now_ms) is ErrorCode.unknown_member_id
    world.settle(anna, mixed[2], other)
    for changes, code in (
        ({"generation_id": 0}, ErrorCode.illegal_generation),
        ({"member_id": "nobody"}, ErrorCode.unknown_member_id),
        ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_name": "sticky"}, ErrorCode.inconsistent_group_protocol),
        ({"require_protocol": True}, ErrorCode.inconsistent_group_protocol),
    ):
        assert anna.sync(**changes).answer.error is code
    assert anna.sync(require_protocol=True, protocol_type="consumer", protocol_name="range").answer.error is (
        ErrorCode.none
    )
    ghost = world.classic("ghost", instance="s")
    ghost.member_id = "ghost"
    assert ghost.leave() is ErrorCode.fenced_instance_id
    ghost.member_id = ""
    assert ghost.leave() is ErrorCode.none, "an administrator removes a member of either protocol by its name"


def test_leaving_twice_in_one_request(mixed: Mixed) -> None:
    world, anna, _ = mixed
    leaving = [LeavingMember(member_id=anna.member_id)] * 2
    result = world.coordinator.leave(LeaveRequest(group_id=GROUP, members=leaving), world.now_ms)
    assert [one.error for one in result.members] == [ErrorCode.none, ErrorCode.unknown_member_id]


def test_offsets_of_classic_members(mixed: Mixed) -> None:
    world, anna, _ = mixed
    check = world.coordinator.validate_offset_commit
    topic_id = world.topics.get("orders").id
    mine, his = min(anna.has["orders"]), min({0, 1, 2, 3} - anna.has["orders"])

    def commit(generation_id: int, number: int) -> ErrorCode:
        return check(
            GROUP,
            generation_id,
            anna.member_id,
            None,
            transactional=False,
            now_ms=world.now_ms,
            partitions=[(topic_id, number)],
        )

    assert commit(anna.generation_id, mine) is ErrorCode.none
    assert commit(anna.generation_id + 1, mine) is ErrorCode.illegal_generation
    assert commit(anna.generation_id - 1, his) is ErrorCode.illegal_generation
    fetch = world.coordinator.validate_offset_fetch
    assert fetch(GROUP, anna.member_id, anna.generation_id) is ErrorCode.none
    assert fetch(GROUP, anna.member_id, 0) is ErrorCode.illegal_generation
