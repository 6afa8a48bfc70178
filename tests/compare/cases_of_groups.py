"""Classic groups: members, generations, offsets and what is refused; and their administration."""

from typing import Any

from kio.schema.errors import ErrorCode

from tests.compare.cases import case, served, some
from tests.compare.cases_of_data import UNKNOWN_TOPIC
from tests.compare.side import Side

REBALANCING = ErrorCode.rebalance_in_progress
KEYED = 4
"""From FindCoordinator 4 on many keys are asked for at once."""
SUBSCRIPTION = b"\0\0\0\0\0\1\0\1t\0\0\0\0"
"""ConsumerProtocolSubscription, version 0: the topic "t", no user data."""


def join_values(side: Side, member: str = "", group: str | None = None, **options: Any) -> dict[str, Any]:
    return {
        "group_id": side.name("group") if group is None else group,
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "member_id": member,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
    } | options


def join(side: Side, version: int, member: str = "", group: str | None = None, **options: Any) -> Any:
    """One JoinGroup; the member id that it answers is kept by the caller."""
    return side.call("join_group", version, **join_values(side, member, group, **options))


def first_member(side: Side, version: int, group: str | None = None, **options: Any) -> tuple[str, int]:
    """(member id, generation) of the only member, which has been handed its assignment."""
    answer = join(side, version, group=group, **options)
    if answer.error_code is ErrorCode.member_id_required:
        answer = join(side, version, answer.member_id, group, **options)
    assert answer.error_code is ErrorCode.none, answer
    sync(side, min(version, 5), answer.member_id, answer.generation_id, group, leads=True)
    return answer.member_id, answer.generation_id


def sync(
    side: Side,
    version: int,
    member: str,
    generation: int,
    group: str | None = None,
    *,
    leads: bool = False,
    **options: Any,
) -> None:
    side.call(
        "sync_group",
        version,
        **{
            "group_id": side.name("group") if group is None else group,
            "generation_id": generation,
            "member_id": member,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": member, "assignment": b"assigned"}] if leads else [],
        }
        | options,
    )


def heartbeat(
    side: Side, version: int, member: str, generation: int, group: str | None = None, **options: Any
) -> None:
    side.call(
        "heartbeat",
        version,
        **{
            "group_id": side.name("group") if group is None else group,
            "generation_id": generation,
            "member_id": member,
            "group_instance_id": None,
        }
        | options,
    )


def commit(
    side: Side,
    version: int,
    topic: str,
    partitions: list[int],
    *,
    group: str | None = None,
    metadata: str | None = "m",
    **options: Any,
) -> None:
    side.call(
        "offset_commit",
        version,
        **{
            "group_id": side.name("group") if group is None else group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "retention_time": -1,
            "topics": [
                {
                    "name": topic,
                    "topic_id": side.topics.get(topic, UNKNOWN_TOPIC),
                    "partitions": [
                        {
                            "partition_index": partition,
                            "committed_offset": 40 + partition,
                            "committed_leader_epoch": 7,
                            "committed_metadata": metadata,
                        }
                        for partition in partitions
                    ],
                }
            ],
        }
        | options,
    )


def fetch_offsets(
    side: Side,
    version: int,
    topics: list[tuple[str, list[int]]] | None,
    *,
    group: str | None = None,
    stable: bool = False,
    **member: Any,
) -> None:
    name = side.name("group") if group is None else group
    wanted = topics and [
        {"name": topic, "topic_id": side.topics.get(topic, UNKNOWN_TOPIC), "partition_indexes": partitions}
        for topic, partitions in topics
    ]
    side.call(
        "offset_fetch",
        version,
        group_id=name,
        topics=wanted,
        require_stable=stable,
        groups=[{"group_id": name, "topics": wanted, **member}],
    )


# -- FindCoordinator


@case(served("find_coordinator"))
def coordinators(side: Side, version: int) -> None:
    for kind in (0, 1, 2, 7, -1):
        for name in (side.name("group"), ""):
            if kind == 2 and version >= KEYED:
                continue  # of share groups, which are not served here
            side.call("find_coordinator", version, key=name, key_type=kind, coordinator_keys=[name])
    if version >= KEYED:
        side.call("find_coordinator", version, key_type=0, coordinator_keys=[])
        side.call("find_coordinator", version, key_type=0, coordinator_keys=[side.name("a"), side.name("b")])


# -- members


@case(served("join_group"))
def joins_that_are_refused(side: Side, version: int) -> None:
    join(side, version, group="")
    join(side, version, "nobody")
    join(side, version, session_timeout=500)
    join(side, version, session_timeout=2_000_000_000)
    join(side, version, protocols=[])
    join(side, version, protocol_type="")
    join(side, version, protocol_type="", protocols=[])
    member, _ = first_member(side, version)
    join(side, version, "nobody")
    join(side, version, protocol_type="other")
    join(side, version, protocols=[{"name": "sticky", "metadata": SUBSCRIPTION}])
    join(side, version, member, protocols=[{"name": "sticky", "metadata": SUBSCRIPTION}])
    if version >= 5:
        join(side, version, "nobody", group_instance_id="unknown")
        join(side, version, group=side.name("another"), group_instance_id="")


@case(served("join_group"))
def the_only_member_joins_again(side: Side, version: int) -> None:
    member, _ = first_member(side, version)
    again = join(side, version, member)
    sync(side, 5, member, again.generation_id, leads=True)
    again = join(side, version, member, protocols=[{"name": "range", "metadata": SUBSCRIPTION + b"\0\0"}])
    heartbeat(side, 4, member, again.generation_id)
    sync(side, 5, member, again.generation_id, leads=True)
    heartbeat(side, 4, member, again.generation_id)


@case(served("join_group"))
def two_members(side: Side, version: int) -> None:
    first, generation = first_member(side, version)
    other = side.another()
    values = join_values(side)
    if version >= 4:
        values["member_id"] = other.call("join_group", version, **values).member_id
    # From here on the first one is told to join again.
    receive_second = other.send("join_group", version, values)
    side.until(
        lambda answer: answer.error_code is REBALANCING,
        "heartbeat",
        4,
        group_id=side.name("group"),
        generation_id=generation,
        member_id=first,
        group_instance_id=None,
    )
    commit(side, 8, side.topic(), [0], generation_id_or_member_epoch=generation, member_id=first)
    sync(side, 5, first, generation)
    again = join(side, version, first)
    second = receive_second().member_id
    new = again.generation_id
    receive_sync = other.send(
        "sync_group",
        5,
        {
            "group_id": side.name("group"),
            "generation_id": new,
            "member_id": second,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [],
        },
    )
    sync(
        side,
        5,
        first,
        new,
        assignments=[{"member_id": first, "assignment": b"1"}, {"member_id": second, "assignment": b"2"}],
    )
    receive_sync()
    side.call("describe_groups", 5, groups=[side.name("group")])
    heartbeat(side, 4, second, new)
    leave(side, 4, [(second, None)])
    heartbeat(side, 4, first, new)
    heartbeat(side, 4, second, new)


def leave(side: Side, version: int, members: list[tuple[str, str | None]], group: str | None = None) -> None:
    side.call(
        "leave_group",
        version,
        group_id=side.name("group") if group is None else group,
        member_id=members[0][0] if members else "",
        members=[{"member_id": member, "group_instance_id": instance} for member, instance in members],
    )


@case(some("join_group"))
def protocols_are_chosen(side: Side, version: int) -> None:
    protocols = [
        {"name": name, "metadata": SUBSCRIPTION} for name in ("cooperative-sticky", "range", "range")
    ]
    first_member(side, version, protocols=protocols[:2])
    first_member(side, version, side.name("twice"), protocols=protocols)
    first_member(side, version, side.name("other"), protocol_type="connect")


@case([5, 7, 9])
def static_members(side: Side, version: int) -> None:
    member, generation = first_member(side, version, group_instance_id="a")
    heartbeat(side, 4, member, generation, group_instance_id="a")
    heartbeat(side, 4, "other", generation, group_instance_id="a")
    heartbeat(side, 4, member, generation, group_instance_id="b")
    heartbeat(side, 3, member, generation)
    sync(side, 5, "other", generation, group_instance_id="a")
    sync(side, 3, member, generation, group_instance_id="b")
    commit(
        side,
        8,
        side.topic(),
        [0],
        generation_id_or_member_epoch=generation,
        member_id="other",
        group_instance_id="a",
    )
    join(side, version, "other", group_instance_id="a")
    again = join(side, version, group_instance_id="a")  # its successor, with what it had
    heartbeat(side, 4, member, generation, group_instance_id="a")
    sync(side, 5, again.member_id, again.generation_id, group_instance_id="a")
    heartbeat(side, 4, again.member_id, again.generation_id, group_instance_id="a")
    side.call("describe_groups", 5, groups=[side.name("group")])
    leave(side, 4, [("other", "a"), ("", "b"), (again.member_id, None)])
    leave(side, 4, [("", "a")])


@case(served("heartbeat"))
def heartbeats(side: Side, version: int) -> None:
    heartbeat(side, version, "nobody", 1)
    heartbeat(side, version, "", -1)
    heartbeat(side, version, "nobody", 1, group="")
    member, generation = first_member(side, 5)
    heartbeat(side, version, member, generation)
    heartbeat(side, version, member, generation + 1)
    heartbeat(side, version, member, generation - 1)
    heartbeat(side, version, member, -1)
    heartbeat(side, version, "nobody", generation)
    heartbeat(side, version, "", generation)
    heartbeat(side, version, member, generation, group_instance_id="unknown")


@case(served("sync_group"))
def syncs(side: Side, version: int) -> None:
    sync(side, version, "nobody", 1)
    sync(side, version, "nobody", 1, group="")
    joined = join(side, 3)
    member, generation = joined.member_id, joined.generation_id
    sync(side, version, "nobody", generation)
    sync(side, version, member, generation + 1)
    sync(side, version, member, -1)
    sync(side, version, member, generation, protocol_type="other")
    sync(side, version, member, generation, protocol_name="other")
    if version >= 5:
        sync(side, version, member, generation, protocol_type=None, protocol_name=None)
    sync(side, version, member, generation, leads=True)
    sync(side, version, member, generation)
    sync(side, version, member, generation, assignments=[{"member_id": member, "assignment": b"other"}])
    sync(side, version, "nobody", generation)


@case(served("leave_group"))
def leaves(side: Side, version: int) -> None:
    leave(side, version, [("nobody", None)])
    leave(side, version, [("nobody", None)], group="")
    member, _ = first_member(side, 5)
    leave(side, version, [("nobody", None)])
    leave(side, version, [("", None)])
    leave(side, version, [])
    if version >= 3:
        leave(side, version, [("", "unknown"), (member, "unknown"), ("nobody", None)])
    leave(side, version, [(member, None)])
    leave(side, version, [(member, None)])
    heartbeat(side, 4, member, 1)
    side.call("describe_groups", 5, groups=[side.name("group")])


# -- administration


@case(served("describe_groups"))
def described_groups(side: Side, version: int) -> None:
    group = side.name("group")

    def describe(*groups: str) -> None:
        side.call("describe_groups", version, groups=list(groups), include_authorized_operations=False)

    describe()
    describe(group)
    describe("")
    joined = join(side, 3)
    describe(group)
    sync(side, 5, joined.member_id, joined.generation_id, leads=True)
    describe(group, side.name("unknown"))
    leave(side, 4, [(joined.member_id, None)])
    describe(group)
    commit(side, 8, side.topic(), [0], group=side.name("simple"))
    describe(side.name("simple"))


@case(served("list_groups"))
def listed_groups(side: Side, version: int) -> None:
    first_member(side, 5)
    left, _ = first_member(side, 5, side.name("empty"))
    leave(side, 4, [(left, None)], group=side.name("empty"))
    commit(side, 8, side.topic(), [0], group=side.name("simple"))
    for states in ([], ["Stable"], ["Empty"], ["stable", "Dead"], ["Nonsense"], ["PreparingRebalance"]):
        side.call("list_groups", version, states_filter=states, types_filter=[])
    if version >= 5:
        for types in (["classic"], ["consumer"], ["Classic", "consumer"], ["nonsense"], ["share"]):
            side.call("list_groups", version, states_filter=[], types_filter=types)


@case(served("delete_groups"))
def deleted_groups(side: Side, version: int) -> None:
    def delete(*groups: str) -> None:
        side.call("delete_groups", version, groups_names=list(groups))

    delete()
    delete("")
    delete(side.name("unknown"))
    member, _ = first_member(side, 5)
    topic = side.topic()
    commit(side, 8, topic, [0], group=side.name("simple"))
    delete(side.name("group"), side.name("simple"))
    fetch_offsets(side, 8, [(topic, [0])], group=side.name("simple"))
    leave(side, 4, [(member, None)])
    delete(side.name("group"))
    side.call("describe_groups", 5, groups=[side.name("group")])
