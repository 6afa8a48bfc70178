"""Framing: any split gives the same frames, and no length makes the reader allocate."""

from __future__ import annotations

import struct
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.framing import FrameError, FrameReader

LIMIT = 1000
FRAMES = st.lists(st.binary(max_size=60), max_size=8)


def stream_of(frames: list[bytes]) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


def pieces_of(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[start:stop] for start, stop in pairwise(edges)]


@given(FRAMES, st.lists(st.integers(0, 10_000), max_size=12))
def test_any_split_gives_the_same_frames(frames: list[bytes], cuts: list[int]) -> None:
    reader = FrameReader(LIMIT)
    stream = stream_of(frames)
    got = [frame for piece in pieces_of(stream, cuts) for frame in reader.feed(piece)]
    assert got == frames
    assert all(frame.readonly for frame in got)
    assert reader.buffered_bytes == 0


@given(FRAMES)
def test_byte_by_byte(frames: list[bytes]) -> None:
    reader = FrameReader(LIMIT)
    stream = stream_of(frames)
    got = [frame for index in range(len(stream)) for frame in reader.feed(stream[index : index + 1])]
    assert got == frames


def test_frames_come_out_as_soon_as_they_are_whole() -> None:
    reader = FrameReader(LIMIT)
    assert reader.feed(b"\0\0") == []
    assert reader.feed(b"\0\x03ab") == []
    assert reader.buffered_bytes == 2
    assert reader.feed(b"c\0\0\0\0\0\0") == [b"abc", b""]
    assert reader.buffered_bytes == 2
    assert reader.feed(b"") == []


def test_a_whole_frame_is_not_copied() -> None:
    data = stream_of([b"abc", b"defg"])
    frames = FrameReader(LIMIT).feed(data)
    assert [frame.obj is data for frame in frames] == [True, True]


@pytest.mark.parametrize("length", [-1, -(1 << 31), LIMIT + 1, (1 << 31) - 1])
@pytest.mark.parametrize("split", [0, 2, 4])
def test_impossible_lengths_break_the_stream_for_good(length: int, split: int) -> None:
    data = stream_of([b"ok"]) + struct.pack(">i", length)
    reader = FrameReader(LIMIT)
    if split < 4:
        reader.feed(data[: 6 + split])
        data = data[6 + split :]
    with pytest.raises(FrameError, match=str(length)):
        reader.feed(data + b"more")
    with pytest.raises(FrameError):
        reader.feed(stream_of([b"ok"]))


def test_the_limit_itself_is_allowed() -> None:
    assert FrameReader(LIMIT).feed(stream_of([b"x" * LIMIT])) == [b"x" * LIMIT]


def test_memory_follows_what_arrived_not_what_was_claimed() -> None:
    tracemalloc.start()
    try:
        readers = [FrameReader(1 << 30) for _ in range(100)]
        for reader in readers:
            reader.feed(struct.pack(">i", 1 << 30))
            reader.feed(b"x" * 100)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 200_000


def test_a_trickle_costs_no_more_memory_than_the_frame() -> None:
    """One byte at a time must not leave an object for each byte."""
    reader = FrameReader(1 << 20)
    reader.feed(struct.pack(">i", 200_000))
    tracemalloc.start()
    try:
        for _ in range(100_000):
            reader.feed(b"x")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 300_000


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_random_bytes_give_frames_or_a_frame_error(pieces: list[bytes]) -> None:
    reader = FrameReader(LIMIT)
    try:
        for piece in pieces:
            reader.feed(piece)
            assert reader.buffered_bytes <= LIMIT
    except FrameError:
        return
