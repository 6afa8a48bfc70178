"""Large Produce requests that lie: the answer is the one that the same bytes get where all of them are kept, that
connection alone is harmed, and its memory comes back."""

from __future__ import annotations

import gc
import struct
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from support.sim_node import SimClient, SimNode, batch

from broker.handlers.produce import MANY_PARTITIONS, PARTITION_BYTES, TURN_BYTES
from broker.large_requests import LargeRequests
from broker.session import Session
from wire.apis import ApiKey
from wire.batch import BATCH_HEADER_SIZE
from wire.framing import LARGE_FRAME_BYTES
from wire.guard import MAX_ITEMS

SIZE = LARGE_FRAME_BYTES + (1 << 20)
PIECE = 100_000
SMALL = batch(b"small")


def head(length: int, magic: int = 2) -> bytes:
    """A batch's header that claims so many bytes behind its first 12."""
    return struct.pack(">qiib", 0, length, -1, magic) + bytes(BATCH_HEADER_SIZE - 17)


def oversized(length: int | None = None, magic: int = 2, size: int = SIZE) -> bytes:
    return head(size - 12 if length is None else length, magic) + b"\x5a" * (size - BATCH_HEADER_SIZE)


def produce(
    records: list[bytes],
    *,
    topic: bytes = b"t",
    acks: int = -1,
    first: int = 0,
    sizes: dict[int, int] | None = None,
    correlation: int = 1,
) -> bytes:
    """A frame of version 3, by hand; `sizes`: what is claimed of single records fields."""
    out = bytearray(struct.pack(">hhihhhii", ApiKey.PRODUCE, 3, correlation, -1, -1, acks, 1000, 1))
    out += struct.pack(">h", len(topic)) + topic + struct.pack(">i", len(records))
    for at, one in enumerate(records):
        out += struct.pack(">ii", first + at, (sizes or {}).get(at, len(one))) + one
    return struct.pack(">i", len(out)) + bytes(out)


def world_of_topic(**configs: str) -> tuple[SimNode, SimClient]:
    world = SimNode()
    client = world.client()
    topic = {
        "name": "t",
        "num_partitions": 3,
        "replication_factor": 1,
        "assignments": [],
        "configs": [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()],
    }
    (created,) = client.ask(ApiKey.CREATE_TOPICS, 5, topics=[topic], timeout=1000).topics
    assert created.error_code is ErrorCode.none
    return world, client


def send(client: SimClient, frames: list[bytes], piece: int) -> None:
    for frame in frames:
        client._asked.append((ApiKey.PRODUCE, 3, int.from_bytes(frame[8:12], "big")))
    data = b"".join(frames)
    for at in range(0, len(data), piece):
        if not client.closed:
            client.session.received(data[at : at + piece])


def codes(answer: Any) -> list[ErrorCode]:
    return [part.error_code for topic in answer.responses for part in topic.partition_responses]


def outcome(world: SimNode, frame: bytes, piece: int) -> list[ErrorCode] | str:
    client = world.client()
    send(client, [frame], piece)
    world.scheduler.run_until(lambda: client.closed or 1 in client.answers)
    return "closed" if client.closed else codes(client.answers[1])


E = ErrorCode
CASES: list[tuple[str, bytes, list[ErrorCode] | str]] = [
    ("too large", produce([oversized(), SMALL]), [E.message_too_large, E.none]),
    ("claims one byte more", produce([oversized(SIZE - 11)]), [E.corrupt_message]),
    ("claims one byte less", produce([oversized(SIZE - 13)]), [E.invalid_record]),
    ("claims a small batch", produce([oversized(100)]), [E.invalid_record]),
    ("claims no header", produce([oversized(BATCH_HEADER_SIZE - 13)]), [E.corrupt_message]),
    ("claims a negative length", produce([oversized(-1)]), [E.corrupt_message]),
    ("claims all there is", produce([oversized(0x7FFFFFFF)]), [E.corrupt_message]),
    ("old format", produce([oversized(magic=1)]), [E.unsupported_for_message_format]),
    ("no format", produce([oversized(magic=9)]), [E.corrupt_message]),
    (
        "cut in its header, beside one too large",
        produce([oversized(), head(49)[:60], SMALL]),
        [E.message_too_large, E.corrupt_message, E.none],
    ),
    (
        "a header alone, before one too large",
        produce([head(49), oversized(), SMALL]),
        [E.corrupt_message, E.message_too_large, E.none],
    ),
    ("two too large", produce([oversized(), oversized(100)]), [E.message_too_large, E.invalid_record]),
    ("no such topic", produce([oversized()], topic=b"x"), [E.unknown_topic_or_partition]),
    (
        "no such partition",
        produce([oversized(), SMALL], first=2),
        [E.message_too_large, E.unknown_topic_or_partition],
    ),
    ("a negative partition", produce([oversized()], first=-1), [E.unknown_topic_or_partition]),
    ("no such acks", produce([oversized()], acks=5), [E.invalid_required_acks]),
    ("nobody waits", produce([oversized()], acks=0), "closed"),
    ("records beyond the request", produce([oversized()], sizes={0: SIZE + 1}), "closed"),
    ("records beyond anything", produce([oversized()], sizes={0: 0x7FFFFFFF}), "closed"),
    ("a negative size", produce([oversized()], sizes={0: -2}), "closed"),
    ("records that end early", produce([oversized(), SMALL], sizes={0: SIZE - 1}), "closed"),
    ("a name that is no text", produce([oversized()], topic=b"\xff\xfe"), "closed"),
]


@pytest.mark.parametrize(("frame", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_it_is_answered_as_if_all_were_kept(frame: bytes, expected: list[ErrorCode] | str) -> None:
    world, other = world_of_topic()
    assert outcome(world, frame, len(frame)) == expected, "in one piece, so that nothing is left out"
    assert outcome(world, frame, PIECE) == expected
    # Others write on, and what follows on the same connection is read from its beginning.
    send(other, [produce([SMALL], correlation=50)], PIECE)
    if expected != "closed":
        client = world.client()
        send(client, [frame, produce([SMALL], correlation=2), frame], PIECE)
        world.scheduler.run_until(lambda: 2 in client.answers and not client._asked)
        assert codes(client.answers[2]) == [E.none]
    world.scheduler.run_until(lambda: 50 in other.answers)
    assert codes(other.answers[50]) == [E.none]


def test_one_that_is_refused_between_two_that_are_taken() -> None:
    world, client = world_of_topic(max_message_bytes="3000000")
    taken = [batch(bytes(2_000_000)) for _ in range(3)]
    frames = [
        produce(taken, correlation=1),
        produce([oversized(), taken[0], oversized()], correlation=2),
        produce(taken, correlation=3),
    ]
    client.answers.clear()
    send(client, frames, PIECE)
    world.scheduler.run_until(lambda: len(client.answers) == 3)
    assert list(client.answers) == [1, 2, 3]
    assert [codes(one) for one in client.answers.values()] == [
        [E.none] * 3,
        [E.message_too_large, E.none, E.message_too_large],
        [E.none] * 3,
    ]


@pytest.mark.parametrize("records", [b"", SMALL])
def test_very_many_partitions_take_turns(records: bytes) -> None:
    """Though all of them come in one small request: whoever else is there waits for a few hundred."""
    world, client = world_of_topic()
    other = world.client()
    many = 10 * MANY_PARTITIONS
    send(client, [produce([records] * many, correlation=30)], 1 << 20)
    asked = other.send(ApiKey.API_VERSIONS, 2)
    waited = 0
    for _ in range(many * PARTITION_BYTES // TURN_BYTES - 2):
        world.scheduler.run_turn()
        assert 30 not in client.answers
        waited += asked not in other.answers
    assert waited <= 2
    world.scheduler.run_until(lambda: 30 in client.answers)
    found = codes(client.answers[30])
    assert found == [E.none if records else E.invalid_record] * 3 + [E.unknown_topic_or_partition] * (
        many - 3
    )


def test_more_items_than_partitions_can_be_end_the_connection() -> None:
    world, client = world_of_topic()
    send(client, [produce([b""] * (MAX_ITEMS + 1))], 1 << 20)
    assert client.closed
    assert not world.client().closed


def set_limit(client: SimClient, most: int) -> None:
    configs = [{"name": "max.message.bytes", "config_operation": 0, "value": str(most)}]
    answer = client.ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        resources=({"resource_type": 2, "resource_name": "t", "configs": configs},),
        validate_only=False,
    )
    assert [one.error_code for one in answer.responses] == [E.none]


def test_the_limit_is_the_topics() -> None:
    """What a topic with a higher limit takes is kept; where the limit changes meanwhile no part of it is appended."""
    world, other = world_of_topic(max_message_bytes=str(2 * SIZE))
    frame = produce([batch(b"v" * SIZE)])
    assert outcome(world, frame, PIECE) == [E.none]
    for before, after, expected in (
        (2 * SIZE, 1000, E.message_too_large),
        (1000, 2 * SIZE, E.corrupt_message),
    ):
        set_limit(other, before)
        client = world.client()
        send(client, [frame[: SIZE // 2]], PIECE)
        set_limit(other, after)
        rest = frame[SIZE // 2 :]
        for at in range(0, len(rest), PIECE):
            client.session.received(rest[at : at + PIECE])
        world.scheduler.run_until(lambda client=client: 1 in client.answers)  # type: ignore[misc]
        assert codes(client.answers[1]) == [expected]
    topic = world.node.topics.get("t")
    assert topic is not None
    assert topic.partitions[0].log.partition(0).end_offset == 1


def test_memory_of_a_connection_that_ends_comes_back_by_itself() -> None:
    """Nobody waits for a collection of garbage, which may be far off."""
    world, client = world_of_topic()
    due: list[tuple[Any, ...]] = []
    pool = LargeRequests(lambda *call: due.append(call), lambda _, step: due.append((step,)), 3 * SIZE)
    frames = [produce([oversized()]), produce([SMALL] * 60_000)]
    gc.disable()
    try:
        for frame in frames:
            for end in ("lost", "close"):
                session = Session(world.node, client, "peer", allocate=pool.allocate)
                assert len(frame) <= 2 * SIZE
                session.received(frame[:PIECE])
                session.received(frame[PIECE : 2 * PIECE])
                assert pool.held_bytes > 0
                if end == "lost":
                    session.lost()
                else:
                    session.close("the test says so")
                while due:
                    call = due.pop(0)
                    call[0](*call[1:])
                assert pool.held_bytes == 0, end
                assert session.closed
    finally:
        gc.enable()
