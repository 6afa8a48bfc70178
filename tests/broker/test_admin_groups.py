"""ListGroups, DescribeGroups, DeleteGroups, OffsetDelete: groups as an administrator sees and clears them."""

from __future__ import annotations

from typing import Any

import pytest
from support.sim_groups import Member, commit_offsets, committed
from support.sim_node import SimClient, SimNode
from support.sim_producer import Producer, create_topic

from txn import keys
from wire.apis import ApiKey
from wire.errors import ErrorCode


def world_with_topics() -> SimNode:
    world = SimNode()
    for name in ("t", "u"):
        create_topic(world.client(), name, 2)
    return world


def list_groups(client: SimClient, version: int = 5, **filters: Any) -> dict[str, tuple[str, str, str]]:
    """(protocol type, state, type) by group; "" for what the version lacks."""
    answer = client.ask(ApiKey.LIST_GROUPS, version, **filters)
    assert answer.error_code is ErrorCode.none
    return {
        group.group_id: (
            group.protocol_type,
            getattr(group, "group_state", ""),
            getattr(group, "group_type", ""),
        )
        for group in answer.groups
    }


def describe_group(client: SimClient, group_id: str, version: int = 6, **fields: Any) -> Any:
    return client.ask(ApiKey.DESCRIBE_GROUPS, version, groups=(group_id,), **fields).groups[0]


def delete_groups(client: SimClient, *group_ids: str, version: int = 2) -> dict[str, ErrorCode]:
    answer = client.ask(ApiKey.DELETE_GROUPS, version, groups_names=group_ids)
    return {result.group_id: result.error_code for result in answer.results}


def offset_delete(
    client: SimClient, group_id: str, *topics: str
) -> tuple[ErrorCode, dict[str, list[ErrorCode]]]:
    answer = client.ask(
        ApiKey.OFFSET_DELETE,
        0,
        group_id=group_id,
        topics=tuple(
            {"name": topic, "partitions": ({"partition_index": 0}, {"partition_index": 1})}
            for topic in topics
        ),
    )
    return answer.error_code, {
        topic.name: [one.error_code for one in topic.partitions] for topic in answer.topics
    }


def populated() -> tuple[SimNode, Member]:
    """A stable group, an empty one, one that rebalances, one that only holds offsets, one of another protocol."""
    world = world_with_topics()
    stable = Member(world.client(), "stable", "t").settle()
    gone = Member(world.client(), "empty", "t").settle()
    gone.commit({("t", 0): 5})
    gone.leave()
    Member(world.client(), "joining", "t").join()
    commit_offsets(world.client(), "simple", {("t", 1): 7})
    Member(world.client(), "workers", protocol_type="connect", metadata=b"w").settle()
    return world, stable


EVERYTHING = {
    "stable": ("consumer", "Stable", "classic"),
    "empty": ("consumer", "Empty", "classic"),
    "joining": ("consumer", "CompletingRebalance", "classic"),
    "simple": ("", "Empty", "classic"),
    "workers": ("connect", "Stable", "classic"),
}
"""What `populated` makes: (protocol type, state, type)."""


class TestList:
    @pytest.mark.parametrize("version", range(6))
    def test_every_group_once(self, version: int) -> None:
        world, _ = populated()
        fields = 1 if version < 4 else 2 if version < 5 else 3
        found = list_groups(world.client(), version)
        assert {name: shown[:fields] for name, shown in found.items()} == {
            name: shown[:fields] for name, shown in EVERYTHING.items()
        }

    def test_filters_by_state_and_type(self) -> None:
        client = populated()[0].client()
        assert set(list_groups(client, states_filter=("Stable",))) == {"stable", "workers"}
        assert set(list_groups(client, states_filter=(" empty ", "STABLE"))) == {
            "stable",
            "workers",
            "empty",
            "simple",
        }
        assert list_groups(client, states_filter=("Dead",)) == {}
        assert set(list_groups(client, types_filter=("Classic",))) == set(EVERYTHING)
        assert list_groups(client, types_filter=("consumer",)) == {}
        assert set(list_groups(client, types_filter=("classic", "share"), states_filter=("Empty",))) == {
            "empty",
            "simple",
        }
        assert set(list_groups(client, version=4, states_filter=("Empty",))) == {"empty", "simple"}

    def test_groups_are_there_after_a_start(self) -> None:
        world, _ = populated()
        world.cut_power()
        found = list_groups(world.client())
        # A generation that never was stored is not there; its member joins again.
        assert found == {name: shown for name, shown in EVERYTHING.items() if name != "joining"}

    def test_group_ids_with_anything_in_them(self) -> None:
        world = world_with_topics()
        names = ["a", "a/b", "a/offset/t/0", "ä", "a b%", "A", "a!", "zz"]
        for name in names:
            assert commit_offsets(world.client(), name, {("t", 0): 1, ("u", 1): 2}) is ErrorCode.none
        assert set(list_groups(world.client())) == set(names)


class TestDescribe:
    @pytest.mark.parametrize("version", range(7))
    def test_a_stable_group(self, version: int) -> None:
        world, member = populated()
        group = describe_group(world.client(), "stable", version)
        assert group.error_code is ErrorCode.none
        assert (group.group_state, group.protocol_type, group.protocol_data) == (
            "Stable",
            "consumer",
            "range",
        )
        (shown,) = group.members
        assert (shown.member_id, shown.client_id, shown.client_host) == (member.member_id, "sim", "sim")
        assert (shown.member_metadata, shown.member_assignment) == (member.metadata, b"mine")

    @pytest.mark.parametrize("version", [5, 6])
    def test_others(self, version: int) -> None:
        client = populated()[0].client()
        for name, state, kind in (
            ("empty", "Empty", "consumer"),
            ("joining", "CompletingRebalance", "consumer"),
            ("simple", "Empty", ""),
        ):
            group = describe_group(client, name, version)
            assert group.error_code is ErrorCode.none
            assert (group.group_state, group.protocol_type, group.protocol_data) == (state, kind, "")
        absent = describe_group(client, "absent", version)
        assert absent.group_state == "Dead"
        assert absent.error_code is (ErrorCode.none if version < 6 else ErrorCode.group_id_not_found)

    def test_operations(self) -> None:
        client = populated()[0].client()
        assert describe_group(client, "stable").authorized_operations == -(1 << 31)
        asked = describe_group(client, "stable", include_authorized_operations=True)
        assert {n for n in range(31) if asked.authorized_operations & 1 << n} == {3, 6, 8, 10, 11}


class TestDelete:
    @pytest.mark.parametrize("version", [0, 1, 2])
    def test_empty_groups_go_with_their_offsets(self, version: int) -> None:
        world, _ = populated()
        names = ("stable", "empty", "joining", "simple", "absent", "")
        assert delete_groups(world.client(), *names, version=version) == {
            "stable": ErrorCode.non_empty_group,
            "empty": ErrorCode.none,
            "joining": ErrorCode.non_empty_group,
            "simple": ErrorCode.none,
            "absent": ErrorCode.group_id_not_found,
            "": ErrorCode.group_id_not_found,
        }
        for ending in ("", "kill", "cut_power"):
            if ending:
                getattr(world, ending)()
            client = world.client()
            assert not {"empty", "simple"} & set(list_groups(client))
            assert committed(client, "empty") == committed(client, "simple") == {}
        assert not [key for key, _ in world.node.store.scan(keys.GROUPS) if "/empty/" in key]
        assert delete_groups(world.client(), "empty") == {"empty": ErrorCode.group_id_not_found}

    def test_a_deleted_group_can_begin_anew(self) -> None:
        world, _ = populated()
        delete_groups(world.client(), "empty")
        member = Member(world.client(), "empty", "t").settle()
        assert member.generation_id == 1
        assert committed(world.client(), "empty") == {}

    def test_offsets_of_other_groups_stay(self) -> None:
        world, _ = populated()
        for name in ("simpl", "simple2", "simple/offset"):
            commit_offsets(world.client(), name, {("t", 0): 1})
        delete_groups(world.client(), "simple")
        for name in ("simpl", "simple2", "simple/offset"):
            assert committed(world.client(), name) == {("t", 0): 1}

    def test_offsets_that_a_transaction_holds_come_with_its_commit(self) -> None:
        world, _ = populated()
        producer = Producer(world.client(), "p")
        producer.init()
        assert producer.commit_offsets("simple", {("t", 0): 9}) is ErrorCode.none
        assert delete_groups(world.client(), "simple") == {"simple": ErrorCode.none}
        assert producer.end() is ErrorCode.none
        assert committed(world.client(), "simple") == {("t", 0): 9}


class TestOffsetDelete:
    NONE, SUBSCRIBED = [ErrorCode.none] * 2, [ErrorCode.group_subscribed_to_topic] * 2

    def test_what_members_read_stays(self) -> None:
        world = world_with_topics()
        member = Member(world.client(), "g", "t").settle()
        member.commit({("t", 0): 1, ("u", 0): 2, ("u", 1): 3})
        assert offset_delete(world.client(), "g", "t", "u") == (
            ErrorCode.none,
            {"t": self.SUBSCRIBED, "u": self.NONE},
        )
        for ending in ("", "cut_power"):
            if ending:
                getattr(world, ending)()
            assert committed(world.client(), "g") == {("t", 0): 1}

    def test_of_groups_without_members_anything_goes(self) -> None:
        world, _ = populated()
        for name in ("empty", "simple"):
            assert offset_delete(world.client(), name, "t") == (ErrorCode.none, {"t": self.NONE})
            assert committed(world.client(), name) == {}

    def test_members_that_do_not_say_what_they_read_may_read_anything(self) -> None:
        world, _ = populated()
        assert offset_delete(world.client(), "joining", "u") == (ErrorCode.none, {"u": self.SUBSCRIBED})
        for name, metadata in (
            ("short", b"\0"),
            ("cut", b"\0\0\0\0\0\1\0\5ab"),
            ("odd", b"\0\0\0\0\0\1\xff\xff"),
        ):
            Member(world.client(), name, metadata=metadata).settle()
            assert offset_delete(world.client(), name, "u") == (ErrorCode.none, {"u": self.SUBSCRIBED})

    def test_what_is_refused(self) -> None:
        client = populated()[0].client()
        assert offset_delete(client, "absent", "t") == (ErrorCode.group_id_not_found, {})
        assert offset_delete(client, "workers", "t") == (ErrorCode.non_empty_group, {})
        unknown = [ErrorCode.unknown_topic_or_partition]
        assert offset_delete(client, "simple", "absent") == (ErrorCode.none, {"absent": unknown * 2})
        create_topic(client, "narrow", 1)
        assert offset_delete(client, "simple", "narrow")[1] == {"narrow": [ErrorCode.none, *unknown]}


MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


class TestExpiry:
    """offsets.retention.minutes: seven days after nobody needs them any more."""

    def later(self, world: SimNode, days: float, *members: Member) -> None:
        """Let time pass; these members stay alive."""
        if not members:
            world.scheduler.advance(days * DAY_MS)
            return
        end_ms = world.scheduler.now_ms() + days * DAY_MS
        while world.scheduler.now_ms() < end_ms:
            world.scheduler.advance(25 * MINUTE_MS)
            for member in members:
                assert member.heartbeat() is ErrorCode.none

    def test_an_empty_groups_offsets_go_a_week_after_its_last_member(self) -> None:
        world = world_with_topics()
        member = Member(world.client(), "g", "t", session_timeout_ms=1_800_000).settle()
        member.commit({("t", 0): 1})
        self.later(world, 8, member)
        assert committed(world.client(), "g") == {("t", 0): 1}, "it has a member that reads the topic"
        member.leave()
        self.later(world, 6.9)
        world.kill()
        assert committed(world.client(), "g") == {("t", 0): 1}
        self.later(world, 0.2)
        assert list_groups(world.client()) == {}
        assert committed(world.client(), "g") == {}
        world.cut_power()
        assert world.node.store.count(keys.GROUPS) == 0

    def test_a_simple_consumers_offsets_go_a_week_after_their_commit(self) -> None:
        world = world_with_topics()
        commit_offsets(world.client(), "g", {("t", 0): 1})
        self.later(world, 4)
        commit_offsets(world.client(), "g", {("t", 1): 2})
        self.later(world, 3.1)
        assert committed(world.client(), "g") == {("t", 1): 2}
        self.later(world, 4)
        assert committed(world.client(), "g") == {}

    def test_a_stable_group_loses_what_it_does_not_read_any_more(self) -> None:
        world = world_with_topics()
        member = Member(world.client(), "g", "t", session_timeout_ms=1_800_000).settle()
        member.commit({("t", 0): 1, ("u", 0): 2})
        self.later(world, 7.1, member)
        assert committed(world.client(), "g") == {("t", 0): 1}
        assert list_groups(world.client()) == {"g": ("consumer", "Stable", "classic")}

    def test_other_groups_with_members_lose_nothing(self) -> None:
        world = world_with_topics()
        worker = Member(
            world.client(), "w", protocol_type="connect", metadata=b"w", session_timeout_ms=1_800_000
        ).settle()
        worker.commit({("t", 0): 1})
        self.later(world, 8, worker)
        assert committed(world.client(), "w") == {("t", 0): 1}

    def test_an_open_transaction_keeps_what_it_holds_and_its_group(self) -> None:
        world = SimNode(transaction_max_timeout_ms=2_000_000_000)
        create_topic(world.client(), "t", 2)
        member = Member(world.client(), "g", "t").settle()
        member.commit({("t", 0): 1, ("t", 1): 1})
        member.leave()
        producer = Producer(world.client(), "p", timeout_ms=2_000_000_000)
        producer.init()
        assert producer.commit_offsets("g", {("t", 0): 5}) is ErrorCode.none
        self.later(world, 8)
        assert committed(world.client(), "g") == {("t", 0): 1}
        assert set(list_groups(world.client())) == {"g"}
        assert producer.end() is ErrorCode.none
        self.later(world, 6)
        assert committed(world.client(), "g") == {("t", 0): 5}
        self.later(world, 1.1)
        assert list_groups(world.client()) == {}

    def test_a_group_that_never_committed_goes_with_the_next_sweep(self) -> None:
        world = world_with_topics()
        Member(world.client(), "g", "t").settle().leave()
        assert set(list_groups(world.client())) == {"g"}
        world.scheduler.advance(11 * MINUTE_MS)
        assert list_groups(world.client()) == {}

    def test_a_member_about_to_join_is_not_swept_away(self) -> None:
        world = world_with_topics()
        member = Member(world.client(), "g", "t", session_timeout_ms=1_800_000)
        answer = member.client.ask(ApiKey.JOIN_GROUP, 5, **member.join_fields())
        assert answer.error_code is ErrorCode.member_id_required
        world.scheduler.advance(11 * MINUTE_MS)
        member.member_id = answer.member_id
        member.settle()

    def test_retention_and_interval_can_be_changed_while_it_runs(self) -> None:
        from support.sim_admin import BROKER, SET, change

        world = world_with_topics()
        commit_offsets(world.client(), "g", {("t", 0): 1})
        changes = [
            ("offsets.retention.minutes", SET, "2"),
            ("offsets.retention.check.interval.ms", SET, "1000"),
        ]
        assert change(world.client(), BROKER, "1", changes)[0] is ErrorCode.none
        world.scheduler.advance(MINUTE_MS)
        assert committed(world.client(), "g") == {("t", 0): 1}
        world.scheduler.advance(MINUTE_MS + 2_000)
        assert committed(world.client(), "g") == {}

    def test_a_sweep_is_cut_into_pieces(self) -> None:
        """So that thousands of groups do not hold up everybody else."""
        world = SimNode(offsets_retention_minutes=1)
        create_topic(world.client(), "t", 2)
        client = world.client()
        numbers = []
        for number in range(5_000):
            fields = {
                "group_id": f"g{number}",
                "generation_id_or_member_epoch": -1,
                "member_id": "",
                "group_instance_id": None,
                "topics": (
                    {
                        "name": "t",
                        "partitions": (
                            {
                                "partition_index": 0,
                                "committed_offset": 1,
                                "committed_leader_epoch": -1,
                                "committed_metadata": "",
                            },
                        ),
                    },
                ),
            }
            numbers.append(client.send(ApiKey.OFFSET_COMMIT, 7, **fields))
        world.scheduler.run_until(lambda: all(number in client.answers for number in numbers))
        left = set()
        while world.node.store.count(keys.GROUPS):
            if not world.scheduler.run_turn():
                due = world.scheduler._next_due()
                assert due is not None
                world.scheduler._now_ms = due
            left.add(world.node.store.count(keys.GROUPS))
        assert len(left) >= 5
