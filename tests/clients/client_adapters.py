"""The clients that every scenario runs through."""

from tests.clients.adapter_aiokafka import AioKafka
from tests.clients.adapter_base import Client
from tests.clients.adapter_confluent import Confluent
from tests.clients.adapter_go import FranzGo, KafkaGo, Sarama
from tests.clients.adapter_java import Java
from tests.clients.adapter_kafka_python import KafkaPython
from tests.clients.adapter_kafkajs import KafkaJs

CLIENTS: tuple[type[Client], ...] = (
    KafkaPython,
    AioKafka,
    Confluent,
    Java,
    FranzGo,
    Sarama,
    KafkaGo,
    KafkaJs,
)
