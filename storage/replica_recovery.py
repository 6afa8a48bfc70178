"""Opening a replicated range from its files: what is there of its log, and how much of that is known to be committed.

The chain is followed by the rolls in it, not by a layout: a layout names what is committed, and the log may be ahead.
The range has a folder of its own. Guarantees: no entry that was flushed and not truncated is lost without a CorruptLog;
what a power cut left of a truncation under way is taken for what it is, the end of the log; when this returns all that
is kept is on the device. Nothing that is not known to be committed is sealed, and no high watermark is above it.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import msgpack

from storage.ancestry_recovery import AncestryRecovery
from storage.cache import SegmentCache
from storage.chain_scan import Found, RecoveryReport
from storage.checkpoint import producers_snapshot
from storage.clock import Scheduler
from storage.compacted_names import generation_of, read_names
from storage.disk import Disk
from storage.entry_reader import read_entries
from storage.files import remove_orphans
from storage.format import (
    ENTRY_HEADER_BYTES,
    HEADER_BLOCK_BYTES,
    MEMBERS_FLAG,
    ROLL_FLAG,
    SEGMENT_SUFFIX,
    CorruptLog,
    HeaderBlock,
    Numbered,
    decode_header_block,
    parse_name,
    segment_name,
)
from storage.layout import LogConfig, RangeHooks, RangeIdentity, SegmentInfo
from storage.numbered_chain import make_child
from storage.numbering import NORMAL, Entry
from storage.partition import PartitionLog
from storage.payloads import BadPayload, Roll, decode
from storage.producers import ProducerBudget, RevocableProducerStates
from storage.recovery import apply_log_starts, check_durable_ends, flush_first
from storage.replica import RangeReplica
from storage.replica_takeover import take_over
from storage.scan import BareEntry, ScannedEntry, Scanner
from storage.segment import Segment
from storage.uncommitted import Rolled, Uncommitted, revocable

ANY_TERM: Final = (1 << 32) - 1


class ReplicaRecovery(AncestryRecovery):
    """A look along the chain, and then its mending."""

    producer_states = RevocableProducerStates
    commit_index = 0
    """Known to be committed: what was sealed, and what a checkpoint speaks of."""

    def look_along(self, start_offsets: Mapping[int, int] | None) -> None:
        self.uncommitted: deque[Uncommitted] = deque()
        self.unreadable: dict[int, CorruptLog] = {}
        """Files without a whole header block, by the ids in their names."""
        self.names = read_names(self.disk, self.directory)
        self.rolls: dict[int, Rolled] = {}
        """By the parent's id, where that has no footer."""
        self.retired_at = 0
        self.read_ancestry()
        headers = self._headers()
        if not headers:
            raise CorruptLog(self.directory, 0, "no segment of the range is here")
        oldest = min(headers.values(), key=_first_index)
        if _first_index(oldest) == 1:
            self.take_ancestors()
            start_offsets = self.ancestry.ends or start_offsets
        next_id: int | None = oldest.segment_id
        parents = oldest.parents
        while next_id is not None:
            segment = self._open(next_id, readonly=self.readonly)
            sealed = segment.state == "SEALED"
            info = SegmentInfo(
                next_id, self.first, self.last, "ACTIVE", parents, None if parents else start_offsets
            )
            found = Found(info, segment)
            self._follows(segment)
            self.found.append(found)
            self._check_identity(info, segment)
            self._start(info, len(self.found) > 1)
            if len(self.found) == 1:
                for log in self.partitions:
                    log.high_watermark = log.end_offset
            parents = (next_id,)
            next_id = self._take_sealed(found, headers) if sealed else self._scan_numbered(found, headers)
            if next_id is not None:
                self.continued.add(segment.segment_id)
        self._link()
        self._find_end()
        self._check_left_over(headers)
        self._judge()

    def _find_end(self) -> None:
        """Whether the range has ended: only one segment follows the one that says so, and holds no data."""
        if len(self.found) < 2:
            return
        segment = self.found[-2].segment
        assert segment.numbering is not None
        index = segment.numbering.last_index
        entry = read_entries(segment, index, index, 1)[0]
        if isinstance(roll := decode(entry.payload, entry.term, check=False), Roll) and roll.retires:
            self.retired_at = index

    def _link(self) -> None:
        for found, after in zip(self.found, self.found[1:], strict=False):
            if found.segment.state != "SEALED":
                found.segment.change_state("FULL")
                self.rolls[found.segment.segment_id].segments = (found.segment, after.segment)
        sealed = [found for found in self.found if found.segment.state == "SEALED"]
        for found in sealed[:-1]:
            # Only the newest one's footer may not be durable: the process may have been killed before its flush.
            found.info = dataclasses.replace(found.info, state="SEALED")

    def _check_left_over(self, headers: Mapping[int, HeaderBlock]) -> None:
        """A file that the log does not reach is of a roll that was lost or truncated: nothing in it was committed."""
        tail = self.found[-1].segment
        for segment_id, error in self.unreadable.items():
            if segment_id < tail.segment_id:
                # Ids grow along a chain, so this is none that was being made: it was a part of the log.
                raise error
        for segment_id in headers.keys() - {found.segment.segment_id for found in self.found}:
            segment = self._open(segment_id, readonly=True)
            try:
                file = segment.file()
                scanner = Scanner(file, segment.header, HEADER_BLOCK_BYTES, file.size())
                claims = max((entry.durable for entry in scanner.all()), default=0)
                if segment.state == "SEALED" or claims or self.durable_ends.get(segment_id, 0):
                    raise CorruptLog(
                        tail.path,
                        tail.end,
                        f"entries are missing here: {segment.path} was written to after them",
                    )
            finally:
                segment.close()

    def _headers(self) -> dict[int, HeaderBlock]:
        """Of the files that are whole enough to have one. Another may be a child that was being made."""
        headers: dict[int, HeaderBlock] = {}
        for name in self.disk.list(self.directory):
            parsed = parse_name(name)
            if parsed is None or parsed.suffix != SEGMENT_SUFFIX or parsed.segment_id in self.ancestry.by_id:
                continue
            if parsed.generation != generation_of(self.names, parsed.segment_id):
                continue  # of a compaction that was cut short, or what it has replaced
            file = self.disk.open_readonly(f"{self.directory}/{name}" if self.directory else name)
            try:
                header = decode_header_block(file.pread(HEADER_BLOCK_BYTES, 0), file.path)
                if header.numbered is not None:
                    headers[header.segment_id] = header
            except CorruptLog as error:
                self.unreadable[parsed.segment_id] = error
            finally:
                file.close()
        return headers

    def _open(self, segment_id: int, *, readonly: bool) -> Segment:
        generation = generation_of(self.names, segment_id)
        segment = Segment.open(
            self.disk, self.directory, segment_id, self.cache, readonly=readonly, generation=generation
        )
        if generation and segment.state != "SEALED":
            segment.close()
            raise CorruptLog(segment.path, 0, "compaction has written this, and it has no footer")
        return segment

    def _follows(self, segment: Segment) -> None:
        if not self.found:
            return
        before = self.found[-1].segment
        assert before.numbering is not None
        numbered = segment.header.numbered
        if (
            numbered is None
            or numbered.first_index != before.numbering.last_index + 1
            or numbered.previous_term != before.numbering.last_term
            or segment.header.parents != (before.segment_id,)
        ):
            raise CorruptLog(segment.path, 0, f"this does not continue {before.path}")

    def _take_sealed(self, found: Found, headers: Mapping[int, HeaderBlock]) -> int:
        segment = found.segment
        self._take_footer(found)
        self._all_committed(segment)
        children = [one.segment_id for one in headers.values() if one.parents == (segment.segment_id,)]
        if len(children) != 1:
            raise CorruptLog(segment.path, 0, "it is sealed, but the file that continues it is absent")
        return children[0]

    def _all_committed(self, segment: Segment) -> None:
        assert segment.numbering is not None
        self.commit_index = segment.numbering.last_index
        self.uncommitted.clear()
        for log in self.partitions:
            log.high_watermark = log.end_offset
            revocable(log).replaced.clear()
        for rolled in self.rolls.values():
            rolled.committed = True

    def _scan_numbered(self, found: Found, headers: Mapping[int, HeaderBlock]) -> int | None:
        """Take in the entries of a file without a footer; the segment that goes on, if it ends with a roll."""
        segment = found.segment
        file = segment.file()
        limit = file.size()
        self._restore_producers()
        position = self._take_checkpoint(found, limit)
        numbering = segment.numbering
        assert numbering is not None
        if position > HEADER_BLOCK_BYTES:
            self._all_committed(segment)
            segment.committed_end = position
        scanner = Scanner(file, segment.header, position, limit)
        child: int | None = None
        for entry in scanner.all():
            found.claim = max(found.claim, entry.durable)
            found.entries += 1
            if entry.term < (numbering.last_term or 0):
                raise CorruptLog(
                    segment.path, entry.position, f"an entry of term {entry.term} after a later one"
                )
            if child is not None:
                raise CorruptLog(segment.path, entry.position, "an entry behind the roll that ends the file")
            record = self._record(segment, entry)
            record.index = numbering.add(entry.position, entry.term)
            timestamp = entry.header.max_timestamp if isinstance(entry, ScannedEntry) else 0
            record.into_index(segment, entry.position, entry.term, timestamp, self.config.run_bytes)
            self.uncommitted.append(record)
            if isinstance(entry, BareEntry):
                if entry.flag == MEMBERS_FLAG:
                    numbering.members.append((record.index, entry.payload))
                elif entry.flag == ROLL_FLAG:
                    child = self._roll(found, entry, record, headers)
        self._take_rest(found, scanner, position)
        return child

    def _record(self, segment: Segment, entry: ScannedEntry | BareEntry) -> Uncommitted:
        size = ENTRY_HEADER_BYTES + entry.size
        if isinstance(entry, BareEntry):
            return Uncommitted(None, 0, 0, size)
        partition, header = entry.partition, entry.header
        if not self.first <= partition <= self.last:
            raise CorruptLog(segment.path, entry.position, f"an entry of partition {partition} in this range")
        log = self.partitions[partition - self.first]
        if partition not in self.known:
            self._know(partition, header.base_offset)
            log.high_watermark = header.base_offset
        if header.base_offset != log.end_offset:
            raise CorruptLog(
                segment.path,
                entry.position,
                f"partition {partition} continues at offset {header.base_offset}, not {log.end_offset}",
            )
        record = Uncommitted(log, header.base_offset, header.last_offset + 1, size)
        if header.producer_id >= 0:
            record.has_producer = True
            log.producers.update(header, header.base_offset, self.now_ms)
        if entry.txn_seq:
            record.transaction = (header.producer_id, header.producer_epoch, entry.txn_seq)
        log.end_offset = record.end_offset
        return record

    def _roll(
        self, found: Found, entry: BareEntry, record: Uncommitted, headers: Mapping[int, HeaderBlock]
    ) -> int | None:
        segment = found.segment
        try:
            roll = decode(entry.payload, entry.term)
        except BadPayload as error:
            raise CorruptLog(segment.path, entry.position, str(error)) from error
        if not isinstance(roll, Roll):
            raise CorruptLog(segment.path, entry.position, "a roll that names no segment")
        ends = {log.partition: log.end_offset for log in self.partitions if log.end_offset}
        record.roll = self.rolls[segment.segment_id] = Rolled(
            ends, msgpack.packb(producers_snapshot(self.partitions))
        )
        if roll.child_id not in headers:
            if self.readonly:
                return None
            self._make_anew(segment, roll, entry, record)
        return roll.child_id

    def _make_anew(self, segment: Segment, roll: Roll, entry: BareEntry, record: Uncommitted) -> None:
        """The roll is there and the child is not: nobody was told of anything in it, or its end was noted."""
        path = f"{self.directory}/{segment_name(roll.child_id)}"
        if self.durable_ends.get(roll.child_id, 0):
            raise CorruptLog(path, 0, "the file is absent or without a header block, but was durable")
        if self.disk.exists(path):
            self.disk.remove(path)
        at = Entry(entry.term, record.index, NORMAL, entry.payload)
        child = make_child(self.disk, self.identity, segment, roll, at, self.config, self.cache)
        child.file().flush()
        self.disk.flush_dir(self.directory)
        child.close()

    def mend(self) -> None:
        """Cut and flush. Nothing is sealed: that is for what is committed."""
        for found in self.found:
            self._cut(found)
        segments = (*self.before, *(found.segment for found in self.found))
        listed = {(segment.segment_id, segment.header.generation) for segment in segments}
        unsealed = {found.segment.segment_id for found in self.found if found.segment.state != "SEALED"}
        self.report.orphans_removed = remove_orphans(self.disk, self.directory, listed, unsealed)
        self.disk.flush_dir(self.directory)


def open_replica(
    disk: Disk,
    scheduler: Scheduler,
    *,
    directory: str,
    topic_id: uuid.UUID,
    first: int,
    last: int,
    hooks: RangeHooks,
    config: LogConfig | None = None,
    cache: SegmentCache | None = None,
    start_offsets: Mapping[int, int] | None = None,
    log_start_offsets: Mapping[int, int] | None = None,
    durable_ends: Mapping[int, int] | None = None,
) -> tuple[RangeReplica, RecoveryReport]:
    """Open the replica of partitions `first`..`last` that lies in this folder. Blocks for reads and flushes.

    `start_offsets`: of a range that did not begin at 0; `log_start_offsets` and `durable_ends` as `open_ranges` takes
    them. Raises CorruptLog (UnknownFormat), naming file and position; OSError.
    """
    config = config or LogConfig()
    cache = cache or SegmentCache()
    take_over(disk, directory, config)
    identity = RangeIdentity(directory, topic_id, first, last, ANY_TERM)
    opening = ReplicaRecovery(disk, identity, config, cache, scheduler.now_ms())
    try:
        opening.durable_ends = durable_ends or {}
        opening.look_along(start_offsets)
        check_durable_ends(opening)
        opening.mend()
        apply_log_starts(opening, log_start_offsets or {})
    except BaseException:
        opening.close()
        raise
    segments = [*opening.before, *(found.segment for found in opening.found)]
    rolled = [
        opening.rolls[segment.segment_id] for segment in segments if segment.segment_id in opening.rolls
    ]
    log = RangeReplica(
        disk,
        scheduler,
        dataclasses.replace(identity, term=0),
        hooks,
        config,
        cache,
        segments,
        opening.partitions,
        opening.commit_index,
        opening.uncommitted,
        rolled,
        opening.ancestry,
        opening.retired_at,
    )
    log.names = opening.names
    return log, opening.report


def create_replica(
    disk: Disk,
    scheduler: Scheduler,
    done: Callable[[RangeReplica | None, OSError | None], None],
    *,
    directory: str,
    topic_id: uuid.UUID,
    first: int,
    last: int,
    segment_id: int,
    created_ms: int,
    members: bytes,
    hooks: RangeHooks,
    config: LogConfig | None = None,
    cache: SegmentCache | None = None,
    start_offsets: Mapping[int, int] | None = None,
) -> None:
    """Make the first segment of a replicated range in a folder of its own; when that is durable, hand the replica to
    `done`. On an error `done` gets it, and nothing is left behind. Never blocks.

    `segment_id`, `created_ms` and `members`, the group's first as it encodes them, are the same on every replica.
    """
    config = config or LogConfig()
    cache = cache or SegmentCache()
    identity = RangeIdentity(directory, topic_id, first, last, 0)
    try:
        disk.make_dir(directory)
        numbered = Numbered(1, 0, members)
        segment = Segment.create(disk, identity, segment_id, (), created_ms, config, cache, numbered)
    except OSError as error:
        scheduler.call_soon(done, None, error)
        return
    segment.durable_end = segment.end
    budget = ProducerBudget(config.max_producers, config.producer_idle_ms)
    partitions = [
        PartitionLog(partition, (start_offsets or {}).get(partition, 0), RevocableProducerStates(budget))
        for partition in range(first, last + 1)
    ]

    def flushed(error: OSError | None) -> None:
        if error is not None:
            done(None, error)
            return
        log = RangeReplica(disk, scheduler, identity, hooks, config, cache, [segment], partitions, 0, (), ())
        done(log, None)

    flush_first(disk, directory, segment, flushed)


def _first_index(header: HeaderBlock) -> int:
    assert header.numbered is not None
    return header.numbered.first_index
