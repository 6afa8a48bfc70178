"""Appending, group commit, who is told when, and what a failing disk does to it."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Iterable

import pytest
from range_model import DIRECTORY, SMALL, Owner, make_batch

from storage.format import ENTRY_HEADER_BYTES, segment_name
from storage.layout import LogConfig
from wire.errors import ErrorCode, KafkaError

PATH = f"{DIRECTORY}/{segment_name(1)}"
LARGE = LogConfig(flush_linger_ms=20)


def make(config: LogConfig = LARGE, *, flush_ms: float = 5.0) -> Owner:
    owner = Owner(config=config)
    owner.create()
    owner.disk.flush_delay_ms = flush_ms
    owner.disk.flushes.clear()
    owner.disk.writes.clear()
    return owner


class Told:
    """Answers, in order of coming."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.answers: list[tuple[str, Exception | None]] = []

    def when_durable(self, name: str, lsn: int) -> None:
        self.owner.log.when_durable(lsn, lambda error: self.answers.append((name, error)))

    def when_written(self, name: str) -> None:
        self.owner.log.when_written(lambda error: self.answers.append((name, error)))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.answers]


def test_offsets_are_assigned_per_partition_and_lsn_over_all() -> None:
    owner = make()
    results = [owner.append(0, b"a", b"b"), owner.append(1, b"c"), owner.append(0, b"d", b"e", b"f")]
    assert [(result.base_offset, result.last_offset) for result in results] == [(0, 1), (0, 0), (2, 4)]
    assert [result.segment_id for result in results] == [1, 1, 1]
    assert not any(result.duplicate for result in results)
    lsns = [result.lsn for result in results]
    assert lsns == sorted(set(lsns))
    assert owner.log.appended_lsn == lsns[-1]
    assert owner.log.partition(0).end_offset == 5
    assert owner.log.partition(0).high_watermark == 0


def test_a_turn_is_written_with_one_call_and_partitions_side_by_side() -> None:
    owner = make()
    for number in range(10):
        owner.append(number % 2, b"x" * 30)
    assert owner.disk.writes[PATH] == 0
    owner.scheduler.run_turn()
    assert owner.disk.writes[PATH] == 1
    assert [index.runs for index in owner.log.active.indexes.values()] == [1, 1]
    owner.append(0, b"later")
    owner.scheduler.run_turn()
    assert owner.disk.writes[PATH] == 2


def test_large_batches_are_written_as_they_are() -> None:
    owner = make()
    owner.append(0, b"x" * 20_000)
    owner.append(1, b"y" * 30_000)
    owner.wait_durable(0, owner.append(0, b"z"))
    owner.scheduler.run_until_idle()
    for partition in range(2):
        owner.check_read(partition, 0, owner.log.partition(partition).high_watermark, 1 << 30)


def test_high_watermark_waits_for_the_end_of_a_flush_that_covers_it() -> None:
    owner = make(flush_ms=5)
    told = Told(owner)
    told.when_durable("a", owner.append(0, b"a").lsn)
    owner.scheduler.advance(2)
    told.when_durable("b", owner.append(0, b"b").lsn)
    told.when_durable("c", owner.append(1, b"c").lsn)
    owner.scheduler.advance(2.5)
    assert (told.names, owner.log.partition(0).high_watermark) == ([], 0)
    owner.scheduler.advance(1)
    assert (told.names, owner.log.partition(0).high_watermark) == (["a"], 1)
    owner.scheduler.advance(5)
    assert told.names == ["a", "b", "c"]
    assert owner.log.partition(0).high_watermark == 2
    assert owner.disk.flushes[PATH] == 2
    assert owner.log.durable_lsn == owner.log.appended_lsn


def test_fifty_waiters_share_a_flush() -> None:
    owner = make(flush_ms=5)
    told = Told(owner)
    for number in range(50):
        told.when_durable(str(number), owner.append(number % 3, b"x").lsn)
    owner.scheduler.advance(6)
    assert told.names == [str(number) for number in range(50)]
    assert owner.disk.flushes[PATH] == 1


def test_unwaited_appends_become_durable_by_themselves() -> None:
    owner = make(flush_ms=0)
    owner.append(0, b"x")
    owner.scheduler.advance(19)
    assert owner.log.partition(0).high_watermark == 0
    owner.scheduler.advance(2)
    assert owner.log.partition(0).high_watermark == 1
    assert owner.progress == [0]
    owner.append(0, b"x")
    owner.log.request_flush()
    owner.scheduler.run_ready()
    assert owner.log.partition(0).high_watermark == 2


def test_progress_is_told_once_per_flush_and_before_the_waiters() -> None:
    owner = make(flush_ms=5)
    order: list[str] = []

    def progress(partitions: Iterable[int]) -> None:
        order.append(f"progress {sorted(partitions)}")

    owner.log._hooks = owner.log._hooks._replace(on_progress=progress)
    for partition in (2, 0, 2):
        lsn = owner.append(partition, b"x").lsn
        owner.log.when_durable(lsn, lambda error: order.append("waiter"))
    owner.scheduler.advance(10)
    assert order == ["progress [0, 2]", "waiter", "waiter", "waiter"]


def test_written_comes_before_durable() -> None:
    owner = make(flush_ms=5)
    told = Told(owner)
    told.when_written("nothing")
    owner.scheduler.run_turn()
    told.when_durable("durable", owner.append(0, b"x").lsn)
    told.when_written("written")
    assert told.names == ["nothing"]
    owner.scheduler.run_turn()
    assert told.names == ["nothing", "written"]
    owner.scheduler.advance(6)
    assert told.names == ["nothing", "written", "durable"]


def test_duplicate_says_where_the_first_one_is_and_waits_for_it() -> None:
    owner = make(flush_ms=5)
    first = owner.append(0, b"a", b"b", producer_id=7)
    header, batch = make_batch(b"a", b"b", producer_id=7)
    repeat = owner.log.append(0, header, batch)
    assert repeat == (first.base_offset, first.last_offset, 1, first.lsn, True)
    assert owner.log.partition(0).end_offset == 2
    owner.scheduler.advance(50)
    repeat = owner.log.append(0, header, batch)
    assert repeat.lsn <= owner.log.durable_lsn
    assert repeat.duplicate


def test_producer_errors_append_nothing() -> None:
    owner = make()
    owner.append(0, b"a", producer_id=7)
    header, batch = make_batch(b"z", producer_id=7, base_sequence=5)
    with pytest.raises(KafkaError) as caught:
        owner.log.append(0, header, batch)
    assert caught.value.code is ErrorCode.out_of_order_sequence_number
    header, batch = make_batch(b"z", producer_id=8, base_sequence=5)
    with pytest.raises(KafkaError):
        owner.log.append(0, header, batch, require_known_producer=True)
    assert owner.log.partition(0).end_offset == 1
    # A producer is known per partition.
    assert owner.log.append(1, header, batch).base_offset == 0


def test_refused_sizes_and_partitions() -> None:
    owner = make(dataclasses.replace(LARGE, max_batch_bytes=200))
    header, batch = make_batch(b"x" * 300)
    with pytest.raises(KafkaError) as caught:
        owner.log.append(0, header, batch)
    assert caught.value.code is ErrorCode.message_too_large
    header, batch = make_batch(b"x")
    for partition in (-1, 3):
        with pytest.raises(KafkaError) as caught:
            owner.log.append(partition, header, batch)
        assert caught.value.code is ErrorCode.unknown_topic_or_partition
    assert owner.log.appended_lsn == 0


def test_full_disk_refuses_an_append_and_is_forgiven() -> None:
    owner = make(dataclasses.replace(SMALL, segment_bytes=1 << 20), flush_ms=0)
    while owner.log.active.end + 800 < owner.log.active.allocated:
        owner.append(0, b"x" * 100, producer_id=7)
        owner.scheduler.run_ready()
    owner.disk.fail("allocate", error=errno.ENOSPC)
    with pytest.raises(KafkaError) as caught:
        owner.append(0, b"x" * 1000, producer_id=7)
    assert caught.value.code is ErrorCode.kafka_storage_error
    assert "space" in str(caught.value)
    assert owner.log.state == "OPEN"
    # Nothing of it is left: no offset, no sequence.
    appended = owner.append(0, b"x" * 1000, producer_id=7)
    owner.wait_durable(0, appended)
    owner.scheduler.run_until_idle()
    assert owner.promised[0] == appended.last_offset + 1


@pytest.mark.parametrize("kind", ["write", "flush"])
def test_a_failed_write_or_flush_is_final(kind: str) -> None:
    owner = make(flush_ms=5)
    told = Told(owner)
    told.when_durable("before", owner.append(0, b"kept").lsn)
    owner.scheduler.advance(50)
    owner.disk.fail(kind, error=errno.EIO)
    told.when_durable("a", owner.append(0, b"lost").lsn)
    told.when_written("written")
    owner.scheduler.advance(2)
    if kind == "flush":
        told.when_durable("b", owner.append(1, b"lost too").lsn)
    owner.scheduler.run_until_idle()
    assert owner.log.state == "FAILED"
    assert told.answers[0] == ("before", None)
    lost = dict(told.answers[1:])
    assert set(lost) == ({"a", "written"} if kind == "write" else {"a", "written", "b"})
    assert isinstance(lost["a"], KafkaError)
    assert lost["a"].code is ErrorCode.kafka_storage_error
    assert (lost["written"] is None) is (kind == "flush")
    assert owner.failures == [owner.log.failure]
    # Nothing more is taken, and no flush is tried again.
    flushes = owner.disk.flushes[PATH]
    header, batch = make_batch(b"x")
    with pytest.raises(KafkaError, match="failed"):
        owner.log.append(0, header, batch)
    owner.log.request_flush()
    told.when_durable("later", owner.log.appended_lsn)
    told.when_written("later written")
    told.when_durable("old", 0)
    owner.scheduler.run_until_idle()
    assert isinstance(dict(told.answers)["later"], KafkaError)
    assert isinstance(dict(told.answers)["later written"], KafkaError)
    assert dict(told.answers)["old"] is None
    assert owner.disk.flushes[PATH] == flushes
    # Reads below the high watermark go on.
    assert owner.log.partition(0).high_watermark == 1
    result = owner.log.read(0, 0, limit_offset=1, max_bytes=1000)
    assert [batch.base_offset for batch in result.batches] == [0]
    with pytest.raises(OSError, match="Input/output"):
        owner.log.close()
    assert owner.log.state == "CLOSED"
    assert not owner.disk.open_files


def test_close_answers_everyone_and_flushes() -> None:
    owner = make(flush_ms=5)
    told = Told(owner)
    told.when_durable("a", owner.append(0, b"a").lsn)
    owner.scheduler.advance(1)
    told.when_durable("b", owner.append(1, b"b").lsn)
    told.when_written("written")
    owner.log.close()
    owner.log.close()
    assert told.answers == [("written", None), ("a", None), ("b", None)]
    assert sorted(owner.progress) == [0, 1]
    assert not owner.disk.open_files
    header, batch = make_batch(b"x")
    with pytest.raises(KafkaError, match="is closed"):
        owner.log.append(0, header, batch)
    with pytest.raises(KafkaError, match="is closed"):
        owner.log.read(0, 0, limit_offset=0, max_bytes=1)
    told.when_written("after")
    owner.scheduler.run_until_idle()
    assert told.answers[-1] == ("after", None)
    owner.power_cut(1, keep="none")
    owner.recover()
    assert owner.log.end_offsets() == {0: 1, 1: 1, 2: 0}


def test_close_that_cannot_flush_says_so() -> None:
    owner = make(flush_ms=5)
    told = Told(owner)
    told.when_durable("a", owner.append(0, b"a").lsn)
    owner.disk.fail("flush")
    with pytest.raises(OSError, match="Input/output"):
        owner.log.close()
    assert isinstance(dict(told.answers)["a"], KafkaError)
    assert not owner.disk.open_files


def test_close_that_cannot_write_says_so() -> None:
    owner = make(flush_ms=5)
    told = Told(owner)
    told.when_durable("a", owner.append(0, b"a").lsn)
    owner.disk.fail("write")
    with pytest.raises(OSError, match="Input/output"):
        owner.log.close()
    assert isinstance(dict(told.answers)["a"], KafkaError)


def test_delete_removes_the_files_and_tells_who_waits() -> None:
    owner = make(flush_ms=5)
    told = Told(owner)
    told.when_durable("a", owner.append(0, b"a").lsn)
    owner.scheduler.advance(1)
    owner.log.delete()
    owner.log.delete()
    assert owner.disk.list("topics") == []
    assert owner.disk.flushes["topics"] == 1
    error = dict(told.answers)["a"]
    assert isinstance(error, KafkaError)
    assert error.code is ErrorCode.unknown_topic_or_partition
    header, batch = make_batch(b"x")
    with pytest.raises(KafkaError, match="deleted"):
        owner.log.append(0, header, batch)
    # The flush in flight comes back to nobody.
    owner.scheduler.run_until_idle()
    assert told.names == ["a"]


def test_delete_leaves_strangers_files() -> None:
    owner = make(flush_ms=0)
    owner.disk.replace(f"{DIRECTORY}/README", b"mine")
    owner.log.delete()
    assert owner.disk.list(DIRECTORY) == ["README"]


def test_hard_end_of_a_segment_that_cannot_roll() -> None:
    owner = make(flush_ms=0)
    owner.log.active.end = owner.log.active.allocated = (1 << 32) - 100
    header, batch = make_batch(b"x" * 100)
    with pytest.raises(KafkaError, match="full and cannot be rolled"):
        owner.log.append(0, header, batch)


def test_entry_size_is_what_the_lsn_counts() -> None:
    owner = make()
    header, batch = make_batch(b"x" * 10)
    assert owner.log.append(0, header, batch).lsn == len(batch) + ENTRY_HEADER_BYTES


def test_creation_that_fails_leaves_nothing_behind() -> None:
    for kind, path in (("flush", ""), ("flush_dir", "topics"), ("allocate", ""), ("write", "")):
        owner = Owner(max_flush_ms=1.0)
        owner.disk.fail(kind, path)
        with pytest.raises(AssertionError):
            owner.create()
        owner.scheduler.run_until_idle()
        assert owner.disk.list("topics") in ([], ["first"])
        assert owner.disk.list(DIRECTORY) == []
        assert not owner.disk.open_files
