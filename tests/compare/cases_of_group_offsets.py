"""OffsetCommit, OffsetFetch, OffsetDelete: offsets of groups with and without members."""

from typing import Any

from kio.schema.errors import ErrorCode

from tests.compare.cases import case, served
from tests.compare.cases_of_data import NO_TOPIC, UNKNOWN_TOPIC
from tests.compare.cases_of_groups import commit, fetch_offsets, first_member, leave
from tests.compare.side import Side


@case(served("offset_commit"))
def commits_without_members(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)
    none = side.name("none")
    commit(side, version, topic, [0], member_id="nobody", generation_id_or_member_epoch=4)
    commit(side, version, topic, [0], generation_id_or_member_epoch=4)
    commit(side, version, topic, [0], member_id="nobody")
    commit(side, version, topic, [0], group_instance_id="unknown")
    commit(side, version, topic, [])
    commit(side, version, topic, [0, 1])
    commit(side, version, topic, [0], metadata=None)
    commit(side, version, topic, [1], metadata="")
    commit(side, version, topic, [2, 0, -1])
    commit(side, version, none, [0])
    commit(side, version, topic, [0], metadata="m" * 4097)
    commit(side, version, topic, [0], group="")
    commit(side, version, topic, [0], topics=[])
    commit(side, version, topic, [0], member_id="nobody", generation_id_or_member_epoch=4)
    fetch_offsets(side, 8, [(topic, [0, 1, 2])])


@case([10])
def commits_by_topic_id(side: Side, version: int) -> None:
    partition = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
    for topic_id in (UNKNOWN_TOPIC, NO_TOPIC):
        commit(side, version, "", [], topics=[{"topic_id": topic_id, "partitions": [partition]}])


@case(served("offset_commit"))
def commits_of_members(side: Side, version: int) -> None:
    topic = side.topic()
    member, generation = first_member(side, 5)

    def of(member: str, generation: int, **options: Any) -> None:
        commit(
            side,
            version,
            topic,
            [0],
            member_id=member,
            generation_id_or_member_epoch=generation,
            **options,
        )

    of(member, generation)
    of(member, generation + 1)
    of(member, -1)
    of("nobody", generation)
    of("", generation)
    of("", -1)
    of(member, generation, group_instance_id="unknown")
    leave(side, 4, [(member, None)])
    of(member, generation)
    of("", -1)


@case(served("offset_fetch"))
def committed_offsets(side: Side, version: int) -> None:
    topic = side.topic(partitions=3)
    none = side.name("none")
    fetch_offsets(side, version, [(topic, [0])])
    commit(side, 8, topic, [0, 2])
    fetch_offsets(side, version, [(topic, [0, 1, 2, 3, -1])])
    fetch_offsets(side, version, [(none, [0]), (topic, [0])])
    fetch_offsets(side, version, [(topic, [])])
    fetch_offsets(side, version, [])
    if version >= 2:
        fetch_offsets(side, version, None)
        fetch_offsets(side, version, None, stable=True)
        fetch_offsets(side, version, None, group=side.name("other"))
    fetch_offsets(side, version, [(topic, [0])], group="")
    fetch_offsets(side, version, [(topic, [0, 0])])
    if version >= 8:
        side.call("offset_fetch", version, groups=[])
    if version >= 9:
        for member, epoch in (("nobody", 1), (None, 1), ("nobody", -1), ("", 3)):
            fetch_offsets(side, version, [(topic, [0])], member_id=member, member_epoch=epoch)


@case(served("offset_fetch"))
def pending_offsets(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)
    commit(side, 8, topic, [0])
    producer = side.transactions()
    producer.commit_offset(side.name("group"), topic, 90)
    for stable in (False, True):
        fetch_offsets(side, version, [(topic, [0, 1])], stable=stable)
        if version >= 2:
            fetch_offsets(side, version, None, stable=stable)
    producer.abort()
    wait_until_stable(side, topic)
    fetch_offsets(side, version, [(topic, [0])], stable=True)


def wait_until_stable(side: Side, topic: str) -> None:
    """Apache Kafka frees the offsets of a transaction after the answer to its end."""

    def is_stable(answer: Any) -> bool:
        return bool(answer.groups[0].topics[0].partitions[0].error_code is ErrorCode.none)

    wanted = [{"name": topic, "partition_indexes": [0]}]
    side.until(
        is_stable,
        "offset_fetch",
        8,
        groups=[{"group_id": side.name("group"), "topics": wanted}],
        require_stable=True,
    )


@case(served("offset_delete"))
def deleted_offsets(side: Side, version: int) -> None:
    topic = side.topic("t", partitions=2)

    def delete(name: str, partitions: list[int], group: str | None = None) -> None:
        side.call(
            "offset_delete",
            version,
            group_id=side.name("group") if group is None else group,
            topics=[{"name": name, "partitions": [{"partition_index": each} for each in partitions]}],
        )

    delete(topic, [0])
    commit(side, 8, topic, [0, 1])
    delete(topic, [0, 5])
    delete(side.name("none"), [0])
    delete(topic, [])
    delete(topic, [0], group="")
    fetch_offsets(side, 8, [(topic, [0, 1])])
    side.call("offset_delete", version, group_id=side.name("group"), topics=[])
    reads = b"\0\0\0\0\0\1" + len(topic).to_bytes(2, "big") + topic.encode() + b"\0\0\0\0"
    member, _ = first_member(side, 5, protocols=[{"name": "range", "metadata": reads}])
    delete(topic, [1])
    leave(side, 4, [(member, None)])
    delete(topic, [1])
    delete(topic, [1])
