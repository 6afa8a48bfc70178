"""Compressions: round trips, and no data can make more of itself than the bound."""

from __future__ import annotations

import struct
import tracemalloc

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.batch import (
    COMPRESSION_GZIP,
    COMPRESSION_LZ4,
    COMPRESSION_NONE,
    COMPRESSION_SNAPPY,
    COMPRESSION_ZSTD,
)
from wire.compression import compress, decompress
from wire.errors import ErrorCode, KafkaError

ALL = [COMPRESSION_NONE, COMPRESSION_GZIP, COMPRESSION_SNAPPY, COMPRESSION_LZ4, COMPRESSION_ZSTD]
REAL = ALL[1:]
MIB = 1024 * 1024


def refused(compression: int, data: bytes, max_bytes: int = MIB) -> str:
    with pytest.raises(KafkaError) as caught:
        decompress(compression, data, max_bytes)
    assert caught.value.code is ErrorCode.corrupt_message
    return caught.value.message or ""


@given(st.sampled_from(ALL), st.binary(max_size=500), st.integers(0, 500))
def test_round_trip(compression: int, data: bytes, repeats: int) -> None:
    data *= repeats
    assert decompress(compression, compress(compression, data), max(len(data), 1)) == data


@pytest.mark.parametrize("compression", REAL)
def test_the_bound_is_exact(compression: int) -> None:
    data = b"0123456789" * 30_000
    packed = compress(compression, data)
    assert decompress(compression, packed, len(data)) == data
    assert "more than" in refused(compression, packed, len(data) - 1)


@pytest.mark.parametrize("compression", REAL)
def test_a_bomb_is_not_unpacked(compression: int) -> None:
    bomb = compress(compression, bytes(64 * MIB))
    tracemalloc.start()
    try:
        refused(compression, bomb)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * MIB + 2 * len(bomb)


def test_a_raw_snappy_block_may_not_claim_more_than_the_bound() -> None:
    assert "more than" in refused(COMPRESSION_SNAPPY, b"\xff\xff\xff\xff\x0f" + b"x" * 10)


@pytest.mark.parametrize("compression", REAL)
def test_damage_is_noticed(compression: int) -> None:
    packed = compress(compression, bytes(range(256)) * 20)
    refused(compression, packed[: len(packed) // 2])
    refused(compression, b"")
    refused(compression, b"garbage" * 10)


@pytest.mark.parametrize(
    "tail",
    [b"\0\0", struct.pack(">i", -1), struct.pack(">i", 100) + b"x" * 99, struct.pack(">i", 0)],
)
def test_damaged_snappy_streams(tail: bytes) -> None:
    refused(COMPRESSION_SNAPPY, b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + tail)
    refused(COMPRESSION_SNAPPY, b"\x82SNAPPY\0\0\0")


def test_lz4_blocks_stand_alone() -> None:
    """The Java client refuses frames with dependent blocks: bit 5 of the frame's flags."""
    assert compress(COMPRESSION_LZ4, b"x" * 200_000)[4] & 0x20


def test_several_members_are_one_stream() -> None:
    for module, compression in ((cramjam.gzip, COMPRESSION_GZIP), (cramjam.zstd, COMPRESSION_ZSTD)):
        two = bytes(module.compress(b"one ")) + bytes(module.compress(b"two"))
        assert decompress(compression, two, 100) == b"one two"


def test_an_unknown_compression() -> None:
    with pytest.raises(KafkaError) as caught:
        decompress(7, b"x", 10)
    assert caught.value.code is ErrorCode.unsupported_compression_type
    with pytest.raises(ValueError, match="unknown"):
        compress(7, b"x")
