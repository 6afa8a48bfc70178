"""The nodes of a cluster as real processes, with links between them that can be cut and disks that can be slow.

`ClusterUnderTest` starts, kills, stops and troubles them; what runs on a node is a subclass's: `RaftishCluster` runs
the small replicated log of `tests.raftish.service`, `BrokerCluster` runs brokers.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar, Self

from tests.cluster.faults import Fault, Trouble
from tests.cluster.links import Address, Links
from tests.support import shim
from tests.support.broker_process import CHECKOUT, answers_api_versions, free_port


class ClusterUnderTest:
    """Nodes 1 to `size`. However a `with` block is left, all processes have ended."""

    start_timeout_s: ClassVar[float] = 30.0

    def __init__(self, folder: Path, size: int = 3) -> None:
        self.folder = folder
        self.nodes = tuple(range(1, size + 1))
        self.clients: dict[int, Address] = {node: ("127.0.0.1", free_port()) for node in self.nodes}
        """Where clients reach each node: past the links, which are between nodes."""
        self.peers: dict[int, Address] = {node: ("127.0.0.1", free_port()) for node in self.nodes}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._slow = shim.require("slowflush")
        self.links = Links(self.peers)

    def command(self, node: int) -> list[str]:
        raise NotImplementedError

    def answers(self, node: int) -> bool:
        """Whether the node's process serves its clients' port, with or without a cluster around it."""
        raise NotImplementedError

    def peers_of(self, node: int) -> dict[int, Address]:
        """Where the node finds the others, and itself."""
        return {
            peer: self.peers[peer] if peer == node else self.links.addresses[node, peer]
            for peer in self.nodes
        }

    def _control(self, node: int) -> Path:
        return self.folder / f"{node}.slow-us"

    def launch(self, node: int) -> None:
        assert node not in self.processes, f"node {node} is running"
        env = {"LD_PRELOAD": str(self._slow), "SLOWFLUSH_CONTROL": str(self._control(node))}
        with (self.folder / f"{node}.log").open("ab") as log:
            self.processes[node] = subprocess.Popen(
                self.command(node),
                cwd=CHECKOUT,
                env=os.environ | env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start(self) -> Self:
        for node in self.nodes:
            self.launch(node)
        self.wait_for_all()
        return self

    def wait_for_all(self) -> None:
        """Until every node answers."""
        deadline = time.monotonic() + self.start_timeout_s
        while not all(self.answers(node) for node in self.nodes):
            self.check_alive()
            assert time.monotonic() < deadline, f"the nodes do not answer:\n{self.logs()}"
            time.sleep(0.05)

    def check_alive(self) -> None:
        """Raises AssertionError with its log when a process ended by itself."""
        for node, process in self.processes.items():
            code = process.poll()
            assert code is None, f"node {node} ended with exit code {code}:\n{self.logs(node)}"

    def logs(self, *nodes: int, size_bytes: int = 3000) -> str:
        parts = []
        for node in nodes or self.nodes:
            path = self.folder / f"{node}.log"
            text = path.read_bytes()[-size_bytes:].decode(errors="replace") if path.exists() else ""
            parts.append(f"-- node {node}\n{text}")
        return "\n".join(parts)

    # -- faults

    def begin(self, trouble: Trouble) -> None:
        for fault in trouble.faults:
            self._begin(fault)

    def _begin(self, fault: Fault) -> None:
        process = self.processes.get(fault.node)
        match fault.kind:
            case "kill":
                if process is not None:
                    self._kill(fault.node)
            case "pause":
                if process is not None:
                    process.send_signal(signal.SIGSTOP)
            case "slow disk":
                self._control(fault.node).write_text(str(int(fault.delay_ms * 1000)))
            case "bad links":
                for way in fault.ways(self.nodes):
                    self.links.set(way, delay_ms=fault.delay_ms, loss=fault.loss)
            case _:
                for way in fault.ways(self.nodes):
                    self.links.set(way, cut=True)

    def end(self, trouble: Trouble) -> None:
        """All is as it was before; killed nodes have been started, and may still be on their way."""
        self.links.heal(reset=trouble.reset)
        for fault in trouble.faults:
            self._control(fault.node).unlink(missing_ok=True)
            process = self.processes.get(fault.node)
            if process is None:
                self.launch(fault.node)
            elif fault.kind == "pause":
                process.send_signal(signal.SIGCONT)

    def _kill(self, node: int) -> None:
        process = self.processes.pop(node)
        # A stopped process is killed all the same.
        process.kill()
        process.wait()

    def stop(self) -> None:
        for node in list(self.processes):
            self._kill(node)
        self.links.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class RaftishCluster(ClusterUnderTest):
    """`groups` replicated logs on each node, without a broker."""

    def __init__(self, folder: Path, size: int = 3, groups: int = 3, *, hasty: bool = False) -> None:
        super().__init__(folder, size)
        self.groups = groups
        self.hasty = hasty
        """Whether it acknowledges what is not committed: to see that a run notices."""

    def command(self, node: int) -> list[str]:
        settings = {
            "node": node,
            "groups": self.groups,
            "peers": self.peers_of(node),
            "listen": self.clients[node],
            "folder": str(self.folder / str(node)),
            "hasty": self.hasty,
        }
        return [sys.executable, "-m", "tests.raftish.service", json.dumps(settings)]

    def answers(self, node: int) -> bool:
        from tests.cluster.line_load import LineClient

        with contextlib.closing(LineClient(self.clients[node])) as client:
            return client.ask(op="status") is not None


class BrokerCluster(ClusterUnderTest):
    """Brokers: `sealog serve` with `--node-id` and `--peers`. `module` is run instead of the broker's."""

    def __init__(self, folder: Path, size: int = 3, module: str = "broker", *, groups: str = "disk") -> None:
        super().__init__(folder, size)
        self.module = module
        self.groups = groups
        self.secret = folder / "cluster-secret"
        self.secret.write_text("the secret of a cluster in a test")

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.clients.values())

    def command(self, node: int) -> list[str]:
        host, port = self.clients[node]
        peers = ",".join(
            f"{peer}={peer_host}:{peer_port}" for peer, (peer_host, peer_port) in self.peers_of(node).items()
        )
        place = ["--data", str(self.folder / str(node)), "--listen", f"{host}:{port}"]
        cluster = ["--node-id", str(node), "--peers", peers, "--cluster-secret-file", str(self.secret)]
        return [sys.executable, "-m", self.module, "serve", *place, *cluster, "--groups", self.groups]

    def answers(self, node: int) -> bool:
        return answers_api_versions(self.clients[node][1])
