"""The process behind a client of another language: requests in on its stdin, answers out on its stdout.

One JSON object per line each way; bytes are base64 strings, None is null:

    {"id": 7, "op": "send", "handle": 2, "topic": "t", "partition": 0, "value": "eA==", "key": null, "headers": []}
    {"id": 7, "ok": true, "result": null}
    {"id": 7, "ok": false, "error": {"class": "ProducerFencedException", "message": "...", "fenced": true}}

`op` and the fields are those of the methods of remote.RemoteClient and its kind. A driver serves one request
after the other, ends when its stdin does, and writes whatever else it has to say to its stderr, which is kept.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import Any

END_TIMEOUT_S = 10.0
STDERR_SHOWN_BYTES = 6000

running: "list[DriverProcess]" = []


class DriverDied(AssertionError):
    """The driver broke off, hung, or does not speak the protocol; the end of its stderr is in the message."""


class DriverRefused(Exception):
    """What the driver said of a request that failed."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['class']}: {error['message']}")
        self.class_name: str = error["class"]
        self.fenced: bool = error["fenced"]


class DriverProcess:
    """Lives until the test session ends, or until it hangs: then its users fail, and it is ended."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the driver
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self._answers = bytearray()
        self._last_id = 0
        running.append(self)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def call(self, op: str, *, within_s: float, **fields: Any) -> Any:
        """The result of a request; DriverRefused if the client refused it, DriverDied if no answer comes."""
        self._last_id += 1
        request = {"id": self._last_id, "op": op, **fields}
        try:
            self._write(json.dumps(request).encode() + b"\n")
            line = self._line(within_s)
            answer = json.loads(line)
            if answer["id"] != self._last_id:
                raise ValueError(f"an answer to {answer['id']} for request {self._last_id}")
        except (OSError, TimeoutError, ValueError, KeyError) as problem:
            shown = self.kill()
            raise DriverDied(f"{self.name}, at {op}: {problem!r}; its stderr ends:\n{shown}") from problem
        if not answer["ok"]:
            raise DriverRefused(answer["error"])
        return answer["result"]

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()

    def _line(self, within_s: float) -> bytes:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        deadline = time.monotonic() + within_s
        while (end := self._answers.find(b"\n")) < 0:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([pipe], [], [], left_s)[0]:
                raise TimeoutError(f"no answer for {within_s} s")
            more = os.read(pipe, 1 << 16)
            if not more:
                raise ConnectionError("it ended")
            self._answers += more
        line = bytes(self._answers[:end])
        del self._answers[: end + 1]
        return line

    def stderr_tail(self) -> str:
        # pread: the driver writes at the position of the same open file.
        size = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), STDERR_SHOWN_BYTES, max(0, size - STDERR_SHOWN_BYTES))
        return tail.decode(errors="replace")

    def kill(self) -> str:
        """End it at once; the end of its stderr, with the stacks of its threads if its runtime shows them."""
        if self.alive:
            # The JVM and Go's runtime both answer with what every thread is doing.
            self._process.send_signal(signal.SIGQUIT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            self._process.kill()
        self._process.wait()
        shown = self.stderr_tail()
        self._forget()
        return shown

    def end(self) -> None:
        """Close its stdin and wait; kill it if that is not enough."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._forget()

    def _forget(self) -> None:
        if self in running:
            running.remove(self)


def end_all() -> None:
    while running:
        running[-1].end()


atexit.register(end_all)
