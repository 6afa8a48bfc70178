"""Large requests: their memory comes back in pieces and is bounded, their records are not copied, and a large Produce
is appended over several turns in which others are served, in the order of its connection."""

from __future__ import annotations

import gc
import struct
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from support.sim_node import SimClient, SimNode, batch

from broker.handlers.produce import TURN_BYTES
from broker.large_requests import PIECE_BYTES, REST_MS, LargeRequests
from wire import codec
from wire.apis import ApiKey
from wire.connection import Connection, ProtocolError
from wire.framing import LARGE_FRAME_BYTES, FrameError, FrameReader
from wire.guard import MalformedRequest
from wire.header import MAX_OTHER_REQUEST_BYTES

SIZE = LARGE_FRAME_BYTES + PIECE_BYTES + 100


class Turns:
    """As much of a loop as is asked for."""

    def __init__(self) -> None:
        self.due: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        self.due.append((callback, args))

    def call_later(self, delay_ms: float, callback: Callable[..., Any]) -> None:
        assert delay_ms == REST_MS
        self.due.append((callback, ()))

    def run(self) -> None:
        due, self.due = self.due, []
        for callback, args in due:
            callback(*args)


def test_memory_comes_back_in_pieces_when_the_last_view_is_gone() -> None:
    turns = Turns()
    pool = LargeRequests(turns.call_soon, turns.call_later, 10 * SIZE)
    reader = FrameReader(SIZE, pool.allocate)
    data = bytes(range(256)) * (SIZE // 256 + 1)
    assert reader.feed(struct.pack(">i", SIZE) + data[:1000]) == []
    (frame, other) = reader.feed(data[1000:SIZE] + struct.pack(">i", 1) + b"x")
    assert other == b"x"
    assert frame == data[:SIZE]
    assert frame.readonly
    part = frame[100:200]
    del frame
    assert not turns.due, "somebody looks at it still"
    assert part == data[100:200]
    assert pool.held_bytes == SIZE
    del part
    held = []
    while turns.due:
        assert len(turns.due) == 1
        turns.run()
        held.append(pool.held_bytes)
    assert held == [*range(SIZE - PIECE_BYTES, 0, -PIECE_BYTES), 0]


def test_it_comes_back_from_a_cycle_and_from_another_thread() -> None:
    turns = Turns()
    pool = LargeRequests(turns.call_soon, turns.call_later, 10 * SIZE)
    cycle: list[Any] = [pool.allocate(SIZE)]
    cycle.append(cycle)
    del cycle
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
    while turns.due:
        turns.run()
    assert pool.held_bytes == 0


def test_all_together_have_a_limit() -> None:
    turns = Turns()
    pool = LargeRequests(turns.call_soon, turns.call_later, 2 * SIZE)
    begin = struct.pack(">i", SIZE)
    first, second, third = (FrameReader(SIZE, pool.allocate) for _ in range(3))
    first.feed(begin)
    second.feed(begin + b"x")
    with pytest.raises(FrameError, match="limit"):
        third.feed(begin)
    with pytest.raises(FrameError):
        third.feed(b"more")
    del first
    while turns.due:
        turns.run()
    FrameReader(SIZE, pool.allocate).feed(begin)


@pytest.mark.parametrize(
    ("api_key", "version", "size", "refused"),
    [
        (ApiKey.PRODUCE, 9, 64 << 20, None),
        (ApiKey.PRODUCE, 0, 64 << 20, "not served"),
        (999, 0, LARGE_FRAME_BYTES + 1, "not served"),
        (ApiKey.OFFSET_COMMIT, 8, MAX_OTHER_REQUEST_BYTES, None),
        (ApiKey.OFFSET_COMMIT, 8, MAX_OTHER_REQUEST_BYTES + 1, "no records"),
    ],
)
def test_a_large_request_is_refused_by_its_beginning(
    api_key: int, version: int, size: int, refused: str | None
) -> None:
    connection = Connection(max_frame_bytes=100 << 20)
    begin = struct.pack(">ihh", size, api_key, version)
    assert connection.receive(begin[:6]) == []
    if refused is None:
        assert connection.receive(begin[6:]) == []
        assert connection.buffered_bytes == 4
    else:
        with pytest.raises(ProtocolError, match=refused):
            connection.receive(begin[6:])


def parts(records: list[Any]) -> list[dict[str, Any]]:
    return [{"index": index, "records": one} for index, one in enumerate(records)]


def produce(version: int, records: list[Any], transactional_id: str | None = None) -> bytes:
    """A frame of one topic with a partition for each."""
    entity = codec.build_request(
        ApiKey.PRODUCE,
        version,
        None,
        transactional_id=transactional_id,
        acks=-1,
        timeout=1000,
        topic_data=[{"name": "t", "partition_data": parts(records)}],
    )
    return codec.encode_request(ApiKey.PRODUCE, version, 7, "c", entity)


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_large_ones_are_decoded_as_all_others_without_a_copy(version: int) -> None:
    large = [bytes([number]) * (3 << 20) for number in range(3)]
    records = [large[0], None, b"", b"small", *large[1:]]
    (request,) = Connection(max_frame_bytes=64 << 20).receive(produce(version, records))
    message = codec.decode_request(ApiKey.PRODUCE, version, request.body)
    (topic,) = message.topic_data
    assert (message.acks, message.transactional_id, topic.name) == (-1, None, "t")
    assert [(part.index, part.records) for part in topic.partition_data] == list(enumerate(records))
    assert topic.partition_data[-1].records.obj is request.body.obj


def test_what_is_large_beside_records_is_refused() -> None:
    frame = produce(9, [b"x"], transactional_id="t" * (LARGE_FRAME_BYTES + 1))
    (request,) = Connection(max_frame_bytes=64 << 20).receive(frame)
    with pytest.raises(MalformedRequest, match="beside its records"):
        codec.decode_request(ApiKey.PRODUCE, 9, request.body)
    for cut in (1, 20, LARGE_FRAME_BYTES // 2):
        (request,) = Connection(max_frame_bytes=64 << 20).receive(produce(9, [bytes(6 << 20)]))
        with pytest.raises(MalformedRequest):
            codec.decode_request(ApiKey.PRODUCE, 9, request.body[:-cut])


PARTITIONS = 12
VALUE = bytes(900_000)


def send(client: SimClient, sequence: int, records: int = PARTITIONS) -> int:
    made = [batch(VALUE, producer_id=5, epoch=0, sequence=sequence) for _ in range(records)]
    return client.send(
        ApiKey.PRODUCE,
        9,
        transactional_id=None,
        acks=-1,
        timeout=1000,
        topic_data=[{"name": "t", "partition_data": parts(made)}],
    )


def codes(answer: Any) -> list[ErrorCode]:
    return [part.error_code for topic in answer.responses for part in topic.partition_responses]


def world_of_topic() -> tuple[SimNode, SimClient]:
    world = SimNode()
    client = world.client()
    topic = {
        "name": "t",
        "num_partitions": PARTITIONS,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }
    client.ask(ApiKey.CREATE_TOPICS, 5, topics=[topic], timeout=1000)
    return world, client


def end_offsets(world: SimNode) -> int:
    topic = world.node.topics.get("t")
    assert topic is not None
    return sum(
        world.node.topics.partition(topic, at).log.partition(at).end_offset for at in range(PARTITIONS)
    )


def test_it_takes_turns_and_the_next_request_waits_for_it() -> None:
    world, client = world_of_topic()
    other = world.client()
    numbers = [send(client, 0), send(client, 1), send(client, 2, 1)]
    asked = other.send(ApiKey.API_VERSIONS, 2)
    ends = [end_offsets(world)]
    while end_offsets(world) < 2 * PARTITIONS + 1:
        world.scheduler.run_turn()
        ends.append(end_offsets(world))
        assert asked in other.answers or len(ends) < 4, "others are served meanwhile"
    assert max(after - before for before, after in pairwise(ends)) <= TURN_BYTES // len(VALUE) + 2
    world.scheduler.run_until(lambda: len(client.answers) == 4)
    assert [set(codes(client.answers[number])) for number in numbers] == [{ErrorCode.none}] * 3


def test_of_a_connection_that_is_lost_no_more_is_appended() -> None:
    world, client = world_of_topic()
    send(client, 0)
    world.scheduler.run_turn()
    appended = end_offsets(world)
    client.session.lost()
    world.scheduler.advance(100)
    assert 0 < appended == end_offsets(world) < PARTITIONS


def test_a_transaction_that_ends_meanwhile_takes_no_more() -> None:
    world, client = world_of_topic()
    other = world.client()
    held = other.ask(ApiKey.INIT_PRODUCER_ID, 3, transactional_id="id", transaction_timeout=60_000)
    other.ask(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        v3_and_below_transactional_id="id",
        v3_and_below_producer_id=held.producer_id,
        v3_and_below_producer_epoch=held.producer_epoch,
        v3_and_below_topics=[{"name": "t", "partitions": list(range(PARTITIONS))}],
    )
    made = [
        batch(VALUE, producer_id=held.producer_id, epoch=held.producer_epoch, sequence=0, transactional=True)
        for _ in range(PARTITIONS)
    ]
    number = client.send(
        ApiKey.PRODUCE,
        9,
        transactional_id="id",
        acks=-1,
        timeout=1000,
        topic_data=[{"name": "t", "partition_data": parts(made)}],
    )
    world.scheduler.run_turn()
    ended = other.send(
        ApiKey.END_TXN,
        3,
        transactional_id="id",
        producer_id=held.producer_id,
        producer_epoch=held.producer_epoch,
        committed=True,
    )
    world.scheduler.run_until(lambda: number in client.answers and ended in other.answers)
    assert other.answers[ended].error_code == ErrorCode.none
    found = codes(client.answers[number])
    accepted = found.count(ErrorCode.none)
    assert 0 < accepted < PARTITIONS
    assert set(found[accepted:]) == {ErrorCode.invalid_txn_state}
    assert end_offsets(world) == accepted
