"""Groups of the new protocol (KIP-848): heartbeats, what they refuse, and what others see of the group."""

from typing import Any
from uuid import UUID

from tests.compare.cases import case, served
from tests.compare.cases_of_groups import first_member
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
def strangers_to_a_group_of_the_new_protocol(side: Side, version: int) -> None:
    topic = side.topic()
    subscribe(side, version, member_id(0), topic)
    beat(side, version, "nobody", 1)
    beat(side, version, "nobody", LEAVE)
    beat(side, version, "nobody", LEAVE_STATIC, instance_id="a")
    beat(side, version, member_id(0), 100)
    beat(side, version, member_id(0), 1, group=side.name("unknown"))
    beat(side, version, member_id(0), LEAVE, group=side.name("unknown"))
    beat(side, version, member_id(0), LEAVE)
    beat(side, version, member_id(0), LEAVE)


@case(served("consumer_group_describe"))
def described_groups_of_the_new_protocol(side: Side, version: int) -> None:
    def describe(*groups: str) -> None:
        side.call(
            "consumer_group_describe", version, group_ids=list(groups), include_authorized_operations=False
        )

    describe()
    describe(side.name("group"), "")
    first_member(side, 5, side.name("classic"))
    describe(side.name("classic"), side.name("unknown"))
