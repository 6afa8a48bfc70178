"""A range log's owner, its clients and an auditor, all in virtual time, for the tests of range logs.

The auditor keeps its own list of every batch ever appended and of what was promised about it, and compares
what a log gives back, after any crash, with that alone.
"""

from __future__ import annotations

import copy
import random
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from support.sim_disk import PowerCut, SimDisk
from support.sim_loop import SimScheduler

from storage.cache import SegmentCache
from storage.chain_scan import RecoveryReport
from storage.layout import Appended, LogConfig, RollEvent, SegmentInfo
from storage.range_log import RangeLog
from storage.recovery import create_range, open_ranges
from wire.batch import TRANSACTIONAL_BIT, BatchHeader, parse_header, validate_produced
from wire.records import Record, build_batch

TOPIC = uuid.UUID("6f0c1b5e-0000-4000-8000-0000000000aa")
DIRECTORY = "topics/first"
SMALL = LogConfig(
    segment_bytes=3000,
    max_index_entries=1000,
    max_batch_bytes=20_000,
    run_bytes=400,
    preallocate_first_bytes=1024,
    preallocate_max_bytes=4096,
    flush_linger_ms=5,
    checkpoint_bytes=1500,
    close_checkpoint_bytes=500,
    footer_step_bytes=64,
)


def make_batch(
    *values: bytes,
    timestamp: int = 1_000,
    producer_id: int = -1,
    producer_epoch: int = 0,
    base_sequence: int = 0,
    transactional: bool = False,
    compression: int = 0,
) -> tuple[BatchHeader, bytes]:
    """A batch with one record per value, one millisecond apart, and its header as a broker has checked it."""
    batch = build_batch(
        [Record(None, value, timestamp=timestamp + number) for number, value in enumerate(values)],
        compression=compression,
        attributes=TRANSACTIONAL_BIT if transactional else 0,
        producer_id=producer_id,
        producer_epoch=producer_epoch if producer_id >= 0 else -1,
        base_sequence=base_sequence if producer_id >= 0 else -1,
    )
    return validate_produced(batch), batch


def open_range(
    disk: SimDisk, scheduler: Any, *, first: int, last: int, **arguments: Any
) -> tuple[RangeLog, RecoveryReport]:
    """The one range of a topic that has one."""
    (log,), report = open_ranges(disk, scheduler, **arguments)
    assert (log.first, log.last) == (first, last)
    return log, report


@dataclass
class Stored:
    """A batch as it must come back: everything of it but the two fields that the log assigns."""

    base_offset: int
    end_offset: int
    term: int
    txn_seq: int
    tail: bytes
    lsn: int
    header: BatchHeader


@dataclass
class Owner:
    """The layout of one range, durable by itself, and the log that serves it in this life."""

    seed: int = 0
    partitions: int = 3
    config: LogConfig = SMALL
    max_flush_ms: float = 4.0
    max_publish_ms: float = 6.0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.scheduler = SimScheduler(seed=self.seed)
        self.disk = SimDisk(self.scheduler, flush_delay_ms=self._flush_delay)
        self.layout: list[SegmentInfo] = []
        self.next_segment_id = 1
        self.term = 0
        self.log: RangeLog = None  # type: ignore[assignment]
        self.report = RecoveryReport()
        self.cache = SegmentCache(max_files=2, max_runs=50)
        self.batches: list[list[Stored]] = [[] for _ in range(self.partitions)]
        self.promised = [0] * self.partitions
        """Per partition, the offset below which durability has been promised, by a callback or a high
        watermark."""
        self.written_lsn = 0
        self.progress: list[int] = []
        self.sealed: dict[int, dict[int, int]] = {}
        self.failures: list[Any] = []
        self.publishing: list[RollEvent] = []
        self.sequences: dict[tuple[int, int], tuple[int, int]] = {}

    def _flush_delay(self, path: str) -> float:
        return self.random.uniform(0.0, self.max_flush_ms)

    # The owner's side of the log.

    def allocate(self) -> int:
        self.next_segment_id += 1
        return self.next_segment_id

    def publish(self, event: RollEvent, done: Callable[[OSError | None], None]) -> None:
        self.publishing.append(event)

        def durable() -> None:
            if event in self.publishing:
                self.publishing.remove(event)
                self._take_over(event)
                done(None)

        self.scheduler.call_later(self.random.uniform(0, self.max_publish_ms), durable)

    def _take_over(self, event: RollEvent) -> None:
        last = self.partitions - 1
        self.layout.append(SegmentInfo(event.child_id, 0, last, "ACTIVE", (event.parent_id,)))

    def on_progress(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self.progress.append(partition)
            high_watermark = self.log.partition(partition).high_watermark
            assert high_watermark >= self.promised[partition]
            self.promised[partition] = high_watermark

    def on_sealed(self, segment_id: int, ends: dict[int, int]) -> None:
        self.sealed[segment_id] = ends
        # The layout hears of it, unless the crash comes first.
        if self.random.random() < 0.7:
            for number, info in enumerate(self.layout):
                if info.segment_id == segment_id:
                    self.layout[number] = SegmentInfo(
                        segment_id, info.first, info.last, "SEALED", info.parents, None, dict(ends)
                    )

    def hooks(self) -> dict[str, Any]:
        return {
            "directory": DIRECTORY,
            "topic_id": TOPIC,
            "first": 0,
            "last": self.partitions - 1,
            "term": self.term,
            "allocate_segment_id": self.allocate,
            "publish": self.publish,
            "on_progress": self.on_progress,
            "on_sealed": self.on_sealed,
            "on_failed": self.failures.append,
            "config": self.config,
            "cache": self.cache,
        }

    def create(self) -> RangeLog:
        self.term += 1
        made: list[tuple[RangeLog | None, OSError | None]] = []
        create_range(
            self.disk,
            self.scheduler,
            lambda log, error: made.append((log, error)),
            segment_id=1,
            **self.hooks(),
        )
        self.scheduler.run_until(lambda: bool(made))
        log, error = made[0]
        assert error is None
        assert log is not None
        self.log = log
        self.layout.append(SegmentInfo(1, 0, self.partitions - 1, "ACTIVE"))
        return log

    # Clients.

    def append(
        self,
        partition: int,
        *values: bytes,
        producer_id: int = -1,
        timestamp: int = 1_000,
        transactional: bool = False,
        txn_seq: int = 0,
    ) -> Appended:
        sequence, epoch = self.sequences.get((partition, producer_id), (0, 0))
        header, batch = make_batch(
            *values,
            producer_id=producer_id,
            base_sequence=sequence,
            producer_epoch=epoch,
            timestamp=timestamp,
            transactional=transactional,
        )
        appended = self.log.append(partition, header, batch, txn_seq=txn_seq)
        assert not appended.duplicate
        if producer_id >= 0:
            self.sequences[partition, producer_id] = (sequence + len(values), epoch)
        batches = self.batches[partition]
        assert appended.base_offset == (batches[-1].end_offset if batches else 0)
        batches.append(
            Stored(
                appended.base_offset,
                appended.last_offset + 1,
                self.term,
                txn_seq,
                batch[16:],
                appended.lsn,
                header,
            )
        )
        return appended

    def wait_durable(self, partition: int, appended: Appended) -> None:
        def durable(error: Exception | None) -> None:
            if error is None:
                assert self.log.partition(partition).high_watermark > appended.last_offset
                self.promised[partition] = max(self.promised[partition], appended.last_offset + 1)

        self.log.when_durable(appended.lsn, durable)

    def wait_written(self) -> None:
        lsn = self.log.appended_lsn

        def written(error: Exception | None) -> None:
            if error is None:
                self.written_lsn = max(self.written_lsn, lsn)

        self.log.when_written(written)

    def random_step(self) -> None:
        rng = self.random
        choice = rng.random()
        if choice < 0.6:
            for _ in range(rng.choice((1, 1, 1, 3, 8))):
                partition = rng.randrange(self.partitions)
                values = [
                    rng.randbytes(rng.choice((0, 5, 40, 40, 300))) for _ in range(rng.choice((1, 1, 2, 5)))
                ]
                producer_id = rng.choice((-1, 7, 8, 9, rng.randrange(100, 160)))
                transactional = producer_id == 9
                appended = self.append(
                    partition,
                    *values,
                    producer_id=producer_id,
                    transactional=transactional,
                    txn_seq=rng.randrange(1 << 40) if transactional else 0,
                )
                if rng.random() < 0.3:
                    self.wait_durable(partition, appended)
            if rng.random() < 0.5:
                self.wait_written()
        elif choice < 0.9:
            self.scheduler.advance(rng.uniform(0, 8))
        elif choice < 0.95:
            self.log.request_flush()
        else:
            self.read_somewhere()

    def read_somewhere(self) -> None:
        partition = self.random.randrange(self.partitions)
        log = self.log.partition(partition)
        offset = self.random.randint(0, log.high_watermark)
        self.check_read(partition, offset, log.high_watermark, self.random.choice((1, 300, 2000)))

    # Crashes.

    def fork(self, seed: int) -> Owner:
        """The same owner at the same point, to try another fate of the same disk on."""
        other = copy.copy(self)
        other.random = random.Random(seed)
        other.layout = list(self.layout)
        other.batches = [[copy.copy(batch) for batch in batches] for batches in self.batches]
        other.promised = list(self.promised)
        other.sequences = dict(self.sequences)
        other.publishing = list(self.publishing)
        return other

    def power_cut(self, seed: int, *, keep: str = "random") -> None:
        self._end_of_life(self.disk.crash(seed, keep=keep))

    def kill(self) -> None:
        self._end_of_life(self.disk.kill())

    def _end_of_life(self, disk: SimDisk) -> None:
        # A layout change in flight may or may not have become durable.
        for event in self.publishing:
            if self.random.random() < 0.5:
                self._take_over(event)
        self.publishing.clear()
        self.scheduler = disk.scheduler = SimScheduler(seed=self.random.random().__hash__())
        self.disk = disk
        self.cache = SegmentCache(max_files=2, max_runs=50)

    def open(self) -> RangeLog:
        self.term += 1
        self.log, self.report = open_range(self.disk, self.scheduler, segments=self.layout, **self.hooks())
        return self.log

    def recover(self, *, killed: bool = False, interruptions: int = 0, seed: int = 0) -> None:
        """Open again, with power cuts during recovery, then audit; the auditor forgets what was rightly
        lost."""
        rng = random.Random(seed)
        for _ in range(interruptions):
            self.disk.stop_after(rng.randint(1, 25))
            try:
                self.open()
            except PowerCut:
                self.power_cut(rng.randrange(1 << 30))
                continue
            self.disk.stop_after(1 << 60)
            break
        else:
            self.open()
        self.audit(killed=killed)

    # The auditor.

    def audit(self, *, killed: bool = False) -> None:
        assert not [path for path in self.disk.unflushed() if path.endswith(".seg")]
        for partition in range(self.partitions):
            log = self.log.partition(partition)
            batches = self.batches[partition]
            assert log.high_watermark == log.end_offset
            assert log.end_offset >= self.promised[partition], "a promised batch is lost"
            if killed:
                written = [batch.end_offset for batch in batches if batch.lsn <= self.written_lsn]
                assert log.end_offset >= max(written, default=0), "a killed process lost what it had written"
            kept = [batch for batch in batches if batch.end_offset <= log.end_offset]
            assert log.end_offset == (kept[-1].end_offset if kept else 0), "offsets that nobody assigned"
            del batches[len(kept) :]
            self.promised[partition] = log.end_offset
            self.check_read(partition, 0, log.high_watermark, 1 << 30)
            self.check_epochs(partition)
            self.check_producers(partition)
        self.written_lsn = 0
        for batches in self.batches:
            for batch in batches:
                batch.lsn = 0

    def check_read(self, partition: int, offset: int, limit: int, max_bytes: int) -> None:
        result = self.log.read(partition, offset, limit_offset=limit, max_bytes=max_bytes)
        expected = [
            batch
            for batch in self.batches[partition]
            if batch.end_offset > offset and batch.end_offset <= limit
        ]
        if max_bytes < 1 << 30:
            total = 0
            fitting = []
            for batch in expected:
                total += len(batch.tail) + 16
                if fitting and total > max_bytes:
                    break
                fitting.append(batch)
            expected = fitting
        assert [batch.base_offset for batch in result.batches] == [batch.base_offset for batch in expected]
        assert result.bytes == sum(len(batch.data) for batch in result.batches)
        for found, wanted in zip(result.batches, expected, strict=True):
            header = parse_header(found.data)
            assert header.base_offset == wanted.base_offset
            assert header.leader_epoch == found.term == wanted.term
            assert found.last_offset == wanted.end_offset - 1
            assert found.txn_seq == wanted.txn_seq
            assert found.data[16:] == wanted.tail

    def check_epochs(self, partition: int) -> None:
        expected: list[tuple[int, int]] = []
        for batch in self.batches[partition]:
            if not expected or expected[-1][0] != batch.term:
                expected.append((batch.term, batch.base_offset))
        assert self.log.partition(partition).epochs == expected

    def check_producers(self, partition: int) -> None:
        """What each producer sent last is known as a duplicate, and the auditor's clients go on behind it."""
        last: dict[int, list[Stored]] = {}
        for batch in self.batches[partition]:
            if batch.header.producer_id >= 0:
                last.setdefault(batch.header.producer_id, []).append(batch)
        for key in [key for key in self.sequences if key[0] == partition]:
            if key[1] not in last:
                del self.sequences[key]
        states = self.log.partition(partition).producers
        assert set(states.states) == set(last)
        for producer_id, sent in last.items():
            for batch in sent[-5:]:
                duplicate = states.check(batch.header, self.scheduler.now_ms())
                assert duplicate == (batch.base_offset, batch.end_offset - 1)
            header = sent[-1].header
            self.sequences[partition, producer_id] = (header.last_sequence + 1, header.producer_epoch)


class HandOwner(Owner):
    """Publishes a layout when the test says so."""

    asked: list[tuple[RollEvent, Callable[[OSError | None], None]]]

    def publish(self, event: RollEvent, done: Callable[[OSError | None], None]) -> None:
        self.asked.append((event, done))

    def answer(self, error: OSError | None = None) -> None:
        event, done = self.asked.pop()
        if error is None:
            self._take_over(event)
        done(error)


def hand_owner(config: LogConfig = SMALL) -> HandOwner:
    owner = HandOwner(config=config, max_flush_ms=0.0)
    owner.asked = []
    owner.create()
    return owner


def fill(owner: Owner, until: Callable[[], bool]) -> None:
    number = 0
    while not until():
        owner.append(number % 3, b"x" * 100)
        owner.scheduler.run_ready()
        number += 1
        assert number < 1000


@dataclass
class Crashes:
    """Counts for a test to make sure that it met what it is about."""

    cuts: int = 0
    sealed: int = 0
    orphans: int = 0
    checkpoints: int = 0
    lost: int = 0
    entries: int = 0
    seeds: list[int] = field(default_factory=list)

    def count(self, report: RecoveryReport) -> None:
        self.cuts += len(report.cuts)
        self.sealed += len(report.sealed)
        self.orphans += len(report.orphans_removed)
        self.checkpoints += report.checkpoints_used
        self.entries += report.entries_scanned
