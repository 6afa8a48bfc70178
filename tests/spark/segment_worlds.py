"""Topics of a simulated broker with all that can become of segments, as folders of files, and what consumers see."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from support.sim_admin import delete_records
from support.sim_layout import seal
from support.sim_node import SimNode
from support.sim_producer import Producer, batches, create_topic, fetch_one, list_offset, produce_fields
from support.sim_sealed import all_settled, export

from pyspark_sealog.data_source import DefaultSource
from wire.apis import ApiKey
from wire.batch import parse_header
from wire.records import Record, build_batch, iterate_records

Rows = dict[tuple[str, int, int], tuple[bytes | None, bytes | None]]
"""(topic, partition, offset) -> (key, value)."""

PARTITIONS = 4


def broker_sees(world: SimNode, topic: str, partitions: int = PARTITIONS) -> Rows:
    """By a read_committed consumer from the beginning."""
    found: Rows = {}
    client = world.client()
    for partition in range(partitions):
        position, end = list_offset(client, topic, partition, at=-2), list_offset(client, topic, partition)
        while position < end:
            one = fetch_one(client, topic, position, partition)
            for data in batches(one.records or b""):
                header = parse_header(data)
                for record in () if header.is_control else iterate_records(data):
                    if record.offset >= position:
                        found[topic, partition, record.offset] = (record.key, record.value)
                position = max(position, header.last_offset + 1)
    return found


def rows_of(batches_: list[pa.RecordBatch]) -> Rows:
    found: Rows = {}
    for one in (row for batch in batches_ for row in batch.to_pylist()):
        place = one["topic"], one["partition"], one["offset"]
        assert place not in found, "a record twice"
        found[place] = one["key"], one["value"]
    return found


def files_say(path: Path | str, **options: str) -> Rows:
    """The source without Spark: planned and read in this process."""
    source = DefaultSource({"segments": str(path)} | options)
    reader = source.reader(source.schema())
    return rows_of([batch for part in reader.partitions() for batch in reader.read(part)])  # type: ignore[attr-defined]


def keyed(world: SimNode, topic: str, partition: int, *pairs: tuple[bytes, bytes]) -> None:
    data = build_batch([Record(key, value, (("h", b"1"),), world.scheduler.now_ms()) for key, value in pairs])
    world.client().ask(ApiKey.PRODUCE, 9, **produce_fields(topic, {partition: data}))


def split(world: SimNode, topic: str, *at: int) -> None:
    answers: list[object] = []
    found = world.node.topics.get(topic)
    assert found is not None
    world.node.layouts.split(found, at, answers.append)
    world.scheduler.run_until(lambda: bool(answers))


def busy_world() -> SimNode:
    """Topic "t": transactions with both outcomes over rolls and two splits, deleted records; topic "c": compacted."""
    world = SimNode(compaction_interval_ms=1_000)
    client = world.client()
    create_topic(client, "t", PARTITIONS)
    create_topic(client, "c", 1, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
    producers = [Producer(world.client(), f"p{n}") for n in range(3)]
    for one in producers:
        one.init()
    for turn in range(6):
        for n, one in enumerate(producers):
            one.send(
                "t", {p: [b"%d-%d-%d" % (turn, n, p)] * (1 + n) for p in range(PARTITIONS) if (turn + p) % 3}
            )
            if n == 1:
                seal(world, PARTITIONS - 1)  # in the middle of transactions
            one.end(commit=(turn + n) % 3 != 0)
        if turn == 1:
            split(world, "t", 2)
        if turn == 3:
            split(world, "t", 1, 3)
        for key in (b"a", b"b"):
            keyed(world, "c", 0, (key, b"%d" % turn), (b"only-%d" % turn, b"x"))
        seal(world, topic="c")
    for partition in range(PARTITIONS):
        seal(world, partition)
    delete_records(world.client(), "t", {0: 3, 2: 2})
    world.scheduler.advance(8_000)
    assert all_settled(world)
    return world


def folder_of(world: SimNode, root: Path, topic: str) -> Path:
    (name,) = (one for one in world.disk.list("topics") if one.startswith(f"{topic}."))
    return export(world, root) / "topics" / name
