"""Apache Kafka's own load tools, each in a JVM of its own."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

from bench.systems.kafka import kafka_jars
from bench.systems.server_process import ServerProcess

_TOOLS = "org.apache.kafka.tools"
TIMEOUT_S = 1_800.0


def _run(tool: str, *args: str) -> str:
    command = ["java", "-Xmx1g", "-XX:+UseSerialGC", "-cp", f"{kafka_jars()}/*", f"{_TOOLS}.{tool}", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(
            f"{tool} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.stdout


def produce(
    system: ServerProcess | str,
    topic: str,
    *,
    records: int,
    record_bytes: int,
    warmup_records: int,
    config: Mapping[str, str],
    transaction_ms: int = 0,
) -> float:
    """ProducerPerformance, as fast as it goes; MB/s (10^6 bytes of values) after the warm-up."""
    address = system if isinstance(system, str) else system.address
    args = ["--bootstrap-server", address, "--topic", topic, "--throughput", "-1"]
    args += ["--num-records", str(records), "--record-size", str(record_bytes)]
    args += ["--warmup-records", str(warmup_records)]
    args += ["--command-property", *(f"{name}={value}" for name, value in config.items())]
    if transaction_ms:
        args += ["--transaction-duration-ms", str(transaction_ms), "--transactional-id", f"bulk-{topic}"]
    out = _run("ProducerPerformance", *args)
    # Without the warm-up the last summary; "12345 records sent, 987.6 records/sec (0.94 MB/sec), ..."
    rates = re.findall(r"records sent, ([\d.]+) records/sec", out)
    if not rates:
        raise RuntimeError(f"ProducerPerformance said nothing of a rate:\n{out[-2000:]}")
    return float(rates[-1]) * record_bytes / 1e6
