"""A Kafka Streams application in a process of its own: tests/clients/drivers/streams/CountWords.java."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Self

from tests.support.broker_process import CHECKOUT
from tests.support.java import class_path, jars
from tests.support.kafka_process import CACHE
from tests.support.toolchains import require_program

POM = CHECKOUT / "tests" / "support" / "kafka" / "streams" / "pom.xml"
SOURCES = CHECKOUT / "tests" / "clients" / "drivers" / "streams"
JAVA = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def streams_jars() -> Path:
    """The folder with what an application needs, fetched if need be; SEALOG_KAFKA_STREAMS_LIBS has it already."""
    given = os.environ.get("SEALOG_KAFKA_STREAMS_LIBS")
    return Path(given) if given else jars(POM, CACHE / "streams-libs")


class CountWords:
    """One instance of the application; it ends with the `with` block, if it has not been killed before."""

    def __init__(self, bootstrap: str, application: str, source: str, sink: str, state: Path) -> None:
        for program in ("java", "mvn"):
            require_program(program, "no Kafka Streams application can be run")
        path = class_path(SOURCES, streams_jars())
        self.command = [*JAVA, "-cp", path, "CountWords", bootstrap, application, source, sink, str(state)]
        self.log = state.with_name(f"{state.name}.log")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        assert self._process is None, "it is running"
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return self

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it was not started"
        return self._process

    def pause(self) -> None:
        """Stop all of its threads where they are, as a long garbage collection does."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def sigkill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._process = None

    def check_alive(self) -> None:
        code = self.process.poll()
        text = self.log.read_text(errors="replace")[-6000:]
        assert code is None, f"the application ended with {code}; its log:\n{text}"

    def __enter__(self) -> Self:
        return self.start() if self._process is None else self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.sigkill()
