"""Frames: round trips, every possible damage noticed, and what lies behind damage understood."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txn.metastore.errors import CorruptStore, UnknownFormat
from txn.metastore.frames import (
    BATCH,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    HEADER_BYTES,
    LOG,
    MARK,
    SNAPSHOT,
    Frame,
    FrameReader,
    Tail,
    check_file_header,
    encode_file_header,
    encode_frame_header,
)

NUMBER = 7


def encode(payloads: list[bytes], *, durable: dict[int, int] | None = None, number: int = NUMBER) -> bytes:
    """Frames 1, 2, ... of a file, without its header; `durable` says what a frame claims, by its lsn."""
    data = b""
    for lsn, payload in enumerate(payloads, start=1):
        claim = (durable or {}).get(lsn, 0)
        data += encode_frame_header(number, HEADER_BYTES + len(data), BATCH, lsn, claim, payload) + payload
    return data


def read(data: bytes, *, piece: int = 1 << 20, number: int = NUMBER) -> tuple[list[Frame], Tail]:
    reader = FrameReader(number)
    frames = [frame for at in range(0, len(data), piece) for frame in reader.feed(data[at : at + piece])]
    return frames, reader.finish()


@given(
    payloads=st.lists(st.binary(max_size=200), max_size=8),
    zeros=st.integers(0, 300),
    piece=st.integers(1, 400),
)
def test_round_trip_in_pieces_of_any_size(payloads: list[bytes], zeros: int, piece: int) -> None:
    data = encode(payloads)
    frames, tail = read(data + bytes(zeros), piece=piece)
    assert [frame.payload for frame in frames] == payloads
    assert [frame.lsn for frame in frames] == list(range(1, len(payloads) + 1))
    assert tail == Tail(HEADER_BYTES + len(data), 0, 0, "")


@given(
    payloads=st.lists(st.binary(max_size=60), min_size=1, max_size=5),
    at=st.integers(0),
    flip=st.integers(1, 255),
    piece=st.integers(1, 400),
)
def test_any_damaged_byte_ends_the_good_frames(payloads: list[bytes], at: int, flip: int, piece: int) -> None:
    data = bytearray(encode(payloads))
    at %= len(data)
    data[at] ^= flip
    frames, tail = read(bytes(data), piece=piece)
    intact = []
    end = 0
    for payload in payloads:
        end += FRAME_HEADER_BYTES + len(payload)
        if end > at:
            break
        intact.append(payload)
    assert [frame.payload for frame in frames] == intact
    assert tail.position == HEADER_BYTES + sum(FRAME_HEADER_BYTES + len(p) for p in intact)
    assert tail.reason


@given(payloads=st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=4), cut=st.integers(1))
def test_a_frame_cut_short(payloads: list[bytes], cut: int) -> None:
    data = encode(payloads)
    last = FRAME_HEADER_BYTES + len(payloads[-1])
    data = data[: len(data) - last + cut % last]
    frames, tail = read(data)
    assert len(frames) == len(payloads) - 1
    assert tail.position == HEADER_BYTES + len(data) - cut % last
    assert tail.dropped_bytes == len(data.rstrip(b"\0")) - (tail.position - HEADER_BYTES) or not tail.reason


@pytest.mark.parametrize("piece", [1, 3, 50, 1 << 20])
class TestWhatLiesBehindDamage:
    def damaged(self, piece: int, durable: dict[int, int], *, lost: int = 2) -> Tail:
        """Frames 1 to 5 with the payload of frame `lost` zeroed."""
        data = encode([b"x" * 50] * 5, durable=durable)
        size = FRAME_HEADER_BYTES + 50
        at = (lost - 1) * size + FRAME_HEADER_BYTES
        frames, tail = read(data[:at] + bytes(50) + data[at + 50 :] + bytes(100), piece=piece)
        assert len(frames) == lost - 1
        assert tail.position == HEADER_BYTES + (lost - 1) * size
        return tail

    def test_the_end_of_an_unfinished_write(self, piece: int) -> None:
        tail = self.damaged(piece, {3: 1, 4: 1, 5: 1})
        assert tail.claimed_lsn == 1
        assert tail.dropped_bytes == 4 * (FRAME_HEADER_BYTES + 50)

    def test_a_later_frame_says_that_it_was_durable(self, piece: int) -> None:
        assert self.damaged(piece, {3: 1, 4: 3, 5: 2}).claimed_lsn == 3

    def test_what_damaged_frames_claim_counts_for_nothing(self, piece: int) -> None:
        assert self.damaged(piece, {2: 1, 3: 1}, lost=2).claimed_lsn == 1
        data = bytearray(encode([b"x" * 50] * 3, durable={3: 2}))
        size = FRAME_HEADER_BYTES + 50
        data[size + 60] ^= 1
        data[2 * size + 60] ^= 1
        assert read(bytes(data), piece=piece)[1].claimed_lsn == 0

    def test_a_wrong_length_hides_nothing(self, piece: int) -> None:
        data = bytearray(encode([b"x" * 50] * 3, durable={3: 2}))
        size = FRAME_HEADER_BYTES + 50
        for length in (1, 51, 5000, 0x7FFFFFFF, 0xFFFFFFFF):
            data[size + 8 : size + 12] = length.to_bytes(4, "little")
            frames, tail = read(bytes(data), piece=piece)
            assert len(frames) == 1
            assert tail.claimed_lsn == 2, length

    def test_frames_within_a_payload_are_no_frames(self, piece: int) -> None:
        """A value may hold a copy of a log: its frames are elsewhere, or of another file."""
        inner = encode([b"a", b"b"], durable={1: 9, 2: 9})
        at = FRAME_HEADER_BYTES + 30
        elsewhere = encode_frame_header(NUMBER + 1, HEADER_BYTES + at, BATCH, 1, 9, b"")
        payload = b"y" * 30 + elsewhere + inner + FRAME_MAGIC
        data = bytearray(encode([payload, b"z"], durable={2: 0}))
        data[FRAME_HEADER_BYTES] ^= 1
        assert read(bytes(data), piece=piece)[1].claimed_lsn == 0


def test_a_frame_of_another_file_is_not_taken() -> None:
    frames, tail = read(encode([b"a"]), number=NUMBER + 1)
    assert frames == []
    assert tail.reason == "the frame's checksum is wrong"


def test_a_frame_at_another_place_is_not_taken() -> None:
    data = encode([b"a" * 20, b"b" * 20])
    frames, tail = read(data[FRAME_HEADER_BYTES + 20 :])
    assert frames == []
    assert "belongs at byte" in tail.reason


def test_a_mark_has_no_payload() -> None:
    (frame,), _ = read(encode_frame_header(NUMBER, HEADER_BYTES, MARK, 5, 5, b""))
    assert frame == Frame(MARK, 5, 5, HEADER_BYTES, b"")


class TestFileHeader:
    def test_round_trip(self) -> None:
        header = encode_file_header(LOG, 3)
        assert len(header) == HEADER_BYTES
        check_file_header("log", header, LOG, 3)

    @pytest.mark.parametrize("size", [0, 8, 27])
    def test_too_short(self, size: int) -> None:
        with pytest.raises(CorruptStore) as caught:
            check_file_header("log", encode_file_header(LOG, 3)[:size], LOG, 3)
        assert (caught.value.file, caught.value.position) == ("log", 0)

    @pytest.mark.parametrize("at", [at for at in range(28) if not 8 <= at < 12])
    def test_any_damaged_byte(self, at: int) -> None:
        header = bytearray(encode_file_header(LOG, 3))
        header[at] ^= 1
        with pytest.raises(CorruptStore, match="header is damaged"):
            check_file_header("log", bytes(header), LOG, 3)

    def test_another_format_version(self) -> None:
        header = bytearray(encode_file_header(LOG, 3))
        header[8] = 2
        with pytest.raises(UnknownFormat, match=r"log: written in format version 2; this version .* reads 1"):
            check_file_header("log", bytes(header), LOG, 3)

    @pytest.mark.parametrize(("kind", "number"), [(SNAPSHOT, 3), (LOG, 4)])
    def test_a_file_under_another_name(self, kind: int, number: int) -> None:
        with pytest.raises(CorruptStore, match="renamed"):
            check_file_header("log", encode_file_header(kind, number), LOG, 3)
