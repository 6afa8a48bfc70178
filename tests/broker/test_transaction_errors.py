"""Which error code each version of each transactional request hears, in each situation: one row per case.

The codes are Apache Kafka's, but for two situations: a power cut that took a transaction (design D2), whose codes make
stock clients abort and go on, and InitProducerId with the identity of an id that nobody knows (`txn.id_expiry`).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.sim_node import SimNode
from support.sim_producer import Producer, create_topic, list_offset, read_all
from support.sim_transactions import Caller

from wire.apis import ApiKey
from wire.errors import ErrorCode

OK = ErrorCode.none
EPOCH = ErrorCode.invalid_producer_epoch
FENCED = ErrorCode.producer_fenced
MAPPING = ErrorCode.invalid_producer_id_mapping
STATE = ErrorCode.invalid_txn_state
LOADING = ErrorCode.coordinator_load_in_progress
ABORTABLE = ErrorCode.transaction_abortable
GENERATION = ErrorCode.illegal_generation
TIMEOUT = ErrorCode.invalid_transaction_timeout


def fresh() -> tuple[SimNode, Producer]:
    world = SimNode(flush_linger_ms=5)
    create_topic(world.client(), "t", 2)
    producer = Producer(world.client(), "p", v2=False, timeout_ms=10_000)
    assert producer.init() is OK
    return world, producer


def open_one(producer: Producer) -> None:
    assert producer.send("t", {0: [b"a"]}) == {0: OK}


def nothing_open() -> Caller:
    return Caller.of(fresh()[1])


def unknown_id() -> Caller:
    return nothing_open().but(name="nobody")


def foreign_producer() -> Caller:
    _, producer = fresh()
    open_one(producer)
    caller = Caller.of(producer)
    return caller.but(producer_id=caller.producer_id + 1_000)


def older_epoch() -> Caller:
    _, producer = fresh()
    open_one(producer)
    caller = Caller.of(producer)
    assert producer.init() is OK
    open_one(producer)
    return caller


def newer_epoch() -> Caller:
    _, producer = fresh()
    open_one(producer)
    caller = Caller.of(producer)
    return caller.but(epoch=caller.epoch + 1)


def after_a_power_cut() -> Caller:
    world, producer = fresh()
    open_one(producer)
    world.scheduler.advance(1_000)
    world.cut_power()
    producer.client = world.client()
    return Caller.of(producer)


def after_the_timeout() -> Caller:
    world, producer = fresh()
    open_one(producer)
    world.scheduler.advance(11_000)
    return Caller.of(producer)


def after_an_administrator() -> Caller:
    world, producer = fresh()
    open_one(producer)
    marker = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "transaction_result": False,
        "topics": ({"name": "t", "partition_indexes": (0,)},),
        "coordinator_epoch": 0,
    }
    answer = world.client().ask(ApiKey.WRITE_TXN_MARKERS, 1, markers=(marker,))
    assert answer.markers[0].topics[0].partitions[0].error_code is OK
    return Caller.of(producer)


SITUATIONS: dict[str, Callable[[], Caller]] = {
    "unknown id": unknown_id,
    "foreign producer": foreign_producer,
    "older epoch": older_epoch,
    "newer epoch": newer_epoch,
    "nothing open": nothing_open,
    "after a power cut": after_a_power_cut,
    "after the timeout": after_the_timeout,
    "after an administrator": after_an_administrator,
}

REQUESTS: dict[str, tuple[Callable[[Caller, int], ErrorCode], range]] = {
    "AddPartitionsToTxn": (Caller.add_partitions, range(6)),
    "AddOffsetsToTxn": (Caller.add_offsets, range(5)),
    "TxnOffsetCommit": (Caller.commit_offset, range(6)),
    "Produce": (Caller.produce, range(3, 14)),
    "EndTxn commit": (Caller.commit, range(6)),
    "EndTxn abort": (Caller.abort, range(6)),
    "InitProducerId": (Caller.init, range(3, 7)),
}

Steps = tuple[tuple[int, ErrorCode], ...]
"""(first version, code)..., oldest first."""

FENCED_FROM_2: Steps = ((0, EPOCH), (2, FENCED))
A_NEWER_PRODUCER: dict[str, Steps] = {
    "AddPartitionsToTxn": FENCED_FROM_2,
    "AddOffsetsToTxn": FENCED_FROM_2,
    "TxnOffsetCommit": ((0, EPOCH),),
    "Produce": ((0, EPOCH),),
    "EndTxn commit": FENCED_FROM_2,
    "EndTxn abort": FENCED_FROM_2,
    "InitProducerId": ((3, EPOCH), (4, FENCED)),
}
NOBODY: dict[str, Steps] = dict.fromkeys(REQUESTS, ((0, MAPPING),)) | {
    "InitProducerId": A_NEWER_PRODUCER["InitProducerId"]
}
# From EndTxn v5 on a client can go on from its old epoch: its abort is answered with the epoch that followed it.
FENCED_FROM_OUTSIDE = A_NEWER_PRODUCER | {
    "EndTxn abort": ((0, EPOCH), (2, FENCED), (5, OK)),
}

TABLE: dict[str, dict[str, Steps]] = {
    "unknown id": NOBODY,
    "foreign producer": NOBODY,
    "older epoch": A_NEWER_PRODUCER,
    "newer epoch": A_NEWER_PRODUCER,
    "nothing open": {
        "AddPartitionsToTxn": ((0, OK),),
        "AddOffsetsToTxn": ((0, OK),),
        "TxnOffsetCommit": ((0, STATE), (4, ABORTABLE), (5, OK)),
        "Produce": ((0, STATE), (11, ABORTABLE), (12, OK)),
        "EndTxn commit": ((0, STATE), (5, LOADING)),
        "EndTxn abort": ((0, STATE), (5, OK)),
        "InitProducerId": ((3, OK),),
    },
    "after a power cut": {
        "AddPartitionsToTxn": ((0, MAPPING), (4, ABORTABLE)),
        "AddOffsetsToTxn": ((0, MAPPING), (4, ABORTABLE)),
        "TxnOffsetCommit": ((0, GENERATION), (4, ABORTABLE)),
        "Produce": ((0, MAPPING), (11, ABORTABLE), (12, EPOCH)),
        "EndTxn commit": ((0, MAPPING), (4, ABORTABLE)),
        "EndTxn abort": ((0, OK),),
        "InitProducerId": ((3, OK),),
    },
    "after the timeout": FENCED_FROM_OUTSIDE,
    "after an administrator": FENCED_FROM_OUTSIDE,
}

CASES = [
    pytest.param(situation, request, version, id=f"{situation}-{request}-v{version}")
    for situation in SITUATIONS
    for request, (_, versions) in REQUESTS.items()
    for version in versions
]


@pytest.mark.parametrize(("situation", "request_name", "version"), CASES)
def test_the_code(situation: str, request_name: str, version: int) -> None:
    steps = TABLE[situation][request_name]
    expected = [code for first, code in steps if first <= version][-1]
    assert REQUESTS[request_name][0](SITUATIONS[situation](), version) is expected


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_bounds(version: int, timeout_ms: int) -> None:
    caller = nothing_open().but(name="new", producer_id=-1, epoch=-1)
    answer = caller.init_answer(version, timeout_ms=timeout_ms)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (TIMEOUT, -1, -1)
    assert caller.client.session._node.coordinator.get("new") is None
    assert caller.init(version, timeout_ms=900_000) is OK


@pytest.mark.parametrize(
    ("version", "expected"), [(3, STATE), (10, STATE), (11, ABORTABLE), (12, OK), (13, OK)]
)
def test_a_partition_that_was_not_added(version: int, expected: ErrorCode) -> None:
    _, producer = fresh()
    open_one(producer)
    assert Caller.of(producer).produce(version, partition=1) is expected


@pytest.mark.parametrize(("version", "expected"), [(0, STATE), (3, STATE), (4, ABORTABLE), (5, OK)])
def test_a_group_that_was_not_added(version: int, expected: ErrorCode) -> None:
    _, producer = fresh()
    open_one(producer)
    caller = Caller.of(producer)
    assert caller.add_offsets(3, "another") is OK
    assert caller.commit_offset(version) is expected


@pytest.mark.parametrize("version", range(6))
def test_the_end_again_and_the_other_way(version: int) -> None:
    """Below EndTxn v5 the epoch stands still; from there on the repeat comes with the old one."""
    for commit in (True, False):
        _, producer = fresh()
        open_one(producer)
        caller = Caller.of(producer)
        first = caller.end_answer(version, commit=commit)
        assert first.error_code is OK
        for _ in range(2):
            again = caller.end_answer(version, commit=commit)
            assert again.error_code is OK
            if version >= 5:
                assert (again.producer_id, again.producer_epoch) == (
                    caller.producer_id,
                    caller.epoch + 1,
                )
        # Under transactions v2 a commit after an abort comes from a client whose transaction the broker ended.
        opposite = FENCED if version >= 5 and not commit else STATE
        assert caller.end_answer(version, commit=not commit).error_code is opposite


def test_a_commit_that_overtakes_its_records() -> None:
    """The Java client's sender may let it go first; told to come again it sends the records before it does."""
    _, producer = fresh()
    caller = Caller.of(producer)
    assert caller.commit(5) is LOADING
    assert caller.produce(12) is OK
    answer = caller.end_answer(5, commit=True)
    assert answer.error_code is OK
    following = caller.but(epoch=answer.producer_epoch)
    assert [following.commit(5) for _ in range(3)] == [LOADING, STATE, STATE], "there really is nothing"
    assert following.commit(4) is STATE
    assert following.produce(12) is OK
    assert following.commit(5) is OK


@pytest.mark.parametrize("begin", ["AddPartitionsToTxn", "AddOffsetsToTxn", "Produce"])
def test_two_open_transactions_and_one_offset(begin: str) -> None:
    """Below TxnOffsetCommit v5 the second waits for the first to end; from there on it is told to abort."""
    world, first = fresh()
    one = Caller.of(first)
    assert one.commit_offset(5, 3) is OK
    second = Producer(world.client(), "second")
    assert second.init() is OK
    two = Caller.of(second)
    if begin == "AddPartitionsToTxn":
        assert two.add_partitions(3, partitions=(1,)) is OK
    elif begin == "Produce":
        assert two.produce(12, partition=1) is OK
    assert two.add_offsets(3) is OK
    assert two.commit_offset(5, 4) is ABORTABLE
    waiting = two.send_offset(3, 4)
    world.scheduler.advance(1_000)
    assert waiting not in two.client.answers
    assert one.commit(5) is OK
    world.scheduler.run_until(lambda: waiting in two.client.answers)
    assert two.client.answers[waiting].topics[0].partitions[0].error_code is OK
    assert two.commit(5) is OK


@pytest.mark.parametrize("situation", ["after the timeout", "after an administrator", "older epoch"])
def test_what_a_fenced_producer_tries_leaves_nothing(situation: str) -> None:
    caller = SITUATIONS[situation]()
    for ask, versions in REQUESTS.values():
        if ask not in (Caller.init, Caller.abort, Caller.commit):
            for version in versions:
                assert ask(caller, version) is not OK
    client = caller.client
    client._scheduler.advance(1_000)
    written = 2 if situation == "older epoch" else 1
    assert list_offset(client, "t", committed=False) == written
    assert read_all(client, "t")[0] == []
