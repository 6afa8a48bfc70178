"""What tells of and changes brokers and topics."""

from typing import Any

from tests.compare.cases import case, served
from tests.compare.cases_of_data import NO_TOPIC, UNKNOWN_TOPIC
from tests.compare.cases_of_groups import commit
from tests.compare.side import Side

# -- ApiVersions, Metadata


@case(served("api_versions"))
def versions(side: Side, version: int) -> None:
    for name, of in (("compare", "1.0"), ("", ""), ("nonsense!", "1.0"), ("compare", "-")):
        side.call("api_versions", version, client_software_name=name, client_software_version=of)
        if version < 3:
            break


@case(served("metadata"))
def metadata(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)
    none = side.name("none")

    def ask(topics: list[str] | None, **options: Any) -> None:
        wanted = topics and [{"name": name, "topic_id": NO_TOPIC} for name in topics]
        side.call(
            "metadata",
            version,
            **{"topics": wanted, "allow_auto_topic_creation": False} | options,
        )

    ask([topic])
    ask([])
    if version >= 1:
        ask(None)
    ask([topic, none])
    ask([""])
    ask(["a" * 250])
    ask(["not/a topic"])
    ask([topic, topic])
    ask([topic], include_topic_authorized_operations=True, include_cluster_authorized_operations=True)
    ask([none], allow_auto_topic_creation=True)


@case([12, 13])
def metadata_by_no_id(side: Side, version: int) -> None:
    side.call(
        "metadata", version, topics=[{"name": None, "topic_id": NO_TOPIC}], allow_auto_topic_creation=False
    )


@case([10, 11, 12, 13])
def metadata_by_topic_id(side: Side, version: int) -> None:
    topic = side.topic()
    for topic_id, name in (
        (side.topics[topic], None),
        (UNKNOWN_TOPIC, None),
        (side.topics[topic], topic),
        (UNKNOWN_TOPIC, topic),
    ):
        side.call(
            "metadata",
            version,
            topics=[{"name": name, "topic_id": topic_id}],
            allow_auto_topic_creation=False,
        )


@case(served("describe_cluster"))
def cluster(side: Side, version: int) -> None:
    side.call("describe_cluster", version, include_cluster_authorized_operations=False, endpoint_type=1)
    if version >= 1:
        for kind in (0, 2, 3):
            side.call("describe_cluster", version, endpoint_type=kind)


@case(served("describe_topic_partitions"))
def described_topics(side: Side, version: int) -> None:
    topic = side.topic("a", partitions=3)
    other = side.topic("b", partitions=2)

    def ask(names: list[str], limit: int = 2000, cursor: tuple[str, int] | None = None) -> None:
        side.call(
            "describe_topic_partitions",
            version,
            topics=[{"name": name} for name in names],
            response_partition_limit=limit,
            cursor=cursor and {"topic_name": cursor[0], "partition_index": cursor[1]},
        )

    ask([topic, other])
    ask([topic, topic])
    ask([topic, side.name("none")])
    ask([""])
    ask([topic, other], limit=2)
    ask([topic, other], limit=2, cursor=(topic, 2))
    ask([topic, other], cursor=(other, 1))
    ask([topic, other], cursor=(topic, 9))
    ask([topic, other], cursor=(side.name("none"), 0))
    ask([topic, other], cursor=(topic, -1))
    ask([topic, other], limit=0)
    ask([topic, other], limit=-1)


# -- topics


@case(served("create_topics"))
def created_topics(side: Side, version: int) -> None:
    def create(*topics: dict[str, Any], validate_only: bool = False) -> None:
        side.call(
            "create_topics",
            version,
            topics=[{"num_partitions": 1, "replication_factor": 1} | topic for topic in topics],
            timeout=15_000,
            validate_only=validate_only,
        )

    name = side.name("topic")
    create()
    create({"name": name, "num_partitions": 2})
    create({"name": name, "num_partitions": 2})
    create({"name": name}, validate_only=True)
    for number, wrong in enumerate(
        (
            {"num_partitions": 0},
            {"num_partitions": -1},
            {"num_partitions": -2},
            {"replication_factor": 0},
            {"replication_factor": -1},
            {"replication_factor": 3},
            {"configs": [{"name": "nonsense", "value": "1"}]},
            {"configs": [{"name": "retention.ms", "value": "soon"}]},
            {"configs": [{"name": "retention.ms", "value": None}]},
            {"configs": [{"name": "retention.ms", "value": "60000"}]},
            {"configs": [{"name": "cleanup.policy", "value": "compact,delete"}]},
            {"configs": [{"name": "cleanup.policy", "value": "burn"}]},
            {"configs": [{"name": "max.message.bytes", "value": "-1"}]},
            {"assignments": [{"partition_index": 0, "broker_ids": [1]}]},
            {
                "assignments": [{"partition_index": 0, "broker_ids": [1]}],
                "num_partitions": -1,
                "replication_factor": -1,
            },
            {
                "assignments": [{"partition_index": 1, "broker_ids": [1]}],
                "num_partitions": -1,
                "replication_factor": -1,
            },
            {
                "assignments": [{"partition_index": 0, "broker_ids": [9]}],
                "num_partitions": -1,
                "replication_factor": -1,
            },
            {
                "assignments": [{"partition_index": 0, "broker_ids": []}],
                "num_partitions": -1,
                "replication_factor": -1,
            },
        )
    ):
        create({"name": side.name(f"wrong.{number}")} | wrong)
    for name in ("", ".", "..", "a/b", "a b", "a" * 250, "é"):
        create({"name": name})
    twice = {"name": side.name("twice")}
    create(twice, twice)
    create({"name": side.name("fine")}, {"name": "a/b"})
    if version >= 4:
        create({"name": side.name("default"), "num_partitions": -1, "replication_factor": -1})


@case(served("create_topics"))
def created_topics_in_appearance(side: Side, version: int) -> None:
    for _ in range(2):
        topic = {"name": side.name("topic"), "num_partitions": 2, "replication_factor": 1}
        side.call("create_topics", version, topics=[topic], timeout=15_000, validate_only=True)


@case(served("delete_topics"))
def deleted_topics(side: Side, version: int) -> None:
    topic, other = side.topic("a"), side.topic("b")
    unknown = side.name("unknown")
    commit(side, 8, topic, [0])

    def delete(*names: str) -> None:
        side.call(
            "delete_topics",
            version,
            topic_names=list(names),
            topics=[{"name": name, "topic_id": NO_TOPIC} for name in names],
            timeout=15_000,
        )

    delete()
    delete(unknown)
    delete("")
    delete(topic, unknown)
    delete(topic)
    delete(other, other)
    if version >= 6:
        for topic_id, name in (
            (side.topics[other], None),
            (UNKNOWN_TOPIC, None),
            (NO_TOPIC, None),
            (side.topics[other], other),
        ):
            side.call("delete_topics", version, topics=[{"name": name, "topic_id": topic_id}], timeout=15_000)


@case([12, 13])
def what_a_deleted_topic_leaves(side: Side, version: int) -> None:
    topic = side.topic()
    side.values(topic, b"a")
    commit(side, 8, topic, [0])
    side.call("delete_topics", 6, topics=[{"name": topic, "topic_id": NO_TOPIC}], timeout=15_000)
    side.until(
        lambda answer: answer.responses[0].partitions[0].error_code != 0,
        "fetch",
        version,
        max_wait=0,
        replica_id=-1,
        session_epoch=-1,
        topics=[
            {
                "topic": topic,
                "topic_id": side.topics[topic],
                "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}],
            }
        ],
    )


@case(served("create_partitions"))
def created_partitions(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)

    def grow(*wanted: tuple[str, int, list[list[int]] | None], validate_only: bool = False) -> None:
        side.call(
            "create_partitions",
            version,
            topics=[
                {
                    "name": name,
                    "count": count,
                    "assignments": assigned and [{"broker_ids": brokers} for brokers in assigned],
                }
                for name, count, assigned in wanted
            ],
            timeout=15_000,
            validate_only=validate_only,
        )

    grow()
    grow((side.name("none"), 3, None))
    grow(("", 3, None))
    for count in (1, 2, 0, -1):
        grow((topic, count, None))
    grow((topic, 3, [[1], [1]]))
    grow((topic, 3, [[9]]))
    grow((topic, 3, [[]]))
    grow((topic, 3, None), validate_only=True)
    grow((topic, 3, [[1]]))
    grow((topic, 5, None), (topic, 6, None))
    grow((topic, 4, None), (side.name("none"), 4, None))


@case(served("describe_log_dirs"))
def log_dirs(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)
    side.values(topic, b"a")
    for topics in (
        [{"topic": topic, "partitions": [0, 1]}],
        [{"topic": topic, "partitions": [7]}],
        [{"topic": topic, "partitions": []}],
        [{"topic": side.name("none"), "partitions": [0]}],
        [],
        None,
    ):
        side.call("describe_log_dirs", version, topics=topics)
