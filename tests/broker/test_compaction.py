"""cleanup.policy=compact: the last value of each key stays, offsets stay, no crash takes or brings back anything."""

from __future__ import annotations

import errno
import random
from collections.abc import Mapping

import pytest
from support.sim_admin import run_turns
from support.sim_layout import files_on_disk, seal
from support.sim_node import SimClient, SimNode
from support.sim_producer import (
    Producer,
    batches,
    create_topic,
    fetch_one,
    list_offset,
    produce_fields,
)

from broker.config import Limits
from storage.compaction import Candidate, Choice, Policy, choose
from storage.format import segment_name
from txn import keys
from wire.apis import ApiKey
from wire.batch import TRANSACTIONAL_BIT, parse_header
from wire.errors import ErrorCode
from wire.records import Record, build_batch, iterate_records

COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}


def world_with_topic(partitions: int = 2, configs: Mapping[str, str] = COMPACT, **config: object) -> SimNode:
    world = SimNode(compaction_interval_ms=1_000, **config)  # type: ignore[arg-type]
    create_topic(world.client(), "t", partitions, **configs)
    return world


def keyed(
    world: SimNode,
    *pairs: tuple[bytes | None, bytes | None],
    producer: Producer | None = None,
    partition: int = 0,
) -> bytes:
    records = [Record(key, value, timestamp=world.scheduler.now_ms()) for key, value in pairs]
    if producer is None:
        return build_batch(records)
    sequence = producer.sequences.get(("t", partition), 0)
    producer.sequences["t", partition] = sequence + len(records)
    return build_batch(
        records,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_BIT,
    )


def write(
    world: SimNode,
    *pairs: tuple[bytes | None, bytes | None],
    partition: int = 0,
    producer: Producer | None = None,
) -> ErrorCode:
    data = {partition: keyed(world, *pairs, producer=producer, partition=partition)}
    answer = world.client().ask(
        ApiKey.PRODUCE, 12, **produce_fields("t", data, transactional_id=producer.name if producer else None)
    )
    code: ErrorCode = answer.responses[0].partition_responses[0].error_code
    return code


def read(
    client: SimClient, partition: int = 0, start: int = 0
) -> dict[int, tuple[bytes | None, bytes | None]]:
    """offset -> (key, value) of a reader that goes on until the end that it was told."""
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    position, end = start, list_offset(client, "t", partition)
    while position < end:
        one = fetch_one(client, "t", position, partition, max_bytes=200)
        assert one.error_code is ErrorCode.none
        assert one.records, f"a reader is stuck at {position} of {end}"
        for data in batches(one.records):
            header = parse_header(data)
            assert header.last_offset >= position
            if not header.is_control:
                for record in iterate_records(data, verify_crc=True):
                    if record.offset >= position:
                        found[record.offset] = (record.key, record.value)
            position = header.last_offset + 1
    return found


def compacted(world: SimNode) -> None:
    world.scheduler.advance(3_000)


def generations(world: SimNode) -> list[int]:
    topic = world.node.topics.get("t")
    assert topic is not None
    return [segment.header.generation for segment in topic.ranges[0].segments]


@pytest.mark.parametrize("ending", ["nothing", "kill", "cut_power", "restart"])
def test_the_last_value_of_each_key_stays_at_its_offset(ending: str) -> None:
    world = world_with_topic()
    write(world, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    write(world, (b"a", b"2"), (b"b", b"2"))
    write(world, (b"x", b"other"), partition=1)
    seal(world)
    write(world, (b"a", b"3"))
    seal(world)
    write(world, (b"c", b"not sealed yet"))
    before = read(world.client())
    compacted(world)
    expected = {2: (b"c", b"1"), 4: (b"b", b"2"), 5: (b"a", b"3"), 6: (b"c", b"not sealed yet")}
    assert before.keys() == set(range(7))
    assert len(files_on_disk(world)) == 3
    assert generations(world) == [1, 0, 0], "nothing was to be taken from the second"
    if ending != "nothing":
        getattr(world, ending)()
    assert read(world.client()) == expected
    assert read(world.client(), 1) == {0: (b"x", b"other")}
    for start in range(7):
        assert read(world.client(), 0, start) == {o: kv for o, kv in expected.items() if o >= start}
    assert len(files_on_disk(world)) == 3
    # The second compaction: only what is new is learned from, the old is written anew once more.
    seal(world)
    compacted(world)
    assert read(world.client()) == {o: kv for o, kv in expected.items() if o != 2}
    assert generations(world) == [2, 0, 0, 0]


def test_the_last_offset_of_a_segment_stays_readable_when_its_record_goes() -> None:
    world = world_with_topic()
    data = build_batch([Record(b"a", b"1", timestamp=world.scheduler.now_ms())], compression=4)
    world.client().ask(ApiKey.PRODUCE, 9, **produce_fields("t", {0: data}))
    seal(world)
    write(world, (b"a", b"2"))
    seal(world)
    compacted(world)
    assert read(world.client()) == {1: (b"a", b"2")}
    one = fetch_one(world.client(), "t", 0)
    first, *_ = batches(one.records)
    header = parse_header(first)
    assert (header.base_offset, header.last_offset, header.record_count) == (0, 0, 0), "emptied, not gone"
    assert header.compression == 0
    assert list_offset(world.client(), "t", at=-2) == 0


def test_marks_of_deletion_go_when_their_time_is_over() -> None:
    world = world_with_topic(configs={**COMPACT, "delete.retention.ms": "60000"})
    write(world, (b"a", b"1"), (b"b", b"1"))
    write(world, (b"a", None))
    seal(world)
    compacted(world)
    assert read(world.client()) == {1: (b"b", b"1"), 2: (b"a", None)}
    world.scheduler.advance(50_000)
    assert read(world.client()) == {1: (b"b", b"1"), 2: (b"a", None)}, "readers in between must hear of it"
    world.scheduler.advance(20_000)
    assert read(world.client()) == {1: (b"b", b"1")}


def test_aborted_records_go_and_never_hide_an_older_value() -> None:
    world = world_with_topic()
    producer = Producer(world.client(), "p")
    producer.init()
    write(world, (b"a", b"committed"), producer=producer)
    assert producer.end() is ErrorCode.none
    write(world, (b"a", b"aborted"), (b"b", b"aborted"), producer=producer)
    assert producer.end(commit=False) is ErrorCode.none
    world.scheduler.advance(1_000)
    seal(world)
    compacted(world)
    assert read(world.client()) == {0: (b"a", b"committed")}
    everything = fetch_one(world.client(), "t", 0, committed=False)
    assert [r.value for data in batches(everything.records) for r in iterate_records(data)] == [b"committed"]
    for ending in ("kill", "cut_power"):
        getattr(world, ending)()
        assert read(world.client()) == {0: (b"a", b"committed")}
        assert list_offset(world.client(), "t") == 3


def test_nothing_goes_while_its_outcome_is_open() -> None:
    world = world_with_topic()
    producer = Producer(world.client(), "p", timeout_ms=600_000)
    producer.init()
    write(world, (b"a", b"1"))
    write(world, (b"a", b"undecided"), producer=producer)
    seal(world)
    write(world, (b"a", b"3"))
    seal(world)
    compacted(world)
    assert generations(world) == [0, 0, 0]
    producer.end()
    world.scheduler.advance(2_000)
    compacted(world)
    assert read(world.client()) == {2: (b"a", b"3")}
    # The header of a transaction that also wrote elsewhere may stand yet: its positions are settled, not lost.
    world.kill()
    assert read(world.client()) == {2: (b"a", b"3")}


def test_a_transaction_over_a_compacted_and_an_active_segment_survives_a_kill() -> None:
    world = world_with_topic()
    producer = Producer(world.client(), "p", timeout_ms=600_000)
    blocker = Producer(world.client(), "q", timeout_ms=600_000)
    producer.init()
    blocker.init()
    write(world, (b"a", b"1"), producer=producer)
    write(world, (b"k", b"1"))
    seal(world)
    write(world, (b"a", b"3"))
    seal(world)
    # Its header stays, as long as another's record before its own in a partition has no outcome.
    write(world, (b"z", b"open"), producer=blocker, partition=1)
    write(world, (b"a", b"2"), producer=producer, partition=1)
    assert producer.end() is ErrorCode.none
    world.scheduler.advance(5_000)
    assert generations(world) == [1, 0, 0]
    assert world.node.store.count(keys.TXNS) == 2
    for ending in ("kill", "restart"):
        getattr(world, ending)()
        assert read(world.client()) == {1: (b"k", b"1"), 2: (b"a", b"3")}
        world.scheduler.advance(5_000)


def test_a_record_without_a_key_is_refused() -> None:
    world = world_with_topic()
    assert write(world, (b"a", b"1"), (None, b"2")) is ErrorCode.invalid_record
    assert write(world, (b"a", b"1")) is ErrorCode.none
    assert read(world.client()) == {0: (b"a", b"1")}


def test_the_producers_of_a_compacted_segment_are_remembered() -> None:
    world = world_with_topic()
    producer = Producer(world.client(), "p")
    producer.init()
    data = keyed(world, (b"a", b"1"), producer=producer)
    for _ in range(2):
        answer = world.client().ask(
            ApiKey.PRODUCE, 12, **produce_fields("t", {0: data}, transactional_id="p")
        )
        assert answer.responses[0].partition_responses[0].base_offset == 0
    producer.end()
    write(world, (b"a", b"2"))
    seal(world)
    compacted(world)
    world.cut_power(keep="none")
    assert read(world.client()) == {1: (b"a", b"2")}
    topic = world.node.topics.get("t")
    assert topic is not None
    assert producer.producer_id in {state[0] for state in topic.partitions[0].producers.snapshot()}


def test_no_more_keys_at_once_than_allowed() -> None:
    world = world_with_topic(limits=Limits(compaction_keys=3))
    for number in range(4):
        write(world, *[(b"%d" % key, b"%d" % number) for key in range(4)])
        seal(world)
    world.scheduler.advance(20_000)
    assert read(world.client()) == {12 + key: (b"%d" % key, b"3") for key in range(4)}


TURNS = 24


def world_that_compacts() -> SimNode:
    world = world_with_topic()
    for number in range(3):
        write(world, *[(b"%d" % key, b"%d" % number) for key in range(3)])
        seal(world)
    world.node.compactor.run()
    return world


def test_a_compaction_is_over_within_the_turns_that_are_cut() -> None:
    world = world_that_compacts()
    turns = 0
    while 1 not in generations(world) or len(files_on_disk(world)) > 4:
        run_turns(world, 1)
        turns += 1
    assert turns < TURNS - 2


@pytest.mark.parametrize("keep", ["none", "prefix", "sectors", "all"])
@pytest.mark.parametrize("turn", range(TURNS))
def test_a_power_cut_at_every_turn_of_a_compaction(turn: int, keep: str) -> None:
    world = world_that_compacts()
    expected = {6 + key: (b"%d" % key, b"2") for key in range(3)}
    run_turns(world, turn)
    world.cut_power(keep=keep)
    found = read(world.client())
    assert found == expected or found == {
        3 * number + key: (b"%d" % key, b"%d" % number) for number in range(3) for key in range(3)
    }
    assert len(files_on_disk(world)) == 4, "no orphan"
    compacted(world)
    assert read(world.client()) == expected
    assert len(files_on_disk(world)) == 4


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_new_file_that_cannot_be_read_is_taken_over_later_and_never_written_anew(
    after: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Out of file descriptors, say: the layout names the file, and the next job would give its own the same name."""
    world = world_with_topic()
    for number in range(3):
        write(world, *[(b"%d" % key, b"%d" % number) for key in range(3)])
        seal(world)
    number = world.node.topics.get("t").ranges[0].segments[0].segment_id  # type: ignore[union-attr]
    world.disk.fail("read", segment_name(number, 1), error=errno.EMFILE, times=3, after=after)
    for _ in range(6):
        compacted(world)
        assert read(world.client()).items() >= {6 + key: (b"%d" % key, b"2") for key in range(3)}.items()
    assert "its files are read as they were, for now" in caplog.text, "the fault met the switch"
    assert generations(world)[0] == 1
    world.kill()
    assert read(world.client()) == {6 + key: (b"%d" % key, b"2") for key in range(3)}


@pytest.mark.parametrize("seed", range(10))
def test_random_writes_transactions_layout_changes_and_crashes(seed: int) -> None:
    """After any of it a reader sees the last committed value of every key, as if nothing had been compacted."""
    rng = random.Random(seed)
    world = world_with_topic(4, {**COMPACT, "delete.retention.ms": "5000"}, seed=seed)
    producer = Producer(world.client(), "p")
    producer.init()
    table: list[dict[bytes, bytes | None]] = [{} for _ in range(4)]
    for step in range(60):
        pending: list[tuple[int, bytes, bytes | None]] = []
        for _ in range(rng.randrange(1, 4)):
            partition, key = rng.randrange(4), b"%d" % rng.randrange(6)
            value = None if rng.random() < 0.15 else b"%d" % step
            assert write(world, (key, value), partition=partition, producer=producer) is ErrorCode.none
            pending.append((partition, key, value))
        commit = rng.random() < 0.7
        assert producer.end(commit=commit) is ErrorCode.none
        for partition, key, value in pending if commit else ():
            table[partition][key] = value
        choice = rng.random()
        topic = world.node.topics.get("t")
        assert topic is not None
        answers: list[object] = []
        if choice < 0.3:
            world.node.layouts.seal(topic, rng.randrange(4), answers.append)
        elif choice < 0.4:
            world.node.layouts.split(topic, [rng.randrange(4)], answers.append)
        elif choice < 0.5:
            world.node.layouts.merge(topic, 0, 3, answers.append)
        if rng.random() < 0.4:
            world.scheduler.advance(rng.choice((100, 1_500, 4_000)))
        if rng.random() < 0.08:
            getattr(world, rng.choice(("kill", "cut_power", "restart")))()
            producer.client = world.client()
            producer.init()
        if step % 10 == 9:
            world.scheduler.advance(500)
            check(world, table)
    world.scheduler.advance(20_000)
    check(world, table)
    topic = world.node.topics.get("t")
    assert topic is not None
    assert any(one.header.generation for log in topic.ranges for one in log.segments), "nothing was compacted"


def check(world: SimNode, table: list[dict[bytes, bytes | None]]) -> None:
    for partition, wanted in enumerate(table):
        seen = dict(read(world.client(), partition).values())
        assert {k: v for k, v in seen.items() if v is not None} == {
            k: v for k, v in wanted.items() if v is not None
        }


NOW = 1_000_000
POLICY = Policy(min_lag_ms=0, max_lag_ms=500_000, delete_retention_ms=60_000, min_dirty_ratio=0.5)


def one(number: int, *parents: int, cleaned_ms: int | None = None, **more: object) -> Candidate:
    defaults = {"size_bytes": 100, "max_timestamp_ms": NOW - 10, "ready": True, "tombstones": False}
    return Candidate(number, parents, cleaned_ms=cleaned_ms, **(defaults | more))  # type: ignore[arg-type]


CASES = {
    "nothing there": ([], None),
    "all dirty": ([one(1), one(2, 1)], ((1, 2), (1, 2), ())),
    "a third is dirty": ([one(1, cleaned_ms=NOW), one(2, 1, cleaned_ms=NOW), one(3, 2)], None),
    "half is dirty": ([one(1, cleaned_ms=NOW), one(2, 1)], ((1, 2), (2,), ())),
    "old, a third is dirty": (
        [one(1, cleaned_ms=NOW, size_bytes=900), one(2, 1, max_timestamp_ms=NOW - 500_000)],
        ((1, 2), (2,), ()),
    ),
    "an open transaction stops all behind it": (
        [one(1), one(2, 1, ready=False), one(3, 2)],
        ((1,), (1,), ()),
    ),
    "but not a neighbour's": (
        [one(1), one(2, 1, ready=False), one(3, 1), one(4, 2, 3)],
        ((1, 3), (1, 3), ()),
    ),
    "a parent that is gone": ([one(5, 4)], ((5,), (5,), ())),
    "marks of deletion, in time": ([one(1, cleaned_ms=NOW - 59_000, tombstones=True)], None),
    "marks of deletion, over": ([one(1, cleaned_ms=NOW - 60_000, tombstones=True)], ((1,), (), (1,))),
}


@pytest.mark.parametrize("case", CASES)
def test_choose(case: str) -> None:
    candidates, expected = CASES[case]
    found = choose(candidates, POLICY, NOW)
    assert found is None or isinstance(found, Choice)
    assert (found and (found.segments, found.dirty, found.without_tombstones)) == expected
    assert found is None or found.reason


def test_choose_leaves_young_records_alone() -> None:
    policy = Policy(min_lag_ms=1_000, max_lag_ms=1 << 60, delete_retention_ms=0, min_dirty_ratio=0.0)
    assert choose([one(1)], policy, NOW) is None
    assert choose([one(1, max_timestamp_ms=NOW - 1_000)], policy, NOW) is not None
