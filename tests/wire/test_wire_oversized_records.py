"""Records that will be refused by their size are left out of memory; all else about the request stays as it is."""

from __future__ import annotations

import random
import struct
from typing import Any
from uuid import UUID

import pytest

from wire import codec, framing, oversized_records
from wire.apis import ApiKey
from wire.batch import BATCH_HEADER_SIZE
from wire.connection import Connection, ProtocolError
from wire.framing import FrameError
from wire.guard import MalformedRequest
from wire.packing import pack_unsigned_varint

MOST = 300
"""What a topic takes here; LEFT_OUT_FROM_BYTES is smaller."""
VERSIONS = [3, 8, 9, 12, 13]
TOPIC_ID = UUID(int=5)


@pytest.fixture(autouse=True)
def small_frames_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "LARGE_FRAME_BYTES", 100)
    monkeypatch.setattr(framing, "LARGE_FRAME_BYTES", 100)
    monkeypatch.setattr(oversized_records, "LEFT_OUT_FROM_BYTES", 100)


def produce(version: int, topics: list[list[bytes | None]], tags: bytes = b"") -> bytes:
    """A frame, with `tags` in place of the tagged fields of the first partition where it is flexible."""
    entity = codec.build_request(
        ApiKey.PRODUCE,
        version,
        None,
        transactional_id="id",
        acks=-1,
        timeout=1000,
        topic_data=[
            ({"topic_id": TOPIC_ID} if version >= 13 else {"name": "t"})
            | {"partition_data": [{"index": at, "records": one} for at, one in enumerate(records)]}
            for records in topics
        ],
    )
    frame = codec.encode_request(ApiKey.PRODUCE, version, 7, "client", entity)
    if tags:
        first = topics[0][0]
        assert first is not None
        at = frame.index(first) + len(first)
        frame = frame[:at] + tags + frame[at + 1 :]
        frame = struct.pack(">i", len(frame) - 4) + frame[4:]
    return frame


class Peer:
    """Sends a frame in pieces to a connection that takes records up to a size."""

    def __init__(self, most: int = MOST) -> None:
        self.asked: set[str | UUID] = set()
        self.most = most
        self.passed_over = 0
        self.connection = Connection(most_bytes=self._most)

    def _most(self, topic: str | UUID) -> int:
        self.asked.add(topic)
        return self.most

    def send(self, frame: bytes, draw: random.Random, *, by_count: bool) -> list[Any]:
        """The messages; `by_count`: what is unwanted is counted and not handed over, where it is."""
        # Never whole in one piece: such a frame needs no memory of its own.
        requests = []
        position = 0
        while position < len(frame):
            unwanted = self.connection.unwanted_bytes
            if by_count and unwanted:
                size = draw.randint(1, unwanted)
                assert position + size <= len(frame)
                requests += self.connection.pass_over(size)
                self.passed_over += size
            else:
                size = draw.choice([1, draw.randint(1, 40), draw.randint(1, max(1, len(frame) // 3))])
                size = min(size, len(frame) - position - (position == 0))
                requests += self.connection.receive(frame[position : position + size])
            position += size
        return [codec.decode_request(one.api_key, one.api_version, one.body) for one in requests]


def records_of(message: Any) -> list[list[bytes | None]]:
    return [
        [None if part.records is None else bytes(part.records) for part in topic.partition_data]
        for topic in message.topic_data
    ]


def random_topics(draw: random.Random) -> list[list[bytes | None]]:
    sizes = [None, 0, 1, 60, 61, 62, 100, MOST - 1, MOST, MOST + 1, MOST + BATCH_HEADER_SIZE, 1000, 5000]
    return [
        [None if size is None else draw.randbytes(size) for size in draw.choices(sizes, k=draw.randint(0, 6))]
        for _ in range(draw.randint(1, 3))
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_oversized_and_nothing_else_is_left_out(version: int) -> None:
    left_out = 0
    for seed in range(150):
        draw = random.Random(seed)
        topics = random_topics(draw)
        frame = produce(version, topics)
        peer = Peer()
        (message,) = peer.send(frame, draw, by_count=seed % 3 > 0)
        assert (message.acks, message.transactional_id) == (-1, "id")
        assert len(message.topic_data) == len(topics)
        for found, sent in zip(records_of(message), topics, strict=True):
            for got, data in zip(found, sent, strict=True):
                if data is None or len(data) <= MOST:
                    assert got == data
                    continue
                assert got is not None
                assert len(got) == len(data)
                assert got[:BATCH_HEADER_SIZE] == data[:BATCH_HEADER_SIZE], "the header decides the error"
                # What came in one piece with what was before it is kept.
                assert all(one in (0, other) for one, other in zip(got, data, strict=True))
        left_out += peer.passed_over
        assert peer.asked <= {TOPIC_ID if version >= 13 else "t"}
        assert peer.connection.unwanted_bytes == 0
    assert left_out > 50_000


@pytest.mark.parametrize("version", VERSIONS)
def test_damaged_requests_end_as_they_would_have(version: int) -> None:
    """One byte, mostly of a length or a count, says something else."""

    def outcome(most: int, frame: bytes, seed: int, *, by_count: bool) -> tuple[Any, int]:
        peer = Peer(most)
        try:
            found: Any = [records_of(one) for one in peer.send(frame, random.Random(seed), by_count=by_count)]
        except (MalformedRequest, ProtocolError, FrameError, ValueError) as error:
            found = type(error).__name__
        return found, peer.passed_over

    refused = differ = 0
    for seed in range(300):
        draw = random.Random(seed)
        frame = bytearray(produce(version, random_topics(draw)))
        at = draw.choice([draw.randrange(4, min(60, len(frame))), draw.randrange(4, len(frame))])
        frame[at] = draw.choice([0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)])
        if len(frame) <= 104:
            continue
        kept, _ = outcome(1 << 30, bytes(frame), seed, by_count=False)
        for by_count in (False, True):
            found, _ = outcome(MOST, bytes(frame), seed, by_count=by_count)
            if isinstance(kept, str) or isinstance(found, str):
                assert found == kept
                refused += 1
                continue
            shape = [[[None if one is None else len(one) for one in topic] for topic in m] for m in found]
            assert shape == [
                [[None if one is None else len(one) for one in topic] for topic in m] for m in kept
            ]
            small = [[[one for one in t if one is None or len(one) <= MOST] for t in m] for m in found]
            assert small == [[[one for one in t if one is None or len(one) <= MOST] for t in m] for m in kept]
            differ += found != kept
    assert refused > 20
    assert differ > 20


@pytest.mark.parametrize("version", [9, 12, 13])
def test_tagged_fields_that_nobody_knows_are_passed(version: int) -> None:
    tags = b"\x02" + b"\x03\x02ab" + b"\x64" + pack_unsigned_varint(500) + bytes(500)
    topics: list[list[bytes | None]] = [[b"f" * 50, b"x" * 2000, b"y" * 200], [b"z" * 900]]
    peer = Peer()
    (message,) = peer.send(produce(version, topics, tags), random.Random(1), by_count=True)
    assert peer.passed_over > 1000
    assert [[len(one or b"") for one in topic] for topic in records_of(message)] == [[50, 2000, 200], [900]]
    assert records_of(message)[0][2] == b"y" * 200


def test_records_that_claim_to_reach_beyond_the_request_end_it() -> None:
    frame = bytearray(produce(3, [[b"r" * 1000]]))
    struct.pack_into(">i", frame, len(frame) - 1004, 0x7FFFFFFF)
    with pytest.raises(MalformedRequest):
        Peer().send(bytes(frame), random.Random(2), by_count=True)


def test_of_very_many_partitions_the_first_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oversized_records, "MAX_STEPS", 34)
    small: list[bytes | None] = [b"s" * 10] * 9
    topics = [[*small, b"x" * 5000, *small, b"y" * 5000]]
    peer = Peer()
    (message,) = peer.send(produce(9, topics), random.Random(3), by_count=True)
    assert 0 < peer.passed_over < 5000
    assert records_of(message)[0][-1] == b"y" * 5000


def test_no_more_is_passed_over_than_is_left_out() -> None:
    frame = produce(9, [[b"x" * 5000]])
    peer = Peer()
    with pytest.raises(ValueError, match="no large frame"):
        peer.connection.pass_over(1)
    peer.connection.receive(frame[:1000])
    unwanted = peer.connection.unwanted_bytes
    assert unwanted > 3000
    with pytest.raises(ValueError, match="left out"):
        peer.connection.pass_over(unwanted + 1)
    peer.connection.drop()
    assert peer.connection.buffered_bytes == 0
    with pytest.raises(FrameError):
        peer.connection.receive(frame)
