"""Rolling: the child takes over without making an append wait, and the parent gets its footer."""

from __future__ import annotations

import dataclasses
import errno

import pytest
from range_model import DIRECTORY, SMALL, Owner, fill, hand_owner, make_batch

from storage.format import HEADER_BLOCK_BYTES, checkpoint_name, segment_name
from storage.layout import RollEvent
from storage.scan import Scanner
from wire.errors import ErrorCode, KafkaError

PARENT = f"{DIRECTORY}/{segment_name(1)}"
CHILD = f"{DIRECTORY}/{segment_name(2)}"


def idle(owner: Owner) -> None:
    owner.log.request_flush()
    owner.scheduler.run_until_idle()


def test_roll_from_beginning_to_end() -> None:
    owner = hand_owner()
    fill(owner, lambda: bool(owner.asked))
    event = owner.asked[0][0]
    assert (event.parent_id, event.child_id) == (1, 2)
    assert event.parent_end_offsets == owner.log.end_offsets()
    # The child and its name are durable before anybody is told of it.
    assert not [path for path in owner.disk.unflushed() if path in (CHILD, DIRECTORY)]
    assert owner.log.active.segment_id == 1
    # Appends do not wait for the layout; they go to the parent.
    assert owner.append(0, b"while publishing").segment_id == 1
    owner.append(1, b"queued in the turn of the switch")
    owner.answer()
    assert owner.log.active.segment_id == 2
    assert owner.append(0, b"in the child").segment_id == 2
    owner.scheduler.run_until_idle()
    parent, child = owner.log.segments
    assert (parent.state, child.state) == ("SEALED", "WRITABLE")
    assert owner.sealed == {1: parent.end_offsets()}
    assert owner.sealed[1] == {
        0: owner.log.partition(0).end_offset - 1,
        1: owner.log.partition(1).end_offset,
        2: owner.log.partition(2).end_offset,
    }
    assert child.header.parents == (1,)
    # The parent's reserved space is given back.
    assert len(owner.disk.content(PARENT)) < parent.end + 1000
    for partition in range(3):
        owner.check_read(partition, 0, owner.log.partition(partition).high_watermark, 1 << 30)
    owner.power_cut(1, keep="none")
    owner.recover()


def test_index_that_grows_too_large_is_rolled() -> None:
    owner = hand_owner(dataclasses.replace(SMALL, segment_bytes=1 << 20, max_index_entries=20))
    fill(owner, lambda: bool(owner.asked))
    assert owner.log.active.runs == 20


def test_new_limits_hold_from_the_next_append_on() -> None:
    owner = hand_owner()
    owner.append(0, b"x" * 200)
    owner.scheduler.run_ready()
    owner.log.reconfigure(dataclasses.replace(SMALL, segment_bytes=100, max_batch_bytes=100))
    with pytest.raises(KafkaError) as caught:
        owner.append(0, b"x" * 200)
    assert caught.value.code is ErrorCode.message_too_large
    owner.append(0, b"x")
    owner.scheduler.run_ready()
    assert owner.asked


def test_roll_on_request() -> None:
    owner = hand_owner()
    owner.append(0, b"x")
    owner.log.roll(lambda _: None)
    owner.log.roll(lambda _: None)
    owner.scheduler.run_ready()
    owner.answer()
    idle(owner)
    assert [segment.state for segment in owner.log.segments] == ["SEALED", "WRITABLE"]
    # Also of an empty segment, and of one that was never flushed.
    owner.log.roll(lambda _: None)
    owner.scheduler.run_ready()
    owner.answer()
    idle(owner)
    assert [segment.state for segment in owner.log.segments] == ["SEALED", "SEALED", "WRITABLE"]


def test_acknowledgement_waits_for_the_parent() -> None:
    owner = hand_owner()
    fill(owner, lambda: bool(owner.asked))
    idle(owner)
    delays = {PARENT: 50.0, CHILD: 1.0}
    owner.disk.flush_delay_ms = lambda path: delays.get(path, 0.0)
    owner.append(0, b"the parent's last")
    owner.answer()
    appended = owner.append(1, b"the child's first")
    told: list[Exception | None] = []
    owner.log.when_durable(appended.lsn, told.append)
    owner.scheduler.advance(40)
    # The parent's flush was under way, so the child's entries wait for the next round.
    assert told == []
    assert owner.log.partition(1).high_watermark == appended.base_offset
    owner.scheduler.advance(15)
    assert told == [None]
    assert owner.log.partition(1).high_watermark == appended.base_offset + 1


def test_parent_and_child_in_one_round_count_together() -> None:
    owner = hand_owner()
    fill(owner, lambda: bool(owner.asked))
    idle(owner)
    started = []
    delays = {PARENT: 50.0, CHILD: 1.0}

    def delay(path: str) -> float:
        started.append(path)
        return delays.get(path, 0.0)

    owner.disk.flush_delay_ms = delay
    owner.append(2, b"lingering")
    owner.log.request_flush()
    owner.scheduler.run_turn()
    # While this round runs, more goes to the parent, then to the child: the next round has both.
    owner.append(0, b"the parent's last")
    owner.scheduler.run_turn()
    owner.answer()
    appended = owner.append(1, b"the child's first")
    told: list[Exception | None] = []
    owner.log.when_durable(appended.lsn, told.append)
    owner.scheduler.advance(51)
    assert started == [PARENT, PARENT, CHILD]
    owner.scheduler.advance(40)
    assert told == []
    assert owner.log.active.durable_end == 0
    owner.scheduler.advance(20)
    assert told == [None]


def test_child_claims_nothing_before_its_parent_is_durable() -> None:
    owner = hand_owner()
    fill(owner, lambda: bool(owner.asked))
    owner.disk.flush_delay_ms = lambda path: 10.0 if path == PARENT else 0.0
    owner.append(0, b"the parent's last")
    owner.answer()
    for _ in range(8):
        owner.append(1, b"in the child")
        owner.scheduler.advance(4)
    child = owner.log.active
    claims = [entry.durable for entry in Scanner(child.file(), child.header, HEADER_BLOCK_BYTES, child.end)]
    assert claims[0] == 0
    assert claims[-1] > HEADER_BLOCK_BYTES
    assert claims == sorted(claims)


def test_failed_publish_ends_the_range() -> None:
    owner = hand_owner()
    fill(owner, lambda: bool(owner.asked))
    owner.answer(OSError(errno.EIO, "no layout"))
    assert owner.log.state == "FAILED"
    with pytest.raises(KafkaError, match="no layout"):
        owner.append(0, b"x")
    # Whether or not the layout has it after all: both open.
    kept = [len(batches) for batches in owner.batches]
    for has_it in (False, True):
        fork = owner.fork(1)
        if has_it:
            fork._take_over(RollEvent(1, 2, {}))
        fork.power_cut(1, keep="all")
        fork.recover()
        assert [len(batches) for batches in fork.batches] == kept
        assert fork.report.orphans_removed == ([] if has_it else [segment_name(2)])


@pytest.mark.parametrize("kind", ["create", "allocate", "write"])
def test_no_space_for_a_child_puts_the_roll_off(kind: str) -> None:
    owner = hand_owner()
    fill(owner, lambda: owner.log.active.end > SMALL.segment_bytes + HEADER_BLOCK_BYTES - 300)
    owner.disk.fail(kind, segment_name(2), error=errno.ENOSPC)
    fill(owner, lambda: bool(owner.asked))
    assert owner.log.state == "OPEN"
    assert owner.asked[0][0].child_id == 3
    assert owner.log.active.end > SMALL.segment_bytes + HEADER_BLOCK_BYTES + SMALL.segment_bytes // 8
    assert owner.disk.list(DIRECTORY) == [segment_name(1), segment_name(3)]


@pytest.mark.parametrize(("kind", "path"), [("flush", segment_name(2)), ("flush_dir", DIRECTORY)])
def test_child_that_cannot_be_flushed_is_given_up(kind: str, path: str) -> None:
    owner = hand_owner()
    fill(owner, lambda: owner.log.active.end > SMALL.segment_bytes + HEADER_BLOCK_BYTES - 300)
    owner.disk.fail(kind, path)
    fill(owner, lambda: bool(owner.asked))
    assert owner.asked[0][0].child_id == 3
    assert segment_name(2) not in owner.disk.list(DIRECTORY)
    owner.answer()
    idle(owner)
    assert [segment.segment_id for segment in owner.log.segments] == [1, 3]


@pytest.mark.parametrize("writes", [0, 1, 2, 4])
def test_no_space_for_a_footer_leaves_a_readable_segment(writes: int) -> None:
    """Its end mark, any piece of its body, or its trailer."""
    owner = hand_owner()
    fill(owner, lambda: bool(owner.asked))
    idle(owner)
    before = owner.disk.writes[PARENT]
    owner.answer()
    owner.scheduler.run_until(lambda: owner.disk.writes[PARENT] >= before + writes)
    owner.disk.fail("write", segment_name(1), error=errno.ENOSPC)
    owner.scheduler.run_until_idle()
    assert owner.log.state == "OPEN"
    assert owner.log.segments[0].state == "FULL"
    assert not owner.sealed
    # The range goes on and rolls again.
    fill(owner, lambda: bool(owner.asked))
    owner.answer()
    idle(owner)
    assert [segment.state for segment in owner.log.segments] == ["FULL", "SEALED", "WRITABLE"]
    for partition in range(3):
        owner.check_read(partition, 0, owner.log.partition(partition).high_watermark, 1 << 30)
    owner.power_cut(1)
    owner.recover()
    # The next start writes the footer.
    assert owner.report.sealed == [1]
    owner.scheduler.run_until_idle()
    assert set(owner.sealed) == {1, 2}


@pytest.mark.parametrize("flushes", [0, 1, 2])
def test_footer_that_cannot_be_flushed_ends_the_range(flushes: int) -> None:
    owner = hand_owner()
    fill(owner, lambda: bool(owner.asked))
    idle(owner)
    before = owner.disk.flushes[PARENT]
    owner.answer()
    owner.scheduler.run_until(lambda: owner.disk.flushes[PARENT] >= before + flushes)
    owner.disk.fail("flush", segment_name(1))
    owner.scheduler.run_until_idle()
    assert owner.log.state == "FAILED"
    owner.power_cut(1)
    owner.recover()


def test_sealed_segments_checkpoint_goes() -> None:
    owner = hand_owner()
    fill(owner, lambda: bool(owner.asked))
    idle(owner)
    assert checkpoint_name(1) in owner.disk.list(DIRECTORY)
    owner.answer()
    idle(owner)
    assert checkpoint_name(1) not in owner.disk.list(DIRECTORY)


@pytest.mark.parametrize("turns", range(12))
def test_close_at_any_point_of_a_roll(turns: int) -> None:
    owner = hand_owner()
    fill(owner, lambda: owner.log._roller.state != "IDLE")
    for _ in range(turns):
        owner.scheduler.run_turn()
        if owner.asked:
            owner.answer()
            owner.append(0, b"in the child")
    owner.append(1, b"last")
    state = owner.log._roller.state
    owner.log.close()
    assert not owner.disk.open_files
    ends = owner.log.end_offsets()
    owner.scheduler.run_until_idle()
    assert owner.log._roller.state == "STOPPED", state
    owner.power_cut(turns, keep="none")
    owner.recover()
    assert owner.log.end_offsets() == ends


def test_layout_answer_after_the_close_is_ignored() -> None:
    owner = hand_owner()
    fill(owner, lambda: bool(owner.asked))
    owner.log.close()
    owner.answer()
    owner.scheduler.run_until_idle()
    assert owner.log.active.segment_id == 1
    owner.recover()
    assert owner.report.sealed == [1]


def test_delete_in_the_middle_of_a_roll() -> None:
    owner = hand_owner()
    fill(owner, lambda: bool(owner.asked))
    owner.log.delete()
    owner.answer()
    owner.scheduler.run_until_idle()
    assert owner.disk.list("topics") == []
    assert not owner.disk.open_files


def test_expired_producers_are_forgotten_at_a_roll() -> None:
    owner = hand_owner(dataclasses.replace(SMALL, producer_ttl_ms=1000))
    owner.append(0, b"old", producer_id=7)
    owner.scheduler.advance(2000)
    owner.append(0, b"new", producer_id=8)
    owner.log.roll(lambda _: None)
    owner.scheduler.run_ready()
    owner.answer()
    assert set(owner.log.partition(0).producers.states) == {8}


def test_failed_write_at_the_switch_ends_the_range() -> None:
    owner = hand_owner()
    fill(owner, lambda: bool(owner.asked))
    header, batch = make_batch(b"queued")
    owner.log.append(0, header, batch)
    owner.disk.fail("write", segment_name(1))
    owner.answer()
    assert owner.log.state == "FAILED"
    assert owner.log.failure is not None
    assert owner.log.failure.code is ErrorCode.kafka_storage_error
    owner.scheduler.run_until_idle()
    for segment in owner.log.segments:
        assert segment.segment_id == 1


def test_impossible_transitions_raise() -> None:
    owner = hand_owner()
    owner.log.close()
    for part in (owner.log._roller, owner.log._checkpointer):
        with pytest.raises(ValueError, match="cannot become"):
            part.stop()
    with pytest.raises(ValueError, match="cannot become"):
        owner.log._change_state("OPEN")
