"""Settings of brokers that change while they run, on nodes whose ranges have groups of their own."""

from __future__ import annotations

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)

from broker.broker_settings import Level
from broker.ranges.settings import record_of
from tests.cluster.brokers import Brokers
from tests.cluster.sim_ranges import SimRanges, Writer
from tests.cluster.test_ranges_retention_processes import PATIENCE_S, wait_until
from tests.crash.isolated import isolated
from tests.support.kafka_tools import KafkaTools
from txn.metastore import Put
from wire.apis import ApiKey
from wire.errors import ErrorCode

BROKER = 4
SET, DELETE = 0, 1


def alter(cluster, node, name, *changes, validate_only=False):
    """(error, message); `changes`: (setting, operation, value)."""
    configs = tuple({"name": one, "config_operation": how, "value": value} for one, how, value in changes)
    resource = {"resource_type": BROKER, "resource_name": name, "configs": configs}
    answer = cluster.ask(
        node, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=(resource,), validate_only=validate_only
    )
    return answer.responses[0].error_code, answer.responses[0].error_message


def describe(cluster, node, name, setting):
    """(value, source, what stands behind it) or the error."""
    answer = cluster.ask(
        node,
        ApiKey.DESCRIBE_CONFIGS,
        4,
        resources=({"resource_type": BROKER, "resource_name": name, "configuration_keys": (setting,)},),
        include_synonyms=True,
        include_documentation=False,
    )
    result = answer.results[0]
    if result.error_code is not ErrorCode.none:
        return result.error_code
    if not result.configs:
        return None
    one = result.configs[0]
    return one.value, one.config_source, [(each.source, each.value) for each in one.synonyms]


ONE, ALL, STATIC, DEFAULT = 2, 3, 4, 5
"""DYNAMIC_BROKER_CONFIG, DYNAMIC_DEFAULT_BROKER_CONFIG, STATIC_BROKER_CONFIG, DEFAULT_CONFIG."""
DEFAULT_TTL = "86400000"


def test_every_node_follows_what_is_set_for_it_and_for_all():
    cluster = SimRanges(1, producer_id_expiration_ms=50_000)
    name = "producer.id.expiration.ms"
    cluster.controller()
    assert cluster.create_topic("t", 3).error_code is ErrorCode.none
    write = Writer(cluster, "t", 0)
    while not write.step():
        pass
    cluster.whole()
    assert describe(cluster, 1, "1", name)[:2] == ("50000", STATIC)
    assert alter(cluster, 2, "", (name, SET, "40000"))[0] is ErrorCode.none
    assert alter(cluster, 1, "1", (name, SET, "30000"))[0] is ErrorCode.none
    cluster.advance(100)
    for node, member in cluster.members.items():
        ttl = 30_000 if node == 1 else 40_000
        assert member.node.config.producer_id_expiration_ms == ttl
        assert member.topics.config.producer_id_expiration_ms == ttl
        for hosted in member.hosting.hosted.values():
            assert hosted.replica.config.producer_ttl_ms == ttl
    assert describe(cluster, 1, "1", name) == (
        "30000",
        ONE,
        [(ONE, "30000"), (ALL, "40000"), (STATIC, "50000"), (DEFAULT, DEFAULT_TTL)],
    )
    assert describe(cluster, 0, "0", name)[:2] == ("40000", ALL)
    assert describe(cluster, 0, "", name)[:2] == ("40000", ALL)
    # Another one's file is not known here.
    other = next(node for node in cluster.names if node != cluster.controller().node_id)
    third = next(node for node in cluster.names if node not in (other, cluster.controller().node_id))
    assert describe(cluster, other, str(third), name) is ErrorCode.invalid_request
    # All of it outlives power cuts, and new ones in the place of old ones.
    for node in cluster.names:
        cluster.cut_power(node)
    cluster.heal()
    cluster.controller()
    cluster.run_until(
        lambda: (
            [one.node.config.producer_id_expiration_ms for one in cluster.members.values()]
            and all(
                one.node.config.producer_id_expiration_ms == (30_000 if node == 1 else 40_000)
                for node, one in cluster.members.items()
            )
        )
    )
    assert cluster.controller().node.controller.config.producer_id_expiration_ms in (30_000, 40_000)
    assert alter(cluster, 0, "1", (name, DELETE, None))[0] is ErrorCode.none
    assert alter(cluster, 0, "", (name, DELETE, None))[0] is ErrorCode.none
    cluster.advance(100)
    assert describe(cluster, 1, "1", name)[:2] == ("50000", STATIC)


def test_what_a_topic_does_not_set_is_the_brokers():
    cluster = SimRanges(2)
    assert cluster.create_topic("t", 1).error_code is ErrorCode.none
    assert cluster.create_topic("own", 1, segment_bytes=1 << 20).error_code is ErrorCode.none
    assert alter(cluster, 0, "", ("log.segment.bytes", SET, "1048577"))[0] is ErrorCode.none
    cluster.advance(100)
    for member in cluster.members.values():
        assert member.topics.get("t").rules.segment_bytes == 1048577
        assert member.topics.get("own").rules.segment_bytes == 1 << 20
        for hosted in member.hosting.hosted.values():
            wanted = 1 << 20 if hosted.record.topic == "own" else 1048577
            assert hosted.replica.config.segment_bytes == wanted


def test_the_controllers_services_follow_too():
    cluster = SimRanges(3)
    controller = cluster.controller()
    own = str(controller.node_id)
    name = "group.max.session.timeout.ms"
    assert alter(cluster, 0, own, (name, SET, "123456"))[0] is ErrorCode.none
    assert alter(cluster, 0, "", ("transaction.max.timeout.ms", SET, "77777"))[0] is ErrorCode.none
    cluster.advance(100)
    assert controller.node.controller.config.group_max_session_timeout_ms == 123456
    assert controller.node.controller.coordinator._ids.max_timeout_ms == 77777
    # Who leads next goes by its own.
    cluster.cut_power(controller.node_id)
    after = cluster.controller()
    assert after.node.controller.config.group_max_session_timeout_ms != 123456
    assert after.node.controller.coordinator._ids.max_timeout_ms == 77777


def test_what_cannot_be_set_is_refused_and_nothing_of_it_kept():
    cluster = SimRanges(4)
    cluster.controller()
    for name, setting, value, error in (
        ("7", "log.segment.bytes", "1048577", ErrorCode.invalid_request),
        ("1", "node.id", "5", ErrorCode.invalid_request),
        ("1", "no.such.setting", "5", ErrorCode.invalid_config),
        ("1", "log.segment.bytes", "many", ErrorCode.invalid_config),
        ("", "group.max.session.timeout.ms", "1", ErrorCode.invalid_config),
    ):
        assert alter(cluster, 0, name, (setting, SET, value))[0] is error, (name, setting)
    assert alter(cluster, 0, "1", ("log.segment.bytes", SET, "1048577"), validate_only=True)[0] is (
        ErrorCode.none
    )
    cluster.advance(100)
    view = cluster.members[0].metadata.view
    assert [key for key, record in view.scan("/broker-config/") if record.value] == []


def test_a_record_that_a_node_does_not_take_leaves_the_rest_in_force(caplog):
    cluster = SimRanges(5)
    store = cluster.controller().node.controller.store
    values = {"log.segment.bytes": "1048577", "of.a.later.program": "1"}
    store.apply([Put(record_of(Level.BROKER, 1), values)])
    cluster.run_until(lambda: cluster.members[1].node.config.segment_bytes == 1048577)
    assert "of.a.later.program" in caplog.text
    assert cluster.members[0].node.config.segment_bytes == 1 << 16


# Three real processes.


class SetBrokers(Brokers):
    groups = "ranges"
    config = "segment_ms = 5000000\n"


def set_on(admin, broker, name, value, how=AlterConfigOpType.SET):
    resource = ConfigResource(
        ResourceType.BROKER,
        broker,
        incremental_configs=[ConfigEntry(name, value, incremental_operation=how)],
    )
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


def setting(admin, broker, name):
    resource = ConfigResource(ResourceType.BROKER, broker)
    found = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    return (found[name].value, ConfigSource(found[name].source)) if name in found else None


def admin_of(brokers):
    """Once all name all: a node that has just started names those that it heard, and librdkafka forgets the others."""
    for address in brokers.bootstrap.split(","):
        alone = AdminClient({"bootstrap.servers": address})
        wait_until(lambda one=alone: len(one.list_topics().brokers) == 3, "not every node is named")
    return AdminClient({"bootstrap.servers": brokers.bootstrap})


def through_settings(folder):
    name = "log.roll.ms"
    with SetBrokers(folder) as brokers:
        admin = admin_of(brokers)
        admin.create_topics([NewTopic("t", 3, 3)])["t"].result(PATIENCE_S)
        for node in brokers.nodes:
            assert setting(admin, str(node), name) == ("5000000", ConfigSource.STATIC_BROKER_CONFIG)
        set_on(admin, "1", name, "3000000")
        # librdkafka and kafka-python name one broker at a time.
        tools = KafkaTools(brokers.bootstrap.split(",")[0])
        for_all = ("configs", "--entity-type", "brokers", "--entity-default")
        tools.run(*for_all, "--alter", "--add-config", f"{name}=4000000")
        one = ("3000000", ConfigSource.DYNAMIC_BROKER_CONFIG)
        others = ("4000000", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)

        def is_in_force():
            found = {node: setting(admin, str(node), name) for node in brokers.nodes}
            return found == {node: one if node == 1 else others for node in brokers.nodes}

        wait_until(is_in_force, "not every node has heard of it")
        assert f"{name}=4000000" in tools.run(*for_all, "--describe")
        for node in brokers.nodes:
            brokers.kill(node)
            brokers.launch(node)
            brokers.leader()
        admin = admin_of(brokers)
        wait_until(is_in_force, "it did not outlive the kills")
        set_on(admin, "1", name, None, AlterConfigOpType.DELETE)
        wait_until(lambda: setting(admin, "1", name) == others, "what is set for all is not in force")
        for node in brokers.nodes:
            for bad in ("Traceback", "CRITICAL"):
                assert bad not in brokers.log(node), brokers.log(node)[-3000:]


def test_a_stock_admin_client_changes_settings_of_three_processes(tmp_path):
    isolated(through_settings, tmp_path)
