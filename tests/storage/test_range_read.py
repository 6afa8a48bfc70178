"""Reading: which batches come back, and what is never read."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from range_model import DIRECTORY, SMALL, Owner, open_range

from storage.format import segment_name
from storage.layout import LogConfig
from wire.batch import TRANSACTIONAL_BIT, parse_header, validate_produced
from wire.errors import ErrorCode, KafkaError
from wire.records import Record, build_batch, iterate_records

PATH = f"{DIRECTORY}/{segment_name(1)}"


def settle(owner: Owner) -> None:
    owner.log.request_flush()
    owner.scheduler.run_until_idle()


def bases(
    owner: Owner, offset: int, *, limit: int | None = None, max_bytes: int = 1 << 20, **options: bool
) -> list[int]:
    log = owner.log.partition(0)
    limit = log.high_watermark if limit is None else limit
    result = owner.log.read(0, offset, limit_offset=limit, max_bytes=max_bytes, **options)
    return [batch.base_offset for batch in result.batches]


@pytest.fixture
def three() -> Owner:
    """Batches 0-2, 3-3, 4-8 of partition 0, between entries of others."""
    owner = Owner(config=LogConfig())
    owner.create()
    for count in (3, 1, 5):
        owner.append(0, *[b"value"] * count)
        owner.append(1, b"other")
        owner.scheduler.run_ready()
    settle(owner)
    return owner


def test_first_batch_contains_the_offset_its_last_one_included(three: Owner) -> None:
    expected = {0: 0, 1: 0, 2: 0, 3: 3, 4: 4, 5: 4, 7: 4, 8: 4}
    for offset, base in expected.items():
        assert bases(three, offset)[0] == base
        assert bases(three, offset) == [found for found in (0, 3, 4) if found >= base]
    assert bases(three, 9) == []


def test_limit_is_exact(three: Owner) -> None:
    expected = {0: [], 1: [], 2: [], 3: [0], 4: [0, 3], 5: [0, 3], 8: [0, 3], 9: [0, 3, 4]}
    for limit, found in expected.items():
        assert bases(three, 0, limit=limit) == found
        result = three.log.read(0, 0, limit_offset=limit, max_bytes=1 << 20)
        assert result.reached_limit
    assert bases(three, 4, limit=4) == []


def test_limit_above_the_high_watermark_is_a_mistake(three: Owner) -> None:
    three.append(0, b"queued")
    with pytest.raises(AssertionError, match="high watermark"):
        three.log.read(0, 0, limit_offset=10, max_bytes=10)
    three.scheduler.run_turn()
    with pytest.raises(AssertionError, match="high watermark"):
        three.log.read(0, 0, limit_offset=10, max_bytes=10)
    assert bases(three, 9) == []


def test_offsets_out_of_range(three: Owner) -> None:
    for offset in (-1, 10):
        with pytest.raises(KafkaError) as caught:
            bases(three, offset)
        assert caught.value.code is ErrorCode.offset_out_of_range
    three.append(0, b"not durable")
    assert bases(three, 10) == []
    with pytest.raises(KafkaError) as caught:
        three.log.read(3, 0, limit_offset=0, max_bytes=1)
    assert caught.value.code is ErrorCode.unknown_topic_or_partition


def test_max_bytes_and_at_least_one(three: Owner) -> None:
    sizes = [len(batch.data) for batch in three.log.read(0, 0, limit_offset=9, max_bytes=1 << 20).batches]
    assert bases(three, 0, max_bytes=sizes[0]) == [0]
    assert bases(three, 0, max_bytes=sizes[0] + sizes[1] - 1) == [0]
    assert bases(three, 0, max_bytes=sizes[0] + sizes[1]) == [0, 3]
    assert bases(three, 0, max_bytes=1) == [0]
    assert bases(three, 0, max_bytes=1, at_least_one=False) == []
    assert bases(three, 0, max_bytes=sizes[0], at_least_one=False) == [0]
    result = three.log.read(0, 0, limit_offset=9, max_bytes=1, at_least_one=False)
    assert (result.bytes, result.reached_limit, result.last_skipped) == (0, False, None)
    result = three.log.read(0, 4, limit_offset=9, max_bytes=1)
    assert result.reached_limit


def test_data_is_a_view_of_the_whole_batch(three: Owner) -> None:
    batch = three.log.read(0, 4, limit_offset=9, max_bytes=1 << 20).batches[0]
    assert isinstance(batch.data, memoryview)
    header = parse_header(batch.data)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (4, 8, three.term)
    assert [record.offset for record in iterate_records(batch.data, verify_crc=True)] == [4, 5, 6, 7, 8]
    assert batch.meta.size == header.size_bytes
    assert (batch.term, batch.txn_seq, batch.is_transactional) == (three.term, 0, False)


def test_log_start_hides_what_is_below(three: Owner) -> None:
    log = three.log.partition(0)
    log.advance_log_start(4)
    log.advance_log_start(2)
    assert log.log_start_offset == 4
    with pytest.raises(KafkaError) as caught:
        bases(three, 3)
    assert caught.value.code is ErrorCode.offset_out_of_range
    assert bases(three, 4) == [4]
    # In the middle of a batch: the batch goes out, clients drop what they did not ask for.
    log.advance_log_start(6)
    assert bases(three, 6) == [4]
    log.advance_log_start(9)
    assert bases(three, 9) == []
    with pytest.raises(KafkaError) as caught:
        log.advance_log_start(10)
    assert caught.value.code is ErrorCode.offset_out_of_range
    assert three.log.offset_for_timestamp(0, 0, 9) is None


def test_moved_log_start_is_kept_by_the_owner(three: Owner) -> None:
    three.log.close()
    three.term += 1
    three.log, _ = open_range(
        three.disk, three.scheduler, segments=three.layout, log_start_offsets={0: 5, 9: 1}, **three.hooks()
    )
    assert [three.log.partition(number).log_start_offset for number in range(3)] == [5, 0, 0]
    assert bases(three, 5) == [4]


# Skipping aborted batches.


@pytest.fixture
def mixed() -> Owner:
    """One record each: 0 plain, 1-3 of producer 9 in transactions, 4 plain, 5-6 of producer 9."""
    owner = Owner(config=LogConfig())
    owner.create()
    for number, transactional in enumerate((False, True, True, True, False, True, True)):
        producer_id = 9 if transactional else 7
        owner.append(0, b"%d" % number, producer_id=producer_id, transactional=transactional, txn_seq=number)
    settle(owner)
    return owner


def test_skipped_in_the_middle_are_a_gap(mixed: Owner) -> None:
    asked: list[tuple[int, int]] = []

    def skip(producer_id: int, base_offset: int) -> bool:
        asked.append((producer_id, base_offset))
        return base_offset in (1, 2, 3)

    result = mixed.log.read(0, 0, limit_offset=7, max_bytes=1 << 20, skip=skip)
    assert [batch.base_offset for batch in result.batches] == [0, 4, 5, 6]
    assert result.last_skipped is None
    assert result.reached_limit
    # Only transactional batches are asked about.
    assert asked == [(9, 1), (9, 2), (9, 3), (9, 5), (9, 6)]


def test_result_that_ends_on_skipped_names_the_last(mixed: Owner) -> None:
    result = mixed.log.read(0, 0, limit_offset=7, max_bytes=1 << 20, skip=lambda _, base: base >= 5)
    assert [batch.base_offset for batch in result.batches] == [0, 1, 2, 3, 4]
    assert result.last_skipped is not None
    assert result.last_skipped.base_offset == 6
    assert (result.last_skipped.producer_id, result.last_skipped.txn_seq) == (9, 6)
    assert result.last_skipped.is_transactional
    # From inside the run, and with a limit inside it.
    result = mixed.log.read(0, 5, limit_offset=6, max_bytes=1 << 20, skip=lambda *_: True)
    assert result.batches == []
    assert result.last_skipped is not None
    assert result.last_skipped.last_offset == 5
    assert result.reached_limit


def test_visible_batch_that_did_not_fit_is_no_end(mixed: Owner) -> None:
    size = len(mixed.log.read(0, 0, limit_offset=1, max_bytes=1).batches[0].data)
    result = mixed.log.read(0, 0, limit_offset=7, max_bytes=size + 1, skip=lambda _, base: base < 4)
    assert [batch.base_offset for batch in result.batches] == [0]
    assert result.last_skipped is None
    assert not result.reached_limit
    result = mixed.log.read(
        0, 1, limit_offset=7, max_bytes=1, at_least_one=False, skip=lambda _, base: base < 4
    )
    assert (result.batches, result.last_skipped, result.reached_limit) == ([], None, False)


def test_skipping_gives_up_after_a_bounded_scan() -> None:
    owner = Owner(config=LogConfig(skip_scan_bytes=1000))
    owner.create()
    for number in range(60):
        owner.append(0, b"%d" % number, producer_id=9, transactional=True)
    owner.append(0, b"visible")
    settle(owner)
    offset, rounds, found = 0, 0, []
    while offset < 61:
        result = owner.log.read(0, offset, limit_offset=61, max_bytes=1 << 20, skip=lambda *_: True)
        rounds += 1
        found += result.batches
        if result.batches:
            offset = result.batches[-1].last_offset + 1
        else:
            assert result.last_skipped is not None
            assert not result.reached_limit
            offset = result.last_skipped.last_offset + 1
    assert [batch.base_offset for batch in found] == [60]
    assert 4 < rounds < 8


def test_transactional_batches_for_recovery(mixed: Owner) -> None:
    found = list(mixed.log.transactional_batches(0, 0))
    assert [(meta.base_offset, meta.txn_seq) for meta in found] == [(1, 1), (2, 2), (3, 3), (5, 5), (6, 6)]
    assert [meta.base_offset for meta in mixed.log.transactional_batches(0, 3)] == [3, 5, 6]
    mixed.append(0, b"not durable", producer_id=9, transactional=True)
    mixed.scheduler.run_turn()
    assert [meta.base_offset for meta in mixed.log.transactional_batches(0, 6)] == [6]
    mixed.log.partition(0).advance_log_start(5)
    assert [meta.base_offset for meta in mixed.log.transactional_batches(0, 0)] == [5, 6]
    assert list(mixed.log.transactional_batches(1, 0)) == []


def test_batch_at(three: Owner) -> None:
    for offset, base in ((0, 0), (2, 0), (3, 3), (8, 4)):
        found = three.log.batch_at(0, offset)
        assert found is not None
        assert (found.base_offset, found.term) == (base, three.term)
    for offset in (-1, 9, 100):
        assert three.log.batch_at(0, offset) is None
    three.append(0, b"not durable")
    three.scheduler.run_turn()
    assert three.log.batch_at(0, 9) is None
    assert three.log.batch_at(2, 0) is None


def test_latest_timestamp_is_none_without_records(three: Owner) -> None:
    assert three.log.max_timestamp(2, 0) is None
    assert three.log.max_timestamp(0, 0) is None
    assert three.log.max_timestamp(0, 9) == (8, 1004)
    three.log.partition(0).advance_log_start(9)
    assert three.log.max_timestamp(0, 9) is None


def test_damage_found_on_the_way_to_an_offset(three: Owner) -> None:
    """Entries passed over are not sent, but what they say of their length is what the way depends on."""
    owner = Owner(config=LogConfig())
    owner.create()
    for number in range(6):
        owner.append(0, b"%d" % number)
    settle(owner)
    content = owner.disk.content(PATH)
    for position in range(4096, 4096 + 50):
        for bit in (1, 0x80):
            owner.disk.overwrite(PATH, position, bytes([content[position] ^ bit]))
            try:
                found = bases(owner, 4)
            except KafkaError as error:
                assert error.code is ErrorCode.kafka_storage_error  # noqa: PT017 - one of two outcomes
            else:
                assert found == [4, 5]
            owner.disk.overwrite(PATH, position, content[position : position + 1])


# Across segments.


def spread(seed: int = 1, batches: int = 90) -> Owner:
    owner = Owner(seed=seed, config=SMALL)
    owner.create()
    rng = random.Random(seed)
    for _ in range(batches):
        owner.append(
            rng.randrange(3), *[rng.randbytes(rng.randrange(60)) for _ in range(rng.randrange(1, 4))]
        )
        owner.scheduler.advance(rng.choice((0, 1, 3)))
    settle(owner)
    assert len(owner.log.segments) > 3
    assert sum(segment.state == "SEALED" for segment in owner.log.segments) >= 3
    return owner


def test_reads_run_on_across_segments() -> None:
    owner = spread()
    for partition in range(3):
        end = owner.log.partition(partition).high_watermark
        for offset in range(end + 1):
            owner.check_read(partition, offset, end, 1 << 30)
            owner.check_read(partition, offset, end, 500)
        for limit in range(end + 1):
            owner.check_read(partition, 0, limit, 1 << 30)
    # Sealed segments are opened and loaded on demand, within the cache's bounds.
    assert len(owner.disk.open_files) <= 1 + owner.cache.max_files
    assert owner.cache.runs <= owner.cache.max_runs


def test_one_read_of_the_disk_for_adjacent_batches() -> None:
    owner = Owner(config=LogConfig())
    owner.create()
    for _ in range(200):
        owner.append(0, b"x" * 500)
        owner.scheduler.run_ready()
    settle(owner)
    owner.disk.reads.clear()
    result = owner.log.read(0, 0, limit_offset=200, max_bytes=1 << 20)
    assert len(result.batches) == 200
    assert owner.disk.reads[PATH] == 1
    owner.disk.reads.clear()
    owner.log.read(0, 150, limit_offset=200, max_bytes=1)
    assert owner.disk.reads[PATH] == 1


def test_damage_is_named_and_not_sent() -> None:
    owner = spread()
    segment = owner.log.segments[1]
    index = segment.indexes[0]
    segment.load(index)
    at = index.positions[0]
    end = owner.log.partition(0).high_watermark
    for position in (at, at + 5, at + 9, at + 31, at + 40, at + 52):
        content = owner.disk.content(segment.path)
        owner.disk.overwrite(segment.path, position, bytes([content[position] ^ 1]))
        with pytest.raises(KafkaError) as caught:
            owner.log.read(0, 0, limit_offset=end, max_bytes=1 << 30)
        assert caught.value.code is ErrorCode.kafka_storage_error
        assert f"{segment.path} at byte {at}" in str(caught.value)
        with pytest.raises(KafkaError, match="at byte"):
            list(owner.log.transactional_batches(0, 0))
        owner.disk.overwrite(segment.path, position, content[position : position + 1])
    owner.check_read(0, 0, end, 1 << 30)


def test_unreadable_and_shortened_files_are_storage_errors() -> None:
    owner = spread()
    end = owner.log.partition(0).high_watermark
    owner.disk.fail("read", times=1)
    with pytest.raises(KafkaError) as caught:
        owner.log.read(0, 0, limit_offset=end, max_bytes=1 << 30)
    assert caught.value.code is ErrorCode.kafka_storage_error
    for call in (
        lambda: owner.log.batch_at(0, 3),
        lambda: owner.log.offset_for_timestamp(0, 3, end),
        lambda: owner.log.max_timestamp(0, end),
        lambda: list(owner.log.transactional_batches(0, 3)),
    ):
        owner.disk.fail("read", times=1)
        with pytest.raises(KafkaError) as caught:
            call()
        assert caught.value.code is ErrorCode.kafka_storage_error
    path = owner.log.segments[0].path
    owner.disk._inode(path).cached[4200:] = b""
    with pytest.raises(KafkaError, match="is damaged"):
        owner.log.read(0, 0, limit_offset=end, max_bytes=1 << 30)


# Timestamps.


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 60), min_size=1, max_size=4), st.booleans(), st.integers(0, 4)),
        min_size=1,
        max_size=40,
    ),
    st.data(),
)
def test_timestamps_against_a_plain_search(
    batches: list[tuple[list[int], bool, int]], data: st.DataObject
) -> None:
    owner = Owner(config=dataclasses.replace(SMALL, run_bytes=300))
    owner.create()
    truth: list[tuple[int, int, int, bool]] = []  # offset, timestamp, base offset, transactional
    for stamps, transactional, compression in batches:
        batch = build_batch(
            [Record(None, b"v" * 30, timestamp=stamp) for stamp in stamps],
            compression=compression,
            attributes=TRANSACTIONAL_BIT if transactional else 0,
            producer_id=9 if transactional else -1,
            producer_epoch=0 if transactional else -1,
            base_sequence=owner.sequences.get((0, 9), (0, 0))[0] if transactional else -1,
        )
        if transactional:
            owner.sequences[0, 9] = (owner.sequences.get((0, 9), (0, 0))[0] + len(stamps), 0)
        base = owner.log.append(0, validate_produced(batch), batch).base_offset
        owner.append(1, b"between")
        owner.scheduler.advance(2)
        truth += [(base + number, stamp, base, transactional) for number, stamp in enumerate(stamps)]
    settle(owner)
    bounds = sorted({base for _, _, base, _ in truth} | {len(truth)})
    limit = data.draw(st.sampled_from(bounds))
    start = data.draw(st.sampled_from([0, 0, data.draw(st.integers(0, limit))]))
    hidden = data.draw(st.sets(st.sampled_from(bounds)))
    owner.log.partition(0).advance_log_start(start)
    visible = [
        (offset, stamp)
        for offset, stamp, base, transactional in truth
        if start <= offset < limit and not (transactional and base in hidden)
    ]

    def skip(producer_id: int, base_offset: int) -> bool:
        return base_offset in hidden

    for wanted in range(0, 62, 7):
        expected = next(((offset, stamp) for offset, stamp in visible if stamp >= wanted), None)
        assert owner.log.offset_for_timestamp(0, wanted, limit, skip) == expected
    latest = max(visible, key=lambda found: (found[1], -found[0]), default=None)
    assert owner.log.max_timestamp(0, limit, skip) == latest
