"""Judging the folder of a replicated range as a start would, without changing a byte of it."""

from __future__ import annotations

from typing import NamedTuple

from storage import ancestry
from storage.cache import SegmentCache
from storage.disk import Disk
from storage.format import (
    HEADER_BLOCK_BYTES,
    SEGMENT_SUFFIX,
    TEMPORARY_SUFFIX,
    CorruptLog,
    HeaderBlock,
    decode_header_block,
    parse_name,
    segment_name,
)
from storage.layout import LogConfig, RangeIdentity
from storage.replica_recovery import ANY_TERM, ReplicaRecovery
from storage.replica_takeover import named_chain


class Judged(NamedTuple):
    """`left_over`: files that a start removes, by path, and why."""

    left_over: dict[str, str]
    damage: CorruptLog | None


def a_numbered_header(disk: Disk, folder: str) -> HeaderBlock | None:
    """Of some segment of the log here, if it is of a replicated range."""
    try:
        before = ancestry.read(disk, folder).by_id
    except CorruptLog:
        before = {}
    for name in disk.list(folder):
        parsed = parse_name(name)
        if parsed is None or parsed.suffix != SEGMENT_SUFFIX or parsed.segment_id in before:
            continue
        file = disk.open_readonly(f"{folder}/{name}" if folder else name)
        try:
            header = decode_header_block(file.pread(HEADER_BLOCK_BYTES, 0), file.path)
        except CorruptLog:
            continue
        finally:
            file.close()
        return header if header.numbered is not None else None
    return None


def judge(disk: Disk, folder: str, header: HeaderBlock) -> Judged:
    """`header`: of any of its segments. Raises OSError."""
    before = f"{folder}/" if folder else ""
    try:
        chain = named_chain(disk, folder)
    except CorruptLog as error:
        return Judged({}, error)
    if chain is not None:
        kept = {segment_name(*one): segment_name(one[0]) + TEMPORARY_SUFFIX for one in chain}
        replaced = [
            name
            for name in disk.list(folder)
            if (parsed := parse_name(name)) is not None
            and parsed.suffix == SEGMENT_SUFFIX
            and (name not in kept or kept[name] in disk.list(folder))
        ]
        return Judged(
            {f"{before}{name}": "a chain that was fetched takes its place" for name in replaced}, None
        )
    identity = RangeIdentity(folder, header.topic_id, header.first, header.last, ANY_TERM)
    scan = ReplicaRecovery(disk, identity, LogConfig(), SegmentCache(), 0, readonly=True)
    try:
        scan.look_along(None)
    except CorruptLog as error:
        return Judged({}, error)
    finally:
        scan.close()
    reached = {found.segment.segment_id: found.segment.header.generation for found in scan.found}
    reached |= {segment.segment_id: segment.header.generation for segment in scan.before}
    left_over: dict[str, str] = {}
    for name in disk.list(folder):
        parsed = parse_name(name)
        if parsed is None or parsed.suffix != SEGMENT_SUFFIX:
            continue
        if parsed.segment_id not in reached:
            left_over[f"{before}{name}"] = "the log does not reach it"
        elif parsed.generation != reached[parsed.segment_id]:
            left_over[f"{before}{name}"] = "another file of this segment counts"
    return Judged(left_over, None)
