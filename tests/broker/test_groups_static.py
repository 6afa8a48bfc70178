"""Static members (KIP-345): restarts without a rebalance, fencing, and the leader that skips assigning (KIP-814)."""

from __future__ import annotations

import pytest
from groups_world import GROUP, REBALANCE_MS, SESSION_MS, FakeMember, World

from broker.groups import GroupState, LeaveRequest, LeavingMember
from wire.errors import ErrorCode


def restarted(member: FakeMember) -> FakeMember:
    """The same static member in a new process, which knows nothing but its instance id."""
    return FakeMember(
        member.world,
        f"{member.name}2",
        instance=member.instance,
        protocols=member.protocols,
        can_skip=member.can_skip,
    )


def static_pair(world: World, **settings: object) -> tuple[FakeMember, FakeMember]:
    anna = world.member("anna", instance="i-anna", **settings)
    ben = world.member("ben", instance="i-ben", **settings)
    world.settle(anna, ben)
    return anna, ben


def test_a_static_member_joins_in_one_step_and_its_id_carries_its_instance() -> None:
    world = World()
    anna = world.member("anna", instance="i-anna")
    assert anna.join_once().answer.member_id.startswith("i-anna-")
    assert [member.group_instance_id for member in anna.view.members] == ["i-anna"]


@pytest.mark.parametrize("can_skip", [False, True])
def test_a_restarted_follower_goes_on_without_a_rebalance(can_skip: bool) -> None:
    world = World()
    anna, ben = static_pair(world, can_skip=can_skip)
    ben2 = restarted(ben)
    result = ben2.join().answer
    assert result.generation_id == world.generation() == 2
    assert result.leader_id == anna.member_id
    assert (result.members, result.skip_assignment) == ((), False)
    assert ben2.member_id != ben.member_id
    assert ben2.sync().answer.assignment == b"g2 for " + ben.member_id.encode()
    assert world.state() is GroupState.STABLE
    assert anna.heartbeat() is ben2.heartbeat() is ErrorCode.none


def test_a_restarted_leader_of_old_versions_is_told_its_former_id_leads() -> None:
    world = World()
    anna, _ben = static_pair(world, can_skip=False)
    anna2 = restarted(anna)
    result = anna2.join().answer
    assert result.leader_id == anna.member_id != result.member_id
    assert (result.members, result.skip_assignment) == ((), False)
    assert anna2.sync().answer.assignment == anna.assignment
    assert world.coordinator.describe(GROUP).leader_id == anna2.member_id


def test_a_restarted_leader_of_new_versions_sees_the_members_and_skips_assigning() -> None:
    world = World()
    anna, ben = static_pair(world)
    anna2 = restarted(anna)
    result = anna2.join().answer
    assert result.leader_id == result.member_id
    assert result.skip_assignment
    assert {member.member_id for member in result.members} == {anna2.member_id, ben.member_id}
    assert anna2.sync().answer.assignment == anna.assignment
    anna2.protocols = (("range", b"new topics"),)  # and later it leads a rebalance like any leader
    assert anna2.join().held
    assert ben.join().answer.leader_id == anna2.member_id


def test_the_replaced_instance_is_fenced_everywhere() -> None:
    world = World()
    _anna, ben = static_pair(world)
    restarted(ben).join()
    assert ben.heartbeat() is ErrorCode.fenced_instance_id
    assert ben.commit() is ErrorCode.fenced_instance_id
    assert ben.commit(transactional=True) is ErrorCode.fenced_instance_id
    assert ben.sync().answer.error is ErrorCode.fenced_instance_id
    assert ben.leave() is ErrorCode.fenced_instance_id
    assert ben.join_once().answer.error is ErrorCode.fenced_instance_id
    assert world.state() is GroupState.STABLE


def test_a_replacement_is_answered_when_it_is_durable() -> None:
    world = World()
    _anna, ben = static_pair(world)
    world.slow_store = True
    ben2 = restarted(ben)
    joining = ben2.join()
    assert joining.held
    world.finish_stores()
    assert joining.answer.error is ErrorCode.none
    stored = world.record()["members"]
    assert ben.member_id not in stored
    assert stored[ben2.member_id]["assignment"] == b"g2 for " + ben.member_id.encode()
    assert stored[ben2.member_id]["client_id"] == "ben2"


def test_a_replacement_that_cannot_be_stored_may_try_again() -> None:
    world = World()
    _anna, ben = static_pair(world)
    world.slow_store = True
    ben2 = restarted(ben)
    ben2.join()
    world.finish_stores(OSError("EIO"))
    assert ben2.last_join.answer.error is ErrorCode.coordinator_not_available
    assert ben2.last_join.answer.member_id == ""
    world.slow_store = False
    assert ben2.join().answer.error is ErrorCode.none
    assert ben2.sync().answer.assignment == ben.assignment


def test_a_rebalance_that_begins_while_the_replacement_is_stored_includes_it() -> None:
    world = World()
    anna, ben = static_pair(world)
    world.slow_store = True
    ben2 = restarted(ben)
    joining = ben2.join()
    anna.join()
    assert joining.answer.generation_id == anna.last_join.answer.generation_id == 3
    world.finish_stores()
    assert {member.member_id for member in anna.view.members} == {anna.member_id, ben2.member_id}


def test_a_replacement_stored_during_a_rebalance_waits_for_the_new_generation() -> None:
    world = World()
    anna, ben = static_pair(world)
    carl = world.member("carl")
    world.slow_store = True
    ben2 = restarted(ben)
    ben2.join()
    carl.join()
    world.finish_stores()
    assert world.state() is GroupState.PREPARING_REBALANCE
    assert ben2.last_join.held
    anna.join()
    assert ben2.last_join.answer.generation_id == 3
    assert not ben2.last_join.answer.skip_assignment


def test_two_restarts_in_a_row_leave_the_last_one() -> None:
    world = World()
    _anna, ben = static_pair(world)
    world.slow_store = True
    first, second = restarted(ben), restarted(ben)
    first.join()
    second.join()
    assert first.last_join.answer.error is ErrorCode.fenced_instance_id
    world.finish_stores()
    assert second.last_join.answer.error is ErrorCode.none
    assert len(world.member_ids()) == 2


def test_a_restart_that_changes_the_protocol_rebalances() -> None:
    both = (("range", b"topics"), ("sticky", b"topics"))
    world = World()
    anna = world.member("anna", instance="i-anna", protocols=both)
    ben = world.member("ben", instance="i-ben", protocols=both)
    world.settle(anna, ben)
    ben.protocols = both[1:]
    ben2 = restarted(ben)
    assert ben2.join().held
    assert anna.heartbeat() is ErrorCode.rebalance_in_progress
    anna.join()
    assert ben2.view.protocol_name == "sticky"


def test_a_restart_while_the_group_rebalances_takes_the_place() -> None:
    world = World()
    anna, ben = static_pair(world)
    anna.join()
    ben2 = restarted(ben)
    assert ben2.join().answer.generation_id == anna.last_join.answer.generation_id == 3
    assert len(anna.view.members) == 2


def test_a_restart_while_its_own_join_is_held_fences_that() -> None:
    world = World()
    anna, ben = static_pair(world)
    carl = world.member("carl")
    carl.join()
    ben.join()
    ben2 = restarted(ben)
    ben2.join()
    assert ben.last_join.answer.error is ErrorCode.fenced_instance_id
    assert ben.last_join.answer.member_id == ben.member_id
    anna.join()
    assert len(anna.view.members) == 3
    assert ben2.last_join.answer.error is ErrorCode.none


def test_a_restart_while_the_leader_assigns_rebalances_again() -> None:
    world = World()
    anna, ben = static_pair(world)
    anna.join()
    ben.join()
    assert world.state() is GroupState.COMPLETING_REBALANCE
    waiting = ben.sync()
    ben2 = restarted(ben)
    assert ben2.join().held
    assert waiting.answer.error is ErrorCode.fenced_instance_id
    assert anna.sync().answer.error is ErrorCode.rebalance_in_progress
    anna.join()
    world.sync_all(anna, ben2)
    assert ben2.assignment == b"g4 for " + ben2.member_id.encode()


def test_a_static_member_may_miss_a_rebalance() -> None:
    world = World()
    anna = world.member("anna", instance="i-anna", session_ms=300_000)
    ben = world.member("ben")
    world.settle(anna, ben)
    ben.leave()
    carl = world.member("carl")
    carl.join()
    world.advance(REBALANCE_MS)
    assert carl.last_join.answer.leader_id == carl.member_id
    assert {member.group_instance_id for member in carl.view.members} == {"i-anna", None}
    carl.sync()
    anna2 = restarted(anna)
    anna2.join()
    assert anna2.sync().answer.assignment == f"g{carl.generation_id} for {anna.member_id}".encode()


def test_missing_rebalances_does_not_prolong_a_session() -> None:
    world = World()
    anna, ben = world.member("anna", instance="i-anna", session_ms=100_000), world.member("ben")
    world.settle(anna, ben)
    ben.leave()
    start_ms = world.now_ms
    carl = world.member("carl")
    carl.join()
    world.advance(REBALANCE_MS)  # a generation of carl, and of anna in her absence
    carl.sync()
    carl_lives = REBALANCE_MS
    while carl_lives < 99_000:
        world.advance_heartbeating(1_000, carl)
        carl_lives += 1_000
    assert anna.member_id in world.member_ids()
    world.advance_heartbeating(1_000, carl)
    assert world.now_ms == start_ms + 100_000
    assert anna.member_id not in world.member_ids()


def test_a_group_of_absent_static_members_waits_until_their_sessions_end() -> None:
    world = World()
    anna = world.member("anna", instance="i-anna", session_ms=300_000)
    ben = world.member("ben", instance="i-ben", session_ms=300_000)
    world.settle(anna, ben)
    generation = world.generation()
    ben.leave()
    for _ in range(4):
        world.advance(REBALANCE_MS)
        assert world.state() is GroupState.PREPARING_REBALANCE
        assert world.generation() == generation
    world.advance(REBALANCE_MS)
    assert world.state() is GroupState.EMPTY


def test_a_full_group_takes_a_static_member_back() -> None:
    world = World(max_members_per_group=2)
    _anna, ben = static_pair(world)
    assert restarted(ben).join().answer.error is ErrorCode.none
    stranger = world.member("carl", instance="i-carl")
    assert stranger.join().answer.error is ErrorCode.group_max_size_reached


def test_a_replaced_member_that_had_not_synced_is_still_expected_to() -> None:
    world = World()
    anna, ben = world.member("anna"), world.member("ben", instance="i-ben")
    world.settle(anna)
    ben.join()
    anna.join()
    anna.sync()
    ben2 = restarted(ben)
    ben2.join()
    world.advance_heartbeating(REBALANCE_MS, anna, ben2)
    assert world.member_ids() == [anna.member_id]


def test_an_administrator_removes_members_by_instance() -> None:
    world = World()
    anna, _ben = static_pair(world)
    request = LeaveRequest(
        group_id=GROUP,
        members=[LeavingMember(group_instance_id="i-ben"), LeavingMember(group_instance_id="i-nobody")],
    )
    result = world.coordinator.leave(request, world.now_ms)
    assert [(left.group_instance_id, left.error) for left in result.members] == [
        ("i-ben", ErrorCode.none),
        ("i-nobody", ErrorCode.unknown_member_id),
    ]
    assert anna.join().answer.generation_id == 3
    assert len(anna.view.members) == 1


def test_a_silent_static_member_is_out_after_its_session_timeout() -> None:
    world = World()
    anna, ben = static_pair(world)
    world.advance(SESSION_MS // 2)
    anna.heartbeat()
    world.advance(SESSION_MS // 2)
    assert world.member_ids() == [anna.member_id]
    assert restarted(ben).join().held  # an ordinary newcomer now
