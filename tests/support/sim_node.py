"""A whole broker node on a simulated disk and loop, and a client that speaks real wire bytes to its
sessions."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from typing import Any

from support.sim_disk import SimDisk
from support.sim_loop import SimScheduler

from broker.config import BrokerConfig
from broker.node import Node, StartReport
from broker.session import Session
from storage.compaction_job import Job, JobDone
from storage.compaction_rewrite import rewrite
from wire import codec
from wire.batch import TRANSACTIONAL_BIT
from wire.building import build_request
from wire.records import Record, build_batch


class SimClient:
    """One connection: requests by fields, answers decoded. It is its session's transport."""

    def __init__(self, node: Node, scheduler: SimScheduler) -> None:
        self._scheduler = scheduler
        self._received = bytearray()
        self._asked: list[tuple[int, int, int]] = []
        self._correlation_id = 0
        self.answers: dict[int, Any] = {}
        self.answered_at_ms: dict[int, float] = {}
        self.closed = False
        self.reading = True
        self.session = Session(node, self, "sim")

    # The session's transport.

    def write(self, buffers: Sequence[Any]) -> None:
        size = 0
        for buffer in buffers:
            self._received += buffer
            size += len(memoryview(buffer).cast("B"))
        while len(self._received) >= 4:
            length = int.from_bytes(self._received[:4], "big") + 4
            if len(self._received) < length:
                break
            frame = bytes(self._received[4:length])
            del self._received[:length]
            key, version, correlation_id = self._asked.pop(0)
            answered_id, entity = codec.decode_response(key, version, frame)
            assert answered_id == correlation_id, "answers must come in the order of the requests"
            self.answers[correlation_id] = entity
            self.answered_at_ms[correlation_id] = self._scheduler._now_ms
        self.session.written(size)

    def close(self) -> None:
        self.closed = True

    def set_reading(self, reading: bool) -> None:
        self.reading = reading

    # The test's side.

    def send(self, key: int, version: int, /, *, answered: bool = True, **fields: Any) -> int:
        """Send a request; its number, to look its answer up with."""
        self._correlation_id += 1
        if answered:
            self._asked.append((key, version, self._correlation_id))
        entity = build_request(key, version, None, **fields)
        self.session.received(codec.encode_request(key, version, self._correlation_id, "sim", entity))
        return self._correlation_id

    def ask(self, key: int, version: int, /, **fields: Any) -> Any:
        """Send a request and run the loop until it is answered."""
        number = self.send(key, version, **fields)
        self._scheduler.run_until(lambda: number in self.answers or self.closed)
        assert not self.closed, "the broker closed the connection"
        return self.answers[number]


class InlineCompaction:
    """Compacts on the loop itself, in a turn of its own. `job` is what it was last given."""

    def __init__(self, disk: SimDisk, scheduler: SimScheduler) -> None:
        self._disk = disk
        self._scheduler = scheduler

    def run(self, job: Job, done: JobDone) -> None:
        self._scheduler.call_later(1, lambda: done(rewrite(self._disk, job)))


class SimNode:
    """A node that can be killed, cut from power, and started again on what is left of its disk."""

    def __init__(self, *, seed: int = 0, flush_delay_ms: float = 1.0, **config: Any) -> None:
        self.scheduler = SimScheduler()
        self.disk = SimDisk(self.scheduler, flush_delay_ms=flush_delay_ms)
        self.config = BrokerConfig(**config)
        self._random = random.Random(seed)
        self._seed = seed
        self.boot_id = "boot-0"
        self.node: Node
        self.report: StartReport
        self.start()

    def _new_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def start(self) -> None:
        ready: list[Exception | None] = []
        self.node = Node(
            self.disk,
            self.scheduler,
            self.config,
            boot_id=self.boot_id,
            new_uuid=self._new_uuid,
            advertised=("sim", 9092),
            compaction_worker=InlineCompaction(self.disk, self.scheduler),
        )
        self.report = self.node.start(ready.append)
        self.scheduler.run_until(lambda: bool(ready))
        assert ready == [None], ready

    def client(self) -> SimClient:
        return SimClient(self.node, self.scheduler)

    def _new_loop(self) -> None:
        """What the old process had planned never happens; time goes on."""
        now_ms = self.scheduler.now_ms()
        self.scheduler = SimScheduler(start_ms=now_ms + 10)

    def kill(self) -> None:
        """SIGKILL and a new start: the kernel, and so everything written, lives on."""
        self._new_loop()
        self.disk = self.disk.kill(self.scheduler)
        self.start()

    def cut_power(self, *, keep: str = "random") -> None:
        """A power cut and a new start under another kernel boot: only what was flushed is sure to be
        there."""
        self._new_loop()
        self._seed += 1
        self.disk = self.disk.crash(self._seed, keep=keep, scheduler=self.scheduler)
        self.boot_id = f"boot-{self._seed}"
        self.start()

    def restart(self) -> None:
        """A clean stop and a new start under another kernel boot."""
        stopped: list[Exception | None] = []
        self.node.stop(stopped.append)
        self.scheduler.run_until(lambda: bool(stopped))
        self._new_loop()
        self.disk = self.disk.crash(self._seed, keep="none", scheduler=self.scheduler)
        self.boot_id = f"boot-after-{self.boot_id}"
        self.start()


def batch(
    *values: bytes,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    timestamp: int = 1_700_000_000_000,
) -> bytes:
    """A record batch as a producer sends it."""
    return build_batch(
        [Record(None, value, timestamp=timestamp) for value in values],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_BIT if transactional else 0,
    )
