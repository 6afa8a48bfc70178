"""A worker's librdkafka producers in a process of their own, which may end by itself and is then replaced.

librdkafka 2.16 has assertions about transactions that a killed broker can reach, every few hundred kills
(`txn_req_cnt > 0` in rd_kafka_txn_handle_AddPartitionsToTxn). They say nothing about the broker, but end the process
that they are in. Here that is one worker's clients: the call under way raises Lost, and what had begun is judged as
what a killed application leaves behind. The history is with whoever calls, so nothing of it is lost.
"""

import contextlib
import logging
import multiprocessing
import signal
import traceback
from collections import deque
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from tests.crash import clients
from tests.crash.clients import ClientError, Lost, RdkafkaProducer

LIBRARY_ABORTED = "the library ended its process"
LEAVE_TIMEOUT_S = 10.0
LOG_LINES = 60
"""How much of what the library said of its transactions comes with a Lost, to tell whose fault it is."""


class LibraryError(Exception):
    """What the library said, as text: its own errors stay in its process."""


class RdkafkaProcess:
    """Makes producers, one at a time, in one process. `aborts`: how often it ended by an assertion."""

    library = RdkafkaProducer.library

    def __init__(self, producer: type[Any] = RdkafkaProducer) -> None:
        self.aborts = 0
        self._producer = producer
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    def __call__(self, address: str, transactional_id: str) -> "RemoteProducer":
        while True:
            try:
                self.call("new", address, transactional_id)
            except Lost as error:
                # It ended at rest, after its last producer was left.
                if error.name != LIBRARY_ABORTED:
                    raise
            else:
                return RemoteProducer(self)

    def call(self, name: str, *args: Any) -> None:
        """A call of the producer that is there. Raises what it raised; Lost(LIBRARY_ABORTED) if it has ended."""
        if self._pipe is None:
            if name != "new":
                raise Lost(LIBRARY_ABORTED)
            self._start()
        assert self._pipe is not None
        try:
            self._pipe.send((name, args))
            error, cause, failure = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._ended()
            raise Lost(LIBRARY_ABORTED) from None
        assert failure is None, failure
        if error is not None:
            raise error from LibraryError(cause)

    def end(self) -> None:
        """Ends the process, whatever is open in it."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = self._pipe = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        args = (there, dict(clients.RDKAFKA), self._producer)
        self._process = context.Process(target=_serve, args=args, daemon=True)
        self._process.start()
        there.close()

    def _ended(self) -> None:
        process = self._process
        assert process is not None
        process.join(LEAVE_TIMEOUT_S)
        self._process = self._pipe = None
        assert process.exitcode == -signal.SIGABRT, f"a client's process ended with {process.exitcode}"
        self.aborts += 1


class RemoteProducer:
    """The producer in a process: a TransactionalProducer whose `send` may raise Lost, too."""

    library = RdkafkaProducer.library

    def __init__(self, process: RdkafkaProcess) -> None:
        self._call = process.call

    def init(self) -> None:
        self._call("init")

    def begin(self) -> None:
        self._call("begin")

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._call("send", topic, partition, value)

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        self._call("send_offset", group, topic, partition, offset)

    def commit(self) -> None:
        self._call("commit")

    def abort(self) -> None:
        self._call("abort")

    def close(self) -> None:
        with contextlib.suppress(Lost):
            self._call("close")


class Said(logging.Handler):
    """The last lines of the library's log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=LOG_LINES)
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self.logger = logging.Logger("librdkafka", logging.DEBUG)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def _serve(pipe: Connection, settings: Mapping[str, Any], make: type[Any]) -> None:
    """The process: calls, one after the other, until whoever makes them has gone."""
    clients.RDKAFKA.update(settings)
    producer: Any = None
    said = Said()
    while True:
        try:
            name, args = pipe.recv()
        except (EOFError, ConnectionError):
            return
        error: ClientError | None = None
        cause = failure = None
        try:
            if name == "new":
                said.lines.clear()
                producer = make(*args, {"debug": "eos", "log_level": 7, "logger": said.logger})
            else:
                getattr(producer, name)(*args)
        except ClientError as raised:
            error, cause = raised, repr(raised.__cause__)
            if isinstance(raised, Lost) and not raised.fenced:
                cause = "\n      ".join([cause, *said.lines])
        except Exception:  # noqa: BLE001 - whoever called fails with it
            failure = traceback.format_exc()
        with contextlib.suppress(ConnectionError):
            pipe.send((error, cause, failure))
