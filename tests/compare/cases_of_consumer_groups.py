"""Groups of the new protocol (KIP-848): heartbeats, what they refuse, and what others see of the group."""

from typing import Any
from uuid import UUID

from tests.compare.cases import case, served
from tests.compare.cases_of_groups import commit, fetch_offsets, first_member, heartbeat, join, leave
from tests.compare.side import Side

LEAVE, LEAVE_STATIC = -1, -2


def beat(side: Side, version: int, member: str, epoch: int, group: str | None = None, **options: Any) -> Any:
    """One ConsumerGroupHeartbeat. Without options it says nothing new."""
    return side.call(
        "consumer_group_heartbeat",
        version,
        **{
            "group_id": side.name("group") if group is None else group,
            "member_id": member,
            "member_epoch": epoch,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": -1,
            "subscribed_topic_names": None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": None,
        }
        | options,
    )


def subscribe(
    side: Side, version: int, member: str, *topics: str, group: str | None = None, **options: Any
) -> Any:
    """The first heartbeat of a member, until it has its assignment."""
    options = {
        "rebalance_timeout": 30_000,
        "subscribed_topic_names": list(topics),
        "topic_partitions": [],
    } | options
    return beat(side, version, member, 0, group, **options)


def member_id(number: int) -> str:
    return str(UUID(int=number + 1))


@case(served("consumer_group_heartbeat"))
def heartbeats_of_the_new_protocol(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)
    member = member_id(0)
    answer = subscribe(side, version, member, topic)
    epoch = answer.member_epoch
    owned = [{"topic_id": side.topics[topic], "partitions": [0, 1]}]
    beat(side, version, member, epoch)
    beat(side, version, member, epoch, topic_partitions=owned)
    beat(side, version, member, epoch, topic_partitions=[])
    beat(side, version, member, epoch + 1)
    beat(side, version, member, epoch - 1)
    beat(side, version, member, -5)
    beat(side, version, "nobody", epoch)
    beat(side, version, "nobody", LEAVE)
    beat(side, version, member, epoch, group=side.name("unknown"))
    beat(side, version, member, LEAVE, group=side.name("unknown"))
    beat(side, version, member, epoch, subscribed_topic_names=[])
    beat(side, version, member, epoch + 1, subscribed_topic_names=[topic, side.name("none")])
    subscribe(side, version, member, topic)  # it lost track and joins again
    beat(side, version, member, LEAVE)
    beat(side, version, member, LEAVE)
    beat(side, version, member, epoch)


@case(served("consumer_group_heartbeat"))
def first_heartbeats_that_are_refused(side: Side, version: int) -> None:
    topic = side.topic()
    member = member_id(0)
    subscribe(side, version, member, topic, group="")
    subscribe(side, version, "", topic, group=side.name("of an empty name"))
    for number, wrong in enumerate(
        (
            {"rebalance_timeout": -1},
            {"rebalance_timeout": 0},
            {"subscribed_topic_names": None},
            {"subscribed_topic_names": []},
            {"topic_partitions": None},
            {"topic_partitions": [{"topic_id": side.topics[topic], "partitions": [0]}]},
            {"server_assignor": "nonsense"},
            {"server_assignor": ""},
            {"server_assignor": "range"},
            {"server_assignor": "uniform"},
            {"instance_id": ""},
            {"rack_id": ""},
            {"subscribed_topic_regex": ""},
            {"subscribed_topic_regex": "[", "subscribed_topic_names": None},
            {"subscribed_topic_regex": side.case, "subscribed_topic_names": None},
        )
    ):
        subscribe(side, version, member, topic, group=side.name(f"group {number}"), **wrong)


@case(served("consumer_group_heartbeat"))
def static_members_of_the_new_protocol(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)
    one, other = member_id(1), member_id(2)
    epoch = subscribe(side, version, one, topic, instance_id="a").member_epoch
    subscribe(side, version, other, topic, instance_id="a")
    beat(side, version, one, epoch, instance_id="b")
    beat(side, version, one, epoch, instance_id="a")
    beat(side, version, other, LEAVE_STATIC, instance_id="a")
    beat(side, version, one, LEAVE_STATIC, instance_id="b")
    beat(side, version, one, LEAVE_STATIC)
    beat(side, version, one, LEAVE_STATIC, instance_id="a")
    side.call("consumer_group_describe", 1, group_ids=[side.name("group")])
    epoch = subscribe(side, version, other, topic, instance_id="a").member_epoch
    beat(side, version, one, epoch, instance_id="a")
    beat(side, version, other, epoch, instance_id="a")
    beat(side, version, other, LEAVE, instance_id="a")
    side.call("consumer_group_describe", 1, group_ids=[side.name("group")])


@case(served("consumer_group_heartbeat"))
def two_members_of_the_new_protocol(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)
    one, other = member_id(1), member_id(2)
    epoch = subscribe(side, version, one, topic).member_epoch
    owned = [{"topic_id": side.topics[topic], "partitions": [0, 1]}]
    beat(
        side,
        version,
        one,
        epoch,
        topic_partitions=owned,
        subscribed_topic_names=[topic],
        rebalance_timeout=30_000,
    )
    subscribe(side, version, other, topic)

    def is_told_to_give_up(answer: Any) -> bool:
        return bool(answer.assignment is not None)

    # Until the new assignment reaches it.
    told = side.until(
        is_told_to_give_up,
        "consumer_group_heartbeat",
        version,
        group_id=side.name("group"),
        member_id=one,
        member_epoch=epoch,
        instance_id=None,
        rack_id=None,
        rebalance_timeout=30_000,
        subscribed_topic_names=[topic],
        subscribed_topic_regex=None,
        server_assignor=None,
        topic_partitions=owned,
    )
    kept = [
        {"topic_id": each.topic_id, "partitions": list(each.partitions)}
        for each in told.assignment.topic_partitions
    ]
    epoch = beat(
        side, version, one, told.member_epoch, topic_partitions=kept, rebalance_timeout=30_000
    ).member_epoch
    side.call("consumer_group_describe", 1, group_ids=[side.name("group")])
    beat(side, version, one, LEAVE)
    beat(side, version, other, LEAVE)


@case(served("consumer_group_describe"))
def described_groups_of_the_new_protocol(side: Side, version: int) -> None:
    def describe(*groups: str) -> None:
        side.call(
            "consumer_group_describe", version, group_ids=list(groups), include_authorized_operations=False
        )

    describe()
    describe(side.name("group"), "")
    topic = side.topic(partitions=2)
    member = member_id(0)
    epoch = subscribe(side, 1, member, topic, rack_id="rack").member_epoch
    describe(side.name("group"))
    beat(side, 1, member, epoch, topic_partitions=[{"topic_id": side.topics[topic], "partitions": [0, 1]}])
    describe(side.name("group"))
    first_member(side, 5, side.name("classic"))
    describe(side.name("group"), side.name("classic"), side.name("unknown"))
    beat(side, 1, member, LEAVE)
    describe(side.name("group"))


@case()
def a_group_of_the_new_protocol_seen_by_others(side: Side, _: int) -> None:
    group = side.name("group")
    topic = side.topic()
    member = member_id(0)
    epoch = subscribe(side, 1, member, topic).member_epoch
    side.call("describe_groups", 5, groups=[group])
    side.call("describe_groups", 6, groups=[group])
    for version in (2, 4, 5):
        side.call("list_groups", version, states_filter=[], types_filter=[])
    side.call("list_groups", 5, states_filter=["stable"], types_filter=["Consumer"])
    side.call("delete_groups", 2, groups_names=[group])
    heartbeat(side, 4, member, epoch)
    heartbeat(side, 4, "nobody", epoch)
    leave(side, 5, [("nobody", None)])
    join(
        side,
        9,
        protocols=[{"name": "range", "metadata": b"nonsense"}],
        group_instance_id=None,
        member_id="nobody",
    )
    join(side, 9, protocol_type="connect", member_id="nobody")
    for version in (8, 9, 10):
        for who, at in (
            (member, epoch),
            (member, epoch + 1),
            (member, epoch - 1),
            ("nobody", epoch),
            ("", -1),
        ):
            commit(side, version, topic, [0], member_id=who, generation_id_or_member_epoch=at)
    for version in (8, 9, 10):
        for who, at in (
            (member, epoch),
            (member, epoch + 1),
            (member, epoch - 1),
            ("nobody", epoch),
            (None, -1),
        ):
            fetch_offsets(side, version, [(topic, [0])], member_id=who, member_epoch=at)
    producer = side.transactions()
    for version in (2, 3, 5):
        if version < 5:
            producer.add_offsets(group)
        for who, at in ((member, epoch), (member, epoch + 1), ("nobody", epoch), ("", -1)):
            producer.commit_offset(group, topic, 1, version=version, member=who, generation=at)
        side.end_txn(producer.transactional_id, producer.pid, producer.epoch, commit=False, version=4)
        side.ended(producer.transactional_id)
    beat(side, 1, member, LEAVE)
    side.call("list_groups", 5, states_filter=[], types_filter=[])
    side.call("delete_groups", 2, groups_names=[group])


@case()
def empty_groups_change_their_protocol(side: Side, _: int) -> None:
    topic = side.topic()
    member, _generation = first_member(side, 5)
    beat(side, 1, member_id(0), 3)
    leave(side, 4, [(member, None)])
    side.call("consumer_group_describe", 1, group_ids=[side.name("group")])
    subscribe(side, 1, member_id(0), topic)
    side.call("consumer_group_describe", 1, group_ids=[side.name("group")])
    beat(side, 1, member_id(0), LEAVE)
    member, generation = first_member(side, 5)
    side.call("describe_groups", 5, groups=[side.name("group")])
    heartbeat(side, 4, member, generation)
