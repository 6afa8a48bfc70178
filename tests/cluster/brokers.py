"""Real broker processes of one cluster, without any trouble on their links."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from tests.support.broker_process import CHECKOUT, answers_api_versions, free_port

TIMEOUT_S = 60.0


class Brokers:
    """Nodes 0 to `size` - 1. However a `with` block is left, all processes have ended."""

    def __init__(self, folder: Path, size: int = 3) -> None:
        self.folder = folder
        self.nodes = list(range(size))
        self.ports = {node: free_port() for node in self.nodes}
        self.places = {node: f"127.0.0.1:{free_port()}" for node in self.nodes}
        """Where nodes reach each other."""
        self.told = {node: list(self.nodes) for node in self.nodes}
        """Of each node: whom its `--peers` names."""
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def newcomer(self, told: Iterable[int]) -> int:
        """A node more, with a number that none has had, which is told of these; it is not launched."""
        node = max(self.nodes) + 1
        self.nodes.append(node)
        self.ports[node], self.places[node] = free_port(), f"127.0.0.1:{free_port()}"
        self.told[node] = [*told, node]
        return node

    def launch(self, node: int, *, secret: str = "the secret of a cluster in a test") -> None:
        with (self.folder / f"{node}.log").open("ab") as log:
            self.processes[node] = subprocess.Popen(
                [
                    *(sys.executable, "-m", "broker", "serve", "--data", str(self.folder / str(node))),
                    *(
                        "--listen",
                        f"127.0.0.1:{self.ports[node]}",
                        "--node-id",
                        str(node),
                        "--peers",
                        ",".join(f"{one}@{self.places[one]}" for one in self.told[node]),
                    ),
                    *(("--config", str(self.folder / "config.toml")) if self.config else ()),
                    *(("--groups", self.groups) if self.groups else ()),
                ],
                cwd=CHECKOUT,
                env=os.environ | {"SEALOG_CLUSTER_SECRET": secret},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    groups = ""
    """What the cluster replicates, where that is not the default."""
    config = ""
    """Settings in TOML, of all nodes."""

    def __enter__(self) -> Self:
        if self.config:
            (self.folder / "config.toml").write_text(self.config)
        for node in self.nodes:
            self.launch(node)
        self.leader()
        return self

    def __exit__(self, *_: object) -> None:
        for node in list(self.processes):
            self.kill(node)

    def kill(self, node: int) -> None:
        process = self.processes.pop(node)
        process.kill()
        process.wait()

    def terminate(self, node: int) -> int:
        """A clean stop; its exit code."""
        process = self.processes.pop(node)
        process.terminate()
        return process.wait(TIMEOUT_S)

    def ended(self, node: int) -> int:
        """Wait until it ends by itself; its exit code."""
        return self.processes.pop(node).wait(TIMEOUT_S)

    def log(self, node: int) -> str:
        path = self.folder / f"{node}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def logs(self) -> str:
        return "\n".join(f"-- node {node}\n{self.log(node)[-3000:]}" for node in self.nodes)

    def leader(self, *, after: int = -1) -> int:
        """The node that leads in an epoch above `after`, once all that run answer and one says so."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            epochs = {node: self.epoch(node) for node in self.processes}
            best = max(epochs, key=lambda node: epochs[node])
            if epochs[best] > after and all(
                answers_api_versions(self.ports[node]) for node in self.processes
            ):
                return best
            for node, process in self.processes.items():
                assert process.poll() is None, f"node {node} has ended:\n{self.log(node)}"
            assert time.monotonic() < deadline, f"no leader:\n{self.logs()}"
            time.sleep(0.05)

    def epoch(self, node: int) -> int:
        """The last one in which it said that it leads."""
        return max((int(epoch) for epoch in re.findall(r"leads, in epoch (\d+)", self.log(node))), default=-1)
