"""Where a fetch's answer ends, and that every partition gets its turn when its client would take more."""

from __future__ import annotations

from typing import Any

from support.sim_node import SimClient, SimNode, batch
from support.sim_producer import batches, create_topic, fetch_fields, produce_fields

from broker.config import Limits
from wire.apis import ApiKey
from wire.errors import ErrorCode

PARTITIONS = 3
ANSWER_BYTES = 4_000
WITHOUT_LIMIT = 1 << 26


def filled() -> SimClient:
    """A client of a broker with 20 batches of about 1 KB in each partition of the topic t."""
    world = SimNode(limits=Limits(fetch_answer_bytes=ANSWER_BYTES))
    client = SimClient(world.node, world.scheduler)
    create_topic(client, "t", PARTITIONS)
    for _ in range(20):
        answer = client.ask(
            ApiKey.PRODUCE, 9, **produce_fields("t", {p: batch(b"x" * 900) for p in range(PARTITIONS)})
        )
        for part in answer.responses[0].partition_responses:
            assert part.error_code is ErrorCode.none
    return client


def fetch(
    client: SimClient, offsets: dict[int, int], *, max_bytes: int = WITHOUT_LIMIT, min_bytes: int = 1
) -> dict[int, list[bytes]]:
    """Batches by partition, in the order of the answer."""
    fields: dict[str, Any] = fetch_fields("t", 0)
    one = fields["topics"][0]["partitions"][0]
    fields["topics"] = (
        {
            "topic": "t",
            "partitions": tuple(
                one | {"partition": partition, "fetch_offset": offset}
                for partition, offset in offsets.items()
            ),
        },
    )
    fields |= {"max_bytes": max_bytes, "min_bytes": min_bytes}
    answer = client.ask(ApiKey.FETCH, 11, **fields).responses[0].partitions
    return {part.partition_index: batches(part.records or b"") for part in answer}


def size_of(found: dict[int, list[bytes]]) -> int:
    return sum(len(one) for several in found.values() for one in several)


def test_an_answer_ends_though_its_client_would_take_more() -> None:
    found = fetch(filled(), dict.fromkeys(range(PARTITIONS), 0))
    assert list(found) == [0, 1, 2], "in the order of the request, wherever the reading began"
    assert 0 < size_of(found) <= ANSWER_BYTES


def test_every_partition_gets_its_turn() -> None:
    client = filled()
    offsets = dict.fromkeys(range(PARTITIONS), 0)
    served = set()
    for _ in range(60):
        first_has_more = offsets[0] < 20
        for partition, several in fetch(client, offsets).items():
            offsets[partition] += len(several)
            if several and first_has_more:
                served.add(partition)
    assert offsets == dict.fromkeys(range(PARTITIONS), 20)
    assert served == {0, 1, 2}, "while the first partition still had records"


def test_min_bytes_may_ask_for_more() -> None:
    found = fetch(filled(), dict.fromkeys(range(PARTITIONS), 0), min_bytes=4 * ANSWER_BYTES)
    assert 3 * ANSWER_BYTES < size_of(found) <= 4 * ANSWER_BYTES


def test_a_client_that_takes_less_gets_it_in_its_own_order() -> None:
    client = filled()
    for _ in range(PARTITIONS):
        found = fetch(client, {2: 0, 0: 0, 1: 0}, max_bytes=1_500)
        assert [partition for partition, several in found.items() if several] == [2]
