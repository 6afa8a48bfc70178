"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs."""

from tests.compare.cases import case, served
from tests.compare.side import Side

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

BROKER_SETTINGS = [
    "message.max.bytes",
    "num.partitions",
    "log.segment.bytes",
    "log.retention.ms",
    "offsets.retention.minutes",
    "offsets.retention.check.interval.ms",
    "transaction.max.timeout.ms",
    "transactional.id.expiration.ms",
    "group.max.session.timeout.ms",
    "nonsense",
]


def alter(
    side: Side, api: str, version: int, kind: int, name: str, *changes: tuple[str, int, str | None]
) -> None:
    """AlterConfigs or IncrementalAlterConfigs of one resource; only the second one has operations."""
    side.call(
        api,
        version,
        resources=[
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [
                    {"name": key, "value": value}
                    | ({"config_operation": operation} if api == "incremental_alter_configs" else {})
                    for key, operation, value in changes
                ],
            }
        ],
        validate_only=False,
    )


@case(served("describe_configs"))
def described_configs(side: Side, version: int) -> None:
    topic = side.topic(**{"max.message.bytes": "60000"})
    keys = ["cleanup.policy", "nonsense", "max.message.bytes"]
    for kind, name in (
        (TOPIC, topic),
        (TOPIC, side.name("none")),
        (TOPIC, ""),
        (TOPIC, "a/b"),
        (BROKER, "7"),
        (BROKER, "one"),
        (99, topic),
    ):
        for synonyms in (False, True):
            side.call(
                "describe_configs",
                version,
                resources=[{"resource_type": kind, "resource_name": name, "configuration_keys": keys}],
                include_synonyms=synonyms,
                include_documentation=False,
            )
    side.call("describe_configs", version, resources=[])


@case(served("describe_configs"))
def described_settings_of_the_broker(side: Side, version: int) -> None:
    topic = side.topic()
    for kind, name, keys in (
        (BROKER, "1", BROKER_SETTINGS),
        (BROKER, "", ["message.max.bytes"]),
        (
            TOPIC,
            topic,
            [
                "max.message.bytes",
                "retention.bytes",
                "retention.ms",
                "message.timestamp.type",
                "segment.bytes",
            ],
        ),
    ):
        side.call(
            "describe_configs",
            version,
            resources=[{"resource_type": kind, "resource_name": name, "configuration_keys": keys}],
            include_synonyms=True,
            include_documentation=False,
        )


@case(served("alter_configs"))
def altered_configs(side: Side, version: int) -> None:
    topic = side.topic()
    for kind, name, key, value in (
        (TOPIC, topic, "max.message.bytes", "1000"),
        (TOPIC, topic, "max.message.bytes", "no"),
        (TOPIC, topic, "max.message.bytes", None),
        (TOPIC, topic, "nonsense", "1"),
        (TOPIC, side.name("none"), "max.message.bytes", "1000"),
        (TOPIC, "", "max.message.bytes", "1000"),
        (TOPIC, "a/b", "max.message.bytes", "1000"),
        (BROKER, "7", "message.max.bytes", "1000000"),
        (99, topic, "max.message.bytes", "1000"),
    ):
        alter(side, "alter_configs", version, kind, name, (key, SET, value))
    alter(side, "alter_configs", version, TOPIC, topic)
    side.call("alter_configs", version, resources=[])


@case(served("incremental_alter_configs"))
def incrementally_altered_configs(side: Side, version: int) -> None:
    topic = side.topic()
    for kind, name, changes in (
        (TOPIC, topic, [("max.message.bytes", SET, "1000")]),
        (TOPIC, topic, [("max.message.bytes", SET, "no")]),
        (TOPIC, topic, [("max.message.bytes", SET, None)]),
        (TOPIC, topic, [("nonsense", SET, "1")]),
        (TOPIC, topic, [("nonsense", DELETE, None)]),
        (TOPIC, topic, [("max.message.bytes", APPEND, "1")]),
        (TOPIC, topic, [("cleanup.policy", APPEND, "compact")]),
        (TOPIC, topic, [("cleanup.policy", SUBTRACT, "delete")]),
        (TOPIC, topic, [("cleanup.policy", DELETE, None), ("max.message.bytes", DELETE, "")]),
        (TOPIC, topic, [("retention.ms", DELETE, None), ("retention.ms", SET, "1")]),
        (TOPIC, side.name("none"), [("max.message.bytes", SET, "1000")]),
        (TOPIC, "", [("max.message.bytes", SET, "1000")]),
        (TOPIC, "a/b", [("max.message.bytes", SET, "1000")]),
        (TOPIC, topic, [("max.message.bytes", 9, "1000")]),
        (BROKER, "7", [("message.max.bytes", SET, "1000000")]),
        (99, topic, [("max.message.bytes", SET, "1000")]),
        (TOPIC, topic, []),
    ):
        alter(side, "incremental_alter_configs", version, kind, name, *changes)
    side.call("incremental_alter_configs", version, resources=[])
