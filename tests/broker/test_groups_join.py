"""JoinGroup: newcomers, returning members, the leader's view, the initial delay and the limits."""

from __future__ import annotations

from groups_world import GROUP, REBALANCE_MS, SESSION_MS, World

from broker.groups import GroupState
from wire.errors import ErrorCode


def test_the_first_member_leads_a_generation_of_its_own() -> None:
    world = World()
    anna = world.member("anna")
    first = anna.join_once()
    assert first.answer.error is ErrorCode.member_id_required
    assert first.answer.member_id == "anna-1"
    second = anna.join_once()
    assert second.answer.error is ErrorCode.none
    assert second.answer.generation_id == 1
    assert second.answer.leader_id == second.answer.member_id == "anna-1"
    assert (second.answer.protocol_type, second.answer.protocol_name) == ("consumer", "range")
    assert [(m.member_id, m.group_instance_id, m.metadata) for m in second.answer.members] == [
        ("anna-1", None, b"topics")
    ]
    assert world.state() is GroupState.COMPLETING_REBALANCE


def test_versions_below_4_join_in_one_step() -> None:
    world = World()
    anna = world.member("anna", two_steps=False)
    assert anna.join_once().answer.error is ErrorCode.none


def test_a_second_member_makes_the_first_join_again() -> None:
    world = World()
    anna, ben = world.members("anna", "ben")
    world.settle(anna)
    joining = ben.join()
    assert joining.held
    assert world.state() is GroupState.PREPARING_REBALANCE
    assert anna.heartbeat() is ErrorCode.rebalance_in_progress
    assert anna.join().answer.generation_id == joining.answer.generation_id == 2
    assert anna.leads
    assert not ben.leads
    assert [member.member_id for member in anna.view.members] == [anna.member_id, ben.member_id]
    assert ben.view.members == ()
    assert ben.view.leader_id == anna.member_id


def test_everybody_gets_the_protocol_that_all_have_and_most_prefer() -> None:
    world = World()
    anna = world.member("anna", protocols=(("sticky", b"a-s"), ("range", b"a-r"), ("only-anna", b"")))
    ben = world.member("ben", protocols=(("range", b"b-r"), ("sticky", b"b-s")))
    carl = world.member("carl", protocols=(("range", b"c-r"), ("sticky", b"c-s")))
    world.settle(anna, ben, carl)
    assert {m.view.protocol_name for m in (anna, ben, carl)} == {"range"}
    assert [member.metadata for member in anna.view.members] == [b"a-r", b"b-r", b"c-r"]


def test_an_even_vote_goes_to_the_eldest() -> None:
    world = World()
    anna = world.member("anna", protocols=(("sticky", b""), ("range", b"")))
    ben = world.member("ben", protocols=(("range", b""), ("sticky", b"")))
    world.settle(anna, ben)
    assert ben.view.protocol_name == "sticky"


def test_cooperative_members_move_to_a_new_assignor_one_by_one() -> None:
    """The rolling bounce from eager to cooperative (KIP-429): first both are offered, then only the new one."""
    both = (("cooperative-sticky", b"c"), ("range", b"r"))
    world = World()
    anna, ben = world.members("anna", "ben")
    world.settle(anna, ben)
    for member, others in ((anna, [ben]), (ben, [anna])):
        member.leave()
        member.member_id, member.protocols = "", both
        world.settle(*others, member)
    assert ben.view.protocol_name == anna.view.protocol_name == "cooperative-sticky"
    for member in (anna, ben):
        member.protocols = both[:1]
        world.settle(anna, ben)
    assert ben.view.protocol_name == "cooperative-sticky"


def test_a_member_without_a_common_protocol_is_refused_and_changes_nothing() -> None:
    world = World()
    anna = world.member("anna")
    world.settle(anna)
    for stranger in (
        world.member("ben", protocols=(("sticky", b""),)),
        world.member("ben", protocols=()),
        world.member("ben", protocol_type="connect"),
        world.member("ben", instance="i", protocol_type="connect"),
    ):
        assert stranger.join().answer.error is ErrorCode.inconsistent_group_protocol
    assert world.state() is GroupState.STABLE
    assert anna.heartbeat() is ErrorCode.none


def test_a_protocol_that_only_some_members_have_is_not_common() -> None:
    world = World()
    anna = world.member("anna", protocols=(("range", b""), ("sticky", b"")))
    ben = world.member("ben")
    world.settle(anna, ben)
    carl = world.member("carl", protocols=(("sticky", b""),))
    assert carl.join().answer.error is ErrorCode.inconsistent_group_protocol


def test_an_empty_group_takes_any_protocol() -> None:
    world = World()
    anna = world.member("anna")
    world.settle(anna)
    anna.leave()
    worker = world.member("worker", protocol_type="connect", protocols=(("compatible", b""),))
    world.settle(worker)
    assert worker.generation_id == 3
    assert world.coordinator.describe(GROUP).protocol_type == "connect"


def test_a_refused_first_join_leaves_no_group_behind() -> None:
    world = World()
    assert world.member("anna", protocols=()).join().answer.error is ErrorCode.inconsistent_group_protocol
    assert world.coordinator.list_groups() == []


class TestReturningMembers:
    def test_a_follower_without_news_is_told_the_current_generation(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna, ben)
        again = ben.join()
        assert again.answer.generation_id == 2
        assert again.answer.members == ()
        assert world.state() is GroupState.STABLE
        assert ben.sync().answer.assignment == b"g2 for " + ben.member_id.encode()

    def test_a_follower_with_new_metadata_starts_a_rebalance(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna, ben)
        ben.protocols = (("range", b"more topics"),)
        assert ben.join().held
        anna.join()
        assert [member.metadata for member in anna.view.members] == [b"topics", b"more topics"]

    def test_the_leader_starts_a_rebalance_whenever_it_joins(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna, ben)
        assert anna.join().held
        assert ben.join().answer.generation_id == 3

    def test_a_lost_answer_is_repeated_while_the_generation_completes(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna)
        ben.join()
        anna.join()
        assert world.state() is GroupState.COMPLETING_REBALANCE
        assert ben.join().answer.generation_id == 2
        again = anna.join()
        assert again.answer.generation_id == 2
        assert len(again.answer.members) == 2
        world.sync_all(anna, ben)
        assert world.state() is GroupState.STABLE

    def test_new_metadata_while_the_generation_completes_starts_another(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna)
        ben.join()
        anna.join()
        waiting = ben.sync()
        anna.protocols = (("range", b"more topics"),)
        assert anna.join().held
        assert waiting.answer.error is ErrorCode.rebalance_in_progress
        assert ben.join().answer.generation_id == 3

    def test_a_repeated_join_supersedes_the_first_which_is_answered_too(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna, ben)
        first = anna.join()
        second = anna.join()
        assert first.answer.error is ErrorCode.rebalance_in_progress
        assert second.held
        ben.join()
        assert second.answer.generation_id == 3

    def test_a_stranger_with_a_member_id_is_sent_back(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        ben.member_id = "ben-from-elsewhere"
        assert ben.join_once().answer.error is ErrorCode.unknown_member_id  # no such group
        ben.member_id = "ben-from-elsewhere"
        world.settle(anna)
        assert ben.join_once().answer.error is ErrorCode.unknown_member_id  # no such member
        assert world.state() is GroupState.STABLE


class TestHandedOutIds:
    def test_a_rebalance_waits_for_them(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna)
        ben.join_once()
        assert world.state() is GroupState.STABLE  # an id alone disturbs nobody
        assert anna.join().held
        ben.join_once()
        assert anna.last_join.answer.generation_id == 2
        assert len(anna.view.members) == 2

    def test_they_lapse_with_the_session_timeout(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna)
        ben.join_once()
        anna.join()
        world.advance_heartbeating(SESSION_MS, anna)
        assert anna.last_join.answer.generation_id == 2
        assert ben.join_once().answer.error is ErrorCode.unknown_member_id

    def test_they_can_be_given_back(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna)
        ben.join_once()
        joining = anna.join()
        assert ben.leave() is ErrorCode.none
        assert joining.answer.generation_id == 2
        assert ben.join_once().answer.error is ErrorCode.unknown_member_id

    def test_the_last_member_does_not_wait_for_them_to_leave(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna)
        ben.join_once()
        anna.leave()
        assert world.state() is GroupState.EMPTY
        assert ben.join_once().answer.generation_id == 3

    def test_a_group_of_nothing_else_does_not_stay(self) -> None:
        world = World()
        world.member("anna").join_once()
        assert world.state() is GroupState.EMPTY
        world.advance(SESSION_MS)
        assert world.coordinator.list_groups() == []
        assert world.coordinator.next_deadline() is None


class TestInitialDelay:
    def test_an_empty_group_waits_for_more_members(self) -> None:
        world = World(initial_rebalance_delay_ms=3_000)
        anna, ben = world.members("anna", "ben")
        anna.join()
        world.advance(2_999)
        assert anna.last_join.held
        world.advance(1)
        assert anna.last_join.answer.generation_id == 1
        world.sync_all(anna)
        ben.join()  # not an empty group any more
        anna.join()
        assert ben.last_join.answer.generation_id == 2

    def test_each_newcomer_extends_the_wait_up_to_the_rebalance_timeout(self) -> None:
        world = World(initial_rebalance_delay_ms=3_000)
        members = world.members(*"abcdefgh", rebalance_ms=10_000)
        start_ms = world.now_ms
        for member in members:
            member.join()
            world.advance(2_000)
            if not members[0].last_join.held:
                break
        assert members[0].view.generation_id == 1
        assert start_ms + 10_000 <= world.now_ms <= start_ms + 12_000
        assert len(members[0].view.members) == 5

    def test_the_wait_is_sat_out_even_when_everybody_has_left(self) -> None:
        world = World(initial_rebalance_delay_ms=3_000)
        anna = world.member("anna", instance="a")
        anna.join()
        anna.member_id = world.member_ids()[0]
        assert anna.leave() is ErrorCode.none
        assert world.state() is GroupState.PREPARING_REBALANCE
        world.advance(3_000)
        assert world.state() is GroupState.EMPTY
        assert world.unanswered == []


class TestLimits:
    def test_members_of_a_group(self) -> None:
        world = World(max_members_per_group=2)
        anna, ben, carl = world.members("anna", "ben", "carl")
        world.settle(anna, ben)
        refused = carl.join()
        assert refused.answer.error is ErrorCode.group_max_size_reached
        assert refused.answer.member_id == ""
        assert anna.heartbeat() is ErrorCode.none
        ben.leave()
        anna.join()
        world.settle(anna, carl)
        assert len(world.member_ids()) == 2

    def test_of_handed_out_ids_no_more_join_than_there_is_room_for(self) -> None:
        world = World(max_members_per_group=2)
        members = world.members("anna", "ben", "carl")
        for member in members[:2]:
            assert member.join_once().answer.error is ErrorCode.member_id_required
        assert members[2].join_once().answer.error is ErrorCode.group_max_size_reached

    def test_a_group_over_its_limit_sheds_those_who_come_last(self) -> None:
        world = World()
        members = world.members("anna", "ben", "carl")
        world.settle(*members)
        world.restart(max_members_per_group=2)
        assert world.state() is GroupState.PREPARING_REBALANCE
        anna, ben, carl = members
        assert ben.join().held
        assert carl.join().held
        assert anna.join().answer.error is ErrorCode.group_max_size_reached
        assert ben.last_join.answer.generation_id == carl.last_join.answer.generation_id == 3
        assert sorted(world.member_ids()) == sorted([ben.member_id, carl.member_id])

    def test_groups(self) -> None:
        world = World(max_groups=1)
        anna = world.member("anna")
        world.settle(anna)
        other = world.member("ben", group_id="payments")
        assert other.join().answer.error is ErrorCode.group_max_size_reached
        anna.leave()
        world.coordinator.delete(GROUP, lambda _error: None)
        world.settle(other)

    def test_memory_of_metadata(self) -> None:
        world = World(max_memory_bytes=10_000)
        anna = world.member("anna")
        world.settle(anna)
        big = world.member("ben", protocols=(("range", bytes(10_000)),))
        assert big.join().answer.error is ErrorCode.group_max_size_reached
        anna.protocols = (("range", bytes(10_000)),)
        assert anna.join().answer.error is ErrorCode.group_max_size_reached
        assert world.state() is GroupState.STABLE
        assert anna.heartbeat() is ErrorCode.none

    def test_memory_that_a_member_has_already_counts_once(self) -> None:
        world = World(max_memory_bytes=10_000)
        anna = world.member("anna", protocols=(("range", bytes(6_000)),))
        world.settle(anna)
        anna.protocols = (("range", bytes(7_000)),)
        assert anna.join().answer.error is ErrorCode.none

    def test_memory_is_given_back(self) -> None:
        world = World()
        budget = world.coordinator._rebalancer.budget
        anna = world.member("anna", instance="a")
        ben = world.member("ben", protocols=(("range", bytes(500)), ("sticky", bytes(500))))
        world.settle(anna, ben)
        anna.member_id = ""
        anna.join()
        world.settle(anna, ben)
        world.member("carl").join_once()
        assert budget.used_bytes > 2_000
        anna.leave()
        ben.leave()
        world.advance(REBALANCE_MS)
        assert world.state() is GroupState.EMPTY
        assert budget.used_bytes == 0
