"""Apache Kafka for tests (bench/systems/kafka.py): where java or mvn is missing they are left out."""

from collections.abc import Mapping
from pathlib import Path

from bench.systems import kafka
from bench.systems.kafka import CACHE, kafka_jars
from tests.support.toolchains import require_program

__all__ = ("CACHE", "KafkaProcess", "kafka_jars", "require_kafka")


def require_kafka() -> Path:
    """The folder with Kafka's jars; the test that is running does not go on without it."""
    for program in ("java", "mvn"):
        require_program(program, "Apache Kafka cannot be run")
    return kafka_jars()


class KafkaProcess(kafka.KafkaProcess):
    """One Kafka node, broker and controller, on its default flush settings; `settings` override them."""

    def __init__(
        self,
        data: Path,
        *,
        port: int | None = None,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
        settings: Mapping[str, str] | None = None,
        heap: str = "512m",
    ) -> None:
        require_kafka()
        super().__init__(data, port=port, env=env, log=log, settings=settings, heap=heap)
