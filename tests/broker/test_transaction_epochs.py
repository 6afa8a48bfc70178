"""Where a producer's epochs run out (int16): a new producer id, unnoticed by the client, and never an epoch too high.

Apache Kafka had faults there: KAFKA-19367 (apache/kafka pull 19910: two bumps from 32766 on make a negative epoch),
KAFKA-20090 (pulls 21469, 21506: a timeout at 32766 and the late abort leave the transaction open), KAFKA-18660 (pull
18730: EndTxn answers with the wrong producer id).
"""

from __future__ import annotations

import pytest
from support.sim_node import SimNode
from support.sim_producer import Producer, create_topic, list_offset, read_all
from support.sim_transactions import Caller, set_epoch

from txn import keys
from txn.transaction import MAX_EPOCH
from wire.errors import ErrorCode

OK = ErrorCode.none
LAST = MAX_EPOCH - 1
"""The largest epoch that a client ever gets."""

endings = pytest.mark.parametrize("ending", ["nothing", "kill", "restart"])


def producer_at(epoch: int, *, v2: bool = True) -> tuple[SimNode, Producer]:
    world = SimNode()
    create_topic(world.client(), "t", 2)
    producer = Producer(world.client(), "p", v2=v2, timeout_ms=5_000)
    assert producer.init() is OK
    set_epoch(world, producer, epoch)
    return world, producer


def end_process(world: SimNode, producer: Producer, ending: str) -> None:
    if ending != "nothing":
        getattr(world, ending)()
    producer.client = world.client()


def recorded(world: SimNode) -> tuple[int, int]:
    record = world.node.store.get(keys.txid("p"))
    assert record is not None
    assert 0 <= record.value["epoch"] < MAX_EPOCH
    return record.value["pid"], record.value["epoch"]


@endings
@pytest.mark.parametrize("commit", [True, False])
def test_ends_of_transactions_v2(commit: bool, ending: str) -> None:
    world, producer = producer_at(LAST - 1)
    old_id = producer.producer_id
    for number, epoch in enumerate((LAST - 1, LAST)):
        assert (producer.producer_id, producer.epoch) == (old_id, epoch)
        assert producer.send("t", {0: [b"%d" % number]}) == {0: OK}
        assert producer.end(commit) is OK
        end_process(world, producer, ending)
    assert producer.producer_id != old_id
    assert producer.epoch == 0
    assert recorded(world) == (producer.producer_id, 0)

    late = Caller(world.client(), "p", old_id, LAST)
    again = late.end_answer(5, commit=commit)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (OK, producer.producer_id, 0)
    opposite = ErrorCode.invalid_txn_state if commit else ErrorCode.producer_fenced
    assert late.end_answer(5, commit=not commit).error_code is opposite
    assert late.produce(12, sequence=1) is ErrorCode.invalid_producer_epoch

    assert producer.send("t", {0: [b"next"]}) == {0: OK}
    assert producer.end() is OK
    assert (producer.producer_id, producer.epoch) == (recorded(world)[0], 1)
    assert read_all(world.client(), "t")[0] == ([b"0", b"1", b"next"] if commit else [b"next"])


@endings
@pytest.mark.parametrize("identity", [True, False], ids=["with identity", "without"])
@pytest.mark.parametrize("opened", [False, True], ids=["idle", "open"])
@pytest.mark.parametrize("epoch", [LAST - 2, LAST - 1, LAST])
def test_init_producer_id(epoch: int, opened: bool, identity: bool, ending: str) -> None:
    """Two bumps to fence another's open transaction, one of the holder's own. Neither steps over the end."""
    world, producer = producer_at(epoch)
    if opened:
        assert producer.send("t", {0: [b"gone"]}) == {0: OK}
    old = Caller.of(producer)
    asking = old if identity else old.but(producer_id=-1, epoch=-1)
    answer = asking.init_answer(4)
    assert answer.error_code is OK
    expected = epoch + (2 if opened and not identity else 1)
    if expected < MAX_EPOCH:
        assert (answer.producer_id, answer.producer_epoch) == (old.producer_id, expected)
    else:
        assert answer.producer_id != old.producer_id
        assert answer.producer_epoch == 0
    new = answer.producer_id, answer.producer_epoch
    end_process(world, producer, ending)
    assert recorded(world) == new
    if identity:
        again = old.but(client=world.client()).init_answer(4)
        assert (again.error_code, again.producer_id, again.producer_epoch) == (OK, *new)
    fenced = old.but(client=world.client())
    assert fenced.produce(12, sequence=1) in (
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
    )
    assert fenced.commit(5) in (ErrorCode.producer_fenced, ErrorCode.invalid_producer_id_mapping)
    producer.producer_id, producer.epoch = new
    producer.sequences.clear()
    assert producer.send("t", {0: [b"kept"]}) == {0: OK}
    assert producer.end() is OK
    assert read_all(world.client(), "t")[0] == [b"kept"]


@endings
@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("epoch", [LAST - 1, LAST])
def test_a_timeout_bumps_once(epoch: int, v2: bool, ending: str) -> None:
    """KAFKA-20090: the late EndTxn(abort) of the old epoch gets the new identity; nothing stays open."""
    world, producer = producer_at(epoch, v2=v2)
    assert producer.send("t", {0: [b"slow"]}) == {0: OK}
    old = Caller.of(producer)
    world.scheduler.advance(6_000)
    assert world.node.coordinator.open.count == 0
    after = recorded(world)
    if epoch == LAST:
        assert after[0] != old.producer_id
        assert after[1] == 0
    else:
        assert after == (old.producer_id, LAST)
    world.scheduler.advance(130_000)
    end_process(world, producer, ending)
    assert recorded(world) == after, "the sweep comes by again and again; the bump does not"
    late = old.but(client=world.client())
    assert late.produce(12 if v2 else 9, sequence=1) is ErrorCode.invalid_producer_epoch
    answer = late.end_answer(5 if v2 else 3, commit=False)
    if v2:
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (OK, *after)
        producer.producer_id, producer.epoch = after
        producer.sequences.clear()
    else:
        assert answer.error_code is ErrorCode.producer_fenced
        assert producer.init() is OK
    assert recorded(world) == (producer.producer_id, producer.epoch)
    assert producer.send("t", {0: [b"next"]}) == {0: OK}
    assert producer.end() is OK
    assert read_all(world.client(), "t")[0] == [b"next"]
    assert list_offset(world.client(), "t") == 2


def test_init_producer_id_while_the_timeout_aborts() -> None:
    """KAFKA-19367: the fence and the abort of one transaction are one bump each at the very end, never a third."""
    world, producer = producer_at(LAST)
    assert producer.send("t", {0: [b"slow"]}) == {0: OK}
    world.scheduler.run_until(lambda: world.node.coordinator.get("p").busy)  # type: ignore[union-attr]
    second = Producer(world.client(), "p")
    assert second.init() is OK
    assert second.producer_id != producer.producer_id
    assert second.epoch == 1, "0 was the timeout's, which nobody was told of"
    assert read_all(world.client(), "t") == ([], 1)


@pytest.mark.parametrize("epoch", [LAST - 1, LAST])
def test_the_first_protocol_stays_in_its_epoch(epoch: int) -> None:
    world, producer = producer_at(epoch, v2=False)
    for number in range(3):
        assert producer.send("t", {0: [b"%d" % number]}) == {0: OK}
        assert producer.end(commit=number != 1) is OK
    assert recorded(world) == (producer.producer_id, epoch)
    assert read_all(world.client(), "t")[0] == [b"0", b"2"]


def test_an_administrator_at_the_end() -> None:
    world, producer = producer_at(LAST)
    assert producer.send("t", {0: [b"x"]}) == {0: OK}
    outcome: list[object] = []
    world.node.coordinator.open.abort_by_administrator(producer.producer_id, outcome.append)
    world.scheduler.run_until(lambda: bool(outcome))
    assert outcome == [None]
    assert recorded(world)[0] != producer.producer_id
    assert producer.end(commit=False) is OK
    assert (producer.producer_id, producer.epoch) == recorded(world)
