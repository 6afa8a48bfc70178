"""Looking at the files of a topic's ranges before they are opened: what is whole, what is torn, what is damaged.

The segments form a graph, parents before children (design, section 5): a roll continues one segment by one, a split by
several, a merge several by one. Segments that nobody continues are the tails.

Guarantee: reads only. What no crash explains raises CorruptLog, naming file and position; everything else is
either taken over into indexes, offsets and producers, or marked to be cut.

Why the cuts are safe: an entry carries how much of its file its writer knew to be durable, 0 until all
parents were. So a bad place below the claim of any later entry, or a gap towards a child whose entries claim
anything, was durable once, and is damage; a bad place nobody claims was never acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgpack

from storage import checkpoint
from storage.cache import SegmentCache
from storage.checkpoint import producers_snapshot
from storage.disk import Disk
from storage.format import HEADER_BLOCK_BYTES, CorruptLog
from storage.index import PartitionIndex
from storage.layout import LogConfig, RangeIdentity, SegmentInfo
from storage.partition import PartitionLog
from storage.producers import ProducerBudget, ProducerStates
from storage.scan import Scanner
from storage.segment import Segment


@dataclass(frozen=True, slots=True)
class Cut:
    """The end of a file that was thrown away: `dropped` bytes from `position` on, never acknowledged."""

    path: str
    position: int
    dropped: int
    entries_kept: int
    reason: str


@dataclass(slots=True)
class RecoveryReport:
    """What opening a range found and did."""

    cuts: list[Cut] = field(default_factory=list)
    orphans_removed: list[str] = field(default_factory=list)
    sealed: list[int] = field(default_factory=list)
    """Segments that got their footer only now; `on_sealed` is called for them too."""
    entries_scanned: int = 0
    bytes_scanned: int = 0
    checkpoints_used: int = 0


@dataclass(slots=True)
class Found:
    """One segment on the way: what its scan found."""

    info: SegmentInfo
    segment: Segment
    entries: int = 0
    torn: Cut | None = None
    """Bytes at the end that are no entries."""
    gap: Cut | None = None
    """The first entry that does not continue its partition, and everything behind it."""
    ended: bool = False
    """An end mark stands at the end: only the rest of a footer is missing."""
    claim: int = 0
    """Above 0 proves that everything before this file was durable."""
    own_claim: int = 0
    """Up to here entries or a checkpoint of the file call it durable."""
    producers: bytes = b""
    """The producers' packed snapshot at its end; of all but the last segment."""


class ChainScan:
    """A look at the files of neighbouring ranges, the partitions `identity` names. Nothing is changed."""

    producer_states: type[ProducerStates] = ProducerStates

    def __init__(
        self,
        disk: Disk,
        identity: RangeIdentity,
        config: LogConfig,
        cache: SegmentCache,
        now_ms: int,
        *,
        readonly: bool = False,
    ) -> None:
        self.disk = disk
        self.identity = identity
        self.directory = identity.directory
        self.topic_id = identity.topic_id
        self.first = identity.first
        self.last = identity.last
        self.term = identity.term
        self.config = config
        self.cache = cache
        self.now_ms = now_ms
        self.readonly = readonly
        self.report = RecoveryReport()
        self.budget = ProducerBudget(config.max_producers, config.producer_idle_ms)
        self.partitions = [
            PartitionLog(partition, 0, self.producer_states(self.budget))
            for partition in range(self.first, self.last + 1)
        ]
        self.known: set[int] = set()
        """Partitions whose next offset is known, so that the next entry must have it."""
        self.found: list[Found] = []
        self.continued: set[int] = set()
        """Segments that have children."""
        self.snapshots: dict[int, Segment] = {}
        """Per partition, the sealed segment whose producers are to be taken before the next scan."""

    def close(self) -> None:
        for found in self.found:
            found.segment.close()

    # Looking.

    def look(self, infos: Sequence[SegmentInfo]) -> None:
        """Look at these segments, parents before children."""
        listed = {info.segment_id for info in infos}
        self.continued = {parent for info in infos for parent in info.parents}
        for info in infos:
            segment = Segment.open(
                self.disk,
                self.directory,
                info.segment_id,
                self.cache,
                readonly=self.readonly,
                generation=info.generation,
            )
            found = Found(info, segment)
            self.found.append(found)
            self._check_identity(info, segment)
            self._start(info, bool(listed & set(info.parents)))
            if segment.state == "SEALED":
                self._take_footer(found)
            else:
                self._scan(found)
            self._check_ends(found)
            if not self.is_tail(found) and segment.state != "SEALED":
                self._prepare_footer(found)
        self._judge()

    def is_tail(self, found: Found) -> bool:
        """Whether this segment is the end of a range: the one that takes entries."""
        return found.segment.segment_id not in self.continued

    def _check_identity(self, info: SegmentInfo, segment: Segment) -> None:
        header = segment.header
        if header.topic_id != self.topic_id:
            raise CorruptLog(segment.path, 0, f"the file belongs to topic {header.topic_id}")
        if (header.first, header.last) != (info.first, info.last):
            raise CorruptLog(segment.path, 0, f"the file holds partitions {header.first}..{header.last}")
        if header.term > self.term:
            raise CorruptLog(segment.path, 0, f"the file is of term {header.term}, later than {self.term}")

    def _start(self, info: SegmentInfo, has_parents: bool) -> None:
        """Where the partitions of a segment without listed parents begin."""
        if has_parents:
            return
        for partition in range(max(info.first, self.first), min(info.last, self.last) + 1):
            if partition in self.known:
                continue
            if info.start_offsets is None and info.parents:
                continue
            self._know(partition, (info.start_offsets or {}).get(partition, 0))

    def _know(self, partition: int, offset: int) -> None:
        log = self.partitions[partition - self.first]
        log.log_start_offset = log.end_offset = offset
        self.known.add(partition)

    def _take_footer(self, found: Found) -> None:
        segment = found.segment
        found.claim = segment.end
        for partition in range(segment.header.first, segment.header.last + 1):
            self.snapshots[partition] = segment
        for partition, index in sorted(segment.indexes.items()):
            if not self.first <= partition <= self.last:
                continue
            self._take_index(segment, partition, index)

    def _take_index(self, segment: Segment, partition: int, index: PartitionIndex) -> None:
        """The partition goes on in this segment, which has a footer. Raises CorruptLog."""
        log = self.partitions[partition - self.first]
        if partition not in self.known:
            self._know(partition, index.start_offset)
        if index.start_offset != log.end_offset:
            raise CorruptLog(
                segment.path,
                0,
                f"partition {partition} starts at offset {index.start_offset}, the log before it ends at "
                f"{log.end_offset}",
            )
        if index.runs:
            log.add_index(index)
        log.end_offset = index.end_offset

    def _scan(self, found: Found) -> None:
        segment = found.segment
        file = segment.file()
        limit = file.size()
        self._restore_producers()
        position = self._take_checkpoint(found, limit)
        scanner = Scanner(file, segment.header, position, limit)
        run_bytes = self.config.run_bytes
        for entry in scanner:
            found.claim = max(found.claim, entry.durable)
            found.entries += 1
            if found.gap is not None:
                continue
            partition, header = entry.partition, entry.header
            if not segment.header.first <= partition <= segment.header.last:
                raise CorruptLog(
                    segment.path, entry.position, f"an entry of partition {partition} in this range"
                )
            if entry.term > self.term:
                raise CorruptLog(
                    segment.path, entry.position, f"an entry of term {entry.term}, later than {self.term}"
                )
            if not self.first <= partition <= self.last:
                continue
            log = self.partitions[partition - self.first]
            if partition not in self.known:
                self._know(partition, header.base_offset)
            if header.base_offset < log.end_offset:
                raise CorruptLog(
                    segment.path,
                    entry.position,
                    f"partition {partition} goes back from offset {log.end_offset} to {header.base_offset}",
                )
            if header.base_offset > log.end_offset:
                reason = (
                    f"partition {partition} continues at offset {header.base_offset}, not {log.end_offset}"
                )
                found.gap = Cut(
                    segment.path, entry.position, limit - entry.position, found.entries - 1, reason
                )
                continue
            index = segment.index_of(partition, header.base_offset)
            if not index.runs:
                log.add_index(index)
            size = entry.end - entry.position
            end_offset = header.last_offset + 1
            if index.add(
                header.base_offset,
                end_offset,
                entry.position,
                size,
                entry.term,
                header.max_timestamp,
                run_bytes,
            ):
                segment.runs += 1
            segment.entries += 1
            log.end_offset = end_offset
            if header.producer_id >= 0:
                log.producers.update(header, header.base_offset, self.now_ms)
        self._take_rest(found, scanner, position)

    def _take_rest(self, found: Found, scanner: Scanner, position: int) -> None:
        """The entries from `position` on were taken in: look at what is behind them."""
        segment = found.segment
        self.report.entries_scanned += found.entries
        self.report.bytes_scanned += scanner.position - position
        rest = scanner.rest()
        found.claim = max(found.claim, rest.claim)
        found.own_claim = min(found.claim, scanner.position)
        if rest.proof:
            raise CorruptLog(
                segment.path,
                rest.position,
                f"{rest.reason}, but the entry at byte {rest.proof} was written after this place was durable",
            )
        found.ended = rest.ended
        if rest.dropped and not rest.ended:
            found.torn = Cut(segment.path, rest.position, rest.dropped, found.entries, rest.reason)
        segment.end = found.gap.position if found.gap is not None else rest.position

    def _take_checkpoint(self, found: Found, limit: int) -> int:
        """Where the scan starts: behind what a checkpoint knows."""
        segment = found.segment
        known = checkpoint.load(self.disk, self.directory, segment)
        if known is None:
            return HEADER_BLOCK_BYTES
        if known.position > limit:
            raise CorruptLog(
                segment.path, limit, f"the file ends here, but was durable up to byte {known.position}"
            )
        for index in known.indexes:
            partition = index.partition
            segment.indexes[partition] = index
            segment.runs += index.runs
            if not self.first <= partition <= self.last:
                continue
            if partition not in self.known:
                self._know(partition, index.start_offset)
            log = self.partitions[partition - self.first]
            if index.start_offset != log.end_offset:
                # The entries are durable, so it is the log before them that is short.
                raise CorruptLog(
                    segment.path,
                    0,
                    f"partition {partition} starts at offset {index.start_offset}, the log before it ends at "
                    f"{log.end_offset}",
                )
            log.add_index(index)
            log.end_offset = index.end_offset
        for log in self._partitions_of(segment):
            log.producers.clear()
        self._restore(known.producers)
        if known.numbering is not None:
            segment.numbering = known.numbering
        segment.scanned_from = found.claim = known.position
        self.report.checkpoints_used += 1
        return known.position

    def _restore_producers(self) -> None:
        """Take the producers as the sealed segments before left them: the scan goes on from there."""
        for segment in {id(segment): segment for segment in self.snapshots.values()}.values():
            wanted = [partition for partition, source in self.snapshots.items() if source is segment]
            for partition in wanted:
                if self.first <= partition <= self.last:
                    self.partitions[partition - self.first].producers.clear()
            self._restore(pair for pair in segment.load_producers() if pair[0] in wanted)
        self.snapshots.clear()

    def _restore(self, snapshot: Iterable[tuple[int, list[object]]]) -> None:
        for partition, states in snapshot:
            if self.first <= partition <= self.last:
                self.partitions[partition - self.first].producers.restore(states)

    def _partitions_of(self, segment: Segment) -> list[PartitionLog]:
        """Those that the file may have entries of, as far as they are looked at."""
        first = max(segment.header.first, self.first)
        return self.partitions[first - self.first : segment.header.last + 1 - self.first]

    def _prepare_footer(self, found: Found) -> None:
        segment = found.segment
        partitions = self._partitions_of(segment)
        for log in partitions:
            if log.end_offset:
                segment.index_of(log.partition, log.end_offset)
        found.producers = msgpack.packb(producers_snapshot(partitions))

    def _check_ends(self, found: Found) -> None:
        for partition, expected in (found.info.end_offsets or {}).items():
            if not self.first <= partition <= self.last:
                continue
            actual = self.partitions[partition - self.first].end_offset
            if actual != expected:
                raise CorruptLog(
                    found.segment.path,
                    found.segment.end,
                    f"partition {partition} ends at offset {actual}, the layout says {expected}",
                )

    def _judge(self) -> None:
        """Refuse what no crash explains; the rest is cut."""
        by_id = {found.info.segment_id: found for found in self.found}
        # Of the ancestors only those without a footer can be short; there are few of them.
        unsealed: dict[int, dict[int, Found]] = {}
        for found in self.found:
            parents = [by_id[parent] for parent in found.info.parents if parent in by_id]
            known: dict[int, Found] = {}
            for parent in parents:
                known |= unsealed[parent.info.segment_id]
                if parent.segment.state != "SEALED":
                    known[parent.info.segment_id] = parent
            unsealed[found.info.segment_id] = known
            earlier = list(known.values())
            gap = found.gap
            if gap is not None and all(before.ended for before in earlier):
                raise CorruptLog(gap.path, gap.position, f"{gap.reason}, though all before it is complete")
            if not found.claim:
                continue
            # Somebody knew the parents to be durable when this file was written to.
            for before in earlier:
                if before.torn is not None:
                    raise CorruptLog(
                        before.torn.path,
                        before.torn.position,
                        f"{before.torn.reason}, but {found.segment.path} was written to after this was durable",
                    )
            if gap is not None:
                before = parents[-1]
                raise CorruptLog(
                    before.segment.path,
                    before.segment.end,
                    f"entries are missing here: in {gap.path}, written to after they were durable, {gap.reason}",
                )
