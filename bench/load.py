"""The Java client in one JVM for a whole workload (bench/java): both systems meet the same warmed-up program."""

from __future__ import annotations

import json
import subprocess
import tempfile
from types import TracebackType
from typing import Any, Self

from bench.systems.java import class_path
from bench.systems.kafka import kafka_jars
from bench.systems.server_process import CHECKOUT, ServerProcess

SOURCES = CHECKOUT / "bench" / "java"


class LoadFailed(RuntimeError):
    """A request failed in the client; the message has the end of what it printed."""


class JavaLoad:
    """One JVM; requests one at a time."""

    def __init__(self, heap: str = "1g") -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [
                "java",
                f"-Xmx{heap}",
                "-XX:+UseSerialGC",
                "-XX:+DisplayVMOutputToStderr",
                "-cp",
                class_path(SOURCES, kafka_jars()),
                "Load",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, op: str, system: ServerProcess | str, **values: Any) -> dict[str, Any]:
        """One request of bench/java/Load.java and its answer."""
        self.send(op, system, **values)
        return self.receive()

    def send(self, op: str, system: ServerProcess | str, **values: Any) -> None:
        """The request alone; `receive` its answer before the next one."""
        address = system if isinstance(system, str) else system.address
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, "bootstrap": address, **values}) + "\n")
        self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the JVM ended"}
        if "error" in answer:
            self._errors.seek(0)
            tail = self._errors.read()[-3000:].decode(errors="replace")
            raise LoadFailed(f"{answer['error']}\n{tail}")
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
