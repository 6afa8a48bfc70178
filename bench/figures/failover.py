"""How long a producer waits when the leader of three nodes dies: killed, and stopped cleanly."""

from __future__ import annotations

import itertools
import signal
import time
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from bench.report import Result, Table, percentile
from bench.systems.cluster import SealogCluster

SHORT = "A producer's wait when the leader of three nodes is killed or stopped."
TINY = {"times": 1, "rest_s": 0.0}
QUICK = {"times": 8, "rest_s": 2.0}
FULL = {"times": 40, "rest_s": 2.0}

TOPIC = "failover"


def run(folder: Path, *, times: int, rest_s: float) -> Result:
    """The gap between two deliveries of one idempotent producer around the end of a leader."""
    result = Result(
        "failover",
        "When the leader goes",
        "Three nodes, election_timeout_ms 1,000 (the default). An idempotent librdkafka producer sends without pause; "
        "the longest time between two acknowledged records around the leader's end, in milliseconds. SIGKILL: its "
        "process dies; SIGTERM: it stops cleanly and hands over.",
    )
    table = Table("", ["the leader gets", "times", "shortest", "p50", "p90", "longest", "records failed"])
    with SealogCluster(folder / "cluster") as cluster:
        for number in (signal.SIGKILL, signal.SIGTERM):
            load = _Load(cluster.address)
            gaps = [_gap(cluster, load, number, rest_s) for _ in range(times)]
            table.rows.append(
                [
                    signal.Signals(number).name,
                    times,
                    min(gaps),
                    percentile(gaps, 50),
                    percentile(gaps, 90),
                    max(gaps),
                    load.finish(),
                ]
            )
            result.raw[signal.Signals(number).name] = gaps
    result.tables.append(table)
    return result


class _Load:
    def __init__(self, address: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 0,
                # Every connection that breaks would be told of.
                "log_level": 0,
                "socket.timeout.ms": 2000,
                "request.timeout.ms": 1500,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self.times: list[float] = []
        """When a record was acknowledged, in seconds."""
        self.failed = 0

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.times.append(time.monotonic())
        else:
            self.failed += 1

    def some_more(self, count: int = 20) -> None:
        """Until so many more are acknowledged."""
        wanted = len(self.times) + count
        ends = time.monotonic() + 120
        while len(self.times) < wanted:
            if time.monotonic() > ends:
                raise TimeoutError("nothing is acknowledged any more")
            if len(self._producer) < 20:
                self._producer.produce(TOPIC, b"x" * 100, on_delivery=self._told)
            self._producer.poll(0.002)

    def finish(self) -> int:
        """How many failed."""
        self._producer.flush(60)
        return self.failed


def _gap(cluster: SealogCluster, load: _Load, number: int, rest_s: float) -> float:
    """Milliseconds: the longest time between two acknowledgements around the end of the leader."""
    load.some_more()
    leader, epoch = cluster.leader()
    node = cluster.nodes[leader]
    assert node.process is not None
    first = len(load.times) - 1
    node.process.send_signal(number)
    while not cluster.has_led(epoch):
        load.some_more(1)
    load.some_more()
    times = load.times[first:]
    node.process.wait()
    node.process = None
    node.start()
    # It is one of three again before the next one goes.
    ends = time.monotonic() + rest_s
    while time.monotonic() < ends:
        load.some_more(1)
    return 1000 * max(after - before for before, after in itertools.pairwise(times))
