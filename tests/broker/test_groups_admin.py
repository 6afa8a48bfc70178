"""What outlives a member: offset commits as signs of life, restarts of the broker, listing, describing, deleting."""

from __future__ import annotations

from typing import Any

import pytest
from groups_world import GROUP, SESSION_MS, World

from broker.groups import BadGroupRecord, GroupConfig, GroupOverview, GroupState
from wire.errors import ErrorCode


class TestOffsetCommits:
    def test_a_commit_counts_as_a_heartbeat(self) -> None:
        world = World()
        anna = world.member("anna")
        world.settle(anna)
        for _ in range(3):
            world.advance(SESSION_MS - 1)
            assert anna.commit() is ErrorCode.none
        world.advance(SESSION_MS)
        assert anna.commit() is ErrorCode.unknown_member_id

    def test_a_transactional_commit_or_a_refused_one_does_not(self) -> None:
        world = World()
        anna = world.member("anna")
        world.settle(anna)
        world.advance(SESSION_MS - 1)
        assert anna.commit(transactional=True) is ErrorCode.none
        anna.generation_id += 1
        assert anna.commit() is ErrorCode.illegal_generation
        world.advance(1)
        assert world.state() is GroupState.EMPTY

    def test_the_last_generation_may_commit_until_the_next_is_complete(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna)
        ben.join()
        assert anna.commit() is ErrorCode.none
        generation = anna.generation_id
        anna.join()
        assert anna.commit() is ErrorCode.rebalance_in_progress
        world.sync_all(anna, ben)
        assert anna.commit() is ErrorCode.none
        anna.generation_id = generation
        assert anna.commit() is ErrorCode.illegal_generation


class TestRestart:
    def test_members_go_on_as_if_nothing_had_happened(self) -> None:
        world = World()
        anna = world.member("anna")
        ben = world.member("ben", instance="i-ben", protocols=(("range", b"b"), ("sticky", b"b")))
        world.settle(anna, ben)
        before = world.coordinator.describe(GROUP)
        world.advance(SESSION_MS - 1)
        world.restart()
        assert world.coordinator.describe(GROUP) == before
        world.advance(SESSION_MS - 1)  # sessions started afresh
        assert anna.heartbeat() is ben.heartbeat() is ErrorCode.none
        assert ben.join().answer.generation_id == before.generation_id
        assert ben.sync().answer.assignment == ben.assignment
        assert anna.commit() is ErrorCode.none
        assert world.state() is GroupState.STABLE

    def test_members_that_do_not_come_back_time_out(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna, ben)
        world.restart()
        world.advance(SESSION_MS - 1)
        anna.heartbeat()
        world.advance(1)
        assert world.member_ids() == [anna.member_id]

    def test_generations_go_on_counting(self) -> None:
        world = World()
        anna = world.member("anna")
        world.settle(anna)
        anna.leave()
        world.restart()
        assert world.state() is GroupState.EMPTY
        anna.member_id = ""
        world.settle(anna)
        assert anna.generation_id == 3

    def test_a_generation_that_was_not_durable_never_was(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna)
        ben.join()
        world.slow_store = True
        anna.join()
        world.sync_all(anna, ben)
        world.restart()
        world.slow_store = False
        assert world.generation() == 1
        assert anna.heartbeat() is ErrorCode.illegal_generation
        assert ben.heartbeat() is ErrorCode.unknown_member_id
        ben.member_id = ""
        world.settle(anna, ben)

    def test_a_new_leader_can_be_found_after_a_restart(self) -> None:
        world = World()
        anna, ben = world.members("anna", "ben")
        world.settle(anna, ben)
        world.restart()
        anna.leave()
        assert ben.join().answer.leader_id == ben.member_id

    def test_keys_that_others_add_are_left_alone(self) -> None:
        world = World()
        anna = world.member("anna")
        world.settle(anna)
        world.coordinator = world._new_coordinator()
        world.coordinator.load({GROUP: world.record() | {"stored_ms": 7}}, world.now_ms)
        assert anna.heartbeat() is ErrorCode.none

    @pytest.mark.parametrize(
        "damage",
        [
            {"version": 99},
            {"leader": "nobody"},
            {"leader": None},
            {"protocol": "sticky"},
            {"protocol": None},
            {"members": {"a": {}}},
            {"members": None},
            {"members": {"a": {"instance": 1, "protocols": [["range"]]}}},
        ],
    )
    def test_a_record_that_cannot_be_is_refused(self, damage: dict[str, Any]) -> None:
        world = World()
        world.settle(world.member("anna"))
        fresh = world._new_coordinator()
        with pytest.raises(BadGroupRecord, match="'orders'"):
            fresh.load({GROUP: world.record() | damage}, world.now_ms)

    def test_a_record_with_a_key_missing_is_refused(self) -> None:
        world = World()
        world.settle(world.member("anna"))
        record = world.record()
        del record["generation"]
        with pytest.raises(BadGroupRecord, match="generation"):
            world._new_coordinator().load({GROUP: record}, world.now_ms)


class TestListAndDescribe:
    def test_groups_are_listed_with_their_states(self) -> None:
        world = World()
        anna = world.member("anna")
        worker = world.member("w", group_id="sink", protocol_type="connect", protocols=(("compatible", b""),))
        world.settle(anna)
        worker.join()
        assert sorted(world.coordinator.list_groups(), key=lambda group: group.group_id) == [
            GroupOverview("orders", "consumer", GroupState.STABLE),
            GroupOverview("sink", "connect", GroupState.COMPLETING_REBALANCE),
        ]

    def test_a_stable_group_shows_everything(self) -> None:
        world = World()
        anna = world.member("anna", instance="i-anna")
        world.settle(anna)
        description = world.coordinator.describe(GROUP)
        assert (description.protocol_type, description.protocol_name) == ("consumer", "range")
        assert description.leader_id == anna.member_id
        (member,) = description.members
        assert (member.client_id, member.client_host) == ("anna", "/anna")
        assert member.group_instance_id == "i-anna"
        assert member.metadata == b"topics"
        assert member.assignment == anna.assignment

    def test_a_group_that_rebalances_shows_no_protocol(self) -> None:
        world = World()
        world.member("anna").join()
        description = world.coordinator.describe(GROUP)
        assert description.state is GroupState.COMPLETING_REBALANCE
        assert description.protocol_name == ""
        assert description.members[0].metadata == b""

    def test_an_unknown_group_is_nothing(self) -> None:
        assert World().coordinator.describe(GROUP) is None


class TestDelete:
    def test_an_empty_group_goes_when_that_is_durable(self) -> None:
        world = World()
        anna = world.member("anna")
        world.settle(anna)
        anna.leave()
        world.slow_store = True
        answers: list[ErrorCode] = []
        world.coordinator.delete(GROUP, answers.append)
        assert world.coordinator.describe(GROUP) is None
        assert answers == []
        world.finish_stores()
        assert answers == [ErrorCode.none]
        assert world.durable == {}
        world.restart()
        assert world.coordinator.list_groups() == []

    def test_a_group_with_members_stays(self) -> None:
        world = World()
        anna = world.member("anna")
        world.settle(anna)
        answers: list[ErrorCode] = []
        world.coordinator.delete(GROUP, answers.append)
        assert answers == [ErrorCode.non_empty_group]
        assert anna.heartbeat() is ErrorCode.none

    def test_a_group_that_is_not_there(self) -> None:
        answers: list[ErrorCode] = []
        World().coordinator.delete(GROUP, answers.append)
        assert answers == [ErrorCode.group_id_not_found]

    def test_a_deletion_that_fails_says_so(self) -> None:
        world = World()
        anna = world.member("anna")
        world.settle(anna)
        anna.leave()
        world.slow_store = True
        answers: list[ErrorCode] = []
        world.coordinator.delete(GROUP, answers.append)
        world.finish_stores(OSError("EIO"))
        assert answers == [ErrorCode.coordinator_not_available]

    def test_handed_out_ids_go_with_their_group(self) -> None:
        world = World()
        anna = world.member("anna")
        anna.join_once()
        world.coordinator.delete(GROUP, lambda _error: None)
        assert world.coordinator.next_deadline() is None
        assert anna.join_once().answer.error is ErrorCode.unknown_member_id


@pytest.mark.parametrize(
    "settings",
    [
        {"min_session_timeout_ms": 0},
        {"min_session_timeout_ms": 10, "max_session_timeout_ms": 9},
        {"initial_rebalance_delay_ms": -1},
        {"new_member_join_timeout_ms": 0},
        {"max_groups": 0},
        {"max_members_per_group": 0},
        {"max_memory_bytes": 0},
    ],
)
def test_settings_that_contradict_themselves_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"timeout|must"):
        GroupConfig(**settings)
