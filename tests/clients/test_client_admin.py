"""The administrators of the Python clients: what they ask for happens, and what they are told is so."""

from collections.abc import Callable

import confluent_kafka
import confluent_kafka.admin as librdkafka
import kafka.admin
from kafka import KafkaProducer
from kafka.structs import TopicPartition

from tests.clients.fixtures import Broker
from tests.clients.raw_kafka import RawKafka


def filled(broker: Broker, topic: str, group: str, records: int = 10) -> None:
    """Records in partition 0 of a topic, and a group that has read some of them."""
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for number in range(records):
        producer.send(topic, b"%d" % number, partition=0)
    producer.flush()
    producer.close()
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    offsets = [confluent_kafka.TopicPartition(topic, 0, 4)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def test_librdkafka(
    broker: Broker, raw: RawKafka, topic: Callable[..., str], unique: Callable[[str], str]
) -> None:
    name, group = topic(2), unique("group")
    filled(broker, name, group)
    admin = librdkafka.AdminClient({"bootstrap.servers": broker.bootstrap})

    admin.create_partitions([librdkafka.NewPartitions(name, 4)])[name].result()
    assert len(admin.list_topics(name).topics[name].partitions) == 4
    (described,) = admin.describe_topics(confluent_kafka.TopicCollection([name])).values()
    assert [one.id for one in described.result().partitions] == [0, 1, 2, 3]

    resource = librdkafka.ConfigResource(
        librdkafka.ConfigResource.Type.TOPIC,
        name,
        incremental_configs=[
            librdkafka.ConfigEntry(
                "max.message.bytes",
                "2000000",
                incremental_operation=librdkafka.AlterConfigOpType.SET,
            )
        ],
    )
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()
    wanted = librdkafka.ConfigResource(librdkafka.ConfigResource.Type.TOPIC, name)
    shown = admin.describe_configs([wanted])[wanted].result()
    assert shown["max.message.bytes"].value == "2000000"
    assert not shown["max.message.bytes"].is_default

    at = confluent_kafka.TopicPartition(name, 0, 3)
    assert admin.delete_records([at])[at].result().low_watermark == 3
    earliest = admin.list_offsets({confluent_kafka.TopicPartition(name, 0): librdkafka.OffsetSpec.earliest()})
    assert [future.result().offset for future in earliest.values()] == [3]

    groups = admin.list_consumer_groups().result()
    assert group in {one.group_id for one in groups.valid}
    described_group = admin.describe_consumer_groups([group])[group].result()
    assert described_group.state is confluent_kafka.ConsumerGroupState.EMPTY
    admin.delete_consumer_groups([group])[group].result()
    assert group not in {one.group_id for one in admin.list_consumer_groups().result().valid}

    cluster = admin.describe_cluster().result()
    assert [node.id for node in cluster.nodes] == [1]
    assert cluster.controller.id == 1


def test_kafka_python(
    broker: Broker, raw: RawKafka, topic: Callable[..., str], unique: Callable[[str], str]
) -> None:
    name, group = topic(2), unique("group")
    filled(broker, name, group)
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        admin.create_partitions({name: kafka.admin.NewPartitions(total_count=3)})
        (described,) = admin.describe_topics([name])
        assert len(described["partitions"]) == 3
        resource = kafka.admin.ConfigResource(
            kafka.admin.ConfigResourceType.TOPIC, name, configs={"max.message.bytes": "2000000"}
        )
        admin.alter_configs([resource])
        assert "2000000" in str(
            admin.describe_configs([kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, name)])
        )
        admin.delete_records({TopicPartition(name, 0): 3})
        assert raw.list_offset(name, 0, -2) == 3
        assert group in str(admin.list_groups())
        assert "Empty" in str(admin.describe_groups([group]))
        admin.delete_groups([group])
        assert group not in str(admin.list_groups())
    finally:
        admin.close()
