"""Which error, in which state, in which order: one row per case.

Each row asks a group in one state with one defect in the request, or several: then the row shows which is seen
first. The table follows Apache Kafka's classic groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from groups_world import GROUP, FakeMember, World

from broker.groups import GroupState, JoinRequest, JoinResult, LeaveRequest, LeavingMember, SyncRequest
from wire.errors import ErrorCode

OK = ErrorCode.none


def empty(world: World, anna: FakeMember) -> None:
    anna.join()
    anna.leave()


def preparing(world: World, anna: FakeMember) -> None:
    world.settle(anna)
    world.member("other").join()


def completing(world: World, anna: FakeMember) -> None:
    anna.join()


def stable(world: World, anna: FakeMember) -> None:
    world.settle(anna)


STATES = {
    "none": (lambda _world, _anna: None, None),
    "empty": (empty, GroupState.EMPTY),
    "preparing": (preparing, GroupState.PREPARING_REBALANCE),
    "completing": (completing, GroupState.COMPLETING_REBALANCE),
    "stable": (stable, GroupState.STABLE),
}


def scene(state: str, instance: str | None = None) -> tuple[World, FakeMember]:
    world = World()
    anna = world.member("anna", instance=instance)
    build, expected = STATES[state]
    build(world, anna)
    assert world.state() is expected
    if not anna.member_id:
        anna.member_id, anna.generation_id = "anna-1", 1
    return world, anna


# state, changes to a proper request, expected
MEMBER_CASES = [
    ("none", {}, ErrorCode.unknown_member_id),
    ("none", {"group_id": ""}, ErrorCode.invalid_group_id),
    ("empty", {}, ErrorCode.unknown_member_id),
    ("empty", {"generation_id": 2}, ErrorCode.unknown_member_id),
    ("preparing", {"member_id": "nobody"}, ErrorCode.unknown_member_id),
    ("preparing", {"generation_id": 7}, ErrorCode.illegal_generation),
    ("preparing", {}, ErrorCode.rebalance_in_progress),
    ("completing", {"member_id": "nobody"}, ErrorCode.unknown_member_id),
    ("completing", {"member_id": ""}, ErrorCode.unknown_member_id),
    ("completing", {"generation_id": 0}, ErrorCode.illegal_generation),
    ("completing", {"generation_id": -1}, ErrorCode.illegal_generation),
    ("completing", {}, OK),
    ("stable", {"member_id": "nobody", "generation_id": 9}, ErrorCode.unknown_member_id),
    ("stable", {"group_instance_id": "nobody", "generation_id": 9}, ErrorCode.unknown_member_id),
    ("stable", {"generation_id": 2}, ErrorCode.illegal_generation),
    ("stable", {}, OK),
]

STATIC_CASES = [
    ({}, OK),
    ({"member_id": "nobody"}, ErrorCode.fenced_instance_id),
    ({"member_id": "nobody", "generation_id": 9}, ErrorCode.fenced_instance_id),
    ({"group_instance_id": "nobody"}, ErrorCode.unknown_member_id),
    ({"group_instance_id": None}, OK),
    ({"generation_id": 9}, ErrorCode.illegal_generation),
]


def heartbeat(anna: FakeMember, changes: dict[str, Any]) -> ErrorCode:
    fields = {
        "group_id": GROUP,
        "generation_id": anna.generation_id,
        "member_id": anna.member_id,
        "group_instance_id": anna.instance,
        "now_ms": anna.world.now_ms,
    }
    return anna.world.coordinator.heartbeat(**fields | changes)


def sync(anna: FakeMember, changes: dict[str, Any]) -> ErrorCode:
    return anna.sync(**changes).answer.error


@pytest.mark.parametrize("ask", [heartbeat, sync])
@pytest.mark.parametrize(("state", "changes", "expected"), MEMBER_CASES)
def test_heartbeat_and_sync(
    ask: Callable[[FakeMember, dict[str, Any]], ErrorCode],
    state: str,
    changes: dict[str, Any],
    expected: ErrorCode,
) -> None:
    _, anna = scene(state)
    assert ask(anna, changes) is expected


@pytest.mark.parametrize("ask", [heartbeat, sync])
@pytest.mark.parametrize(("changes", "expected"), STATIC_CASES)
def test_heartbeat_and_sync_of_a_static_member(
    ask: Callable[[FakeMember, dict[str, Any]], ErrorCode], changes: dict[str, Any], expected: ErrorCode
) -> None:
    _, anna = scene("stable", instance="i-anna")
    assert ask(anna, changes) is expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"protocol_type": "consumer", "protocol_name": "range"}, OK),
        ({"protocol_type": None, "protocol_name": None}, OK),
        ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_name": "sticky"}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_name": "sticky", "generation_id": 9}, ErrorCode.illegal_generation),
        ({"require_protocol": True}, ErrorCode.inconsistent_group_protocol),
        ({"require_protocol": True, "group_id": ""}, ErrorCode.inconsistent_group_protocol),
        (
            {"require_protocol": True, "protocol_type": "consumer", "protocol_name": None},
            ErrorCode.inconsistent_group_protocol,
        ),
        ({"require_protocol": True, "protocol_type": "consumer", "protocol_name": "range"}, OK),
    ],
)
@pytest.mark.parametrize("state", ["completing", "stable"])
def test_sync_with_a_protocol(state: str, changes: dict[str, Any], expected: ErrorCode) -> None:
    _, anna = scene(state)
    result = anna.sync(**changes).answer
    assert result.error is expected
    assert (result.protocol_name is None) is (expected is not OK)


JOIN_CASES = [
    ("none", {"group_id": ""}, ErrorCode.invalid_group_id, "anna-1"),
    ("none", {"group_id": "", "session_timeout_ms": 1}, ErrorCode.invalid_group_id, "anna-1"),
    ("none", {"session_timeout_ms": 5_999}, ErrorCode.invalid_session_timeout, "anna-1"),
    ("none", {"session_timeout_ms": 1_800_001}, ErrorCode.invalid_session_timeout, "anna-1"),
    ("none", {"session_timeout_ms": 0, "member_id": ""}, ErrorCode.invalid_session_timeout, ""),
    ("none", {}, ErrorCode.unknown_member_id, "anna-1"),
    ("none", {"member_id": ""}, ErrorCode.member_id_required, "anna-1"),
    ("none", {"member_id": "", "require_known_member_id": False}, OK, "anna-1"),
    ("none", {"member_id": "", "protocol_type": ""}, ErrorCode.inconsistent_group_protocol, ""),
    ("none", {"member_id": "", "protocols": ()}, ErrorCode.inconsistent_group_protocol, ""),
    ("empty", {}, ErrorCode.unknown_member_id, "anna-1"),
    ("empty", {"protocols": ()}, ErrorCode.inconsistent_group_protocol, "anna-1"),
    ("stable", {"member_id": "nobody"}, ErrorCode.unknown_member_id, "nobody"),
    ("stable", {"group_instance_id": "nobody"}, ErrorCode.unknown_member_id, "anna-1"),
    ("stable", {"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol, "anna-1"),
    (
        "stable",
        {"member_id": "nobody", "protocol_type": "connect"},
        ErrorCode.inconsistent_group_protocol,
        "nobody",
    ),
    ("stable", {"protocols": (("sticky", b""),)}, ErrorCode.inconsistent_group_protocol, "anna-1"),
    ("stable", {"session_timeout_ms": 1}, ErrorCode.invalid_session_timeout, "anna-1"),
    ("stable", {"session_timeout_ms": 6_000}, OK, "anna-1"),
    ("stable", {"session_timeout_ms": 1_800_000}, OK, "anna-1"),
    ("completing", {}, OK, "anna-1"),
]


@pytest.mark.parametrize(("state", "changes", "expected", "told_id"), JOIN_CASES)
def test_join(state: str, changes: dict[str, Any], expected: ErrorCode, told_id: str) -> None:
    world, anna = scene(state)
    answers: list[JoinResult] = []
    fields: dict[str, Any] = {
        "group_id": GROUP,
        "member_id": anna.member_id,
        "client_id": "anna",
        "session_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [("range", b"topics")],
        "require_known_member_id": True,
    }
    world.coordinator.join(JoinRequest(**fields | changes), world.now_ms, answers.append)
    (answer,) = answers
    assert (answer.error, answer.member_id) == (expected, told_id)
    if expected is not OK:
        assert (answer.generation_id, answer.leader_id, answer.members) == (-1, "", ())
        assert (answer.protocol_type, answer.protocol_name) == (None, None)


@pytest.mark.parametrize(
    ("member_id", "instance", "expected"),
    [
        ("i-anna-1", "i-anna", OK),
        ("i-anna-1", None, OK),
        ("", "i-anna", OK),
        ("", None, ErrorCode.unknown_member_id),
        ("", "nobody", ErrorCode.unknown_member_id),
        ("nobody", None, ErrorCode.unknown_member_id),
        ("nobody", "i-anna", ErrorCode.fenced_instance_id),
        ("i-anna-1", "nobody", ErrorCode.unknown_member_id),
    ],
)
def test_leave(member_id: str, instance: str | None, expected: ErrorCode) -> None:
    world, _ = scene("stable", instance="i-anna")
    leaving = LeavingMember(member_id=member_id, group_instance_id=instance)
    result = world.coordinator.leave(LeaveRequest(group_id=GROUP, members=[leaving]), world.now_ms)
    assert result.error is OK
    assert result.single_error is result.members[0].error is expected
    assert (result.members[0].member_id, result.members[0].group_instance_id) == (member_id, instance)
    assert (world.state() is GroupState.EMPTY) is (expected is OK)


def test_leave_of_groups_that_are_not() -> None:
    world = World()
    leaving = [LeavingMember(member_id="a"), LeavingMember(member_id="b")]
    result = world.coordinator.leave(LeaveRequest(group_id="", members=leaving), world.now_ms)
    assert result.error is result.single_error is ErrorCode.invalid_group_id
    assert result.members == ()
    result = world.coordinator.leave(LeaveRequest(group_id="nothing", members=leaving), world.now_ms)
    assert result.error is OK
    assert [left.error for left in result.members] == [ErrorCode.unknown_member_id] * 2


def test_sync_of_a_group_that_is_not() -> None:
    world = World()
    answers: list[Any] = []
    request = SyncRequest(group_id="nothing", generation_id=1, member_id="a")
    world.coordinator.sync(request, world.now_ms, answers.append)
    assert [answer.error for answer in answers] == [ErrorCode.unknown_member_id]


# state, transactional, generation, member id (None: anna's), instance, expected
COMMIT_CASES = [
    ("none", False, -1, "", None, OK),
    ("none", False, 1, "anna-1", None, ErrorCode.illegal_generation),
    ("none", True, -1, "", None, OK),
    ("none", True, 1, "anna-1", None, ErrorCode.illegal_generation),
    ("empty", False, -1, "", None, OK),
    ("empty", False, -1, "anna-1", None, OK),
    ("empty", False, 1, None, None, ErrorCode.unknown_member_id),
    ("empty", True, 1, None, None, ErrorCode.unknown_member_id),
    ("empty", True, -1, "", None, OK),
    ("preparing", False, 1, None, None, OK),
    ("preparing", False, 2, None, None, ErrorCode.illegal_generation),
    ("preparing", False, -1, "", None, ErrorCode.unknown_member_id),
    ("preparing", True, -1, "", None, OK),
    ("preparing", True, 1, None, None, OK),
    ("completing", False, 1, None, None, ErrorCode.rebalance_in_progress),
    ("completing", False, 2, None, None, ErrorCode.illegal_generation),
    ("completing", False, 1, "nobody", None, ErrorCode.unknown_member_id),
    ("completing", False, -1, "", None, ErrorCode.unknown_member_id),
    ("completing", True, 1, None, None, OK),
    ("completing", True, 0, None, None, ErrorCode.illegal_generation),
    ("stable", False, 1, None, None, OK),
    ("stable", False, -1, "", None, ErrorCode.unknown_member_id),
    ("stable", False, -1, None, None, ErrorCode.illegal_generation),
    ("stable", False, 0, None, None, ErrorCode.illegal_generation),
    ("stable", False, 1, "", None, ErrorCode.unknown_member_id),
    ("stable", False, 1, "nobody", None, ErrorCode.unknown_member_id),
    ("stable", False, -1, "", "nobody", ErrorCode.unknown_member_id),
    ("stable", True, 1, None, None, OK),
    ("stable", True, -1, "", None, OK),
    ("stable", True, -1, "", "nobody", ErrorCode.unknown_member_id),
    ("stable", True, 2, None, None, ErrorCode.illegal_generation),
    ("stable", True, 1, "nobody", None, ErrorCode.unknown_member_id),
]


@pytest.mark.parametrize(
    ("state", "transactional", "generation", "member_id", "instance", "expected"), COMMIT_CASES
)
def test_offset_commit(
    state: str,
    transactional: bool,
    generation: int,
    member_id: str | None,
    instance: str | None,
    expected: ErrorCode,
) -> None:
    world, anna = scene(state)
    error = world.coordinator.validate_offset_commit(
        GROUP,
        generation,
        anna.member_id if member_id is None else member_id,
        instance,
        transactional=transactional,
        now_ms=world.now_ms,
    )
    assert error is expected


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize(
    ("member_id", "instance", "expected"),
    [
        ("i-anna-1", "i-anna", OK),
        ("nobody", "i-anna", ErrorCode.fenced_instance_id),
        ("", "i-anna", ErrorCode.fenced_instance_id),
        ("i-anna-1", "nobody", ErrorCode.unknown_member_id),
    ],
)
def test_offset_commit_of_a_static_member(
    transactional: bool, member_id: str, instance: str, expected: ErrorCode
) -> None:
    world, _ = scene("stable", instance="i-anna")
    error = world.coordinator.validate_offset_commit(
        GROUP, 1, member_id, instance, transactional=transactional, now_ms=world.now_ms
    )
    assert error is expected
