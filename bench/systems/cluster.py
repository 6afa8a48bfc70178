"""Three nodes as one system, of sealog and of Apache Kafka, all on this machine."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.proxy import delayed_link
from bench.systems.kafka import KafkaProcess
from bench.systems.sealog import SealogProcess
from bench.systems.server_process import ServerProcess, free_port

TIMEOUT_S = 60.0
SECRET = "the secret of a cluster on a bench"


class Cluster:
    """`nodes` by number. However a `with` block is left, all processes have ended."""

    def __init__(self, nodes: Mapping[int, ServerProcess]) -> None:
        self.nodes = dict(nodes)
        self.stack = ExitStack()

    @property
    def address(self) -> str:
        """The bootstrap address for clients."""
        return ",".join(node.address for node in self.nodes.values())

    def logs(self) -> str:
        """The ends of what the nodes said."""
        return "\n".join(node.log_tail(1500) for node in self.nodes.values())

    def start(self) -> Self:
        # At once: a node of Kafka answers only when a majority of the controllers is there.
        with ThreadPoolExecutor(len(self.nodes)) as threads:
            list(threads.map(_start, self.nodes.values()))
        return self

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            node.end()
        self.stack.close()


def _start(node: ServerProcess) -> None:
    node.start()


class SealogCluster(Cluster):
    """`env` is all nodes' (shims); `rtt_ms` the round trip time between any two of them, not to clients."""

    def __init__(
        self,
        folder: Path,
        size: int = 3,
        *,
        env: Mapping[str, str] | None = None,
        rtt_ms: float = 0,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        own = {node: free_port() for node in range(1, size + 1)}
        reached = {node: free_port() for node in own} if rtt_ms else own
        super().__init__(
            {
                node: SealogProcess(
                    folder / f"node-{node}",
                    env={"SEALOG_CLUSTER_SECRET": SECRET} | dict(env or {}),
                    settings={
                        "node_id": node,
                        "peers": [
                            f"{one}@127.0.0.1:{own[one] if one == node else reached[one]}" for one in own
                        ],
                        **(settings or {}),
                    },
                )
                for node in own
            }
        )
        if rtt_ms:
            for node, port in own.items():
                self.stack.enter_context(delayed_link(f"127.0.0.1:{port}", reached[node], rtt_ms))

    def start(self) -> Self:
        super().start()
        self.leader()
        return self

    def leader(self, *, after: int = -1) -> tuple[int, int]:
        """(node, epoch) that leads, in an epoch above `after`."""
        return _until(lambda: max(self._led(after), default=None), self.logs)[::-1]

    def has_led(self, epoch: int) -> bool:
        """Whether a node leads in an epoch above that one."""
        return bool(self._led(epoch))

    def _led(self, after: int) -> list[tuple[int, int]]:
        """(epoch, node) of those that say so and run."""
        found = [
            (int(epoch), number)
            for number, node in self.nodes.items()
            if node.process is not None
            for epoch in re.findall(r"leads, in epoch (\d+)", node.log.read_text(errors="replace"))
        ]
        return [one for one in found if one[0] > after]


class SealogRangesCluster(SealogCluster):
    """Each range is replicated by a group of its own, so leaders are on all nodes."""

    def __init__(self, folder: Path, size: int = 3) -> None:
        super().__init__(folder, size, settings={"groups": "ranges"})


def _until(condition: Callable[[], tuple[int, int] | None], explain: Callable[[], str]) -> tuple[int, int]:
    ends = time.monotonic() + TIMEOUT_S
    while time.monotonic() < ends:
        if (found := condition()) is not None:
            return found
        time.sleep(0.01)
    raise TimeoutError(explain())


class KafkaCluster(Cluster):
    """Brokers and controllers in one process each; every topic on all of them, two must have a record."""

    def __init__(
        self, folder: Path, size: int = 3, *, settings: Mapping[str, str] | None = None, heap: str = "1g"
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        nodes = {node: KafkaProcess(folder / f"node-{node}", heap=heap) for node in range(1, size + 1)}
        voters = ",".join(f"{number}@127.0.0.1:{node.controller_port}" for number, node in nodes.items())
        count = str(size)
        for number, node in nodes.items():
            node.settings = {
                "node.id": str(number),
                "controller.quorum.voters": voters,
                "offsets.topic.replication.factor": count,
                "transaction.state.log.replication.factor": count,
                "transaction.state.log.min.isr": str(size // 2 + 1),
                "min.insync.replicas": str(size // 2 + 1),
                "broker.session.timeout.ms": "9000",
                "broker.heartbeat.interval.ms": "2000",
                "log.segment.bytes": str(1 << 30),
            } | dict(settings or {})
        super().__init__(nodes)
