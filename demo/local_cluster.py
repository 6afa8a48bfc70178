"""`./run cluster`: a cluster of brokers on this machine, to look at; Ctrl-C ends it.

Data and logs of the nodes are in a temporary folder, which goes with it, or in the one that is named.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

import click

from broker.client import ClusterClient
from broker.cluster_picture import Seen, draw, merge
from demo.ports import free_port
from wire.cluster import Response
from wire.errors import KafkaError

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0


class LocalCluster:
    """Nodes 1 to `size` as processes. Whatever happens in a `with` block, they have ended when it is left."""

    def __init__(self, folder: Path, size: int, groups: str = "disk") -> None:
        """`groups`: what they replicate, as `sealog serve --groups` takes it."""
        self.folder = folder
        self.groups = groups
        self.nodes = tuple(range(1, size + 1))
        ports = [free_port() for _ in range(2 * size)]
        self.addresses = {node: f"127.0.0.1:{port}" for node, port in zip(self.nodes, ports, strict=False)}
        self.peers = {node: f"127.0.0.1:{port}" for node, port in zip(self.nodes, ports[size:], strict=True)}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def command(self, node: int) -> list[str]:
        data = str(self.folder / f"node-{node}")
        words = [sys.executable, "-m", "broker", "serve", "--data", data, "--listen", self.addresses[node]]
        if len(self.nodes) == 1:
            return words
        peers = ",".join(f"{peer}={address}" for peer, address in self.peers.items())
        secret = str(self.folder / "cluster-secret")
        words += ["--node-id", str(node), "--peers", peers, "--cluster-secret-file", secret]
        return [*words, "--groups", self.groups]

    def log(self, node: int) -> Path:
        return self.folder / f"node-{node}.log"

    def start(self) -> None:
        secret = self.folder / "cluster-secret"
        if not secret.exists():
            secret.write_text(secrets.token_hex(32))
            secret.chmod(0o600)
        for node in self.nodes:
            with self.log(node).open("ab") as log:
                # Ctrl-C goes to this process, which ends them in order.
                self.processes[node] = subprocess.Popen(
                    self.command(node), stdout=log, stderr=log, start_new_session=True
                )

    def wait(self) -> Seen:
        """What the nodes say when all of them answer and every range has a leader.

        Raises:
            click.ClickException: a node has ended, or they do not come together in time.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            self.check()
            answers = {node: self._status(node) for node in self.nodes}
            if any(answers.values()):
                seen = merge(answers)
                if not seen.silent and seen.controller >= 0 and all(one.leader >= 0 for one in seen.ranges):
                    return seen
            if time.monotonic() > deadline:
                raise click.ClickException(f"the nodes do not come together; their logs are in {self.folder}")
            time.sleep(0.1)

    def check(self) -> None:
        """Raises click.ClickException with the end of its log where a node has ended by itself."""
        for node, process in self.processes.items():
            if process.poll() is not None:
                text = self.log(node).read_text(errors="replace")[-1500:]
                raise click.ClickException(f"node {node} ended with {process.returncode}:\n{text}")

    def _status(self, node: int) -> Response | None:
        try:
            with ClusterClient(self.addresses[node], timeout_s=2.0) as client:
                return client.status()
        except (OSError, ValueError, KafkaError):
            return None

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in self.processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()

    def __enter__(self) -> LocalCluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _next_steps(cluster: LocalCluster) -> list[str]:
    first, last = cluster.addresses[1], cluster.nodes[-1]
    everyone = ",".join(cluster.addresses.values())
    steps = [
        "",
        f"Clients:  bootstrap.servers={everyone}",
        "",
        "In another terminal:",
        f"  ./run cluster status --bootstrap-server {first}",
    ]
    if len(cluster.nodes) > 1:
        steps += [
            f"  ./run cluster drain {last} --bootstrap-server {first}",
            f"  kill -9 {cluster.processes[last].pid}        # node {last}; the others go on",
        ]
    return [*steps, "", f"Data and logs: {cluster.folder}", "Ctrl-C ends it."]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--nodes", default=3, show_default=True, type=click.IntRange(min=1, max=9), help="How many.")
@click.option("--data", metavar="DIR", help="Where data and logs go.  [default: a temporary folder]")
@click.option(
    "--groups",
    type=click.Choice(["disk", "ranges"]),
    default="disk",
    show_default=True,
    help="What is replicated: one leader's disk, or each range by itself, with leaders on all nodes.",
)
def main(nodes: int, data: str | None, groups: str) -> None:
    """Start a cluster of brokers on this machine, show it, and end it by Ctrl-C."""
    # Ctrl-C by hand as well: started in a shell's background it would be ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    with tempfile.TemporaryDirectory(prefix="sealog-cluster-") as scratch:
        folder = Path(data or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(KeyboardInterrupt), LocalCluster(folder, nodes, groups) as cluster:
            for line in [*draw(cluster.wait()), *_next_steps(cluster)]:
                click.echo(line)
            ended: set[int] = set()
            while len(ended) < nodes:
                time.sleep(0.2)
                for node, process in cluster.processes.items():
                    if node not in ended and process.poll() is not None:
                        ended.add(node)
                        click.echo(f"node {node} has ended")
        click.echo("ended")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
