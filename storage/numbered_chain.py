"""The physical log of a replicated range: its segments' entries by their numbers (docs/raft.md, section 7).

Guarantees: entries are written as they are handed in, in order, each with the next number; a conflicting tail is cut
off, the files of rolls in it are removed, and that is on the device before anything is written in its place; a flush
moves no high watermark. An entry claims what is durable AND committed of its file: what is not committed may be
truncated, and a claim about it would make damage of what was left behind.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import msgpack
from crc32c import crc32c
from typing_extensions import Buffer

from storage.ancestry import NONE, Ancestry, Parent
from storage.cache import SegmentCache
from storage.checkpoint import producers_snapshot
from storage.clock import Scheduler
from storage.disk import Disk
from storage.entry_reader import read_entries
from storage.flush_round import FlushRound
from storage.flusher import Outcome
from storage.format import (
    BATCH_PREFIX_BYTES,
    ENTRY_MAGIC,
    MEMBERS_FLAG,
    NOOP_FLAG,
    ROLL_FLAG,
    Numbered,
    checkpoint_name,
    encode_bare,
    pack_crc,
    pack_entry_body,
)
from storage.layout import LogConfig, RangeHooks, RangeIdentity, RollEvent
from storage.numbering import MEMBERSHIP, NOOP, Entry, EntryLike, Numbering
from storage.partition import PartitionLog
from storage.payloads import BATCH_AT, Batch, Roll
from storage.segment import Segment
from storage.sequencing import SequencedRange
from storage.uncommitted import Rolled, Uncommitted
from wire.errors import KafkaError

FLAG_OF: Final = {NOOP: NOOP_FLAG, MEMBERSHIP: MEMBERS_FLAG}


class NumberedChain(SequencedRange):
    """`uncommitted` and `rolled`: what recovery found that it does not know to be committed."""

    def __init__(
        self,
        disk: Disk,
        scheduler: Scheduler,
        identity: RangeIdentity,
        hooks: RangeHooks,
        config: LogConfig,
        cache: SegmentCache,
        segments: list[Segment],
        partitions: list[PartitionLog],
        commit_index: int,
        uncommitted: Iterable[Uncommitted],
        rolled: Iterable[Rolled],
        ancestry: Ancestry = NONE,
        retired_at: int = 0,
    ) -> None:
        self.ancestry = ancestry
        """What came before entry 1; `segments` begins with as much of it as is there still."""
        self._ancestors = ancestry.by_id
        self._retired_at = retired_at
        """The number of the entry behind which no data follows, committed or not; 0: there is none."""
        super().__init__(disk, scheduler, identity, hooks, config, cache, segments, partitions)
        self._commit_index = commit_index
        self._uncommitted = deque(uncommitted)
        """Written entries above the commit index, in order."""
        self._rolled = deque(rolled)
        self._numbered: list[Segment] = []
        self._find_numbered()
        self._log_lsn = 0
        """What was written, counted for the flusher. Only a truncation that writes nothing counts besides."""
        self._folder_is_new = False
        """A segment's name in it is not known to be durable."""
        self._gone: list[Segment] = []
        """Removed, and being flushed: their files stay open until that is done."""
        self._captured_index = 0
        self._prepare()
        if self._rolled and self._rolled[0].committed:
            scheduler.call_soon(self._go_on_rolling)

    def _prepare(self) -> None:
        """What is built on it begins, with what is not committed yet."""
        raise NotImplementedError

    def _go_on_rolling(self) -> None:
        """As a start found them."""
        if self._is_living():
            for rolled in self._rolled:
                if rolled.committed:
                    self._roll_committed(rolled)
            self._seal_next()

    # Looking up; what a group's log is asked (`raftish.log.LogView`).

    @property
    def first_index(self) -> int:
        """Of the first entry that is there, with its number."""
        return _numbering(self._numbered[0]).first_index

    @property
    def last_index(self) -> int:
        return _numbering(self._active).last_index

    @property
    def last_term(self) -> int:
        return self.term_at(self.last_index) or 0

    @property
    def commit_index(self) -> int:
        return self._commit_index

    def term_at(self, index: int) -> int | None:
        """None for what is not there; of the entry before the first one it is still known, and 0 of index 0."""
        if index == self.first_index - 1:
            return _header(self._numbered[0]).previous_term
        segment = self._segment_of(index)
        return _numbering(segment).term_at(index) if segment is not None else None

    def entries(self, first: int, last: int, max_bytes: int) -> Sequence[Entry]:
        """From `first` to at most `last`: one, and as many more as their payloads fit into `max_bytes`; it may end
        early at the end of a segment. Raises CorruptLog, OSError."""
        segment = self._segment_of(first)
        if segment is None:
            raise ValueError(f"entry {first} is not there")
        return read_entries(segment, first, last, max_bytes)

    def members_known(self) -> list[tuple[int, bytes]]:
        """(index, members) in order: as of the first entry, and of every entry that changed them since."""
        known = [(self.first_index - 1, _header(self._numbered[0]).members)]
        for segment in self._numbered:
            known += _numbering(segment).members
        return known

    @property
    def own_segments(self) -> list[Segment]:
        """Those of this log, without what came before it."""
        return [one for one in self._segments if not self.is_ancestor(one)]

    def is_ancestor(self, segment: Segment) -> bool:
        return segment.segment_id in self._ancestors

    def parents_of(self, segment: Segment) -> tuple[int, ...]:
        """The segments that it continues."""
        is_first = _header(segment).first_index == 1 and not self.is_ancestor(segment)
        return self.ancestry.lasts if is_first else segment.header.parents

    @property
    def is_retired(self) -> bool:
        """Whether other ranges take its partitions over, for good."""
        return 0 < self._retired_at <= self._commit_index

    def as_parent(self) -> Parent | None:
        """What its children need of it: once it is retired, and all of it sealed and durable here."""
        segments = self._segments[:-1]
        if not self.is_retired or any(segment.state != "SEALED" for segment in segments):
            return None
        ends = {log.partition: log.end_offset for log in self._partitions if log.end_offset}
        return Parent((self.first, self.last), segments, self.ancestry, ends)

    def retired_in(self) -> int:
        """The term of the entry that ended it, no lower than that of any data in it."""
        return self.term_at(self._retired_at) or 0

    def _segment_of(self, index: int) -> Segment | None:
        at = bisect_right(self._numbered, index, key=_first_index) - 1
        return self._numbered[at] if at >= 0 else None

    def _find_numbered(self) -> None:
        """Of what compaction has rewritten entries are gone, and what is before it is of no use to the group then."""
        self._numbered.clear()
        for segment in reversed(self._segments):
            if segment.numbering is None or segment.header.generation or self.is_ancestor(segment):
                break
            self._numbered.insert(0, segment)

    def replace_segment(self, old: Segment, new: Segment) -> None:
        super().replace_segment(old, new)
        self._find_numbered()

    def join_segments(self, olds: Sequence[Segment], new: Segment) -> None:
        super().join_segments(olds, new)
        self._find_numbered()

    def drop_segment(self, segment: Segment) -> None:
        super().drop_segment(segment)
        self._find_numbered()

    # Writing.

    def _write_entries(self, entries: Iterable[tuple[EntryLike, Uncommitted, Batch | Roll | None]]) -> None:
        """Raises OSError."""
        segment = self._active
        position = segment.end
        buffers: list[Buffer] = []
        for entry, record, content in entries:
            claim = min(segment.durable_end, segment.committed_end)
            numbering = _numbering(segment)
            if entry.index != numbering.last_index + 1 or segment.state != "WRITABLE":
                raise AssertionError(f"entry {entry.index} after {numbering.last_index}")
            timestamp = 0
            if isinstance(content, Batch):
                prefix = content.data[:BATCH_PREFIX_BYTES]
                size = len(content.data)
                body = pack_entry_body(
                    ENTRY_MAGIC, 0, size, content.partition, entry.term, content.txn_seq, claim
                )
                guarded = body + prefix
                buffers += (pack_crc(crc32c(guarded, segment.salt ^ position)) + guarded,)
                buffers.append(memoryview(entry.payload)[BATCH_AT + BATCH_PREFIX_BYTES :])
                timestamp = content.header.max_timestamp
            else:
                flag = FLAG_OF[entry.kind] if content is None else ROLL_FLAG
                buffers.append(encode_bare(flag, entry.payload, entry.term, claim, segment.salt, position))
            record.index = numbering.add(position, entry.term)
            if entry.kind == MEMBERSHIP:
                numbering.members.append((entry.index, entry.payload))
            record.into_index(segment, position, entry.term, timestamp, self.config.run_bytes)
            self._uncommitted.append(record)
            position += record.size
            if isinstance(content, Roll):
                self._put(segment, buffers, position)
                self._roll_into(content, entry, record)
                segment, buffers = self._active, []
                position = segment.end
        self._put(segment, buffers, position)
        self._flusher.wrote(self._log_lsn)

    def _put(self, segment: Segment, buffers: list[Buffer], end: int) -> None:
        if not buffers:
            return
        if end > segment.allocated:
            segment.reserve(end, self.config)
        self._log_lsn += segment.file().pwritev(buffers, segment.end)
        segment.end = end

    # Rolls.

    def _roll_into(self, roll: Roll, entry: EntryLike, record: Uncommitted) -> None:
        """The active segment ends with this entry."""
        parent = self._active
        child = make_child(self._disk, self.identity, parent, roll, entry, self.config, self._cache)
        self._folder_is_new = True
        parent.change_state("FULL")
        if record.roll is None:
            record.roll = Rolled(*self._as_of_now())
        record.roll.segments = (parent, child)
        if roll.retires:
            self._retired_at = entry.index
        self._rolled.append(record.roll)
        self._segments.append(child)
        self._numbered.append(child)
        self._unsealed.append(child)
        self._active = child
        self._checkpointer.discard(child.end)
        self._checkpointer.follow(child)

    def _as_of_now(self) -> tuple[dict[int, int], bytes]:
        """What a footer has to say of this moment: the partitions' ends, and the producers."""
        self.expire_producers()
        ends = {log.partition: log.end_offset for log in self._partitions if log.end_offset}
        packed: bytes = msgpack.packb(producers_snapshot(self._partitions))
        return ends, packed

    def _roll_committed(self, rolled: Rolled) -> None:
        rolled.committed = True
        if self._hooks.on_rolled is not None:
            parent, child = rolled.segments
            self._hooks.on_rolled(RollEvent(parent.segment_id, child.segment_id, rolled.ends))

    def roll_ended(self) -> None:
        self._seal_next()

    def _seal_next(self) -> None:
        """Give the oldest parent whose roll is committed its footer, once it is durable."""
        if self._roller.state != "IDLE" or not self._rolled or not self._rolled[0].committed:
            return
        rolled = self._rolled.popleft()
        parent = rolled.segments[0]
        for partition, end_offset in rolled.ends.items():
            parent.index_of(partition, end_offset)
        self._roller.adopt(parent, rolled.producers)

    # Truncation.

    def _truncate(self, index: int) -> None:
        """Take away every entry from `index` on, durably. What is newer than any entry is taken back already. Blocks
        for the device. Raises OSError."""
        if index <= self._commit_index:
            raise AssertionError(f"entry {index} is committed and would be truncated")
        cut_at = self._active.end
        while self._uncommitted and self._uncommitted[-1].index >= index:
            record = self._uncommitted.pop()
            if record.roll is not None:
                self._drop_child(record.roll)
            record.take_back()
            self._taken_back(record)
            cut_at = record.position
        segment = self._active
        _numbering(segment).truncate(index)
        segment.cut(cut_at, self.config)
        if self._round is not None:
            self._round.cut(segment, cut_at)
        self._checkpointer.discard(cut_at)
        self._log_lsn += 1

    def _taken_back(self, record: Uncommitted) -> None:
        """An entry is gone."""
        raise NotImplementedError

    def _drop_child(self, rolled: Rolled) -> None:
        """Its entries are gone already. One file after the other, so that a power cut leaves no gap between them."""
        parent, child = rolled.segments
        assert self._rolled[-1] is rolled
        assert self._active is child
        if self._retired_at == _numbering(parent).last_index:
            self._retired_at = 0
        self._rolled.pop()
        self._segments.pop()
        self._numbered.pop()
        self._unsealed.remove(child)
        self._active = parent
        parent.change_state("WRITABLE")
        self._checkpointer.discard(0)
        self._checkpointer.follow(parent)
        checkpoint = f"{self.directory}/{checkpoint_name(child.segment_id)}"
        if self._disk.exists(checkpoint):
            self._disk.remove(checkpoint)
        self._disk.remove(child.path)
        self._disk.flush_dir(self.directory)
        if self._round is not None:
            self._round.cut(child, 0)
            self._gone.append(child)
        else:
            child.close()

    # Flushing.

    def when_all_durable(self, callback: Outcome) -> None:
        """Of the log's entries; committed is another matter."""
        self._flusher.when_durable(self._log_lsn, callback)

    def start_round(self) -> None:
        folder = self.directory if self._folder_is_new else None
        self._folder_is_new = False
        self._flush_began_ms = self._scheduler.monotonic_ms()
        self._round = FlushRound(self._unsealed, {}, self._flushed)
        if folder is None and not self._round.has_marks:
            # All of it was flushed where a truncation waited for the device.
            self._scheduler.call_soon(self._flushed, None)
        else:
            self._round.start(self._disk, folder=folder)

    def _flushed(self, error: OSError | None) -> None:
        if self._round is None or not self._is_living():
            return
        gone, self._gone = self._gone, []
        for segment in gone:
            segment.close()
        super()._flushed(error)

    # Checkpoints: only of what is committed, so that a start knows that much to be.

    def _capture_if_due(self) -> None:
        """All that was appended is written."""
        if self._checkpoint_is_due():
            self._checkpointer.capture(self._active, self._partitions)
            self._captured_index = self.last_index

    def _write_checkpoint(self) -> None:
        active = self._active
        if self._captured_index <= self._commit_index and active.durable_end >= self._checkpointer.position:
            super()._write_checkpoint()

    # The end.

    def _drop_queued(self, error: KafkaError) -> None:
        for segment in self._gone:
            segment.close()
        self._gone = []


def make_child(
    disk: Disk,
    identity: RangeIdentity,
    parent: Segment,
    roll: Roll,
    entry: EntryLike,
    config: LogConfig,
    cache: SegmentCache,
) -> Segment:
    """The file that this entry names; its header block is the same on every replica. Raises OSError."""
    members = _numbering(parent).members
    numbered = Numbered(entry.index + 1, entry.term, members[-1][1] if members else _header(parent).members)
    return Segment.create(
        disk,
        dataclasses.replace(identity, term=entry.term),
        roll.child_id,
        (parent.segment_id,),
        roll.created_ms,
        config,
        cache,
        numbered,
    )


def _numbering(segment: Segment) -> Numbering:
    assert segment.numbering is not None
    return segment.numbering


def _header(segment: Segment) -> Numbered:
    assert segment.header.numbered is not None
    return segment.header.numbered


def _first_index(segment: Segment) -> int:
    return _numbering(segment).first_index
