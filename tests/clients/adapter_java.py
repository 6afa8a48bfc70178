"""Apache Kafka's own client, kafka-clients, in a JVM of its own."""

from collections.abc import Sequence
from pathlib import Path

from tests.clients.remote import RemoteClient
from tests.support.java import class_path
from tests.support.kafka_process import require_kafka

SOURCES = Path(__file__).parent / "drivers" / "java"

# What the VM itself says, thread dumps and warnings, belongs to stderr: stdout is the protocol's.
JAVA = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+DisplayVMOutputToStderr")


class Java(RemoteClient):
    name = "kafka-clients"

    @classmethod
    def command(cls) -> Sequence[str]:
        return [*JAVA, "-cp", class_path(SOURCES, require_kafka()), "Driver"]
