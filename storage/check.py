"""Inspecting the segment files below a folder without changing a byte.

Guarantee: every entry of every segment is read and both its CRCs are checked, sealed segments' indexes are
compared with their entries, and the chain of each folder is judged as the next start would judge it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from storage.cache import SegmentCache
from storage.chain_scan import ChainScan
from storage.check_replica import Judged, a_numbered_header, judge
from storage.check_settled import SettledCheck
from storage.disk import Disk
from storage.format import (
    HEADER_BLOCK_BYTES,
    SEGMENT_SUFFIX,
    SETTLED_SUFFIX,
    CorruptLog,
    parse_name,
    segment_name,
    settled_path,
)
from storage.index import PartitionIndex
from storage.layout import LogConfig, RangeIdentity, SegmentInfo, tails
from storage.scan import ScannedEntry, Scanner
from storage.segment import Segment

Status = Literal["ok", "torn tail", "unfinished footer", "left over", "corrupt"]

ANY_TERM: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Finding:
    """What one segment file is, or a sidecar that is not well. A torn tail, an unfinished footer and a sidecar without
    its segment are what a crash leaves: a start mends them."""

    path: str
    status: Status
    position: int
    """Where it stops being ok; the end of the entries if it is."""
    detail: str
    entries: int
    sealed: bool
    size_bytes: int
    settled: bool = False
    """It has a sidecar, which agrees with it."""

    @property
    def damaged(self) -> bool:
        """Whether this is what no crash leaves."""
        return self.status == "corrupt"

    def __str__(self) -> str:
        state = ("sealed, settled" if self.settled else "sealed") if self.sealed else "active"
        where = f" at byte {self.position}: {self.detail}" if self.detail else ""
        return f"{self.path}: {self.status}{where} ({state}, {self.entries} entries, {self.size_bytes} bytes)"


def check_directory(disk: Disk, directory: str = "") -> list[Finding]:
    """Look at every segment in the folder and below, in order of paths. Raises OSError for what cannot be
    read."""
    findings: list[Finding] = []
    for folder, names in _folders(disk, directory):
        found: list[Finding] = []
        sidecars = list(_left_over(disk, folder, names))
        for name in names:
            _check_file(disk, folder, name, found, sidecars)
        header = a_numbered_header(disk, folder)
        if header is not None:
            found = _judged(found, judge(disk, folder, header))
        elif found and all(finding.status != "corrupt" for finding in found):
            chain = _check_chain(disk, folder, names)
            if chain is not None:
                found = [
                    finding if finding.path != chain.path else _worse(finding, chain) for finding in found
                ]
        findings += found + sidecars
    return findings


def _judged(found: list[Finding], judged: Judged) -> list[Finding]:
    """Of a replicated range."""
    found = [
        dataclasses.replace(one, status="left over", detail=judged.left_over[one.path])
        if one.path in judged.left_over
        else one
        for one in found
    ]
    damage = judged.damage
    if damage is None or any(one.damaged and one.path != damage.path for one in found):
        return found
    if all(one.path != damage.path for one in found):
        return [*found, Finding(damage.path, "corrupt", damage.position, damage.reason, 0, False, 0)]
    return [one if one.path != damage.path else _worse(one, damage) for one in found]


def _folders(disk: Disk, directory: str) -> Iterator[tuple[str, list[str]]]:
    segments = []
    below = []
    for name in disk.list(directory):
        parsed = parse_name(name)
        path = f"{directory}/{name}" if directory else name
        if parsed is None:
            below.append(path)
        elif parsed.suffix == SEGMENT_SUFFIX:
            segments.append(name)
    if segments:
        yield directory, segments
    for path in below:
        try:
            yield from _folders(disk, path)
        except NotADirectoryError:
            continue


def _check_file(disk: Disk, folder: str, name: str, found: list[Finding], sidecars: list[Finding]) -> None:
    """Add what the segment is to `found`, and its sidecar, if that is not well, to `sidecars`."""
    path = f"{folder}/{name}" if folder else name
    parsed = parse_name(name)
    assert parsed is not None
    try:
        segment = Segment.open(
            disk, folder, parsed.segment_id, SegmentCache(), readonly=True, generation=parsed.generation
        )
    except CorruptLog as error:
        found.append(Finding(path, "corrupt", error.position, error.reason, 0, False, _size(disk, path)))
        return
    outcomes = SettledCheck(disk, segment)
    try:
        finding = _check_entries(segment, outcomes)
        found.append(finding)
        if not finding.damaged:
            found[-1] = dataclasses.replace(finding, settled=outcomes.verdict())
    except CorruptLog as error:
        size, wrong = _size(disk, error.path), found if error.path == path else sidecars
        wrong.append(Finding(error.path, "corrupt", error.position, error.reason, 0, True, size))
    finally:
        segment.close()


def _left_over(disk: Disk, folder: str, segments: list[str]) -> Iterator[Finding]:
    """Sidecars whose segments are gone."""
    known = {settled_path(name) for name in segments}
    for name in disk.list(folder):
        parsed = parse_name(name)
        if parsed is not None and parsed.suffix == SETTLED_SUFFIX and name not in known:
            path = f"{folder}/{name}" if folder else name
            yield Finding(path, "left over", 0, "its segment is gone", 0, True, _size(disk, path))


def _size(disk: Disk, path: str) -> int:
    file = disk.open_readonly(path)
    try:
        return file.size()
    finally:
        file.close()


def _check_entries(segment: Segment, outcomes: SettledCheck) -> Finding:
    sealed = segment.state == "SEALED"
    limit = segment.end if sealed else segment.file_size
    scanner = Scanner(segment.file(), segment.header, HEADER_BLOCK_BYTES, limit)
    rebuilt: dict[int, PartitionIndex] = {}
    entries = 0
    for entry in scanner:
        entries += 1
        outcomes.add(entry)
        index = rebuilt.get(entry.partition)
        if index is None:
            index = rebuilt[entry.partition] = PartitionIndex(
                segment, entry.partition, entry.header.base_offset
            )
        elif index.end_offset != entry.header.base_offset and not _may_skip(segment, index, entry):
            raise CorruptLog(
                segment.path,
                entry.position,
                f"partition {entry.partition} goes from offset {index.end_offset} to {entry.header.base_offset}",
            )
        end_offset = entry.header.last_offset + 1
        # Every entry a run of its own: what the footer has must be a part of that.
        index.add(
            entry.header.base_offset,
            end_offset,
            entry.position,
            entry.end - entry.position,
            entry.term,
            entry.header.max_timestamp,
            0,
        )
    rest = scanner.rest()

    def finding(status: Status, detail: str) -> Finding:
        return Finding(segment.path, status, scanner.position, detail, entries, sealed, segment.file_size)

    if sealed:
        if scanner.position != segment.end:
            return finding("corrupt", rest.reason or "the entries end before the footer")
        _compare_indexes(segment, rebuilt)
        return finding("ok", "")
    if rest.proof:
        return finding(
            "corrupt", f"{rest.reason}; the entry at byte {rest.proof} was written after this was durable"
        )
    if rest.ended:
        return finding("unfinished footer", "complete, but its footer is not")
    if rest.dropped:
        return finding("torn tail", f"{rest.dropped} bytes are no entries: {rest.reason}")
    return finding("ok", "")


def _may_skip(segment: Segment, index: PartitionIndex, entry: ScannedEntry) -> bool:
    """Compaction leaves gaps between batches."""
    return segment.header.generation > 0 and entry.header.base_offset > index.end_offset


def _compare_indexes(segment: Segment, rebuilt: dict[int, PartitionIndex]) -> None:
    segment.load_producers()
    for partition, index in segment.indexes.items():
        segment.load(index)
        found = rebuilt.pop(partition, None)
        if found is None:
            if index.runs:
                raise CorruptLog(segment.path, index.blob_position, f"partition {partition} has no entries")
            continue
        places = dict(zip(found.bases, found.positions, strict=True))
        if segment.header.generation:
            # What compaction took, the first offset and the epochs still speak of.
            found.start_offset, found.epochs = min(index.start_offset, found.start_offset), index.epochs
        if (
            (index.start_offset, index.end_offset) != (found.start_offset, found.end_offset)
            or index.max_timestamp != found.max_timestamp
            or index.epochs != found.epochs
            or not index.size_bytes == sum(index.sizes) == found.size_bytes
            or any(places.get(base) != at for base, at in zip(index.bases, index.positions, strict=True))
        ):
            raise CorruptLog(
                segment.path,
                index.blob_position,
                f"the index of partition {partition} does not match its entries",
            )
    for partition in rebuilt:
        raise CorruptLog(segment.path, segment.end, f"partition {partition} is missing in the footer")


class _Span(NamedTuple):
    """The offsets of a sealed segment, start and end per partition."""

    generation: int
    offsets: dict[int, tuple[int, int]]

    def has_taken(self, other: _Span) -> bool:
        """Whether this one was written by compaction with all that the other holds."""
        if not self.generation or not any(start < end for start, end in other.offsets.values()):
            return False
        return all(
            partition in self.offsets
            and self.offsets[partition][0] <= start
            and end <= self.offsets[partition][1]
            for partition, (start, end) in other.offsets.items()
        )


def _check_chain(disk: Disk, folder: str, names: list[str]) -> CorruptLog | None:
    """Judge a folder as a start would: segments in order of their ids, parents as the files name them."""
    # Where a crash met a compaction, a segment has two files; either has all that counts.
    latest = {parsed.segment_id: parsed for name in names if (parsed := parse_name(name)) is not None}
    infos: list[SegmentInfo] = []
    spans: list[_Span] = []
    for parsed in sorted(latest.values()):
        segment = Segment.open(
            disk, folder, parsed.segment_id, SegmentCache(), readonly=True, generation=parsed.generation
        )
        header = segment.header
        state: Literal["ACTIVE", "SEALED"] = "SEALED" if segment.state == "SEALED" else "ACTIVE"
        segment.close()
        spans.append(
            _Span(
                header.generation,
                {one.partition: (one.start_offset, one.end_offset) for one in segment.indexes.values()},
            )
        )
        # Where a chain starts is the layout's to know; here the first offsets found are believed.
        parents = header.parents or (-1,)
        infos.append(
            SegmentInfo(
                parsed.segment_id, header.first, header.last, state, parents, generation=parsed.generation
            )
        )
    # And where it met a joining, segments are there whose content another has taken over.
    infos = [
        info
        for info, span in zip(infos, spans, strict=True)
        if info.state == "ACTIVE" or not any(other is not span and other.has_taken(span) for other in spans)
    ]
    ends = tails(infos)
    for end in ends:
        if end.state == "SEALED":
            path = f"{folder}/{segment_name(end.segment_id)}" if folder else segment_name(end.segment_id)
            return CorruptLog(path, 0, "it is sealed, but the file that continues it is absent")
    identity = RangeIdentity(folder, header.topic_id, ends[0].first, ends[-1].last, ANY_TERM)
    scan = ChainScan(disk, identity, LogConfig(), SegmentCache(), 0, readonly=True)
    try:
        scan.look(infos)
    except CorruptLog as error:
        return error
    finally:
        scan.close()
    for found in scan.found:
        if found.gap is not None:
            return CorruptLog(found.gap.path, found.gap.position, GAP + found.gap.reason)
    return None


GAP: Final = "a start cuts it here: "


def _worse(finding: Finding, chain: CorruptLog) -> Finding:
    return Finding(
        finding.path,
        "torn tail" if chain.reason.startswith(GAP) else "corrupt",
        chain.position,
        chain.reason,
        finding.entries,
        finding.sealed,
        finding.size_bytes,
    )
