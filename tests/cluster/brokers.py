"""Real broker processes of one cluster, without any trouble on their links."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from tests.support.broker_process import CHECKOUT, answers_api_versions, free_port

TIMEOUT_S = 60.0


class Brokers:
    """Nodes 0 to `size` - 1. However a `with` block is left, all processes have ended."""

    def __init__(self, folder: Path, size: int = 3) -> None:
        self.folder = folder
        self.nodes = range(size)
        self.ports = {node: free_port() for node in self.nodes}
        self.peers = ",".join(f"{node}@127.0.0.1:{free_port()}" for node in self.nodes)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

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
                        self.peers,
                    ),
                    *(("--config", str(self.folder / "config.toml")) if self.config else ()),
                ],
                cwd=CHECKOUT,
                env=os.environ | {"SEALOG_CLUSTER_SECRET": secret},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

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
