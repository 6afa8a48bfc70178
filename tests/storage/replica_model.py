"""A replica under a leader's hands that changes its mind, on a disk that loses and mixes: no group, no network.

Whatever it is told to write, it has; whatever it is told to truncate is gone for good once that is durable. Entries are
all of a size, so that old ones lie just where new ones end.
"""

from __future__ import annotations

import random
import uuid
from typing import Any

from support.sim_disk import PowerCut, SimDisk
from support.sim_loop import SimScheduler

from storage.layout import LogConfig, RangeHooks, RangeIdentity
from storage.numbering import MEMBERSHIP, NOOP, NORMAL, Entry
from storage.payloads import Batch, Roll, decode, encode_batch, encode_roll
from storage.producers import ProducerBudget, ProducerStates
from storage.replica import RangeReplica
from storage.replica_recovery import create_replica, open_replica
from wire.batch import assign, parse_header
from wire.records import Record, build_batch

TOPIC = uuid.UUID("6f0c1b5e-0000-4000-8000-0000000000cc")
FOLDER = "r"
PARTITIONS = 2
SMALL = LogConfig(
    segment_bytes=4000,
    run_bytes=300,
    preallocate_first_bytes=512,
    preallocate_max_bytes=2048,
    checkpoint_bytes=900,
    close_checkpoint_bytes=300,
    footer_step_bytes=200,
    max_batch_bytes=5000,
)


def open_one(disk: SimDisk, scheduler: Any, config: LogConfig = SMALL, **more: Any) -> RangeReplica:
    return open_replica(
        disk,
        scheduler,
        directory=FOLDER,
        topic_id=TOPIC,
        first=0,
        last=PARTITIONS - 1,
        hooks=hooks(),
        config=config,
        **more,
    )[0]


def hooks(**more: Any) -> RangeHooks:
    def publish(*_: Any) -> None:
        raise AssertionError("a replica rolls by entries")

    def allocate() -> int:
        raise AssertionError("only a leader needs ids")

    return RangeHooks(more.pop("allocate", allocate), publish, **more)


def create(disk: SimDisk, scheduler: SimScheduler, config: LogConfig = SMALL, **more: Any) -> RangeReplica:
    made: list[Any] = []
    create_replica(
        disk,
        scheduler,
        lambda log, error: made.append(log or error),
        directory=FOLDER,
        topic_id=TOPIC,
        first=0,
        last=PARTITIONS - 1,
        segment_id=1,
        created_ms=5,
        members=b"first",
        hooks=hooks(**more),
        config=config,
    )
    scheduler.run_until(lambda: bool(made))
    assert isinstance(made[0], RangeReplica)
    return made[0]


def batch_entry(
    term: int,
    index: int,
    partition: int,
    offset: int,
    *,
    producer: int = -1,
    sequence: int = 0,
    size: int = 20,
) -> Entry:
    data = build_batch(
        [Record(None, (b"%d.%d" % (term, index)).ljust(size))],
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=sequence if producer >= 0 else -1,
    )
    return Entry(term, index, NORMAL, encode_batch(partition, 9, *assign(data, offset, term)))


class Model:
    """What the log must be: a list of entries, and what follows from it."""

    def __init__(self, entries: list[Entry] | None = None) -> None:
        self.entries = entries if entries is not None else []

    def read(self) -> tuple[list[int], list[list[tuple[int, int]]], list[Any]]:
        """Per partition: end offset, leader epochs, producers."""
        ends = [0] * PARTITIONS
        epochs: list[list[tuple[int, int]]] = [[] for _ in range(PARTITIONS)]
        producers = [ProducerStates(ProducerBudget(1000, 1000)) for _ in range(PARTITIONS)]
        for entry in self.entries:
            if entry.kind != NORMAL:
                continue
            content = decode(entry.payload, entry.term)
            if not isinstance(content, Batch):
                continue
            header, at = content.header, content.partition
            assert header.base_offset == ends[at]
            ends[at] = header.last_offset + 1
            if not epochs[at] or epochs[at][-1][0] != entry.term:
                epochs[at].append((entry.term, header.base_offset))
            if header.producer_id >= 0:
                producers[at].update(header, header.base_offset, 0)
        return ends, epochs, [states(one) for one in producers]


def states(producers: ProducerStates) -> dict[int, Any]:
    return {key: (state.epoch, state.batches) for key, state in producers.states.items()}


class ReplicaWorld:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.scheduler = SimScheduler(seed=seed)
        self.disk = SimDisk(self.scheduler, flush_delay_ms=lambda _: self.rng.random() * 6)
        self.model = Model()
        self.states: list[list[Entry]] = [[]]
        """What the device may hold: the log when it was last durable, and after each write since."""
        self.sure = 0
        """So many entries are in every one of them."""
        self.commit = 0
        self.term = 1
        self.segment_id = 1
        self.counts = {"cuts": 0, "rolls undone": 0, "recoveries": 0, "sealed": 0, "cut in the middle": 0}
        self.replica = create(self.disk, self.scheduler)

    def step(self) -> None:
        draw = self.rng.random()
        if draw < 0.62:
            self.write()
        elif draw < 0.80:
            self.scheduler.advance(self.rng.random() * 8)
        elif draw < 0.92:
            self.commit_some()
        else:
            self.power_cut()
        self.check()

    def write(self) -> None:
        rng, model = self.rng, self.model
        cut = None
        last = len(model.entries)
        if last > self.commit and rng.random() < 0.35:
            cut = rng.randint(self.commit + 1, last)
            self.counts["cuts"] += 1
            self.counts["rolls undone"] += sum(is_roll(entry) for entry in model.entries[cut - 1 :])
            model.entries = model.entries[: cut - 1]
            self.term += 1
            self.sure = min(self.sure, cut - 1)
        first = len(model.entries)
        for _ in range(rng.choice((1, 1, 2, 4))):
            model.entries = [*model.entries, self._entry(len(model.entries) + 1)]
        self.states.append(model.entries)
        dies = rng.random() < (0.25 if cut else 0.03)
        if dies:
            self.disk.stop_after(rng.randint(1, 8))
        try:
            self.replica.write(cut, model.entries[first:])
        except PowerCut:
            self.counts["cut in the middle"] += 1
            self.power_cut()
            return
        if dies:
            self.disk.stop_after(1 << 60)
        known = len(self.states)

        def durable(error: Exception | None) -> None:
            assert error is None
            gone = known - self._forgotten
            if gone > 1:
                del self.states[: gone - 1]
                self._forgotten += gone - 1
            self.sure = min(len(state) for state in self.states)
            for one, other in zip(self.states, self.states[1:], strict=False):
                same = 0
                while same < min(len(one), len(other)) and one[same] == other[same]:
                    same += 1
                self.sure = min(self.sure, same)

        replica = self.replica
        replica.when_all_durable(lambda error: durable(error) if replica is self.replica else None)

    _forgotten = 0

    def _entry(self, index: int) -> Entry:
        rng = self.rng
        draw = rng.random()
        if draw < 0.05:
            return Entry(self.term, index, NOOP, b"")
        if draw < 0.07:
            return Entry(self.term, index, MEMBERSHIP, b"members of %d" % index)
        if draw < 0.13:
            self.segment_id += 1
            return Entry(self.term, index, NORMAL, encode_roll(Roll(self.segment_id, index)))
        partition = rng.randrange(PARTITIONS)
        ends, _, producers = self.model.read()
        producer = rng.choice((-1, 5, 6))
        known = producers[partition].get(producer)
        sequence = known[1][-1][1] + 1 if known else 0
        return batch_entry(self.term, index, partition, ends[partition], producer=producer, sequence=sequence)

    def commit_some(self) -> None:
        self.commit = self.rng.randint(self.commit, len(self.model.entries))
        self.replica.commit_to(self.commit)

    def power_cut(self) -> None:
        rng = self.rng
        self.disk = self.disk.crash(
            rng.getrandbits(40), keep=rng.choice(("random", "sectors", "sectors", "none"))
        )
        self.scheduler = SimScheduler(seed=rng.getrandbits(30))
        self.disk.scheduler = self.scheduler
        self.replica = open_one(self.disk, self.scheduler)
        found = read_all(self.replica)
        assert len(found) >= self.sure, f"{len(found)} entries are left of {self.sure} that were durable"
        assert any(found == state[: len(found)] for state in self.states), "a log that never was"
        assert self.replica.commit_index <= self.commit, "what is not committed counts as committed"
        self.model = Model(found)
        self.states = [found]
        self._forgotten = 0
        self.sure = len(found)
        # Whoever comes back may have lost what only others made durable; its leader would bring it again.
        self.commit = min(self.commit, len(found))
        self.replica.commit_to(self.commit)
        self.counts["recoveries"] += 1

    def check(self) -> None:
        replica = self.replica
        ends, epochs, producers = self.model.read()
        assert replica.last_index == len(self.model.entries)
        for index, entry in enumerate(self.model.entries, 1):
            assert replica.term_at(index) == entry.term
        committed, _, _ = Model(self.model.entries[: self.commit]).read()
        for partition in range(PARTITIONS):
            log = replica.partition(partition)
            assert log.end_offset == ends[partition]
            assert log.epochs == epochs[partition]
            assert states(log.producers) == producers[partition]
            assert log.high_watermark == committed[partition], "a high watermark that is not the commit's"
        sealed = sum(segment.state == "SEALED" for segment in replica.segments)
        self.counts["sealed"] = max(self.counts["sealed"], sealed)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.scheduler.advance(500)
        self.check()
        assert read_all(self.replica) == self.model.entries
        for partition in range(PARTITIONS):
            log = self.replica.partition(partition)
            end = log.high_watermark
            at = 0
            for batch in self.replica.read(partition, 0, limit_offset=end, max_bytes=1 << 20).batches:
                assert batch.base_offset == at
                assert parse_header(batch.data).leader_epoch == batch.term
                at = batch.last_offset + 1
            assert at == end


def is_roll(entry: Entry) -> bool:
    return entry.kind == NORMAL and isinstance(decode(entry.payload, entry.term), Roll)


def read_all(replica: RangeReplica) -> list[Entry]:
    found: list[Entry] = []
    while len(found) < replica.last_index:
        found += replica.entries(len(found) + 1, replica.last_index, 300)
    return found


IDENTITY = RangeIdentity(FOLDER, TOPIC, 0, PARTITIONS - 1, 0)
