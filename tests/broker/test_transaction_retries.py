"""A request whose answer got lost, sent again: it hears what the first one did, and does nothing twice.

In one process, over a kill, and over a clean restart: the client cannot tell what its connection was lost to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.sim_admin import run_turns
from support.sim_node import SimNode
from support.sim_producer import Producer, create_topic, list_offset, read_all
from support.sim_transactions import Caller

from wire.apis import ApiKey
from wire.errors import ErrorCode

OK = ErrorCode.none

over_everything = pytest.mark.parametrize("between", ["nothing", "kill", "restart"])


class Scene:
    """One producer and its broker; `lose` is what happens to the connection."""

    def __init__(self, *, v2: bool, between: str) -> None:
        self.world = SimNode()
        create_topic(self.world.client(), "t", 2)
        self.producer = Producer(self.world.client(), "p", v2=v2)
        assert self.producer.init() is OK
        self._between = between

    @property
    def caller(self) -> Caller:
        return Caller.of(self.producer)

    def lose(self) -> None:
        if self._between != "nothing":
            getattr(self.world, self._between)()
        self.producer.client = self.world.client()

    def open_count(self) -> int:
        return self.world.node.coordinator.open.count

    def committed_offset(self) -> tuple[int, ErrorCode]:
        answer = self.world.client().ask(
            ApiKey.OFFSET_FETCH,
            7,
            group_id="g",
            topics=({"name": "t", "partition_indexes": (0,)},),
            require_stable=True,
        )
        one = answer.topics[0].partitions[0]
        return one.committed_offset, one.error_code


@over_everything
@pytest.mark.parametrize("version", [0, 3, 4, 5])
def test_add_partitions(version: int, between: str) -> None:
    scene = Scene(v2=False, between=between)
    for _ in range(3):
        assert scene.caller.add_partitions(version, partitions=(0, 1)) is OK
        scene.lose()
    assert scene.open_count() == 1
    assert scene.caller.produce(9, b"a") is OK
    assert scene.caller.commit(3) is OK
    assert read_all(scene.world.client(), "t")[0] == [b"a"]


@over_everything
@pytest.mark.parametrize(("add", "commit"), [(0, 0), (3, 3), (4, 4), (None, 5)])
def test_offsets(add: int | None, commit: int, between: str) -> None:
    scene = Scene(v2=commit == 5, between=between)
    for _ in range(3 if add is not None else 0):
        assert scene.caller.add_offsets(add or 0) is OK
        scene.lose()
    for _ in range(3):
        assert scene.caller.commit_offset(commit, 7) is OK
        scene.lose()
    assert scene.open_count() == 1
    assert scene.committed_offset() == (-1, ErrorCode.unstable_offset_commit)
    assert scene.caller.commit(commit if commit == 5 else 3) is OK
    assert scene.committed_offset() == (7, OK)


@over_everything
@pytest.mark.parametrize("version", [7, 9, 11, 12, 13])
def test_produce(version: int, between: str) -> None:
    scene = Scene(v2=version >= 12, between=between)
    if version < 12:
        assert scene.caller.add_partitions(3) is OK
    for sequence in range(3):
        first = scene.caller.produce_answer(version, b"%d" % sequence, sequence=sequence)
        for _ in range(2):
            scene.lose()
            again = scene.caller.produce_answer(version, b"%d" % sequence, sequence=sequence)
            assert (again.error_code, again.base_offset) == (OK, first.base_offset) == (OK, sequence)
    assert scene.open_count() == 1
    assert scene.caller.commit(5 if version >= 12 else 3) is OK
    assert read_all(scene.world.client(), "t") == ([b"0", b"1", b"2"], 3)


@over_everything
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [1, 3, 5])
def test_end(version: int, commit: bool, between: str) -> None:
    """And the repeat leaves the transaction that follows alone."""
    scene = Scene(v2=version == 5, between=between)
    scene.producer.send("t", {0: [b"a"]})
    answers = []
    caller = scene.caller
    for _ in range(3):
        answer = caller.end_answer(version, commit=commit)
        assert answer.error_code is OK
        answers.append((getattr(answer, "producer_id", None), getattr(answer, "producer_epoch", None)))
        scene.lose()
        caller = caller.but(client=scene.producer.client)
    assert len(set(answers)) == 1
    if version == 5:
        assert answers[0] == (caller.producer_id, caller.epoch + 1)
        scene.producer.epoch += 1
        scene.producer.sequences.clear()
    scene.producer.send("t", {0: [b"b"]})
    if version == 5:
        assert caller.end_answer(version, commit=commit).error_code is ErrorCode.producer_fenced
    assert scene.open_count() == 1
    assert scene.producer.end() is OK
    assert read_all(scene.world.client(), "t")[0] == ([b"a", b"b"] if commit else [b"b"])


@over_everything
@pytest.mark.parametrize("version", [3, 4, 5, 6])
@pytest.mark.parametrize("opened", [False, True])
def test_init_producer_id_with_identity(opened: bool, version: int, between: str) -> None:
    """KIP-360: the caller's own epoch, again, is the call whose answer it did not get; not a bump more.

    One bump also where a transaction is open: who names itself fences nobody else.
    """
    scene = Scene(v2=False, between=between)
    if opened:
        scene.producer.send("t", {0: [b"gone"]})
    caller = scene.caller
    expected = (OK, caller.producer_id, caller.epoch + 1)
    for _ in range(3):
        answer = caller.init_answer(version)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == expected
        scene.lose()
        caller = caller.but(client=scene.producer.client)
    assert scene.open_count() == 0
    scene.producer.epoch = expected[2]
    scene.producer.sequences.clear()
    scene.producer.send("t", {0: [b"kept"]})
    assert scene.producer.end() is OK
    assert read_all(scene.world.client(), "t")[0] == [b"kept"]


@over_everything
@pytest.mark.parametrize("version", range(7))
def test_init_producer_id_without_identity(version: int, between: str) -> None:
    """Each is a new instance: each fences what was there, and the last one holds the id."""
    scene = Scene(v2=True, between=between)
    caller = scene.caller.but(producer_id=-1, epoch=-1)
    for number in range(1, 4):
        answer = caller.init_answer(version)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (
            OK,
            scene.producer.producer_id,
            number,
        )
        scene.lose()
        caller = caller.but(client=scene.producer.client)
    assert scene.caller.produce(12) is ErrorCode.invalid_producer_epoch
    assert scene.caller.but(epoch=3).produce(12) is OK


@pytest.mark.parametrize("opened", [False, True])
def test_init_producer_ids_at_the_same_time(opened: bool) -> None:
    """Sent without waiting, by ten instances: answered in turn, none with CONCURRENT_TRANSACTIONS, each fencing the
    one before."""
    scene = Scene(v2=True, between="nothing")
    if opened:
        scene.producer.send("t", {0: [b"gone"]})
    clients = [scene.world.client() for _ in range(10)]
    fields: dict[str, Any] = {
        "transactional_id": "p",
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    asked = [(client, client.send(ApiKey.INIT_PRODUCER_ID, 5, **fields)) for client in clients]
    done: Callable[[], bool] = lambda: all(number in client.answers for client, number in asked)  # noqa: E731
    scene.world.scheduler.run_until(done)
    answers = [client.answers[number] for client, number in asked]
    assert {answer.error_code for answer in answers} == {OK}
    epochs = [answer.producer_epoch for answer in answers]
    first = scene.producer.epoch + (2 if opened else 1)
    assert epochs == list(range(first, first + 10))
    for epoch in epochs[:-1]:
        assert scene.caller.but(epoch=epoch).produce(12) is ErrorCode.invalid_producer_epoch
    assert scene.caller.but(epoch=epochs[-1]).produce(12) is OK


def test_sequences_of_an_aborted_transaction_used_again() -> None:
    """redpanda pull 5026: a client loses an answer, aborts, and uses the sequences for other records. Answered as a
    repeat, these would be lost without a word: the batch that is there was aborted."""
    scene = Scene(v2=False, between="nothing")
    scene.producer.send("t", {0: [b"aborted"]})
    assert scene.producer.end(commit=False) is OK
    assert scene.caller.add_partitions(3) is OK
    assert scene.caller.produce(9, b"another", sequence=0) is ErrorCode.invalid_producer_id_mapping
    assert scene.caller.produce(11, b"another", sequence=0) is ErrorCode.transaction_abortable
    assert scene.caller.abort(3) is OK
    answer = scene.caller.init_answer(4)
    assert answer.error_code is OK
    scene.producer.epoch = answer.producer_epoch
    scene.producer.sequences.clear()
    scene.producer.send("t", {0: [b"another"]})
    assert scene.producer.end() is OK
    assert read_all(scene.world.client(), "t")[0] == [b"another"]
    assert list_offset(scene.world.client(), "t") == 2


def test_sequences_of_an_aborted_transaction_used_again_for_fewer_records() -> None:
    """librdkafka does so when a crash took the answer to a batch that its abort took back: no repeat, but no end of
    that producer either, who aborts and counts on. What was committed keeps its sequences."""
    scene = Scene(v2=False, between="nothing")
    scene.producer.send("t", {0: [b"a", b"b", b"c"]})
    assert scene.producer.end(commit=False) is OK
    for sequence in range(3):
        assert scene.caller.add_partitions(3) is OK
        code = scene.caller.produce(11, b"another", sequence=sequence)
        assert code is ErrorCode.transaction_abortable, sequence
        assert scene.caller.produce(9, b"another", sequence=sequence) is ErrorCode.invalid_producer_id_mapping
        assert scene.caller.abort(3) is OK
    assert scene.caller.add_partitions(3) is OK
    assert scene.caller.produce(9, b"another", sequence=3) is OK
    assert scene.caller.commit(3) is OK
    assert read_all(scene.world.client(), "t")[0] == [b"another"]
    assert scene.caller.add_partitions(3) is OK
    assert scene.caller.produce(9, b"late", sequence=1) is ErrorCode.out_of_order_sequence_number


@pytest.mark.parametrize("version", [0, 3, 4])
def test_a_commit_of_offsets_that_waits_does_not_outlive_its_transaction(version: int) -> None:
    """Below TxnOffsetCommit v5 it waits while another transaction holds the partition. A client that gives up, aborts
    and begins anew, all under one epoch, must not find those offsets in its next transaction."""
    scene = Scene(v2=False, between="nothing")
    world = scene.world
    other = Producer(world.client(), "other")
    assert other.init() is OK
    assert other.commit_offsets("g", {("t", 0): 50}) is OK
    assert scene.caller.add_offsets(3) is OK
    waiting = scene.caller.send_offset(version, 7)
    world.scheduler.advance(1_000)
    given_up = scene.producer.client
    assert waiting not in given_up.answers
    scene.lose()
    assert scene.caller.abort(3) is OK
    assert scene.caller.add_offsets(3) is OK
    assert scene.caller.add_partitions(3) is OK
    assert other.end(False) is OK
    world.scheduler.run_until(lambda: waiting in given_up.answers)
    code = given_up.answers[waiting].topics[0].partitions[0].error_code
    assert code is (ErrorCode.transaction_abortable if version == 4 else ErrorCode.invalid_txn_state)
    assert scene.caller.commit(3) is OK
    assert scene.committed_offset() == (-1, OK)


@pytest.mark.parametrize("ended_by", ["timeout", "abort", "init"])
def test_a_commit_of_offsets_waits_no_longer_than_its_own_transaction(ended_by: str) -> None:
    """Its connection answers in order: whatever comes behind it would wait for the other's end as well."""
    world = SimNode()
    create_topic(world.client(), "t", 2)
    other = Producer(world.client(), "other", timeout_ms=600_000)
    assert other.init() is OK
    assert other.commit_offsets("g", {("t", 0): 50}) is OK
    producer = Producer(world.client(), "p", v2=False, timeout_ms=5_000)
    assert producer.init() is OK
    caller = Caller.of(producer)
    assert caller.add_offsets(3) is OK
    waiting = caller.send_offset(3, 7)
    world.scheduler.advance(1_000)
    assert waiting not in caller.client.answers
    if ended_by == "timeout":
        world.scheduler.advance(5_000)
    elif ended_by == "abort":
        assert caller.abort(3) is OK
    else:
        assert Producer(world.client(), "p").init() is OK
    world.scheduler.advance(100)
    code = caller.client.answers[waiting].topics[0].partitions[0].error_code
    expected = ErrorCode.invalid_txn_state if ended_by == "abort" else ErrorCode.invalid_producer_epoch
    assert code is expected
    assert other.end() is OK
    assert not world.node.offsets._waits
    assert not world.node.offsets._waiting


@pytest.mark.parametrize("stop", ["kill", "cut_power"])
@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
def test_a_commit_that_a_failed_flush_refused_is_no_success_after_a_crash(v2: bool, stop: str) -> None:
    """At every turn: what PREPARING foretold of the id must not outlive the abort that it turned into."""
    refused = 0
    for turns in range(24):
        world = SimNode(flush_delay_ms=2.0)
        create_topic(world.client(), "t", 2)
        producer = Producer(world.client(), "p", v2=v2)
        assert producer.init() is OK
        assert producer.send("t", {0: [b"x"]}) == {0: OK}
        world.disk.fail("flush", "topics")
        producer.end_request(commit=True)
        run_turns(world, turns)
        if stop == "cut_power":
            world.cut_power(keep="all")
        else:
            world.kill()
        producer.client = world.client()
        if producer.end(commit=True) is OK:
            assert read_all(world.client(), "t")[0] == [b"x"]
        else:
            # Under the first protocol that may also say that nobody can tell (T5).
            refused += 1
    assert refused, "or the turns reach no refusal"


@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("call", ["end", "init"])
def test_what_a_failed_store_never_took_is_no_success_when_it_is_asked_for_again(call: str, v2: bool) -> None:
    """The id in memory is ahead of its record then: of the record alone, the repeat would hear success."""
    world = SimNode()
    create_topic(world.client(), "t", 2)
    producer = Producer(world.client(), "p", v2=v2)
    assert producer.init() is OK
    assert producer.send("t", {0: [b"x"]}) == {0: OK}
    world.disk.fail("flush", "metadata")
    other = Producer(world.client(), "other", v2=v2)
    assert other.init() is ErrorCode.coordinator_not_available
    for _ in range(3):
        if call == "end":
            assert producer.end(commit=True) is ErrorCode.coordinator_not_available
        else:
            again = producer.client.ask(
                ApiKey.INIT_PRODUCER_ID,
                4,
                transactional_id="p",
                transaction_timeout=60_000,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
            )
            assert again.error_code is ErrorCode.coordinator_not_available
    assert read_all(world.client(), "t")[0] == []


@pytest.mark.parametrize("version", [1, 7, 9])
def test_no_offset_is_told_after_the_store_has_failed(version: int) -> None:
    """What an answered commit put into force may be missing in memory then."""
    world = SimNode()
    create_topic(world.client(), "t", 1)
    world.disk.fail("flush", "metadata")
    assert Producer(world.client(), "p").init() is ErrorCode.coordinator_not_available
    wanted = ({"name": "t", "partition_indexes": (0,)},)
    if version < 8:
        answer = world.client().ask(
            ApiKey.OFFSET_FETCH, version, group_id="g", topics=wanted, require_stable=True
        )
        told = answer if version > 1 else answer.topics[0].partitions[0]
    else:
        answer = world.client().ask(
            ApiKey.OFFSET_FETCH,
            version,
            groups=({"group_id": "g", "topics": wanted, "member_id": None, "member_epoch": -1},),
            require_stable=True,
        )
        told = answer.groups[0]
    assert told.error_code is ErrorCode.coordinator_not_available
    assert version == 1 or not told.topics
