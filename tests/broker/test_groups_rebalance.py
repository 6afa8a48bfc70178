"""From joins to a stable group: syncs, durability of assignments, every timeout, members that go."""

from __future__ import annotations

import pytest
from groups_world import GROUP, REBALANCE_MS, SESSION_MS, World

from broker.groups import GroupState, JoinRequest, LeaveRequest, LeavingMember, SyncRequest
from wire.errors import ErrorCode, KafkaError


class TestSync:
    def test_followers_wait_for_the_leader(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna)
        ben.join()
        anna.join()
        assert ben.sync().held
        result = anna.sync().answer
        assert result.assignment == b"g2 for anna-1"
        assert (result.protocol_type, result.protocol_name) == ("consumer", "range")
        assert ben.assignment == b"g2 for ben-2"
        assert world.state() is GroupState.STABLE

    def test_who_is_not_assigned_anything_gets_nothing(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna)
        ben.join()
        anna.join()
        ben.sync()
        anna.sync(assignments=[(anna.member_id, b"all"), ("nobody", b"some")])
        assert (anna.assignment, ben.assignment) == (b"all", b"")
        assert set(world.record()["members"]) == {anna.member_id, ben.member_id}

    def test_a_follower_may_come_after_the_leader_and_repeat_itself(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna)
        ben.join()
        anna.join()
        anna.sync()
        assert ben.sync().answer.assignment == ben.sync().answer.assignment == b"g2 for ben-2"

    def test_an_assignment_from_a_follower_is_not_the_groups(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna)
        ben.join()
        anna.join()
        assert ben.sync(assignments=[(ben.member_id, b"everything")]).held
        assert world.store_calls[-1][1]["generation"] == 1
        anna.sync()
        assert ben.assignment == b"g2 for ben-2"

    def test_a_repeated_sync_supersedes_the_first_which_is_answered_too(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna)
        ben.join()
        anna.join()
        first, second = ben.sync(), ben.sync()
        assert first.answer.error is ErrorCode.rebalance_in_progress
        anna.sync()
        assert second.answer.error is ErrorCode.none


class TestDurability:
    def test_nobody_hears_of_an_assignment_before_it_is_durable(self) -> None:
        world = World(slow_store=True)
        anna = world.member("anna")
        anna.join()
        syncing = anna.sync()
        assert syncing.held
        assert world.state() is GroupState.COMPLETING_REBALANCE
        assert world.coordinator.describe(GROUP).members[0].assignment == b""
        world.finish_stores()
        assert syncing.answer.assignment == b"g1 for anna-1"
        assert world.state() is GroupState.STABLE

    def test_a_leader_that_repeats_itself_is_stored_once(self) -> None:
        world = World(slow_store=True)
        anna = world.member("anna")
        anna.join()
        first = anna.sync(assignments=[(anna.member_id, b"first")])
        second = anna.sync(assignments=[(anna.member_id, b"second")])
        assert first.answer.error is ErrorCode.rebalance_in_progress
        world.finish_stores()
        assert second.answer.assignment == b"first"
        assert len(world.store_calls) == 1
        assert world.record()["members"]["anna-1"]["assignment"] == b"first"

    def test_a_rebalance_that_begins_meanwhile_wins(self) -> None:
        world = World(slow_store=True)
        anna, ben = world.members("anna", "ben")
        anna.join()
        syncing = anna.sync()
        ben.join()
        assert syncing.answer.error is ErrorCode.rebalance_in_progress
        world.finish_stores()
        assert world.state() is GroupState.PREPARING_REBALANCE
        assert world.coordinator.describe(GROUP).members[0].assignment == b""
        anna.join()
        ben.sync()
        anna.sync()
        world.finish_stores()
        assert (anna.assignment, ben.assignment) == (b"g2 for anna-1", b"g2 for ben-2")

    def test_an_assignment_stored_late_does_not_get_into_the_next_generation(self) -> None:
        world = World(slow_store=True)
        anna, ben = world.members("anna", "ben")
        anna.join()
        anna.sync()
        ben.join()
        anna.join()
        ben.sync()
        world.finish_stores()
        assert world.state() is GroupState.COMPLETING_REBALANCE
        assert ben.last_sync.held
        anna.sync()
        world.finish_stores()
        assert ben.assignment == b"g2 for ben-2"

    @pytest.mark.parametrize(
        ("failure", "told"),
        [
            (OSError("EIO"), ErrorCode.coordinator_not_available),
            (KafkaError(ErrorCode.not_enough_replicas), ErrorCode.coordinator_not_available),
            (KafkaError(ErrorCode.kafka_storage_error), ErrorCode.not_coordinator),
            (KafkaError(ErrorCode.message_too_large), ErrorCode.unknown_server_error),
        ],
    )
    def test_a_store_that_fails_fails_the_syncs_and_starts_again(
        self, failure: Exception, told: ErrorCode
    ) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna)
        ben.join()
        anna.join()
        world.slow_store = True
        world.sync_all(anna, ben)
        world.finish_stores(failure)
        assert anna.last_sync.answer.error is ben.last_sync.answer.error is told
        assert world.state() is GroupState.PREPARING_REBALANCE
        world.slow_store = False
        world.settle(anna, ben)

    def test_an_assignment_that_does_not_fit_is_refused(self) -> None:
        world = World(max_memory_bytes=10_000)
        anna = world.member("anna")
        anna.join()
        syncing = anna.sync(assignments=[(anna.member_id, bytes(10_000))])
        assert syncing.answer.error is ErrorCode.group_max_size_reached
        assert world.store_calls == []
        assert world.state() is GroupState.PREPARING_REBALANCE


class TestTimeouts:
    def test_a_silent_member_is_out_after_its_session_timeout(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna, ben)
        world.advance(SESSION_MS - 1)
        assert anna.heartbeat() is ErrorCode.none
        assert len(world.member_ids()) == 2
        world.advance(1)
        assert world.member_ids() == [anna.member_id]
        assert anna.heartbeat() is ErrorCode.rebalance_in_progress
        assert ben.heartbeat() is ErrorCode.unknown_member_id
        assert anna.join().answer.generation_id == 3

    def test_the_last_silent_member_leaves_an_empty_group(self) -> None:
        world = World()
        anna = world.member("anna")
        world.settle(anna)
        world.advance(SESSION_MS)
        assert world.state() is GroupState.EMPTY
        assert world.generation() == 2
        assert world.record()["members"] == {}
        assert world.coordinator.next_deadline() is None

    def test_each_member_has_its_own_session_timeout(self) -> None:
        world = World()
        quick, patient = world.member("quick"), world.member("patient", session_ms=30_000)
        world.settle(quick, patient)
        assert world.coordinator.next_deadline() == world.now_ms + SESSION_MS
        world.advance(SESSION_MS)
        assert world.member_ids() == [patient.member_id]

    def test_a_rebalance_goes_on_without_those_who_do_not_join(self) -> None:
        world = World()
        anna, ben, carl = world.members("anna", "ben", "carl")
        world.settle(anna, ben)
        carl.join()
        ben.join()
        world.advance_heartbeating(REBALANCE_MS - 1_000, anna)  # lives, but never joins
        assert ben.last_join.held
        world.advance(1_000)
        assert ben.last_join.answer.leader_id == ben.member_id
        assert world.member_ids() == [ben.member_id, carl.member_id]
        assert anna.heartbeat() is ErrorCode.unknown_member_id

    def test_the_longest_rebalance_timeout_counts(self) -> None:
        world = World()
        anna = world.member("anna", rebalance_ms=90_000)
        ben, carl = world.members("ben", "carl")
        world.settle(anna, ben)
        carl.join()
        ben.join()
        world.advance_heartbeating(89_000, anna)
        assert ben.last_join.held
        world.advance_heartbeating(1_000, anna)
        assert not ben.last_join.held

    def test_version_0_has_the_session_timeout_for_both(self) -> None:
        world = World()
        anna, ben, carl = world.members("anna", "ben", "carl", rebalance_ms=-1)
        world.settle(anna, ben)
        carl.join()
        ben.join()
        world.advance_heartbeating(SESSION_MS, anna)
        assert ben.last_join.answer.error is ErrorCode.none

    def test_a_held_join_stops_the_session_clock(self) -> None:
        world = World()
        anna, ben, carl = world.members("anna", "ben", "carl")
        world.settle(anna, ben)
        carl.join()
        ben.join()
        world.advance_heartbeating(5 * SESSION_MS, anna)
        anna.join()
        assert ben.last_join.answer.error is ErrorCode.none
        assert len(anna.view.members) == 3
        world.sync_all(anna, ben, carl)
        world.advance(SESSION_MS - 1)
        assert ben.heartbeat() is ErrorCode.none

    def test_a_held_sync_stops_the_session_clock(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna)
        ben.join()
        anna.join()
        ben.sync()
        world.advance_heartbeating(3 * SESSION_MS, anna)
        anna.sync()
        assert ben.last_sync.answer.error is ErrorCode.none
        world.advance(SESSION_MS - 1)
        assert ben.heartbeat() is ErrorCode.none

    def test_a_sync_is_a_sign_of_life(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna, ben)
        for _ in range(3):
            world.advance(SESSION_MS - 1)
            anna.heartbeat()
            assert ben.sync().answer.error is ErrorCode.none
        assert len(world.member_ids()) == 2

    def test_a_new_member_may_not_wait_for_ever(self) -> None:
        world = World()
        anna = world.member("anna", rebalance_ms=3_600_000)
        ben = world.member("ben")
        world.settle(anna)
        ben.join()
        world.advance_heartbeating(299_000, anna)
        assert ben.last_join.held
        world.advance_heartbeating(1_000, anna)
        assert ben.last_join.answer.error is ErrorCode.unknown_member_id
        assert ben.last_join.answer.member_id == ""
        anna.join()
        assert len(anna.view.members) == 1

    def test_who_never_syncs_is_out_after_the_rebalance_timeout(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna)
        ben.join()
        anna.join()
        anna.sync()
        world.advance_heartbeating(REBALANCE_MS - 1_000, anna, ben)
        assert len(world.member_ids()) == 2
        world.advance_heartbeating(1_000, anna, ben)
        assert world.member_ids() == [anna.member_id]
        assert world.state() is GroupState.PREPARING_REBALANCE

    def test_a_leader_that_never_syncs_sets_the_others_free(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna)
        ben.join()
        anna.join()
        ben.sync()
        world.advance_heartbeating(REBALANCE_MS, anna)
        assert ben.last_sync.answer.error is ErrorCode.rebalance_in_progress
        assert ben.join().answer.leader_id == ben.member_id

    def test_once_all_have_synced_nothing_is_waited_for_but_sessions(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna, ben)
        assert world.coordinator.next_deadline() == world.now_ms + SESSION_MS
        world.advance_heartbeating(2 * REBALANCE_MS, anna, ben)
        assert world.generation() == 2
        assert world.state() is GroupState.STABLE

    def test_a_clock_that_goes_backwards_ends_no_session(self) -> None:
        world = World()
        anna = world.member("anna")
        world.settle(anna)
        world.now_ms -= 500_000
        assert anna.heartbeat() is ErrorCode.none
        world.coordinator.tick(world.now_ms)
        world.now_ms += 500_000
        world.coordinator.tick(world.now_ms)
        assert anna.heartbeat() is ErrorCode.none


class TestLeaving:
    def test_the_others_rebalance_at_once(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna, ben)
        assert anna.leave() is ErrorCode.none
        assert ben.heartbeat() is ErrorCode.rebalance_in_progress
        assert ben.join().answer.leader_id == ben.member_id

    def test_a_rebalance_that_waited_for_the_leaver_completes(self) -> None:
        world = World()
        anna, ben, carl = world.members("anna", "ben", "carl")
        world.settle(anna, ben)
        carl.join()
        anna.join()
        assert ben.leave() is ErrorCode.none
        assert anna.last_join.answer.generation_id == 3
        assert len(anna.view.members) == 2

    def test_the_last_one_leaves_an_empty_durable_group(self) -> None:
        world = World()
        anna = world.member("anna")
        world.settle(anna)
        anna.leave()
        assert world.state() is GroupState.EMPTY
        assert world.record() == {
            "version": 1,
            "generation": 2,
            "protocol_type": "consumer",
            "protocol": None,
            "leader": None,
            "members": {},
        }

    def test_a_leaver_whose_requests_are_held_gets_them_answered(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna, ben)
        ben.protocols = (("range", b"other topics"),)
        joining = ben.join()
        assert ben.leave() is ErrorCode.none
        assert joining.answer.error is ErrorCode.unknown_member_id
        world.settle(anna, ben)
        ben.protocols = (("range", b"topics"),)
        ben.join()
        anna.join()
        syncing = ben.sync()
        assert ben.leave() is ErrorCode.none
        assert syncing.answer.error is ErrorCode.unknown_member_id

    def test_several_at_once_set_off_one_rebalance(self) -> None:
        world = World()
        members = anna, ben, carl, dora = world.members("anna", "ben", "carl", "dora")
        world.settle(*members)
        generation = world.generation()
        leaving = [LeavingMember(member_id=m.member_id) for m in (anna, ben, carl)]
        stranger = LeavingMember(member_id="nobody")
        request = LeaveRequest(group_id=GROUP, members=[*leaving, stranger, leaving[0]])
        result = world.coordinator.leave(request, world.now_ms)
        assert [left.error for left in result.members] == [
            *[ErrorCode.none] * 3,
            ErrorCode.unknown_member_id,
            ErrorCode.unknown_member_id,
        ]
        assert [left.member_id for left in result.members][3] == "nobody"
        assert dora.join().answer.generation_id == generation + 1

    def test_a_handed_out_id_given_back_disturbs_nobody(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna)
        ben.join_once()
        ben.leave()
        assert world.state() is GroupState.STABLE


class TestCallsFromReplies:
    def test_a_reply_may_call_straight_back(self) -> None:
        """Three members whose every answer sends their next request, inside the very callback."""
        world = World()
        assigned: dict[str, bytes] = {}

        def drive(name: str) -> None:
            def joined(result: object) -> None:
                if result.error is ErrorCode.member_id_required:
                    join(result.member_id)
                    return
                assert result.error is ErrorCode.none
                plan = [(member.member_id, member.member_id.encode()) for member in result.members]
                request = SyncRequest(
                    group_id=GROUP,
                    generation_id=result.generation_id,
                    member_id=result.member_id,
                    assignments=plan,
                )
                world.coordinator.sync(request, world.now_ms, lambda sync: synced(result.member_id, sync))

            def synced(member_id: str, result: object) -> None:
                if result.error is ErrorCode.rebalance_in_progress:
                    join(member_id)
                else:
                    assert result.error is ErrorCode.none
                    assigned[member_id] = result.assignment

            def join(member_id: str) -> None:
                request = JoinRequest(
                    group_id=GROUP,
                    member_id=member_id,
                    client_id=name,
                    session_timeout_ms=SESSION_MS,
                    protocol_type="consumer",
                    protocols=[("range", name.encode())],
                    require_known_member_id=True,
                )
                world.coordinator.join(request, world.now_ms, joined)

            join("")

        for name in ("anna", "ben", "carl"):
            drive(name)
        world.advance(SESSION_MS)  # anna's first generation is stable and she does not heartbeat: out
        assert set(assigned) >= {"ben-2", "carl-3"}
        assert world.state() is GroupState.STABLE
        assert assigned["ben-2"] == b"ben-2"

    def test_a_thousand_replies_that_call_back_do_not_pile_up(self) -> None:
        world = World()
        members = world.members(*[f"m{number}" for number in range(1_000)], two_steps=False)
        world.settle(*members)
        for member in members:
            member.protocols = (("range", b"new topics"),)
            member.join()
            if member.last_join.held:
                member.last_join.then = lambda _result, member=member: member.sync()
        assert members[-1].sync().answer.assignment.startswith(b"g")
        assert world.state() is GroupState.STABLE
        assert world.unanswered == []

    def test_a_reply_that_fails_does_not_cost_others_theirs(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna)

        def broken(_result: object) -> None:
            raise RuntimeError("the handler broke")

        request = JoinRequest(
            group_id=GROUP,
            client_id="carl",
            session_timeout_ms=SESSION_MS,
            protocol_type="consumer",
            protocols=[("range", b"")],
        )
        world.coordinator.join(request, world.now_ms, broken)
        ben.join()
        with pytest.raises(RuntimeError, match="the handler broke"):
            anna.join()
        assert anna.last_join.answer.generation_id == ben.last_join.answer.generation_id == 2
