"""Transactional ids that nobody uses expire (transactional.id.expiration.ms), and nothing else does with them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from support.sim_admin import BROKER, SET, change, describe
from support.sim_node import SimNode, batch
from support.sim_producer import Producer, create_topic, produce_fields, read_all
from support.sim_transactions import Caller
from test_group_transactions import World as GroupWorld
from test_two_phase_commit import TwoPhaseProducer

from txn import keys
from txn.id_expiry import IDS_PER_TURN
from txn.identities import InitRequest
from wire.apis import ApiKey
from wire.errors import ErrorCode

OK = ErrorCode.none
MAPPING = ErrorCode.invalid_producer_id_mapping
EXPIRATION_MS = 100_000
INTERVAL_MS = 10_000

both_protocols = pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
endings = pytest.mark.parametrize("ending", ["kill", "restart", "cut_power"])
SETTINGS: dict[str, Any] = {
    "transactional_id_expiration_ms": EXPIRATION_MS,
    "transaction_remove_expired_transaction_cleanup_interval_ms": INTERVAL_MS,
}


def make_world(**config: Any) -> SimNode:
    world = SimNode(**(SETTINGS | config))
    create_topic(world.client(), "t", 2)
    return world


def started(world: SimNode, name: str = "p", *, v2: bool = True, timeout_ms: int = 60_000) -> Producer:
    producer = Producer(world.client(), name, v2=v2, timeout_ms=timeout_ms)
    assert producer.init() is OK
    return producer


def is_known(world: SimNode, name: str = "p") -> bool:
    known = world.node.coordinator.get(name) is not None
    assert known is (world.node.store.get(keys.txid(name)) is not None)
    return known


@both_protocols
def test_an_id_that_nobody_uses_expires_and_can_be_taken_anew(v2: bool) -> None:
    """redpanda issue 15766 and pull 22943: its producer hears INVALID_PRODUCER_ID_MAPPING, not an unknown error."""
    world = make_world()
    producer = started(world, v2=v2)
    producer.send("t", {0: [b"a"]})
    assert producer.end() is OK
    world.scheduler.advance(EXPIRATION_MS - INTERVAL_MS)
    assert is_known(world)
    world.scheduler.advance(2 * INTERVAL_MS)
    assert not is_known(world)
    old = Caller.of(producer)
    assert old.add_partitions(3) is MAPPING
    assert old.add_offsets(3) is MAPPING
    assert old.commit_offset(5) is MAPPING
    assert old.produce(12) is MAPPING
    assert old.commit(5) is MAPPING
    assert old.abort(3) is MAPPING
    again = Producer(world.client(), "p", v2=v2)
    assert again.init() is OK
    assert again.producer_id != producer.producer_id
    assert again.epoch == 0
    assert old.produce(12, b"zombie") is MAPPING
    assert old.init(4) is ErrorCode.producer_fenced
    again.send("t", {0: [b"b"]})
    assert again.end() is OK
    assert read_all(world.client(), "t")[0] == [b"a", b"b"]


def test_an_expired_identity_does_not_come_back() -> None:
    """KAFKA-18019 (apache/kafka pull 17822): A is fenced by B, both sleep until the id has expired. Were A given a new
    epoch for its old identity, it would do again what B did. It has to start anew, from what B committed."""
    world = make_world()
    a = started(world)
    b = started(world)
    b.send("t", {0: [b"by B"]})
    assert b.end() is OK
    world.scheduler.advance(EXPIRATION_MS + 2 * INTERVAL_MS)
    assert not is_known(world)
    for identity in (Caller.of(a), Caller.of(b)):
        for version in (4, 5, 6):
            assert identity.init(version) is ErrorCode.producer_fenced
    assert not is_known(world)
    assert a.init() is OK


@endings
@both_protocols
def test_an_open_transaction_keeps_its_id(v2: bool, ending: str) -> None:
    world = make_world(transaction_max_timeout_ms=100 * EXPIRATION_MS)
    producer = started(world, v2=v2, timeout_ms=50 * EXPIRATION_MS)
    producer.send("t", {0: [b"a"]})
    world.scheduler.advance(3 * EXPIRATION_MS)
    assert is_known(world)
    getattr(world, ending)()
    producer.client = world.client()
    world.scheduler.advance(EXPIRATION_MS / 2)
    assert is_known(world), "it was in use until the start, whatever became of it"
    if ending == "cut_power":
        assert producer.end(False) is OK
    else:
        world.scheduler.advance(3 * EXPIRATION_MS)
        assert producer.end() is OK
    world.scheduler.advance(EXPIRATION_MS - INTERVAL_MS)
    assert is_known(world), "the time counts from its end"
    world.scheduler.advance(2 * INTERVAL_MS)
    assert not is_known(world)
    assert read_all(world.client(), "t")[0] == ([] if ending == "cut_power" else [b"a"])


def test_a_timeout_is_an_end_too() -> None:
    world = make_world()
    producer = started(world, timeout_ms=50_000)
    world.scheduler.advance(90_000)
    producer.send("t", {0: [b"a"]})
    world.scheduler.advance(50_000 + EXPIRATION_MS - INTERVAL_MS)
    assert is_known(world)
    world.scheduler.advance(3 * INTERVAL_MS)
    assert not is_known(world)


def test_a_prepared_transaction_keeps_its_id() -> None:
    """KIP-939: nothing but its producer ends it."""
    world = make_world(transaction_two_phase_commit=True)
    producer = TwoPhaseProducer(world.client(), "p")
    assert producer.init() is OK
    producer.send("t", {0: [b"a"]})
    world.scheduler.advance(5 * EXPIRATION_MS)
    world.cut_power()
    world.scheduler.advance(5 * EXPIRATION_MS)
    producer = TwoPhaseProducer(world.client(), "p")
    assert producer.init(keep=True) is OK
    assert producer.ongoing != (-1, -1)
    assert producer.end() is OK
    assert read_all(world.client(), "t")[0] == [b"a"]


def test_a_vote_keeps_its_id() -> None:
    """A member of a group transaction has no transaction open after its vote, but no outcome either."""
    world = GroupWorld(**(SETTINGS | {"transactional_id_expiration_ms": 15_000}))
    producer = started(world, "member")
    world.enlist(producer)
    producer.send("t", {0: [b"a"]})
    assert producer.end() is OK
    world.scheduler.advance(55_000)
    assert is_known(world, "member")
    world.scheduler.advance(60_000)
    assert not is_known(world, "member"), "the group's deadline has passed"
    assert read_all(world.client(), "t")[0] == []


@endings
@pytest.mark.parametrize("use", ["init", "init again", "commit", "abort", "commit again"])
@both_protocols
def test_each_use_keeps_it_alive_also_over_starts(v2: bool, use: str, ending: str) -> None:
    world = make_world()
    producer = started(world, v2=v2)
    for _ in range(3):
        world.scheduler.advance(EXPIRATION_MS * 0.6)
        if use == "init":
            assert producer.init() is OK
        elif use == "init again":
            answer = Caller.of(producer).init_answer(4)
            assert answer.error_code is OK
            producer.epoch = answer.producer_epoch
            producer.sequences.clear()
        else:
            producer.send("t", {0: [b"a"]})
            before = Caller.of(producer)
            assert producer.end(use != "abort") is OK
            if use == "commit again":
                world.scheduler.advance(EXPIRATION_MS * 0.6)
                assert before.end_answer(5 if v2 else 3, commit=True).error_code is OK
    getattr(world, ending)()
    world.scheduler.advance(EXPIRATION_MS * 0.3)
    assert is_known(world) or use == "commit again", "a repeat renews nothing on the disk"
    world.scheduler.advance(EXPIRATION_MS * 0.6 + 2 * INTERVAL_MS)
    assert not is_known(world)


@endings
def test_a_start_is_no_use(ending: str) -> None:
    world = make_world()
    started(world)
    for _ in range(4):
        world.scheduler.advance(EXPIRATION_MS * 0.24)
        assert is_known(world)
        getattr(world, ending)()
    world.scheduler.advance(EXPIRATION_MS * 0.04 + 2 * INTERVAL_MS)
    assert not is_known(world)


@both_protocols
def test_a_use_costs_no_write_of_its_own(v2: bool) -> None:
    """One write of the id's record per transaction: the one that its end makes anyway."""
    world = make_world()
    producer = started(world, v2=v2)

    def version() -> int:
        record = world.node.store.get(keys.txid("p"))
        assert record is not None
        return record.version

    for _ in range(3):
        before = version()
        for number in range(5):
            producer.send("t", {number % 2: [b"a"]})
            producer.commit_offsets("g", {("t", 0): number})
            world.scheduler.advance(5_000)
        assert version() == before
        assert producer.end() is OK
        record = world.node.store.get(keys.txid("p"))
        assert record is not None
        assert record.version != before
        assert world.scheduler.now_ms() - record.value["used_ms"] < 1_000


def test_producers_without_an_id_are_not_hit() -> None:
    """redpanda issues 22670 and 11597: an idempotent producer idle for longer than the transactional ids' time hears
    OUT_OF_ORDER_SEQUENCE_NUMBER."""
    world = make_world(segment_bytes=1 << 16)
    client = world.client()

    def send(sequence: int, partition: int = 0) -> tuple[ErrorCode, int]:
        data = batch(b"x" * 30_000, producer_id=7, epoch=0, sequence=sequence)
        answer = client.ask(ApiKey.PRODUCE, 9, **produce_fields("t", {partition: data}))
        one = answer.responses[0].partition_responses[0]
        return one.error_code, one.base_offset

    assert send(0) == (OK, 0)
    transactional = started(world, "plain writes only")
    for sequence in range(1, 5):
        world.scheduler.advance(3 * EXPIRATION_MS)
        assert send(sequence - 1) == (OK, sequence - 1), "still known as a repeat"
        assert send(sequence) == (OK, sequence)
    assert send(9)[0] is ErrorCode.out_of_order_sequence_number
    assert not is_known(world, transactional.name)


def test_a_sweep_takes_its_time() -> None:
    """Thousands that expire together go in bounded pieces, with others' turns between; those in use are left alone."""
    world = make_world()
    coordinator = world.node.coordinator
    many = 3 * IDS_PER_TURN + 500
    answers: list[object] = []
    for number in range(many):
        coordinator.init_producer(InitRequest(f"many-{number}", 60_000), answers.append)
    world.scheduler.run_until(lambda: len(answers) == many)
    used = [started(world, f"used-{number}") for number in range(20)]
    world.scheduler.advance(EXPIRATION_MS - INTERVAL_MS)
    for producer in used:
        producer.send("t", {0: [b"a"]})
    left = [world.node.store.count(keys.TXIDS)]
    assert left == [many + 20]
    world.scheduler.run_until(lambda: world.node.store.count(keys.TXIDS) < left[0])
    while left[-1] > 20:
        left.append(world.node.store.count(keys.TXIDS))
        world.scheduler.run_until(lambda: world.node.store.count(keys.TXIDS) < left[-1] or left[-1] == 20)
    steps = [before - after for before, after in pairwise(left)]
    assert sum(steps) == many
    assert max(steps) <= IDS_PER_TURN
    assert all(producer.end() is OK for producer in used)
    world.kill()
    assert world.node.store.count(keys.TXIDS) == 20


def test_the_settings() -> None:
    world = SimNode()
    create_topic(world.client(), "t", 2)
    names = "transactional.id.expiration.ms", "transaction.remove.expired.transaction.cleanup.interval.ms"
    shown = describe(world.client(), BROKER, "1", *names)
    assert [shown[name].value for name in names] == ["604800000", "3600000"], "as in Kafka"
    started(world)
    world.scheduler.advance(86_400_000)
    assert is_known(world)
    new = [(names[0], SET, "5000"), (names[1], SET, "1000")]
    assert change(world.client(), BROKER, "1", new)[0] is OK
    world.scheduler.advance(2_000)
    assert not is_known(world)
    assert change(world.client(), BROKER, "1", [(names[0], SET, "0")])[0] is ErrorCode.invalid_config


def test_a_stopped_or_failed_store_ends_the_sweeps() -> None:
    world = make_world()
    started(world)
    world.scheduler.advance(EXPIRATION_MS - INTERVAL_MS)
    world.disk.fail("flush", "metadata/")
    assert Producer(world.client(), "q").init() is ErrorCode.coordinator_not_available
    world.scheduler.advance(5 * EXPIRATION_MS)
    assert world.node.coordinator.get("p") is not None
    world.kill()
    assert is_known(world)
