"""Apache Kafka, one KRaft node in a process of its own, to compare with.

Its jars come from Maven by kafka-pom.xml into .cache/kafka, once (SEALOG_KAFKA_LIBS: a folder that already has them).
Needs java and mvn.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.systems.java import jars
from bench.systems.server_process import CHECKOUT, ServerProcess, free_port

CACHE = CHECKOUT / ".cache" / "kafka"
POM = Path(__file__).with_name("kafka-pom.xml")
VERSION = "4.3.1"
CLUSTER_ID = "c2VhbG9nLWNvbXBhcmlzb24"[:22]


def kafka_jars() -> Path:
    """The folder with Kafka's jars, fetched if need be."""
    given = os.environ.get("SEALOG_KAFKA_LIBS")
    if given:
        return Path(given)
    return jars(POM, CACHE / "libs")


class KafkaProcess(ServerProcess):
    """One Kafka node, broker and controller, on its default flush settings; `settings` override them."""

    start_timeout_s = 60.0
    stop_timeout_s = 60.0
    clean_exit_codes = (0, 143)

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
        super().__init__(data, port=port, env=env, log=log)
        self.jars = kafka_jars()
        self.controller_port = free_port()
        self.settings = dict(settings or {})
        self.heap = heap

    @property
    def _java(self) -> list[str]:
        # Kafka's own start script sets the same collector and pause goal.
        return [
            "java",
            f"-Xmx{self.heap}",
            "-XX:+UseG1GC",
            "-XX:MaxGCPauseMillis=20",
            "-cp",
            f"{self.jars}/*",
        ]

    @property
    def _properties(self) -> Path:
        return self.data.with_name(f"{self.data.name}.properties")

    def command(self) -> Sequence[str]:
        if not self._properties.exists():
            self._format()
        return [*self._java, "kafka.Kafka", str(self._properties)]

    def _format(self) -> None:
        controller = f"127.0.0.1:{self.controller_port}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.data),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            # A killed broker is let in again only when its last session has run out.
            "broker.session.timeout.ms": "1000",
            "broker.heartbeat.interval.ms": "200",
            "auto.create.topics.enable": "false",
        } | self.settings
        self.data.parent.mkdir(parents=True, exist_ok=True)
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        subprocess.run(
            [*self._java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._properties)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
