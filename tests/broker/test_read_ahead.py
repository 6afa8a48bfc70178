"""What a consumer that is behind will ask for next is in memory by then, within bounds, and never anything else."""

from __future__ import annotations

from typing import Any

import pytest
from support.sim_node import SimClient, SimNode, batch
from support.sim_producer import batches, create_topic, fetch_fields, produce_fields

from broker.config import Limits
from wire.apis import ApiKey
from wire.errors import ErrorCode

BATCHES = 40
ANSWER_BYTES = 4_000


def filled(partitions: int, **limits: int) -> tuple[SimNode, SimClient]:
    """Each partition of the topic t holds batches of about 1 KB, each with a byte of its own."""
    world = SimNode(limits=Limits(fetch_answer_bytes=ANSWER_BYTES, **limits))
    client = SimClient(world.node, world.scheduler)
    create_topic(client, "t", partitions)
    for number in range(BATCHES):
        sent = {p: batch(bytes([number]) * 900) for p in range(partitions)}
        answer = client.ask(ApiKey.PRODUCE, 9, **produce_fields("t", sent))
        assert all(part.error_code is ErrorCode.none for part in answer.responses[0].partition_responses)
    return world, client


def fetch(client: SimClient, offsets: dict[int, int], *, partition_bytes: int = 1 << 20) -> dict[int, Any]:
    fields: dict[str, Any] = fetch_fields("t", 0)
    one = fields["topics"][0]["partitions"][0]
    wanted = tuple(
        one | {"partition": p, "fetch_offset": offset, "partition_max_bytes": partition_bytes}
        for p, offset in offsets.items()
    )
    fields |= {"topics": ({"topic": "t", "partitions": wanted},), "max_bytes": 1 << 26, "min_bytes": 1}
    answer = client.ask(ApiKey.FETCH, 11, **fields).responses[0].partitions
    return {part.partition_index: part for part in answer}


def settle(world: SimNode) -> None:
    """Let everything that is due now be done: the client works on its answer."""
    world.scheduler.run_ready()


def reads(world: SimNode) -> int:
    return sum(world.disk.reads.values())


@pytest.mark.parametrize(("partitions", "partition_bytes"), [(1, 2_500), (3, 2_500), (3, 1 << 20)])
def test_a_consumer_that_is_behind_finds_its_next_answer_in_memory(
    partitions: int, partition_bytes: int
) -> None:
    world, client = filled(partitions)
    offsets = dict.fromkeys(range(partitions), 0)
    seen: dict[int, list[bytes]] = {p: [] for p in offsets}
    waited = answers = 0
    while any(offset < BATCHES for offset in offsets.values()):
        before = reads(world)
        found = fetch(client, offsets, partition_bytes=partition_bytes)
        waited += reads(world) - before if answers else 0
        answers += 1
        for p, part in found.items():
            several = batches(part.records or b"")
            seen[p] += several
            offsets[p] += len(several)
        settle(world)
    assert answers > 5
    for several in seen.values():
        assert [one[-20] for one in several] == list(range(BATCHES)), "each batch once, in order"
    # Beside its own answer's, which it takes from memory, a fetch reads where some room was left.
    assert waited <= answers


def test_the_device_is_told_of_all_that_comes_next_before_anything_is_read() -> None:
    world, client = filled(3)
    fetch(client, dict.fromkeys(range(3), 0), partition_bytes=2_500)
    before = reads(world)
    while not world.disk.hints:
        assert world.scheduler.run_turn()
    assert reads(world) == before
    settle(world)
    # Two answers and the rests of runs, with what lies between batches.
    assert ANSWER_BYTES < sum(size for _, _, size in world.disk.hints) < 4 * ANSWER_BYTES


def test_another_question_is_answered_by_the_log() -> None:
    world, client = filled(1)
    fetch(client, {0: 0})
    settle(world)
    for offset in (0, 1, 30):
        part = fetch(client, {0: offset})[0]
        assert batches(part.records)[0][-20] == offset
        settle(world)


def test_a_log_start_that_moved_past_what_is_kept_wins() -> None:
    world, client = filled(1)
    taken = len(batches(fetch(client, {0: 0})[0].records))
    settle(world)
    world.node.topics.get("t").partitions[0].advance_log_start(BATCHES - 1)  # type: ignore[union-attr]
    assert fetch(client, {0: taken})[0].error_code is ErrorCode.offset_out_of_range


def test_nothing_is_read_at_the_end_or_where_it_is_switched_off() -> None:
    world, client = filled(1)
    fetch(client, {0: BATCHES - 2})
    before = reads(world)
    settle(world)
    assert reads(world) == before
    assert not world.disk.hints
    world, client = filled(1, read_ahead_bytes=0)
    fetch(client, {0: 0})
    before = reads(world)
    settle(world)
    assert reads(world) == before


def test_clients_share_a_bound_and_leave_nothing_behind() -> None:
    world, _ = filled(1, read_ahead_bytes=2 * ANSWER_BYTES)
    clients = [SimClient(world.node, world.scheduler) for _ in range(5)]
    taken = 0
    for client in clients:
        taken = len(batches(fetch(client, {0: 0})[0].records))
        settle(world)
    budget = world.node.read_ahead_budget
    assert 0 <= budget._left < 2 * ANSWER_BYTES
    # Who came last has it, who came first must wait for the log.
    for client, waits in ((clients[0], True), (clients[-1], False)):
        before = reads(world)
        fetch(client, {0: taken})
        assert (reads(world) > before) == waits
    for client in clients:
        client.session.lost()
    settle(world)
    assert budget._left == 2 * ANSWER_BYTES
