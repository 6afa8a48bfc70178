"""Checkpoints of an active segment: its index and its producers, so that a restart scans only the tail.

Guarantees: a checkpoint speaks only of entries that were durable before it was written; a damaged, foreign or
missing one costs a longer scan and nothing else; it replaces its predecessor atomically.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

from crc32c import crc32c

from storage.disk import Disk, File
from storage.format import (
    TEMPORARY_SUFFIX,
    checkpoint_name,
    decode_checkpoint,
    encode_checkpoint,
)
from storage.index import PartitionIndex
from storage.numbering import BYTES_PER_PLACE, Numbering
from storage.partition import PartitionLog
from storage.segment import Segment

State = Literal["IDLE", "CAPTURED", "WRITING", "STOPPED"]

TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    "IDLE": frozenset({"CAPTURED", "STOPPED"}),
    "CAPTURED": frozenset({"IDLE", "WRITING", "STOPPED"}),
    "WRITING": frozenset({"IDLE", "STOPPED"}),
    "STOPPED": frozenset(),
}


class Checkpoint(NamedTuple):
    """Of one segment: everything below `position` is durable and described by `indexes` and `producers`."""

    position: int
    indexes: list[PartitionIndex]
    producers: list[Any]
    """[partition, states] pairs, as `ProducerStates.restore` takes them."""
    numbering: Numbering | None = None
    """Of a replicated range's segment; all of it was committed."""


def producers_snapshot(partitions: Iterable[PartitionLog]) -> list[Any]:
    """Plain data of every partition that has producers."""
    return [[log.partition, log.producers.snapshot()] for log in partitions if len(log.producers)]


def capture(segment: Segment, partitions: Iterable[PartitionLog]) -> bytes:
    """Pack a checkpoint of everything written. Nothing may be queued: the producers' states would run
    ahead."""
    indexes = [[index.summary(), index.encode_blob()] for index in segment.indexes.values()]
    body = [segment.end, indexes, producers_snapshot(partitions)]
    if segment.numbering is not None:
        places = segment.numbering.encode_places()
        body.append([segment.numbering.summary(), places])
    return encode_checkpoint(segment.salt, body)


def load(disk: Disk, directory: str, segment: Segment) -> Checkpoint | None:
    """The segment's checkpoint; None without a usable one."""
    try:
        file = disk.open_readonly(f"{directory}/{checkpoint_name(segment.segment_id)}")
    except FileNotFoundError:
        return None
    try:
        body = decode_checkpoint(file.pread(file.size(), 0), segment.salt)
    finally:
        file.close()
    if body is None:
        return None
    position, packed, producers, *numbers = body
    indexes = []
    for summary, blob in packed:
        index = PartitionIndex.from_summary(segment, summary)
        index.blob_crc = crc32c(blob)
        index.decode_blob(blob, file.path)
        indexes.append(index)
    numbering = None
    if segment.header.numbered is not None:
        summary, places = numbers[0]
        summary[3] = [0, len(places) // BYTES_PER_PLACE, crc32c(places)]
        numbering = Numbering.from_summary(segment.header.numbered, summary)
        numbering.decode_places(places, file.path)
    return Checkpoint(position, indexes, producers, numbering)


def write_now(disk: Disk, directory: str, segment: Segment, packed: bytes) -> None:
    """Write a checkpoint without waiting for the device: should it be lost, the next start scans more."""
    path = f"{directory}/{checkpoint_name(segment.segment_id)}"
    _write_temporary(disk, path, packed).close()
    disk.rename(path + TEMPORARY_SUFFIX, path)


def _write_temporary(disk: Disk, path: str, packed: bytes) -> File:
    temporary = path + TEMPORARY_SUFFIX
    if disk.exists(temporary):
        disk.remove(temporary)
    file = disk.open(temporary, create=True)
    try:
        file.pwritev((packed,), 0)
    except OSError:
        file.close()
        raise
    return file


class Checkpointer:
    """Writes checkpoints in the background, one at a time: captured when a flush begins, written when it
    ended."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._state: State = "IDLE"
        self._packed = b""
        self._segment: Segment | None = None
        self._file: File | None = None
        self.position = 0
        """How far the last checkpoint of the active segment reaches, or the last attempt at one."""
        self.entries = 0
        """How many of the segment's `entries` lie before it."""

    @property
    def state(self) -> State:
        return self._state

    def _change_state(self, state: State) -> None:
        if state not in TRANSITIONS[self._state]:
            raise ValueError(f"a checkpoint that is {self._state} cannot become {state}")
        self._state = state

    def follow(self, segment: Segment) -> None:
        """It is the active one now. What a start had to scan of it counts: else a broker that is killed again and again
        before so much was written in one life would never have a checkpoint, and scan more each time."""
        self.position, self.entries = segment.scanned_from, 0

    def capture(self, segment: Segment, partitions: Iterable[PartitionLog]) -> None:
        """Everything written so far is about to be flushed: remember what a checkpoint of it says."""
        self._change_state("CAPTURED")
        self._segment = segment
        self._packed = capture(segment, partitions)
        self.position, self.entries = segment.end, segment.entries

    def discard(self, position: int) -> None:
        """The segment that takes entries ends at `position` again: what was captured of more than that is void."""
        if self._state == "CAPTURED":
            self._end()
        self.position = min(self.position, position)

    def flushed(self) -> None:
        """The flush that covers the capture is complete: write it."""
        if self._state != "CAPTURED":
            return
        assert self._segment is not None
        self._change_state("WRITING")
        path = f"{self._directory}/{checkpoint_name(self._segment.segment_id)}"
        try:
            self._file = _write_temporary(self._disk, path, self._packed)
        except OSError:
            # A checkpoint saves time, no more. The next one is due after as many bytes again.
            self._end()
            return
        self._disk.start_flush(self._file, self._then(self._rename))

    def _then(self, step: Callable[[], None]) -> Callable[[OSError | None], None]:
        def done(error: OSError | None) -> None:
            if self._state != "WRITING":
                return
            if error is not None:
                self._end()
                return
            step()

        return done

    def _rename(self) -> None:
        assert self._segment is not None
        path = f"{self._directory}/{checkpoint_name(self._segment.segment_id)}"
        try:
            if self._segment.state != "SEALED":
                self._disk.rename(path + TEMPORARY_SUFFIX, path)
        except OSError:
            self._end()
            return
        self._disk.start_flush_dir(self._directory, self._then(self._end))

    def _end(self) -> None:
        self._release()
        self._change_state("IDLE")

    def stop(self) -> None:
        self._release()
        self._change_state("STOPPED")

    def _release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._segment is not None and self._state == "WRITING":
            path = f"{self._directory}/{checkpoint_name(self._segment.segment_id)}{TEMPORARY_SUFFIX}"
            with contextlib.suppress(OSError):
                self._disk.remove(path)
        self._segment = None
        self._packed = b""
