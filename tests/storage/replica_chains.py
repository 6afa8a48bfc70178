"""Replicas with several sealed segments, and the copying of their files from one to another."""

from __future__ import annotations

from typing import Any

from support.sim_disk import SimDisk
from support.sim_loop import SimScheduler

from storage.numbering import NOOP, NORMAL, Entry
from storage.payloads import Roll, encode_roll
from storage.replica import RangeReplica
from storage.replica_takeover import ChainAside
from tests.storage.replica_model import FOLDER, PARTITIONS, TOPIC, batch_entry, create

PER_SEGMENT = 5
"""Entries: three batches of a producer, one by nobody, and the roll."""


class Chain:
    """A replica that follows: `segments` sealed ones of `PER_SEGMENT` entries each, and some entries behind."""

    def __init__(self, segments: int, *, tail: int = 2, committed: bool = True) -> None:
        self.scheduler = SimScheduler()
        self.disk = SimDisk(self.scheduler, flush_delay_ms=1.0)
        self.replica = create(self.disk, self.scheduler)
        self.ends = [0] * PARTITIONS
        self.sequence = 0
        for number in range(segments):
            self.fill(PER_SEGMENT - 1)
            self.roll(number + 2)
        if segments:
            self.settle()
        self.fill(tail)
        if committed:
            self.settle()

    def entry(self, *, producer: int, sequence: int) -> Entry:
        index = self.replica.last_index + 1
        partition = index % PARTITIONS
        made = batch_entry(1, index, partition, self.ends[partition], producer=producer, sequence=sequence)
        self.ends[partition] += 1
        return made

    def fill(self, count: int) -> None:
        for number in range(count):
            partition = (self.replica.last_index + 1) % PARTITIONS
            producer = -1 if number == 3 else 70 + partition
            known = self.replica.partition(partition).producers.states.get(producer)
            sequence = known.batches[-1][1] + 1 if known is not None else 0
            self.replica.write(None, [self.entry(producer=producer, sequence=sequence)])

    def roll(self, child_id: int) -> None:
        index = self.replica.last_index + 1
        self.replica.write(None, [Entry(1, index, NORMAL, encode_roll(Roll(child_id, 100 + index)))])

    def settle(self) -> None:
        self.replica.commit_to(self.replica.last_index)
        self.scheduler.advance(500)


def content(replica: RangeReplica) -> list[Entry]:
    """Every entry that is there."""
    found: list[Entry] = []
    while (first := replica.first_index + len(found)) <= replica.last_index:
        found += replica.entries(first, replica.last_index, 300)
    return found


def copy_sealed(source: RangeReplica, aside: ChainAside, disk: SimDisk) -> None:
    """All sealed segments, checked and durable."""
    for segment in source.segments:
        if segment.state == "SEALED":
            file = aside.create(segment.segment_id)
            file.pwritev([segment.file().pread(segment.file_size, 0)], 0)
            file.flush()
            file.close()
            for _ in aside.check(segment.segment_id):
                pass


def aside_of(disk: SimDisk) -> ChainAside:
    return ChainAside(disk, FOLDER, TOPIC, 0, PARTITIONS - 1)


def noop(replica: RangeReplica, term: int) -> Any:
    return Entry(term, replica.last_index + 1, NOOP, b"")
