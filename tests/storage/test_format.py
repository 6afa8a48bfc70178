from __future__ import annotations

import uuid
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage.format import (
    ENTRY,
    ENTRY_AND_BATCH,
    ENTRY_HEADER_BYTES,
    GUARDED_BYTES,
    HEADER_BLOCK_BYTES,
    TRAILER_BYTES,
    CorruptLog,
    Trailer,
    UnknownFormat,
    checkpoint_name,
    decode_checkpoint,
    decode_header_block,
    decode_trailer,
    encode_checkpoint,
    encode_end_mark,
    encode_header_block,
    encode_trailer,
    entry_is_valid,
    parse_name,
    segment_name,
    settled_name,
)
from wire.batch import BATCH_HEADER_SIZE

TOPIC = uuid.UUID(int=77)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)


@given(st.uuids(), u64, u32, u32, u32, u64, st.lists(u64, max_size=5))
def test_header_block_round_trip(
    topic: uuid.UUID, segment_id: int, first: int, last: int, term: int, created_ms: int, parents: list[int]
) -> None:
    block = encode_header_block(topic, segment_id, first, last, term, created_ms, tuple(parents))
    assert len(block) == HEADER_BLOCK_BYTES
    header = decode_header_block(block, "x")
    assert header[:7] == (topic, segment_id, first, last, term, created_ms, tuple(parents))
    assert header.salt == int.from_bytes(block[-4:], "big")


@pytest.mark.parametrize("position", [*range(80), 2000, HEADER_BLOCK_BYTES - 1])
def test_damaged_header_block_is_refused(position: int) -> None:
    block = bytearray(encode_header_block(TOPIC, 1, 0, 3, 2, 5, (9,)))
    block[position] ^= 0x20
    with pytest.raises(CorruptLog) as caught:
        decode_header_block(bytes(block), "some/file.seg")
    assert caught.value.path == "some/file.seg"
    assert not isinstance(caught.value, UnknownFormat)


def test_cut_off_header_block_is_refused() -> None:
    block = encode_header_block(TOPIC, 1, 0, 3, 2, 5, ())
    with pytest.raises(CorruptLog, match="inside its header block"):
        decode_header_block(block[:100], "x")


def test_unknown_version_is_told_from_damage() -> None:
    block = bytearray(encode_header_block(TOPIC, 1, 0, 3, 2, 5, ()))
    block[8:10] = (3).to_bytes(2, "big")
    block[-4:] = crc32c(bytes(block[:-4])).to_bytes(4, "big")
    with pytest.raises(UnknownFormat, match="format version 3 is unknown, this program reads 2"):
        decode_header_block(bytes(block), "x")


def test_too_many_parents() -> None:
    with pytest.raises(ValueError, match="parents"):
        encode_header_block(TOPIC, 1, 0, 3, 2, 5, tuple(range(300)))


def test_sizes() -> None:
    assert ENTRY.size == ENTRY_HEADER_BYTES == 32
    assert ENTRY_AND_BATCH.size == ENTRY_HEADER_BYTES + BATCH_HEADER_SIZE == GUARDED_BYTES


@given(u32, u32, u32, u32, u32)
def test_trailer_round_trip(salt: int, a: int, b: int, c: int, d: int) -> None:
    packed = encode_trailer(salt, Trailer(a, b, c, d))
    assert len(packed) == TRAILER_BYTES
    assert decode_trailer(packed, salt) == (a, b, c, d)
    assert decode_trailer(packed, salt ^ 1) is None
    assert decode_trailer(packed[:-1], salt) is None


@pytest.mark.parametrize("position", range(TRAILER_BYTES))
def test_damaged_trailer_is_none(position: int) -> None:
    packed = bytearray(encode_trailer(5, Trailer(1, 2, 3, 4)))
    packed[position] ^= 1
    assert decode_trailer(bytes(packed), 5) is None


@given(st.recursive(st.none() | st.integers(0, 2**40) | st.binary(), st.lists, max_leaves=8))
def test_checkpoint_round_trip(body: Any) -> None:
    assert decode_checkpoint(encode_checkpoint(7, body), 7) == body


def test_damaged_checkpoint_is_as_good_as_absent() -> None:
    packed = encode_checkpoint(7, [1, b"abc", [2]])
    for position in range(len(packed)):
        # The two padding bytes of the frame are the only ones that say nothing.
        if position not in (10, 11):
            damaged = bytearray(packed)
            damaged[position] ^= 1
            assert decode_checkpoint(bytes(damaged), 7) is None
        assert decode_checkpoint(packed[:position], 7) is None
    assert decode_checkpoint(packed + b"x", 7) is None
    assert decode_checkpoint(packed, 8) is None


def test_names() -> None:
    assert parse_name(segment_name(12)) == (12, ".seg", 0)
    assert parse_name(segment_name(12, 3)) == (12, ".seg", 3)
    assert parse_name(checkpoint_name(12)) == (12, ".ckpt", 0)
    assert parse_name(settled_name(12)) == (12, ".settled", 0)
    assert parse_name(settled_name(12, 3)) == (12, ".settled", 3)
    assert parse_name(settled_name(12, 3) + ".tmp") == (12, ".settled.tmp", 3)
    assert parse_name(checkpoint_name(12) + ".tmp") == (12, ".ckpt.tmp", 0)
    for stranger in (
        "12.seg",
        "LOCK",
        segment_name(1) + ".bak",
        "x" * 20 + ".seg",
        f"{1:020d}.0.seg",
        f"{1:020d}.3.ckpt",
    ):
        assert parse_name(stranger) is None


@pytest.mark.parametrize(("version", "size"), [(1, 53), (2, 93)])
def test_end_mark_is_an_entry_of_its_place_alone(version: int, size: int) -> None:
    block = bytearray(encode_header_block(TOPIC, 1, 0, 3, 2, 5, ()))
    block[8:10] = version.to_bytes(2, "big")
    block[-4:] = crc32c(bytes(block[:-4])).to_bytes(4, "big")
    header = decode_header_block(bytes(block), "x")
    mark = memoryview(encode_end_mark(header, 5000))
    assert len(mark) == size == header.guarded_bytes
    assert entry_is_valid(mark, header.salt, 5000)
    assert not entry_is_valid(mark, header.salt, 5001)
    assert not entry_is_valid(mark, header.salt ^ 1, 5000)
