"""Apache Kafka's own command line tools, run as its shell scripts run them: one Java process per command."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.kafka_process import CACHE, require_kafka

TOOLS = {
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
}
"""The main class behind kafka-<name>.sh."""

NAMED_LATER = ("cluster",)
"""Tools that take the broker's address behind their own words."""

TIMEOUT_S = 60.0


# Tools live for a second: nothing is gained by optimizing them, much by not loading each class anew.
JAVA = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xlog:disable")


class KafkaTools:
    """Runs tools against one broker. The classes they have in common are archived once."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._jars: Path = require_kafka()
        CACHE.mkdir(parents=True, exist_ok=True)
        self._archive = CACHE / f"tools-{self._jars.name}.jsa"
        if not self._archive.exists():
            made = self._archive.with_suffix(f".{os.getpid()}")
            command = self._java(f"-XX:ArchiveClassesAtExit={made}", "consumer-groups", "--list")
            done = subprocess.run(command, text=True, capture_output=True, timeout=TIMEOUT_S)
            assert done.returncode == 0, done.stdout + done.stderr
            made.replace(self._archive)

    def _java(self, option: str, tool: str, *args: str) -> list[str]:
        where = () if tool in NAMED_LATER else ("--bootstrap-server", self.bootstrap)
        return [*JAVA, option, "-cp", f"{self._jars}/*", TOOLS[tool], *where, *args]

    def command(self, tool: str, *args: str) -> Sequence[str]:
        """What kafka-<tool>.sh would run. The broker's address comes first, but for tools that want it last."""
        if tool in NAMED_LATER:
            args = (*args, "--bootstrap-server", self.bootstrap)
        return self._java(f"-XX:SharedArchiveFile={self._archive}", tool, *args)

    def run(self, tool: str, *args: str, stdin: str = "", fails: bool = False) -> str:
        """What the tool printed, errors included. It must end well, or must not if it `fails`."""
        done = subprocess.run(
            self.command(tool, *args), input=stdin, text=True, capture_output=True, timeout=TIMEOUT_S
        )
        text = done.stdout + done.stderr
        assert (done.returncode != 0) is fails, f"{tool} {args} ended with {done.returncode}:\n{text}"
        return text

    def start(self, tool: str, *args: str) -> "subprocess.Popen[str]":
        """A tool that goes on until it is ended by the caller."""
        return subprocess.Popen(
            self.command(tool, *args),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
