"""A sealed segment read by a stranger: another process, without a broker, in place or copied elsewhere."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.sim_layout import seal
from support.sim_node import SimNode, batch
from support.sim_producer import Producer, create_topic, produce_fields
from support.sim_sealed import export, sealed_paths, segment_paths

from storage.format import GUARDED_BYTES, CorruptLog, settled_path
from storage.sealed import NotSealed, NotSettled, SealedSegment, TimePoint, open_sealed
from wire.apis import ApiKey

ROOT = Path(__file__).resolve().parents[2]

READER = """
import json, sys
from storage.sealed import open_sealed
from wire.records import iterate_records
with open_sealed(sys.argv[1]) as segment:
    values = {p: [(r.offset, r.value.decode()) for b in segment.committed(p) for r in iterate_records(b.data)]
              for p in segment.partitions}
    shape = [segment.topic, segment.header.segment_id, sum(1 for _ in segment.entries())]
packages = sorted({name.split('.')[0] for name in sys.modules} & {'broker', 'txn', 'asyncio', 'uvloop', 'threading'})
print(json.dumps([shape, values, packages]))
"""


@pytest.fixture(scope="module")
def world() -> SimNode:
    """A sealed and settled segment of 4 batches in partition 0 and 2 in 1; then an active one."""
    world = SimNode()
    create_topic(world.client(), "t", 3)
    producer = Producer(world.client(), "p")
    producer.init()
    for number in range(4):
        producer.send(
            "t", {0: [b"%d" % number, b"x" * 20_000], **({1: [b"%d" % number]} if number % 2 else {})}
        )
        producer.end(commit=number != 1)
        world.scheduler.advance(1_000)
    seal(world)
    producer.send("t", {0: [b"active"]})
    producer.end()
    world.scheduler.advance(3_000)
    return world


@pytest.fixture
def path(world: SimNode, tmp_path: Path) -> Path:
    """The sealed segment in a real folder."""
    (sealed,) = sealed_paths(world)
    return export(world, tmp_path / "data") / sealed


def test_another_process_reads_it(path: Path) -> None:
    def read(where: Path) -> object:
        done = subprocess.run(
            [sys.executable, "-c", READER, str(where)], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    found = read(path)
    assert found == [
        ["t", 1, 6],
        {"0": [[n, "x" * 20_000 if n % 2 else str(n // 2)] for n in (0, 1, 4, 5, 6, 7)], "1": [[1, "3"]]},
        ["threading"],  # what writes files brings it along; a reader starts none
    ]
    copy = path.parent.parent / "a copy.seg"
    shutil.copy(path, copy)
    shutil.copy(settled_path(str(path)), settled_path(str(copy)))
    assert read(copy) == found


def test_every_offset_is_found(path: Path) -> None:
    with open_sealed(str(path)) as segment:
        for start in range(10):
            assert [batch.base_offset for batch in segment.batches(0, start)] == list(
                range(start // 2 * 2, 8, 2)
            )
            assert [one.base_offset for one in segment.committed(0, start)] == [
                base for base in (0, 4, 6) if base + 1 >= start
            ]
        entries = list(segment.entries())
        assert entries[-1].end == segment.entries_end < segment.size_bytes == path.stat().st_size
        assert {entry.partition for entry in entries} == set(segment.partitions) == {0, 1}
        with pytest.raises(KeyError):
            next(segment.batches(2))


def test_one_that_is_open_can_be_read_though_it_is_removed(path: Path) -> None:
    with open_sealed(str(path)) as segment:
        Path(settled_path(str(path))).unlink()
        path.unlink()
        assert [batch.base_offset for batch in segment.committed(0)] == [0, 4, 6]
        assert segment.topic == "t"


def test_offsets_are_found_by_time() -> None:
    world = SimNode()
    create_topic(world.client(), "t")
    producer = Producer(world.client(), "p")
    producer.init()
    for number in range(10):
        data = {0: batch(b"x" * 9_000, timestamp=1_000 + number)}
        world.client().ask(ApiKey.PRODUCE, 9, **produce_fields("t", data))
    producer.send("t", {0: [b"aborted"]})  # of a later time than all
    producer.end(commit=False)
    seal(world)
    world.scheduler.advance(3_000)
    with SealedSegment(world.disk, sealed_paths(world)[0]) as segment:
        points = segment.time_index(0)
        assert points[0] == TimePoint(1_000, 0)
        assert points == sorted(points)
        assert points[-1] == TimePoint(1_700_000_000_000, 9), "a small batch is in the run of the one before"
        assert len(points) == 10
        for number in range(10):
            assert segment.offset_for_timestamp(0, 1_000 + number) == (number, 1_000 + number)
        assert segment.offset_for_timestamp(0, 1_010) is None, "the aborted one does not count"
        assert segment.offset_for_timestamp(0, 1_010, committed=False) == (10, 1_700_000_000_000)


def test_what_it_cannot_be_is_said_clearly(world: SimNode, path: Path, tmp_path: Path) -> None:
    active = next(tmp_path / "data" / one for one in segment_paths(world) if path.name not in one)
    with pytest.raises(NotSealed, match=active.name):
        open_sealed(str(active))
    with pytest.raises(FileNotFoundError):
        open_sealed(str(tmp_path / "nowhere" / "x.seg"))
    assert not (tmp_path / "nowhere").exists(), "reading makes no folder"
    (tmp_path / "x.seg").write_bytes(b"a file of another program" * 1_000)
    with pytest.raises(CorruptLog, match="no segment file"):
        open_sealed(str(tmp_path / "x.seg"))
    alone = tmp_path / "alone.seg"
    shutil.copy(path, alone)
    with open_sealed(str(alone)) as segment:
        assert (segment.settled, segment.topic) == (None, None)
        assert len(list(segment.batches(0))) == 4
        for call in (lambda: next(segment.committed(0)), lambda: segment.offset_for_timestamp(0, 0)):
            with pytest.raises(NotSettled, match="alone"):
                call()
        assert segment.offset_for_timestamp(0, 0, committed=False) is not None


def test_damage_is_named_with_its_position(path: Path) -> None:
    content = bytearray(path.read_bytes())
    with open_sealed(str(path)) as segment:
        entries = [entry for entry in segment.entries() if entry.partition == 0]
        footer = segment.entries_end
    for entry in entries:
        for at in (entry.position + 2, entry.position + 30, entry.position + 200, entry.end - 1):
            damaged = bytearray(content)
            damaged[at] ^= 1
            path.write_bytes(damaged)
            with open_sealed(str(path)) as segment, pytest.raises(CorruptLog) as raised:
                list(segment.batches(0))
            assert raised.value.path == path.name
            assert entries[0].position <= raised.value.position <= at
            with open_sealed(str(path)) as segment, pytest.raises(CorruptLog) as raised:
                list(segment.entries())
            assert raised.value.position == entry.position
    damaged = bytearray(content)
    damaged[footer + GUARDED_BYTES + 7] ^= 1
    path.write_bytes(damaged)
    with open_sealed(str(path)) as segment, pytest.raises(CorruptLog, match="index of partition 0"):
        list(segment.batches(0))
