"""The new consumer group protocol (KIP-848), by hand, and classic members beside it.

Every expectation holds on Apache Kafka 4.3.1 too, unless a test says `sealog_only`. Where Apache Kafka comes to the
same a few heartbeats later (it resolves patterns and makes assignments in the background), tests wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.clients.raw_kafka import RawKafka
from tests.clients.scenario_tools import eventually

TopicFactory = Callable[..., str]
Unique = Callable[[str], str]
Share = dict[str, set[int]]


class Member:
    """A member that remembers what it was told, and does nothing by itself."""

    def __init__(
        self, raw: RawKafka, group: str, member_id: str, topics: Sequence[str], instance: str | None = None
    ) -> None:
        self.raw = raw
        self.group = group
        self.member_id = member_id
        self.topics = topics
        self.instance = instance
        self.epoch = 0
        self.share: Share = {}

    def ask(self, *, version: int = 1, **fields: Any) -> Any:
        request = {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.instance,
            "rebalance_timeout": -1,
            "topic_partitions": None,
        }
        answer = self.raw.call("consumer_group_heartbeat", version, **request | fields)
        if answer.error_code is ErrorCode.none:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.share = self._by_name(answer.assignment)
        return answer

    def join(self, **fields: Any) -> Any:
        whole = {"rebalance_timeout": 60_000, "subscribed_topic_names": self.topics, "topic_partitions": []}
        return self.ask(**whole | {"member_epoch": 0} | fields)

    def beat(self, **fields: Any) -> Any:
        """A heartbeat that says that it owns what it was given."""
        return self.ask(topic_partitions=self.owned(self.share), **fields)

    def owned(self, share: Mapping[str, set[int]]) -> list[dict[str, Any]]:
        ids = topic_ids(self.raw, share)
        return [{"topic_id": ids[name], "partitions": sorted(numbers)} for name, numbers in share.items()]

    def leave(self, epoch: int = -1) -> Any:
        return self.ask(member_epoch=epoch)

    def _by_name(self, assignment: Any) -> Share:
        names = {topic_id: name for name, topic_id in topic_ids(self.raw, self.topics).items()}
        return {
            names.get(each.topic_id, str(each.topic_id)): set(each.partitions)
            for each in assignment.topic_partitions
        }


def topic_ids(raw: RawKafka, names: Any) -> dict[str, Any]:
    if not names:
        return {}
    asked = [{"name": name} for name in names]
    response = raw.call("metadata", 12, topics=asked, allow_auto_topic_creation=False)
    return {each.name: each.topic_id for each in response.topics}


def settle(*members: Member) -> None:
    """Heartbeats until a round brings nothing new."""

    def epochs() -> list[Any]:
        return [(member.epoch, member.share) for member in members]

    def quiet() -> bool:
        before = epochs()
        for member in members:
            answer = member.beat()
            assert answer.error_code is ErrorCode.none, answer
        return epochs() == before and len({member.epoch for member in members}) == 1

    eventually(lambda: quiet() and quiet(), "a settled group")


@pytest.fixture
def group(raw: RawKafka, unique: Unique) -> str:
    """A group whose coordinator is up."""
    name = unique("group")
    eventually(
        lambda: (
            raw.call("find_coordinator", 4, key_type=0, coordinator_keys=[name]).coordinators[0].error_code
            is ErrorCode.none
        ),
        "a coordinator",
    )
    member = Member(raw, name, "nobody", ())
    eventually(lambda: member.leave().error_code is ErrorCode.group_id_not_found, "a coordinator that is up")
    return name


@pytest.fixture
def member(raw: RawKafka, group: str) -> Callable[..., Member]:
    return lambda name, *topics, **fields: Member(raw, group, name, topics, **fields)


MemberFactory = Callable[..., Member]


def test_the_protocol_is_announced(raw: RawKafka) -> None:
    response = raw.call("api_versions", 4, client_software_name="raw", client_software_version="1")
    assert {each.name: each.max_version_level for each in response.finalized_features}["group.version"] == 1
    ranges = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
    assert ranges[68] == ranges[69] == (0, 1)


def test_two_share_and_the_one_left_takes_all(member: MemberFactory, topic: TopicFactory) -> None:
    name = topic(partitions=4)
    anna, ben = member("anna", name), member("ben", name)
    answer = anna.join()
    assert (answer.error_code, answer.member_id) == (ErrorCode.none, "anna")
    assert answer.heartbeat_interval.total_seconds() > 0
    settle(anna)
    assert anna.share == {name: {0, 1, 2, 3}}
    ben.join()
    assert ben.share == {}
    eventually(lambda: len(anna.share[name]) == 2, "less", step=anna.ask)
    epoch = anna.epoch
    ben.beat()
    assert ben.share == {}, "nothing is given before the other has given it up"
    assert anna.beat().member_epoch > epoch
    settle(anna, ben)
    assert ben.share == {name: {0, 1, 2, 3} - anna.share[name]}
    assert anna.leave().member_epoch == -1
    settle(ben)
    assert ben.share == {name: {0, 1, 2, 3}}


def test_range_gives_adjacent_partitions_in_the_order_of_members(
    member: MemberFactory, topic: TopicFactory
) -> None:
    names = [topic(partitions=5), topic(partitions=7)]
    members = [member("c", *names), member("a", *names), member("b", *names, instance="static")]
    for one in members:
        one.join(server_assignor="range")
        settle(*members[: members.index(one) + 1])
    c, a, b = (one.share for one in members)
    assert b == {names[0]: {0, 1}, names[1]: {0, 1, 2}}
    assert a == {names[0]: {2, 3}, names[1]: {3, 4}}
    assert c == {names[0]: {4}, names[1]: {5, 6}}


def test_a_pattern_and_a_topic_that_comes_later(raw: RawKafka, member: MemberFactory, unique: Unique) -> None:
    prefix = unique("pattern")
    raw.create_topic(f"{prefix}.a", 2)
    anna = member("anna", f"{prefix}.a", f"{prefix}.b")
    assert anna.join(subscribed_topic_names=None, subscribed_topic_regex=f"{prefix}[.].*").error_code is (
        ErrorCode.none
    )
    eventually(lambda: anna.share == {f"{prefix}.a": {0, 1}}, "the topic", step=anna.beat)
    raw.create_topic(f"{prefix}.b", 1)
    both = {f"{prefix}.a": {0, 1}, f"{prefix}.b": {0}}
    eventually(lambda: anna.share == both, "both topics", step=anna.beat)


REFUSED: Mapping[str, tuple[dict[str, Any], ErrorCode]] = {
    "no member id": ({"member_id": ""}, ErrorCode.invalid_request),
    "no group id": ({"group_id": ""}, ErrorCode.invalid_request),
    "an empty instance id": ({"instance_id": ""}, ErrorCode.invalid_request),
    "an empty rack id": ({"rack_id": " "}, ErrorCode.invalid_request),
    "no rebalance timeout": ({"rebalance_timeout": -1}, ErrorCode.invalid_request),
    "no word of what it owns": ({"topic_partitions": None}, ErrorCode.invalid_request),
    "no topics": ({"subscribed_topic_names": None}, ErrorCode.invalid_request),
    "a strange epoch": ({"member_epoch": -3}, ErrorCode.invalid_request),
    "away without an instance id": ({"member_epoch": -2}, ErrorCode.invalid_request),
    "an assignor nobody has": ({"server_assignor": "sticky"}, ErrorCode.unsupported_assignor),
    "a pattern that is none": ({"subscribed_topic_regex": "(a"}, ErrorCode.invalid_regular_expression),
    "a pattern that looks ahead": (
        {"subscribed_topic_regex": "(?=a)"},
        ErrorCode.invalid_regular_expression,
    ),
    "an unknown group": ({"member_epoch": 3}, ErrorCode.group_id_not_found),
    "leaving an unknown group": ({"member_epoch": -1}, ErrorCode.group_id_not_found),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(member: MemberFactory, topic: TopicFactory, case: str) -> None:
    fields, code = REFUSED[case]
    anna = member("anna", topic())
    answer = anna.join(**fields)
    assert answer.error_code is code
    assert answer.error_message
    assert anna.join().error_code is ErrorCode.none, "and nothing has come of it"


def test_version_0_may_leave_its_name_to_the_broker(member: MemberFactory, topic: TopicFactory) -> None:
    anna = member("", topic(partitions=1))
    answer = anna.join(version=0)
    assert answer.error_code is ErrorCode.none
    assert answer.member_id
    anna.member_id = answer.member_id
    assert anna.ask(version=0).error_code is ErrorCode.none


def test_members_that_are_not(member: MemberFactory, topic: TopicFactory) -> None:
    anna, ben = member("anna", topic()), member("ben", topic(), instance="i")
    anna.join()
    assert member("carl").ask(member_epoch=1).error_code is ErrorCode.unknown_member_id
    assert member("carl").leave().error_code is ErrorCode.unknown_member_id
    assert ben.ask(member_epoch=1).error_code is ErrorCode.unknown_member_id
    assert anna.ask(member_epoch=anna.epoch + 1).error_code is ErrorCode.fenced_member_epoch
    assert anna.ask().error_code is ErrorCode.none
    assert anna.join().error_code is ErrorCode.none, "a fenced member joins again"


def test_static_members(member: MemberFactory, topic: TopicFactory) -> None:
    name = topic(partitions=4)
    anna, ben = member("anna", name, instance="a"), member("ben", name, instance="b")
    anna.join()
    settle(anna)
    ben.join()
    settle(anna, ben)
    had, epoch = anna.share, anna.epoch
    thief = member("thief", name, instance="a")
    assert thief.join().error_code is ErrorCode.unreleased_instance_id
    assert thief.ask(member_epoch=epoch).error_code is ErrorCode.fenced_instance_id
    assert thief.leave().error_code is ErrorCode.fenced_instance_id

    assert anna.leave(-2).member_epoch == -2
    assert ben.beat().member_epoch == epoch
    again = member("anna2", name, instance="a")
    assert again.join().member_epoch == epoch
    assert again.share == had
    assert ben.beat().member_epoch == epoch
    assert anna.ask(member_epoch=epoch).error_code is ErrorCode.fenced_instance_id
    assert again.leave().error_code is ErrorCode.none
    settle(ben)
    assert ben.share == {name: {0, 1, 2, 3}}


def test_a_static_member_that_lost_track_joins_again(
    member: MemberFactory, topic: TopicFactory, sealog_only: Callable[[str], None]
) -> None:
    sealog_only("Apache Kafka says UNRELEASED_INSTANCE_ID to the very member that has the instance id")
    name = topic(partitions=2)
    anna = member("anna", name, instance="a")
    anna.join()
    assert anna.join().error_code is ErrorCode.none
    assert anna.share == {name: {0, 1}}


# -- offsets


def commit(
    raw: RawKafka, group: str, member_id: str, epoch: int, partition: tuple[str, int], *, version: int = 9
) -> ErrorCode:
    name, index = partition
    topic = {"topic_id": topic_ids(raw, [name])[name]} if version >= 10 else {"name": name}
    offset = {"partition_index": index, "committed_offset": 7, "committed_leader_epoch": -1}
    response = raw.call(
        "offset_commit",
        version,
        group_id=group,
        member_id=member_id,
        generation_id_or_member_epoch=epoch,
        group_instance_id=None,
        topics=[{**topic, "partitions": [{**offset, "committed_metadata": ""}]}],
    )
    return response.topics[0].partitions[0].error_code


def fetch(
    raw: RawKafka, group: str, member_id: str | None, epoch: int, partition: tuple[str, int]
) -> tuple[ErrorCode, int | None]:
    name, index = partition
    wanted = {"group_id": group, "member_id": member_id, "member_epoch": epoch}
    response = raw.call(
        "offset_fetch", 9, groups=[{**wanted, "topics": [{"name": name, "partition_indexes": [index]}]}]
    )
    found = response.groups[0]
    return found.error_code, found.topics[0].partitions[0].committed_offset if found.topics else None


@pytest.fixture
def pair(
    member: MemberFactory, topic: TopicFactory
) -> tuple[Member, Member, tuple[str, int], tuple[str, int]]:
    """Two members that share a topic, and a partition of each. The first had both before the second came."""
    name = topic(partitions=2)
    anna, ben = member("anna", name), member("ben", name)
    anna.join()
    settle(anna)
    ben.join()
    settle(anna, ben)
    return anna, ben, (name, min(anna.share[name])), (name, min(ben.share[name]))


def test_who_may_commit(raw: RawKafka, group: str, pair: Any) -> None:
    anna, _, her_partition, his_partition = pair
    for version in (9, 10):
        assert commit(raw, group, "anna", anna.epoch, her_partition, version=version) is ErrorCode.none
    assert commit(raw, group, "anna", anna.epoch, her_partition, version=8) is ErrorCode.unsupported_version
    older = anna.epoch - 1
    assert commit(raw, group, "anna", older, her_partition) is ErrorCode.none, "it was hers then as well"
    stale = ErrorCode.stale_member_epoch
    assert commit(raw, group, "anna", older, his_partition) is stale, "it is hers no more"
    assert commit(raw, group, "ben", older, his_partition) is stale, "it was not his yet"
    for epoch in (anna.epoch + 1, 0, -1):
        assert commit(raw, group, "anna", epoch, her_partition) is stale
    for stranger, epoch in (("carl", anna.epoch), ("", -1)):
        assert commit(raw, group, stranger, epoch, her_partition) is ErrorCode.unknown_member_id


def test_who_may_commit_without_a_group(raw: RawKafka, group: str, topic: TopicFactory) -> None:
    partition = (topic(), 0)
    assert commit(raw, group, "anna", 3, partition) is ErrorCode.group_id_not_found
    assert commit(raw, group, "anna", 3, partition, version=8) is ErrorCode.illegal_generation
    assert commit(raw, group, "", -1, partition) is ErrorCode.none
    for version in (8, 9):
        assert commit(raw, group, "anna", 3, partition, version=version) is ErrorCode.unknown_member_id


def test_anybody_may_commit_while_there_are_no_members(raw: RawKafka, group: str, pair: Any) -> None:
    anna, ben, partition, _ = pair
    anna.leave()
    ben.leave()
    assert commit(raw, group, "", -1, partition) is ErrorCode.none
    assert commit(raw, group, "anna", 3, partition) is ErrorCode.unknown_member_id


def test_who_may_fetch(raw: RawKafka, group: str, pair: Any) -> None:
    anna, _, partition, _ = pair
    commit(raw, group, "anna", anna.epoch, partition)
    found = (ErrorCode.none, 7)
    assert fetch(raw, group, "anna", anna.epoch, partition) == found
    assert fetch(raw, group, None, -1, partition) == found
    for epoch in (anna.epoch - 1, anna.epoch + 1, -1):
        assert fetch(raw, group, "anna", epoch, partition) == (ErrorCode.stale_member_epoch, None)
    assert fetch(raw, group, "carl", anna.epoch, partition) == (ErrorCode.unknown_member_id, None)
    assert fetch(raw, group + "-none", "anna", 2, partition) == (ErrorCode.none, -1)


def test_who_may_commit_in_a_transaction(raw: RawKafka, group: str, pair: Any, unique: Unique) -> None:
    anna, _, her_partition, his_partition = pair
    transactional_id = unique("tx")
    producer = raw.init_producer(transactional_id)

    def commit_in_it(member_id: str, epoch: int, partition: tuple[str, int], to: str = group) -> ErrorCode:
        offset = {"partition_index": partition[1], "committed_offset": 9, "committed_leader_epoch": -1}
        response = raw.call(
            "txn_offset_commit",
            5,
            transactional_id=transactional_id,
            group_id=to,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            generation_id=epoch,
            member_id=member_id,
            group_instance_id=None,
            topics=[{"name": partition[0], "partitions": [{**offset, "committed_metadata": ""}]}],
        )
        return response.topics[0].partitions[0].error_code

    assert commit_in_it("anna", anna.epoch, her_partition) is ErrorCode.none
    assert commit_in_it("anna", anna.epoch - 1, her_partition) is ErrorCode.none
    assert commit_in_it("", -1, his_partition) is ErrorCode.none
    assert commit_in_it("anna", anna.epoch - 1, his_partition) is ErrorCode.illegal_generation
    assert commit_in_it("anna", anna.epoch + 1, her_partition) is ErrorCode.illegal_generation
    assert commit_in_it("carl", 1, her_partition) is ErrorCode.unknown_member_id
    assert commit_in_it("anna", 1, her_partition, group + "-none") is ErrorCode.illegal_generation


# -- administration


def test_descriptions(raw: RawKafka, group: str, pair: Any) -> None:
    anna, _, (name, index), _ = pair
    asked = [group, group + "-none", ""]
    response = raw.call("consumer_group_describe", 1, group_ids=asked, include_authorized_operations=True)
    found = {each.group_id: each for each in response.groups}
    assert found[""].error_code is ErrorCode.invalid_group_id
    assert found[group + "-none"].error_code is ErrorCode.group_id_not_found
    described = found[group]
    assert (described.error_code, described.group_state) == (ErrorCode.none, "Stable")
    assert described.group_epoch == described.assignment_epoch == anna.epoch
    assert described.assignor_name == "uniform"
    assert described.authorized_operations == 3400
    (her,) = (each for each in described.members if each.member_id == "anna")
    assert (her.member_epoch, her.client_id, her.subscribed_topic_names) == (anna.epoch, "raw", (name,))
    assert (her.subscribed_topic_regex, her.member_type) == ("", 1)
    (owned,) = her.assignment.topic_partitions
    assert (owned.topic_name, owned.partitions) == (name, (index,))
    assert her.target_assignment.topic_partitions == her.assignment.topic_partitions


def test_the_group_among_others(raw: RawKafka, group: str, pair: Any) -> None:
    (listed,) = (
        each
        for each in raw.call("list_groups", 5, states_filter=["stable"], types_filter=["consumer"]).groups
        if each.group_id == group
    )
    assert (listed.protocol_type, listed.group_state, listed.group_type) == ("consumer", "Stable", "consumer")
    others = raw.call("list_groups", 5, states_filter=[], types_filter=["classic"]).groups
    assert group not in {each.group_id for each in others}
    (classic,) = raw.call("describe_groups", 6, groups=[group]).groups
    assert (classic.error_code, classic.group_state) == (ErrorCode.group_id_not_found, "Dead")
    (classic,) = raw.call("describe_groups", 5, groups=[group]).groups
    assert (classic.error_code, classic.group_state) == (ErrorCode.none, "Dead")


def test_a_group_with_members_cannot_be_deleted(raw: RawKafka, group: str, pair: Any) -> None:
    anna, ben, partition, _ = pair
    commit(raw, group, "anna", anna.epoch, partition)
    (result,) = raw.call("delete_groups", 2, groups_names=[group]).results
    assert result.error_code is ErrorCode.non_empty_group
    wanted = [{"name": partition[0], "partitions": [{"partition_index": partition[1]}]}]
    answer = raw.call("offset_delete", 0, group_id=group, topics=wanted)
    assert answer.topics[0].partitions[0].error_code is ErrorCode.group_subscribed_to_topic
    anna.leave()
    ben.leave()
    (result,) = raw.call("delete_groups", 2, groups_names=[group]).results
    assert result.error_code is ErrorCode.none
    assert fetch(raw, group, None, -1, partition) == (ErrorCode.none, -1)
    assert anna.ask(member_epoch=-1).error_code is ErrorCode.group_id_not_found
