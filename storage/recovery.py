"""Opening the ranges of a topic from their files: what was durable is kept, what was torn is cut and reported, and what
cannot be explained by a crash is refused.

Guarantees: no entry that was ever flushed is lost without a CorruptLog; no byte that was not part of a whole
entry comes back; offsets run on without a gap in every partition, across segments; when this returns,
everything kept is on the device and every high watermark is the end of its log. A crash during recovery
changes nothing about that: children are cut before their parents are sealed, and nothing is served in
between.
"""

from __future__ import annotations

import contextlib
import errno
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

from storage.cache import SegmentCache
from storage.chain_scan import ChainScan, Cut, Found, RecoveryReport
from storage.clock import Scheduler
from storage.disk import Disk
from storage.files import ancestors, delete_files, remove_orphans, start_dir_chain
from storage.format import CorruptLog
from storage.layout import (
    LogConfig,
    Publish,
    RangeHooks,
    RangeIdentity,
    SegmentInfo,
    chain_of,
    tails,
)
from storage.partition import PartitionLog
from storage.producers import ProducerBudget, ProducerStates
from storage.range_log import RangeLog
from storage.segment import Segment
from wire.errors import KafkaError

__all__ = ("Cut", "RecoveryReport", "create_range", "open_ranges")


REWRITE_BYTES = 4 << 20


class Recovery(ChainScan):
    """A look at the files of a topic's ranges, and then their mending.

    What no flush is known to have covered is written anew before it is flushed: where a flush has failed, the kernel
    may hold pages for clean that never reached the device, and the next flush of the file would succeed without them.
    """

    durable_ends: Mapping[int, int] = {}
    """What the owner knows to have been durable, in bytes of each segment's file."""

    def mend(self) -> None:
        """Cut, flush, seal, clean up. A crash anywhere in here leaves files that the next start judges alike."""
        for found in self.found:
            self._cut(found)
        for found in self.found:
            if not self.is_tail(found) and found.segment.state != "SEALED":
                self._seal(found)
        for log in self.partitions:
            log.high_watermark = log.end_offset
        listed = {(found.segment.segment_id, found.info.generation) for found in self.found}
        unsealed = {found.segment.segment_id for found in self.found if found.segment.state != "SEALED"}
        self.report.orphans_removed = remove_orphans(self.disk, self.directory, listed, unsealed)

    def _cut(self, found: Found) -> None:
        """Throw away what is torn and flush the rest. All of it before any sealing: a parent sealed at its
        cut would make the gap towards a child that is not cut yet look like damage."""
        segment = found.segment
        if segment.state == "SEALED":
            if found.info.state != "SEALED":
                # The process may have been killed before it flushed the trailer.
                self._rewrite(segment, segment.end, segment.file_size)
            return
        file = segment.file()
        cut = found.gap or found.torn
        if cut is not None:
            self.report.cuts.append(cut)
        changed = cut is not None or (found.ended and self.is_tail(found))
        if changed:
            # Cutting and reserving anew makes zeros of it, so no later scan meets bytes of this life. A parent's
            # end mark stays: half a cut could leave pieces of its footer behind, and nothing to explain them.
            file.truncate(segment.end)
            segment.allocated = segment.end
        known = max(found.own_claim, self.durable_ends.get(segment.segment_id, 0))
        if changed or known < segment.end or found.info.state == "SEALED":
            self._rewrite(segment, known, segment.end)
        segment.durable_end = segment.end

    def _rewrite(self, segment: Segment, start: int, end: int) -> None:
        """Write these bytes as they are, and flush the file."""
        file = self.disk.open(segment.path)
        try:
            for at in range(start, end, REWRITE_BYTES):
                file.pwritev((file.pread(min(REWRITE_BYTES, end - at), at),), at)
            file.flush()
        finally:
            file.close()

    def _seal(self, found: Found) -> None:
        segment = found.segment
        segment.change_state("FULL")
        file = segment.file()
        try:
            segment.write_end_mark()
            file.flush()
            for _ in segment.footer_steps(found.producers, self.config.footer_step_bytes):
                pass
            file.flush()
            segment.write_trailer()
            file.flush()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            # Readable without a footer; the next start tries again.
            return
        segment.sealed()
        self.report.sealed.append(segment.segment_id)


def open_ranges(
    disk: Disk,
    scheduler: Scheduler,
    *,
    directory: str,
    topic_id: uuid.UUID,
    term: int,
    segments: Sequence[SegmentInfo],
    allocate_segment_id: Callable[[], int],
    publish: Publish,
    on_progress: Callable[[Iterable[int]], None] | None = None,
    on_sealed: Callable[[int, dict[int, int]], None] | None = None,
    on_failed: Callable[[KafkaError], None] | None = None,
    config: LogConfig | None = None,
    cache: SegmentCache | None = None,
    log_start_offsets: Mapping[int, int] | None = None,
    durable_ends: Mapping[int, int] | None = None,
) -> tuple[list[RangeLog], RecoveryReport]:
    """Open the ranges of a topic, by first partition; the layout lists their segments, parents before children.

    Blocks for reads and flushes. `term` is the new one. `log_start_offsets` are those the owner has moved;
    `durable_ends` says, per segment id, how many bytes of the file are known to have been durable. Files in the folder
    that the layout does not name are removed.
    Segments whose footer is durable though the layout calls them ACTIVE come by `on_sealed`, in a later turn
    of the loop. Raises CorruptLog (UnknownFormat), naming file and position; OSError.
    """
    if not segments:
        raise ValueError("a topic has at least one segment")
    config = config or LogConfig()
    cache = cache or SegmentCache()
    ends = tails(segments)
    identity = RangeIdentity(directory, topic_id, ends[0].first, ends[-1].last, term)
    opening = Recovery(disk, identity, config, cache, scheduler.now_ms())
    try:
        opening.durable_ends = durable_ends or {}
        opening.look(segments)
        for found in opening.found:
            if found.segment.numbering is not None:
                raise CorruptLog(found.segment.path, 0, "the range is replicated by a group of its own")
            if opening.is_tail(found) and found.segment.state == "SEALED":
                raise CorruptLog(found.segment.path, 0, "the last segment of the range is sealed")
        check_durable_ends(opening)
        opening.mend()
        apply_log_starts(opening, log_start_offsets or {})
    except BaseException:
        opening.close()
        raise
    hooks = RangeHooks(allocate_segment_id, publish, on_progress, on_sealed, on_failed)
    opened = {found.info.segment_id: found.segment for found in opening.found}
    logs = []
    for tail in ends:
        own = RangeIdentity(directory, topic_id, tail.first, tail.last, term)
        chain = [opened[info.segment_id] for info in chain_of(tail, segments)]
        partitions = opening.partitions[tail.first - opening.first : tail.last + 1 - opening.first]
        logs.append(RangeLog(disk, scheduler, own, hooks, config, cache, chain, partitions))
    if on_sealed is not None:
        for found in opening.found:
            if found.segment.state == "SEALED" and found.info.state != "SEALED":
                scheduler.call_soon(on_sealed, found.segment.segment_id, found.segment.end_offsets())
    return logs, opening.report


def check_durable_ends(opening: Recovery) -> None:
    for found in opening.found:
        segment = found.segment
        noted = opening.durable_ends.get(segment.segment_id, 0)
        if segment.state != "SEALED" and segment.end < noted:
            cut = found.gap or found.torn
            reason = cut.reason if cut is not None else "the entries end here"
            raise CorruptLog(segment.path, segment.end, f"{reason}, but was durable up to byte {noted}")


def apply_log_starts(opening: Recovery, log_start_offsets: Mapping[int, int]) -> None:
    for partition, offset in log_start_offsets.items():
        if not opening.first <= partition <= opening.last:
            continue
        log = opening.partitions[partition - opening.first]
        if partition not in opening.known:
            # Everything of it has been dropped by retention.
            log.end_offset = log.high_watermark = offset
        if offset > log.end_offset:
            path = opening.found[-1].segment.path
            raise CorruptLog(
                path, 0, f"partition {partition} ends at {log.end_offset}, its log start is {offset}"
            )
        log.log_start_offset = max(log.log_start_offset, offset)


def create_range(
    disk: Disk,
    scheduler: Scheduler,
    done: Callable[[RangeLog | None, OSError | None], None],
    *,
    directory: str,
    topic_id: uuid.UUID,
    first: int,
    last: int,
    term: int,
    segment_id: int,
    allocate_segment_id: Callable[[], int],
    publish: Publish,
    on_progress: Callable[[Iterable[int]], None] | None = None,
    on_sealed: Callable[[int, dict[int, int]], None] | None = None,
    on_failed: Callable[[KafkaError], None] | None = None,
    config: LogConfig | None = None,
    cache: SegmentCache | None = None,
    start_offsets: Mapping[int, int] | None = None,
) -> None:
    """Make the first segment of a new range and, when file and folders are durable, hand its log to `done`.

    Only then may a layout name the segment. On an error `done` gets it, and nothing is left behind. Never
    blocks.
    """
    config = config or LogConfig()
    cache = cache or SegmentCache()
    identity = RangeIdentity(directory, topic_id, first, last, term)
    try:
        disk.make_dir(directory)
        segment = Segment.create(disk, identity, segment_id, (), scheduler.now_ms(), config, cache)
    except OSError as error:
        scheduler.call_soon(done, None, error)
        return
    segment.durable_end = segment.end
    budget = ProducerBudget(config.max_producers, config.producer_idle_ms)
    partitions = [
        PartitionLog(partition, (start_offsets or {}).get(partition, 0), ProducerStates(budget))
        for partition in range(first, last + 1)
    ]

    def flushed(error: OSError | None) -> None:
        if error is not None:
            done(None, error)
            return
        hooks = RangeHooks(allocate_segment_id, publish, on_progress, on_sealed, on_failed)
        log = RangeLog(disk, scheduler, identity, hooks, config, cache, [segment], partitions)
        done(log, None)

    flush_first(disk, directory, segment, flushed)


def flush_first(disk: Disk, directory: str, segment: Segment, done: Callable[[OSError | None], None]) -> None:
    """Make a new range's only segment durable, and every folder on the way to it. On an error `done` gets it, and the
    segment is gone."""
    errors: list[OSError] = []
    awaited = 1 + len(ancestors(directory))

    def flushed(error: OSError | None) -> None:
        nonlocal awaited
        awaited -= 1
        if error is not None:
            errors.append(error)
        if awaited:
            return
        if errors:
            segment.close()
            with contextlib.suppress(OSError):
                # Other ranges of the topic may have files in the same folder.
                delete_files(disk, directory, segment.segment_id)
        done(errors[0] if errors else None)

    disk.start_flush(segment.file(), flushed)
    start_dir_chain(disk, directory, flushed)
