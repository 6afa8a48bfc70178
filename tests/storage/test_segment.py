from __future__ import annotations

import errno
import uuid
from bisect import bisect_right
from itertools import pairwise

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sim_disk import SimDisk

from storage.cache import SegmentCache
from storage.format import GUARDED_BYTES, HEADER_BLOCK_BYTES, CorruptLog, segment_name
from storage.index import PartitionIndex
from storage.layout import MAX_SEGMENT_BYTES, LogConfig, RangeIdentity
from storage.segment import Segment

IDENTITY = RangeIdentity("d", uuid.UUID(int=5), 0, 3, 1)
CONFIG = LogConfig(preallocate_first_bytes=1000, preallocate_max_bytes=8000)


def make(
    cache: SegmentCache | None = None, segment_id: int = 1, disk: SimDisk | None = None
) -> tuple[SimDisk, Segment]:
    if disk is None:
        disk = SimDisk()
        disk.make_dir("d")
    segment = Segment.create(disk, IDENTITY, segment_id, (), 123, CONFIG, cache or SegmentCache())
    return disk, segment


def fill(segment: Segment, entries: list[tuple[int, int, int]], run_bytes: int = 100) -> None:
    """(partition, records, size) each; sizes only, as the index does not look at bytes."""
    for partition, records, size in entries:
        index = segment.index_of(partition, 0)
        base = index.end_offset
        segment.runs += index.add(base, base + records, segment.end, size, 1, base * 7 % 50, run_bytes)
        segment.end += size


def seal(segment: Segment, producers: bytes = b"") -> None:
    segment.change_state("FULL")
    segment.write_end_mark()
    for _ in segment.footer_steps(producers or msgpack.packb([]), 64):
        pass
    segment.write_trailer()
    segment.sealed()


ENTRIES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(10, 150)), min_size=1, max_size=60
)


@given(ENTRIES, st.sampled_from([0, 100, 1000]))
def test_runs_cover_every_entry(entries: list[tuple[int, int, int]], run_bytes: int) -> None:
    _, segment = make()
    truth: dict[int, list[tuple[int, int, int]]] = {}
    for entry in entries:
        partition = entry[0]
        base = segment.indexes[partition].end_offset if partition in segment.indexes else 0
        truth.setdefault(partition, []).append((base, segment.end, entry[2]))
        fill(segment, [entry], run_bytes)
    assert segment.runs == sum(index.runs for index in segment.indexes.values())
    for partition, found in truth.items():
        index = segment.indexes[partition]
        assert (
            index.runs
            == len(index.bases)
            == len(index.positions)
            == len(index.sizes)
            == len(index.timestamps)
        )
        for base, position, size in found:
            run = bisect_right(index.bases, base) - 1
            assert index.positions[run] <= position
            assert position + size <= index.positions[run] + index.sizes[run]
        assert sum(index.sizes) == sum(size for _, _, size in found)
        assert list(index.timestamps) == sorted(index.timestamps)
        assert index.timestamps[-1] == index.max_timestamp == max(base * 7 % 50 for base, _, _ in found)
        largest = max(size for _, _, size in found)
        assert max(index.sizes) <= max(run_bytes, largest)


def test_adjacent_entries_make_one_run_and_a_new_term_cuts_it() -> None:
    _, segment = make()
    fill(segment, [(0, 1, 30)] * 3 + [(1, 1, 30), (0, 1, 30)])
    index = segment.indexes[0]
    assert list(index.sizes) == [90, 30]
    index.add(4, 5, segment.end, 10, 2, 0, 1000)
    assert list(index.bases) == [0, 3, 4]
    assert index.epochs == [(1, 0), (2, 4)]


@given(ENTRIES)
def test_sealed_segment_opens_as_it_was(entries: list[tuple[int, int, int]]) -> None:
    disk, segment = make()
    fill(segment, entries)
    segment.index_of(2, 77)
    producers = msgpack.packb([[0, [[7, 0, 5, [[0, 1, 2, 3]]]]]])
    seal(segment, producers)
    opened = Segment.open(disk, "d", 1, SegmentCache())
    assert (opened.state, opened.end, opened.durable_end) == ("SEALED", segment.end, segment.end)
    assert opened.file_size == disk.open_readonly(segment.path).size()
    assert opened.end_offsets() == segment.end_offsets()
    for partition, index in segment.indexes.items():
        found = opened.indexes[partition]
        assert not found.bases  # on demand
        opened.load(found)
        assert found.summary() == index.summary()
        assert (found.bases, found.positions, found.sizes, found.timestamps) == (
            index.bases,
            index.positions,
            index.sizes,
            index.timestamps,
        )
    assert opened.load_producers() == msgpack.unpackb(producers)


def test_space_is_reserved_in_doubling_steps() -> None:
    disk, segment = make()
    assert disk.open_readonly(segment.path).size() == segment.allocated == HEADER_BLOCK_BYTES + 1000
    seen = []
    while segment.allocated < 60_000:
        segment.reserve(segment.allocated + 1, CONFIG)
        seen.append(segment.allocated)
    steps = [after - before for before, after in pairwise(seen)]
    assert steps == sorted(steps)
    assert steps[-1] == CONFIG.preallocate_max_bytes
    segment.reserve(segment.allocated + 50_000, CONFIG)
    assert segment.allocated >= 110_000
    assert not disk.content(segment.path)[HEADER_BLOCK_BYTES:].strip(b"\0")


def test_sealing_gives_reserved_space_back() -> None:
    disk, segment = make()
    segment.reserve(100_000, CONFIG)
    fill(segment, [(0, 1, 50)])
    seal(segment)
    assert len(disk.content(segment.path)) < HEADER_BLOCK_BYTES + 600


def test_failed_creation_leaves_no_file() -> None:
    disk = SimDisk()
    disk.make_dir("d")
    for kind in ("allocate", "write"):
        disk.fail(kind, error=errno.ENOSPC)
        with pytest.raises(OSError, match="space"):
            make(disk=disk)
        assert disk.list("d") == []
    assert not disk.open_files


def test_impossible_transitions_raise() -> None:
    _, segment = make()
    with pytest.raises(ValueError, match="cannot become SEALED"):
        segment.change_state("SEALED")
    seal(segment)
    with pytest.raises(ValueError, match="cannot become FULL"):
        segment.change_state("FULL")


def test_opening_refuses_what_is_not_this_segment() -> None:
    disk, segment = make()
    with pytest.raises(CorruptLog, match="absent"):
        Segment.open(disk, "d", 2, SegmentCache())
    disk.replace(f"d/{segment_name(2)}", disk.content(segment.path))
    with pytest.raises(CorruptLog, match="names segment 1"):
        Segment.open(disk, "d", 2, SegmentCache())
    assert len(disk.open_files) == 1


def test_every_damaged_byte_of_a_footer_is_noticed() -> None:
    disk, segment = make()
    fill(segment, [(0, 2, 60), (1, 1, 80), (0, 3, 90)] * 3)
    producers = msgpack.packb([[0, [[7, 0, 5, [[0, 1, 2, 3]]]]]])
    seal(segment, producers)
    content = disk.content(segment.path)
    truth = [segment.indexes[partition].summary() for partition in sorted(segment.indexes)]
    # From behind the end mark, which nobody reads once the trailer stands.
    for position in range(segment.end + GUARDED_BYTES, len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        disk.replace(segment.path, bytes(damaged))
        if not _opens_sealed(disk, position, len(content)):
            continue
        opened = Segment.open(disk, "d", 1, SegmentCache())
        assert [opened.indexes[partition].summary() for partition in sorted(opened.indexes)] == truth
        with pytest.raises(CorruptLog):
            _load_all(opened)


def _opens_sealed(disk: SimDisk, position: int, size: int) -> bool:
    """A damaged summary is refused at once; a damaged trailer is no trailer, and the entries speak for themselves."""
    try:
        opened = Segment.open(disk, "d", 1, SegmentCache())
    except CorruptLog:
        return False
    if opened.state != "SEALED":
        assert position >= size - 64
        return False
    return True


def _load_all(segment: Segment) -> None:
    for index in segment.indexes.values():
        segment.load(index)
    segment.load_producers()


def test_cache_bounds_open_files_and_loaded_runs() -> None:
    cache = SegmentCache(max_files=2, max_runs=10)
    disk = SimDisk()
    disk.make_dir("d")
    segments = []
    for number in range(5):
        _, segment = make(cache, number + 1, disk)
        fill(segment, [(0, 1, 90), (1, 1, 90)] * 3)
        seal(segment)
        segments.append(segment)
    assert cache.open_files == 2
    assert len(disk.open_files) == 2
    for _ in range(2):
        for segment in segments:
            for index in segment.indexes.values():
                segment.load(index)
                assert index.bases
            assert cache.runs <= 10
            assert sum(len(index.bases) for other in segments for index in other.indexes.values()) <= 10
            assert len(disk.open_files) <= 2
    for segment in segments:
        segment.close()
    assert (cache.runs, cache.open_files, len(disk.open_files)) == (0, 0, 0)


def test_one_index_above_the_bound_is_loaded_all_the_same() -> None:
    cache = SegmentCache(max_runs=1)
    _, segment = make(cache)
    fill(segment, [(0, 1, 90), (1, 1, 90)] * 3)
    seal(segment)
    segment.load(segment.indexes[0])
    segment.load(segment.indexes[1])
    assert (len(segment.indexes[0].bases), len(segment.indexes[1].bases)) == (0, 3)


def test_config_refuses_sizes_that_cannot_work() -> None:
    for bad in (
        {"segment_bytes": 0},
        {"segment_bytes": MAX_SEGMENT_BYTES},
        {"max_batch_bytes": MAX_SEGMENT_BYTES},
        {"preallocate_first_bytes": 10, "preallocate_max_bytes": 5},
    ):
        with pytest.raises(ValueError):
            LogConfig(**bad)


def test_index_survives_its_summary_and_blob() -> None:
    _, segment = make()
    fill(segment, [(0, 1, 90)] * 5)
    index = segment.indexes[0]
    copied = PartitionIndex.from_summary(segment, msgpack.unpackb(msgpack.packb(index.summary())))
    blob = index.encode_blob()
    copied.blob_crc = 1
    with pytest.raises(CorruptLog, match="partition 0"):
        copied.decode_blob(blob, "f")
