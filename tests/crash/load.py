"""The load of the crash tests: producers that never give up, and the history of what they were told.

One thread per producer. Transactional ones write a few records to one to four partitions of two topics, some
add a group's offset, some abort, some walk away in the middle; after a crash some ride on, some begin anew
with the same transactional id, as a restarted application does. One plain idempotent producer goes beside.
"""

import contextlib
import itertools
import logging
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import KafkaException, Producer

from tests.crash.clients import (
    RDKAFKA,
    Again,
    ClientError,
    KafkaPythonProducer,
    Lost,
    MustAbort,
    TransactionalProducer,
)
from tests.crash.rdkafka_process import RdkafkaProcess
from tests.history import (
    Begun,
    ClientEvent,
    EndCalled,
    Ended,
    OffsetsSent,
    PlainAcked,
    Sent,
    Unusable,
)

TOPICS = ("crash-a", "crash-b")
PARTITIONS = 4
INPUT_TOPIC = "crash-input"
GROUP = "crash-group"
PATIENCE_S = 15.0


class ProducerFactory(Protocol):
    """From an address and a transactional id to a producer."""

    @property
    def library(self) -> str: ...

    def __call__(self, address: str, transactional_id: str, /) -> TransactionalProducer: ...


class Load:
    """All producers together. Counters may be read at any time; `events` when the load has stopped."""

    def __init__(
        self,
        address: str,
        seed: int,
        *,
        librdkafka: int = 4,
        kafka_python: int = 1,
        plain: int = 1,
        topics: Sequence[str] = TOPICS,
        renews: bool = False,
        plain_log: Path | None = None,
    ) -> None:
        """`plain_log`: a file for what the plain producer's library says of its identity and batches.

        `renews`: a producer whose transaction had to be aborted is not used again. Where connections break at every
        moment, librdkafka 2.16 may meet the late answer of such a transaction in its next one, and ends its process.
        """
        self.address = address
        self.topics = topics
        self.renews = renews
        self.plain_log = plain_log
        self.events: list[ClientEvent] = []
        self.counts: Counter[str] = Counter()
        """What happened: "commit acked", "errors librdkafka commit _TIMED_OUT", ..."""
        self.losses: list[str] = []
        """What librdkafka said when a producer could do nothing any more, and was not fenced. kafka-python's are only
        counted: it loses requests whenever a connection breaks."""
        self.crashes = 0
        self.stopping = False
        self.failures: list[str] = []
        self.commit_called = threading.Event()
        """Set by each commit's call; a crash that is to hit one clears it and waits."""
        self._running = threading.Event()
        self._running.set()
        self._processes = [RdkafkaProcess() for _ in range(librdkafka)]
        factories: list[ProducerFactory] = [*self._processes, *[KafkaPythonProducer] * kafka_python]
        self.transactional = [
            TransactionalWorker(self, f"txn-{number}", number, factory, random.Random(f"{seed} {number}"))
            for number, factory in enumerate(factories)
        ]
        self.workers: list[Worker] = [
            *self.transactional,
            *(PlainWorker(self, name, random.Random(f"{seed} {name}")) for name in plain_names(plain)),
        ]

    def start(self) -> None:
        for worker in self.workers:
            worker.start()

    def crashed(self) -> None:
        """To be told of each crash, so that some producers begin anew."""
        self.crashes += 1
        self.counts["crashes"] += 1

    def pause(self) -> None:
        """Returns when no transaction is open and nothing is being sent, except what was walked away from."""
        self._running.clear()
        deadline = time.monotonic() + 6 * PATIENCE_S
        for worker in self.workers:
            if not worker.idle.wait(max(0.0, deadline - time.monotonic())):
                frame = sys._current_frames().get(worker.ident or 0)
                stack = "".join(traceback.format_stack(frame)) if frame else ""
                raise AssertionError(f"{worker.name} does not come to rest:\n{self.report()}\n{stack}")
        self._raise_failures()

    def fence(self) -> None:
        """While paused: begins anew with each transactional id, which ends what was walked away from."""
        for worker in self.transactional:
            with contextlib.suppress(Stuck):
                worker.begin_anew()
        self._raise_failures()

    def resume(self) -> None:
        self._running.set()

    def stop(self) -> None:
        """Ends all threads; pause first for a history without open ends."""
        self.stopping = True
        self._running.set()
        for worker in self.workers:
            worker.join(PATIENCE_S)
        for process in self._processes:
            process.end()
        self._raise_failures()

    @property
    def paused(self) -> bool:
        return not self._running.is_set()

    def wait_while_paused(self, idle: threading.Event) -> None:
        if self.paused:
            idle.set()
            self._running.wait()
            idle.clear()

    def progress(self) -> int:
        """Grows with every acknowledgement of a transaction's end."""
        return self.counts["commit acked"] + self.counts["abort acked"]

    def report(self) -> str:
        counts = [f"  {name}: {count}" for name, count in sorted(self.counts.items())]
        losses = [f"  lost: {loss}" for loss in self.losses]
        ended = sum(process.aborts for process in self._processes)
        return "\n".join([*counts, f"  processes that librdkafka ended: {ended}", *losses[:20]])

    def _raise_failures(self) -> None:
        if self.failures:
            raise AssertionError("the load itself failed:\n" + "\n".join(self.failures))


def plain_names(count: int) -> list[str]:
    return ["plain", *(f"plain-{number}" for number in range(1, count))][:count]


class Stuck(Exception):
    """The worker's transactional id cannot be used any more: it is in the history, and the worker ends."""


class Worker(threading.Thread):
    """Repeats step() until the load stops."""

    def __init__(self, load: Load, name: str, rng: random.Random) -> None:
        super().__init__(name=name, daemon=True)
        self.load = load
        self.rng = rng
        self.idle = threading.Event()

    def run(self) -> None:
        try:
            while not self.load.stopping:
                self.step()
                time.sleep(self.rng.uniform(0, 0.006))
                self.before_rest()
                self.load.wait_while_paused(self.idle)
        except Stuck:
            pass
        except Exception:
            self.load.failures.append(f"{self.name}: {traceback.format_exc()}")
            raise
        finally:
            self.idle.set()
            self.close()

    def step(self) -> None:
        raise NotImplementedError

    def before_rest(self) -> None:
        """Whatever must be done before a pause."""

    def close(self) -> None:
        raise NotImplementedError

    def count(self, what: str) -> None:
        self.load.counts[what] += 1


class TransactionalWorker(Worker):
    """One transactional id, its transactions one after the other."""

    def __init__(
        self, load: Load, name: str, number: int, factory: ProducerFactory, rng: random.Random
    ) -> None:
        super().__init__(load, name, rng)
        self.number = number
        self.factory = factory
        self.library = factory.library
        self.client: TransactionalProducer | None = None
        self.txn = 0
        self.values = itertools.count()
        self.crashes_at_begin = 0
        self.had_to_abort = False

    def ready(self) -> TransactionalProducer:
        """A producer that can begin a transaction."""
        if self.had_to_abort and self.load.renews:
            self.leave()
        if self.client is None:
            self.begin_anew()
        assert self.client is not None
        return self.client

    def step(self) -> None:
        client = self.ready()
        try:
            client.begin()
        except ClientError as error:
            self.note("begin", error)
            self.leave()
            return
        self.txn += 1
        self.crashes_at_begin = self.load.crashes
        self.load.events.append(Begun(self.name, self.txn))
        self.count("begun")
        if not self.write(client):
            return
        if self.rng.random() < 0.02 or (self.survived_crash and self.rng.random() < 0.2):
            self.count("walked away")
            self.leave()
        else:
            self.end(client, commit=self.rng.random() >= 0.2)

    @property
    def survived_crash(self) -> bool:
        """The broker crashed since this transaction began."""
        return self.load.crashes > self.crashes_at_begin

    def write(self, client: TransactionalProducer) -> bool:
        """Fills the transaction; False: it is over already."""
        places = [(topic, partition) for topic in self.load.topics for partition in range(PARTITIONS)]
        chosen = self.rng.sample(places, self.rng.randint(1, 4))
        for topic, partition in chosen * self.rng.choice([1, 1, 2]):
            for _ in range(self.rng.randint(1, 2)):
                value = f"{self.name}/{self.txn}/{next(self.values)}"
                self.load.events.append(Sent(self.name, self.txn, topic, partition, value))
                try:
                    client.send(topic, partition, value.encode())
                except MustAbort as error:
                    self.note("send", error)
                    self.end(client, commit=False)
                    return False
                except Lost as error:
                    self.note("send", error)
                    self.leave()
                    return False
            if self.rng.random() < 0.1:
                time.sleep(self.rng.uniform(0, 0.02))
        if self.rng.random() < 0.4:
            offset = (GROUP, INPUT_TOPIC, self.number, self.txn)
            self.load.events.append(OffsetsSent(self.name, self.txn, *offset))
            try:
                self.patiently("offsets", lambda: client.send_offset(*offset))
            except Lost:
                self.leave()
                return False
            except ClientError:
                self.end(client, commit=False)
                return False
        return True

    def end(self, client: TransactionalProducer, *, commit: bool) -> None:
        name = "commit" if commit else "abort"
        self.load.events.append(EndCalled(self.name, self.txn, commit))
        self.count(f"{name} called")
        if commit:
            self.load.commit_called.set()
        try:
            self.patiently(name, client.commit if commit else client.abort)
        except MustAbort:
            self.ended(commit, "failed")
            if commit:
                self.end(client, commit=False)
            else:
                self.leave()
        except ClientError:
            self.ended(commit, "unknown")
            self.leave()
        else:
            self.ended(commit, "acked")
            if self.survived_crash:
                self.count(f"{name} acked over a crash")

    def ended(self, commit: bool, outcome: Any) -> None:
        self.load.events.append(Ended(self.name, self.txn, commit, outcome))
        self.count(f"{'commit' if commit else 'abort'} {outcome}")

    def patiently(self, what: str, call: Callable[[], None]) -> None:
        """Repeats a call while the client says that it may be. Raises the last error, and any other."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                call()
            except Again as error:
                self.note(what, error)
                impatient = self.survived_crash and self.rng.random() < 0.2
                if impatient or time.monotonic() > deadline:
                    self.count(f"{what} given up")
                    raise
            except ClientError as error:
                self.note(what, error)
                raise
            else:
                return

    def begin_anew(self) -> None:
        """A new producer with the same transactional id, initialized."""
        self.leave()
        self.had_to_abort = False
        deadline = time.monotonic() + 2 * PATIENCE_S
        while self.client is None:
            client = self.factory(self.load.address, self.name)
            try:
                self.patiently("init", client.init)
            except ClientError as error:
                client.close()
                if time.monotonic() > deadline:
                    self.load.events.append(Unusable(self.name, error.name))
                    raise Stuck from error
            else:
                self.client = client
        self.count(f"new producers {self.library}")

    def leave(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = None

    def close(self) -> None:
        self.leave()

    def note(self, what: str, error: ClientError) -> None:
        self.count(f"errors {self.library} {what} {type(error).__name__} {error.name}")
        self.had_to_abort |= isinstance(error, MustAbort)
        if isinstance(error, Lost) and not error.fenced and self.library != KafkaPythonProducer.library:
            crashes = self.load.crashes - self.crashes_at_begin
            crash = f"{crashes} crashes since its begin, {self.load.crashes} in all"
            self.load.losses.append(
                f"{self.name} transaction {self.txn} {what}, {crash}: {error.name}: {error.__cause__}"
            )


class PlainWorker(Worker):
    """An idempotent producer outside of transactions; each incarnation is another producer in the history."""

    def __init__(self, load: Load, name: str, rng: random.Random) -> None:
        super().__init__(load, name, rng)
        self.producer: Producer | None = None
        self.lost = False
        self.incarnation = 0
        self.values = itertools.count()

    def step(self) -> None:
        if self.producer is None:
            self.incarnation += 1
            self.producer = Producer(
                RDKAFKA
                | {
                    "bootstrap.servers": self.load.address,
                    "enable.idempotence": True,
                    "linger.ms": 1,
                    "error_cb": self._error,
                }
                | self._telling()
            )
            self.lost = False
        for _ in range(self.rng.randint(1, 3)):
            topic, partition = self.rng.choice(self.load.topics), self.rng.randrange(PARTITIONS)
            value = f"{self.name}/{self.incarnation}/{next(self.values)}"
            sent = Sent(f"{self.name}/{self.incarnation}", None, topic, partition, value)
            self.load.events.append(sent)
            try:
                self.producer.produce(topic, value, partition=partition, on_delivery=self._delivered)
            except KafkaException as error:
                self._error(error.args[0])
        self.producer.poll(0.005)
        while len(self.producer) > 50 and not self.load.stopping:
            self.producer.poll(0.05)
        if self.lost:
            self.close()

    def _telling(self) -> dict[str, Any]:
        """The library's own log, where it is wanted: what it made of its identity decides who a repeat's fault is."""
        if self.load.plain_log is None:
            return {}
        log = logging.getLogger(f"plain-{self.load.plain_log}")
        if not log.handlers:
            handler = logging.FileHandler(self.load.plain_log)
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
            log.addHandler(handler)
            log.setLevel(logging.DEBUG)
            log.propagate = False
        return {"debug": "eos,msg", "log_level": 7, "logger": log}

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.load.events.append(PlainAcked(message.value().decode()))
            self.count("plain acked")
        else:
            self.count(f"errors librdkafka plain {error.name()}")

    def _error(self, error: Any) -> None:
        if error.fatal():
            self.count(f"errors librdkafka plain fatal {error.name()}")
            self.lost = True

    def before_rest(self) -> None:
        if self.load.paused and self.producer is not None:
            self.producer.flush(PATIENCE_S)

    def close(self) -> None:
        if self.producer is not None:
            self.producer.flush(1.0)
            self.producer.purge(blocking=False)
            self.producer = None
