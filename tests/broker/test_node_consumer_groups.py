"""Consumer groups of the new protocol on a whole node: wire bytes, a disk that forgets, and starts in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from support.sim_node import SimClient, SimNode
from support.sim_producer import create_topic

from broker.config import Limits
from wire.apis import ApiKey
from wire.errors import ErrorCode

GROUP = "orders"
SESSION_MS = 45_000


class Member:
    """A member that sends what it is told to, over whatever connection it is given."""

    def __init__(
        self, client: SimClient, member_id: str, *, group: str = GROUP, instance: str | None = None
    ) -> None:
        self.client = client
        self.member_id = member_id
        self.group = group
        self.instance = instance
        self.epoch = 0
        self.share: dict[UUID, set[int]] = {}

    def fields(self, **fields: Any) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.instance,
            "rebalance_timeout": -1,
            "topic_partitions": None,
        } | fields

    def ask(self, *, version: int = 1, **fields: Any) -> Any:
        return self.told(self.client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, **self.fields(**fields)))

    def told(self, answer: Any) -> Any:
        if answer.error_code is ErrorCode.none:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.share = {t.topic_id: set(t.partitions) for t in answer.assignment.topic_partitions}
        return answer

    def join(self, *topics: str, **fields: Any) -> Any:
        whole = {"rebalance_timeout": 60_000, "subscribed_topic_names": topics, "topic_partitions": []}
        return self.ask(**whole | {"member_epoch": 0} | fields)

    def beat(self, **fields: Any) -> Any:
        owned = [{"topic_id": topic, "partitions": sorted(numbers)} for topic, numbers in self.share.items()]
        return self.ask(topic_partitions=owned, **fields)

    @property
    def count(self) -> int:
        return sum(map(len, self.share.values()))


def settle(*members: Member) -> None:
    for _ in range(4):
        for member in members:
            assert member.beat().error_code is ErrorCode.none


def describe(client: SimClient, group: str = GROUP) -> Any:
    return client.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group]).groups[0]


def commit(client: SimClient, topic: str, partition: int, *, group: str = GROUP, **who: Any) -> ErrorCode:
    offset = {"partition_index": partition, "committed_offset": 7, "committed_metadata": ""}
    response = client.ask(
        ApiKey.OFFSET_COMMIT,
        9,
        group_id=group,
        **{"member_id": "", "generation_id_or_member_epoch": -1} | who,
        topics=[{"name": topic, "partitions": [offset]}],
    )
    return response.topics[0].partitions[0].error_code


def committed(client: SimClient, topic: str, partition: int, *, group: str = GROUP) -> int:
    wanted = {
        "group_id": group,
        "member_epoch": -1,
        "topics": [{"name": topic, "partition_indexes": [partition]}],
    }
    response = client.ask(ApiKey.OFFSET_FETCH, 9, groups=[wanted])
    return response.groups[0].topics[0].partitions[0].committed_offset


@pytest.fixture
def world() -> SimNode:
    world = SimNode()
    create_topic(world.client(), "t", 4)
    return world


def pair(world: SimNode) -> tuple[Member, Member]:
    anna, ben = Member(world.client(), "anna"), Member(world.client(), "ben")
    anna.join("t")
    ben.join("t")
    settle(anna, ben)
    assert anna.count == ben.count == 2
    return anna, ben


def reconnect(world: SimNode, *members: Member) -> None:
    for member in members:
        member.client = world.client()


def state_of(world: SimNode, *members: Member) -> list[Any]:
    return [describe(world.client()), *((member.epoch, member.share) for member in members)]


@pytest.mark.parametrize("end", ["kill", "restart", "cut_power"])
def test_members_go_on_after_a_start(world: SimNode, end: str) -> None:
    anna, ben = pair(world)
    before = state_of(world, anna, ben)
    getattr(world, end)()
    reconnect(world, anna, ben)
    assert anna.ask().error_code is ErrorCode.none
    assert ben.beat().error_code is ErrorCode.none
    assert state_of(world, anna, ben) == before


@pytest.mark.parametrize("keep", ["none", "all", "random"])
def test_what_a_member_was_told_is_there_after_a_power_cut(world: SimNode, keep: str) -> None:
    anna = Member(world.client(), "anna")
    assert anna.join("t").error_code is ErrorCode.none
    world.cut_power(keep=keep)
    reconnect(world, anna)
    answer = anna.ask()
    assert (answer.error_code, answer.member_epoch) == (ErrorCode.none, 2)
    assert describe(world.client()).members[0].assignment.topic_partitions[0].partitions == (0, 1, 2, 3)


def test_nobody_is_told_of_what_a_power_cut_takes(world: SimNode) -> None:
    anna, ben = pair(world)
    world.disk.flush_delay_ms = 1_000.0
    carl = Member(world.client(), "carl")
    number = carl.client.send(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        1,
        **carl.fields(rebalance_timeout=60_000, subscribed_topic_names=["t"], topic_partitions=[]),
    )
    heartbeat = anna.client.send(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **anna.fields())
    world.scheduler.advance(500)
    assert number not in carl.client.answers
    assert heartbeat not in anna.client.answers, "she would hear of Carl"
    world.cut_power(keep="none")
    reconnect(world, anna, ben, carl)
    assert anna.ask().error_code is ErrorCode.none
    assert carl.ask(member_epoch=3).error_code is ErrorCode.unknown_member_id
    assert describe(world.client()).group_epoch == 3


def test_a_member_that_says_nothing_is_out_and_the_node_s_own_timer_sees_to_it(world: SimNode) -> None:
    anna, ben = pair(world)
    for _ in range(SESSION_MS // 5_000):
        world.scheduler.advance(5_000)
        ben.beat()
    assert ben.beat().error_code is ErrorCode.none
    assert ben.count == 4
    assert anna.ask().error_code is ErrorCode.unknown_member_id
    world.scheduler.advance(SESSION_MS + 1)
    assert describe(world.client()).group_state == "Empty"


def test_sessions_end_after_a_start_without_any_request(world: SimNode) -> None:
    pair(world)
    world.kill()
    world.scheduler.advance(SESSION_MS + 1)
    assert describe(world.client()).group_state == "Empty"


def test_topics_that_are_grown_and_deleted(world: SimNode) -> None:
    anna, ben = pair(world)
    client = world.client()
    grown = client.ask(ApiKey.CREATE_PARTITIONS, 3, topics=[{"name": "t", "count": 6}], timeout=1_000)
    assert grown.results[0].error_code is ErrorCode.none
    settle(anna, ben)
    assert anna.count == ben.count == 3
    world.kill()
    reconnect(world, anna, ben)
    settle(anna, ben)
    assert anna.count == ben.count == 3
    world.client().ask(ApiKey.DELETE_TOPICS, 5, topic_names=["t"], timeout=1_000)
    settle(anna, ben)
    assert anna.share == ben.share == {}
    create_topic(world.client(), "t", 2)
    settle(anna, ben)
    assert anna.count == ben.count == 1


def test_a_pattern(world: SimNode) -> None:
    anna = Member(world.client(), "anna")
    assert anna.join(subscribed_topic_names=None, subscribed_topic_regex="t.*").error_code is ErrorCode.none
    assert anna.count == 4
    create_topic(world.client(), "t2", 3)
    world.kill()
    reconnect(world, anna)
    anna.beat()
    assert anna.count == 7
    described = describe(world.client()).members[0]
    assert (described.subscribed_topic_regex, described.subscribed_topic_names) == ("t.*", ())


def test_version_0(world: SimNode) -> None:
    anna = Member(world.client(), "")
    answer = anna.join("t", version=0)
    assert answer.error_code is ErrorCode.none
    anna.member_id = answer.member_id
    assert anna.ask(version=0).error_code is ErrorCode.none
    described = anna.client.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, group_ids=[GROUP]).groups[0]
    assert described.members[0].member_id == answer.member_id


def test_offsets_by_member_epochs_over_a_start(world: SimNode) -> None:
    anna, _ = pair(world)
    client, mine = world.client(), min(next(iter(anna.share.values())))
    who = {"member_id": "anna", "generation_id_or_member_epoch": anna.epoch}
    assert commit(client, "t", mine, **who) is ErrorCode.none
    world.kill()
    client = world.client()
    assert committed(client, "t", mine) == 7
    assert commit(client, "t", mine, **who) is ErrorCode.none
    stale = who | {"generation_id_or_member_epoch": anna.epoch + 1}
    assert commit(client, "t", mine, **stale) is ErrorCode.stale_member_epoch


def test_a_group_too_large_to_be_stored_is_refused_and_goes_on(world: SimNode) -> None:
    anna, ben = pair(world)
    before = state_of(world, anna, ben)
    names = [f"a-topic-with-a-rather-long-name-{number:060}" for number in range(50_000)]
    carl = Member(world.client(), "carl")
    assert carl.join(*names).error_code is ErrorCode.unknown_server_error
    assert state_of(world, anna, ben) == before
    assert anna.ask().error_code is ErrorCode.none


def test_a_store_that_is_gone(world: SimNode) -> None:
    anna, _ = pair(world)
    world.node.store.close()
    carl = Member(world.client(), "carl")
    assert carl.join("t").error_code is ErrorCode.coordinator_not_available
    group = describe(world.client())
    assert (group.group_epoch, {member.member_id for member in group.members}) == (3, {"anna", "ben"})
    assert anna.ask().error_code is ErrorCode.none, "what is durable is still told"


# -- with classic members


def subscription(*topics: str) -> bytes:
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff" * 4


def classic_join(client: SimClient, member_id: str = "") -> Any:
    return client.ask(
        ApiKey.JOIN_GROUP,
        3,
        group_id=GROUP,
        session_timeout=30_000,
        rebalance_timeout=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": subscription("t")}],
    )


def classic_sync(client: SimClient, joined: Any, assignments: Mapping[str, bytes] | None = None) -> Any:
    return client.ask(
        ApiKey.SYNC_GROUP,
        2,
        group_id=GROUP,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[{"member_id": who, "assignment": data} for who, data in (assignments or {}).items()],
    )


def classic_heartbeat(client: SimClient, joined: Any) -> ErrorCode:
    who = {"generation_id": joined.generation_id, "member_id": joined.member_id}
    return client.ask(ApiKey.HEARTBEAT, 2, group_id=GROUP, **who).error_code


ALL_FOUR = b"\0\0\0\0\0\1\0\1t\0\0\0\4" + b"".join(n.to_bytes(4, "big") for n in range(4)) + b"\xff" * 4


def test_a_migration_with_starts_between_its_steps(world: SimNode) -> None:
    client = world.client()
    joined = classic_join(client)
    classic_sync(client, joined, {joined.member_id: ALL_FOUR})

    world.kill()
    carl, client = Member(world.client(), "carl"), world.client()
    assert classic_heartbeat(client, joined) is ErrorCode.none
    assert carl.join("t").error_code is ErrorCode.none

    world.cut_power(keep="none")
    reconnect(world, carl)
    client = world.client()
    assert classic_heartbeat(client, joined) is ErrorCode.rebalance_in_progress
    joined = classic_join(client, joined.member_id)
    assert joined.error_code is ErrorCode.none
    synced = classic_sync(client, joined)
    assert len(synced.assignment) == len(ALL_FOUR) - 8, "two of four"
    carl.beat()
    assert carl.count == 2
    assert {each.member_type for each in describe(client).members} == {0, 1}

    assert carl.ask(member_epoch=-1).error_code is ErrorCode.none
    world.cut_power(keep="none")
    client = world.client()
    assert describe(client).error_code is ErrorCode.group_id_not_found
    assert classic_heartbeat(client, joined) is ErrorCode.rebalance_in_progress
    joined = classic_join(client, joined.member_id)
    assert joined.leader == joined.member_id
    assert classic_sync(client, joined, {joined.member_id: ALL_FOUR}).assignment == ALL_FOUR
    world.kill()
    assert classic_heartbeat(world.client(), joined) is ErrorCode.none
    stored = [key for key, _ in world.node.store.scan("/group/orders/")]
    assert stored == ["/group/orders/state"], "nothing is left of the other protocol's records"


# -- beside the rest of the broker


def test_offsets_of_a_living_group_do_not_expire() -> None:
    world = SimNode(offsets_retention_minutes=1, offsets_retention_check_interval_ms=10_000)
    create_topic(world.client(), "t", 1)
    anna = Member(world.client(), "anna")
    anna.join("t")
    assert commit(world.client(), "t", 0, member_id="anna", generation_id_or_member_epoch=2) is ErrorCode.none
    for _ in range(30):
        world.scheduler.advance(10_000)
        assert anna.beat().error_code is ErrorCode.none
    assert committed(world.client(), "t", 0) == 7
    anna.ask(member_epoch=-1)
    world.scheduler.advance(50_000)
    assert committed(world.client(), "t", 0) == 7
    world.scheduler.advance(90_000)
    assert committed(world.client(), "t", 0) == -1
    assert describe(world.client()).error_code is ErrorCode.group_id_not_found
    assert list(world.node.store.scan("/group/")) == []


def test_settings_reach_the_groups() -> None:
    world = SimNode(
        group_consumer_session_timeout_ms=2_000,
        group_consumer_heartbeat_interval_ms=300,
        group_consumer_assignors=["range"],
        group_consumer_migration_policy="disabled",
        limits=Limits(group_members=1),
    )
    create_topic(world.client(), "t", 1)
    anna, ben = Member(world.client(), "anna"), Member(world.client(), "ben")
    assert anna.join("t").heartbeat_interval.total_seconds() == 0.3
    assert describe(world.client()).assignor_name == "range"
    assert ben.join("t").error_code is ErrorCode.group_max_size_reached
    assert ben.join("t", server_assignor="uniform").error_code is ErrorCode.unsupported_assignor
    assert classic_join(world.client()).error_code is ErrorCode.inconsistent_group_protocol
    world.scheduler.advance(2_001)
    assert describe(world.client()).group_state == "Empty"


def test_the_feature_is_finalized(world: SimNode) -> None:
    answer = world.client().ask(ApiKey.API_VERSIONS, 3, client_software_name="x", client_software_version="1")
    assert {each.name: each.max_version_level for each in answer.finalized_features} == {
        "group.version": 1,
        "transaction.version": 2,
    }
    assert world.client().ask(ApiKey.API_VERSIONS, 2).error_code is ErrorCode.none
