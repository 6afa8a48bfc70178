"""A server in a process of its own, which is started, killed, stopped and started again on the same port and data.

However a `with` block of one is left, the process has ended.
"""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from demo.ports import free_port

CHECKOUT = Path(__file__).resolve().parents[2]
API_VERSIONS = 18


class BrokerDied(AssertionError):
    """The process ended when it should have served; the end of its log is in the message."""


def answers_api_versions(port: int, timeout_s: float = 1.0) -> bool:
    """Whether something at the port answers ApiVersions v0 without an error."""
    body = struct.pack(">hhih", API_VERSIONS, 0, 7, -1)
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout_s) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        head = b""
        while len(head) < 10:
            more = connection.recv(10 - len(head))
            if not more:
                return False
            head += more
        _, correlation_id, error = struct.unpack(">iih", head)
        return (correlation_id, error) == (7, 0)
    return False


class ServerProcess:
    """What sealog and Apache Kafka have in common. Subclasses say how to start one."""

    start_timeout_s = 20.0
    stop_timeout_s = 20.0
    clean_exit_codes: tuple[int, ...] = (0,)

    def __init__(
        self,
        data: Path,
        *,
        port: int | None = None,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        self.data = data
        self.port = port or free_port()
        self.env = dict(env or {})
        self.log = log or data.with_name(f"{data.name}.log")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The bootstrap address for clients."""
        return f"127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def launch(self) -> None:
        """Starts the process without waiting for anything."""
        assert self.process is None, "the process is running"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                cwd=CHECKOUT,
                env=os.environ | self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start(self) -> Self:
        """Starts the process and waits until it answers ApiVersions."""
        self.launch()
        try:
            self.wait_until_ready()
        except BaseException:
            self.end()
            raise
        return self

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.start_timeout_s
        while not answers_api_versions(self.port):
            self.check_alive()
            if time.monotonic() > deadline:
                raise BrokerDied(f"not ready after {self.start_timeout_s} s; its log:\n{self.log_tail()}")
            time.sleep(0.01)

    def cpu_s(self) -> float:
        """Processor time of the process until now, of all its threads."""
        assert self.process is not None, "the process was not started"
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def check_alive(self) -> None:
        """Raises BrokerDied when the process has ended by itself."""
        assert self.process is not None, "the process was not started"
        code = self.process.poll()
        if code is not None:
            self.process = None
            raise BrokerDied(f"ended with exit code {code}; its log:\n{self.log_tail()}")

    def sigkill(self) -> None:
        """Kills the process at once; what it wrote stays in the kernel."""
        self.check_alive()
        self.end()

    def sigterm(self) -> None:
        """Asks the process to stop and expects a clean exit."""
        self.check_alive()
        process = self.process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(self.stop_timeout_s)
        except subprocess.TimeoutExpired:
            self.end()
            raise BrokerDied(
                f"still there {self.stop_timeout_s} s after SIGTERM; its log:\n{self.log_tail()}"
            ) from None
        self.process = None
        assert code in self.clean_exit_codes, f"exit code {code} after SIGTERM; its log:\n{self.log_tail()}"

    def restart(self) -> None:
        """A clean stop and a start."""
        self.sigterm()
        self.start()

    def end(self) -> None:
        """Kills the process if it is there."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def log_tail(self, size_bytes: int = 6000) -> str:
        """The end of what the process wrote to its output."""
        text = self.log.read_bytes()[-size_bytes:] if self.log.exists() else b""
        return text.decode(errors="replace")

    def __enter__(self) -> Self:
        return self.start() if self.process is None else self

    def __exit__(self, *_: object) -> None:
        self.end()
