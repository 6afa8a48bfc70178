"""The broker of the demo, in a process of its own: started, killed without warning, started again on its data."""

import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from demo.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
START_TIMEOUT_S = 60.0


class BrokerFailed(RuntimeError):
    """The broker ended by itself or never answered."""


class Server:
    """`sealog serve` on one folder and one port. Its output goes to a file beside the data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.log = folder / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        data = self.folder / "data"
        return [sys.executable, "-m", "broker", "serve", "--data", str(data), "--listen", self.bootstrap]

    def start(self) -> None:
        """Start and wait until it accepts connections. Raises BrokerFailed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if self._process.poll() is not None:
                raise BrokerFailed(f"the broker ended with {self._process.returncode}:\n{self.log_tail()}")
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise BrokerFailed(f"the broker does not answer:\n{self.log_tail()}") from None
                time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL: no warning, no last words."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def end(self) -> None:
        """Stop it in order, or by force after a while; harmless when it isn't running."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]
