"""Faults that other brokers had with transactions, each as a test. Every docstring names the public thread.

What runs elsewhere: the end of the epochs (KAFKA-18660, 19367, 20090) in test_transaction_epochs.py, sequences used
again after an abort (redpanda pull 5026) in test_transaction_retries.py, the expiry of transactional ids (redpanda
22670, 11597, 15766) in test_transactional_id_expiry.py.
"""

from __future__ import annotations

import random

import pytest
from support.sim_node import SimClient, SimNode, batch
from support.sim_producer import (
    Producer,
    batches,
    create_topic,
    fetch_fields,
    fetch_one,
    list_offset,
    produce_fields,
    read_all,
)
from support.sim_transactions import Caller

from broker.config import Limits
from txn import keys
from wire.apis import ApiKey
from wire.batch import parse_header
from wire.errors import ErrorCode

OK = ErrorCode.none
UNSTABLE = ErrorCode.unstable_offset_commit

both_protocols = pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
endings = pytest.mark.parametrize("ending", ["kill", "restart", "cut_power"])


def world_with_topic(**config: object) -> SimNode:
    world = SimNode(**config)  # type: ignore[arg-type]
    create_topic(world.client(), "t", 2)
    return world


def started(world: SimNode, name: str = "p", *, v2: bool = True, timeout_ms: int = 60_000) -> Producer:
    producer = Producer(world.client(), name, v2=v2, timeout_ms=timeout_ms)
    assert producer.init() is OK
    return producer


def stable_offset(client: SimClient, group: str = "g", partition: int = 0) -> tuple[int, ErrorCode]:
    answer = client.ask(
        ApiKey.OFFSET_FETCH,
        7,
        group_id=group,
        topics=({"name": "t", "partition_indexes": (partition,)},),
        require_stable=True,
    )
    one = answer.topics[0].partitions[0]
    return one.committed_offset, one.error_code


def states(client: SimClient) -> dict[str, str]:
    answer = client.ask(ApiKey.LIST_TRANSACTIONS, 1, state_filters=(), producer_id_filters=())
    return {one.transactional_id: one.transaction_state for one in answer.transaction_states}


@both_protocols
def test_no_pause_after_a_commit(v2: bool) -> None:
    """KAFKA-5477 (apache/kafka pull 3377), kafkajs issue 304, KAFKA-18654 (pulls 18720, 18810): the next transaction
    waits 20 to 300 ms for CONCURRENT_TRANSACTIONS to go away. Here its first requests, sent before the end is answered,
    are answered with it, and those sent after it at once."""
    world = world_with_topic(flush_delay_ms=5.0)
    producer = started(world, v2=v2)
    client = producer.client
    for number in range(20):
        assert producer.send("t", {0: [b"%d" % number]}) == {0: OK}
        ended = producer.end_request(True)
        if not v2:
            added = client.send(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                3,
                v3_and_below_transactional_id="p",
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=({"name": "t", "partitions": (0,)},),
            )
            world.scheduler.run_until(lambda added=added: added in client.answers)  # type: ignore[misc]
            answer = client.answers[added].results_by_topic_v3_and_below[0].results_by_partition[0]
            assert answer.partition_error_code is OK
            assert client.answered_at_ms[added] == client.answered_at_ms[ended]
        world.scheduler.run_until(lambda ended=ended: ended in client.answers)  # type: ignore[misc]
        assert producer.take_end(client.answers[ended]) is OK
        before = world.scheduler._now_ms
        assert producer.send("t", {1: [b"next"]}) == {1: OK}
        assert world.scheduler._now_ms == before, "no time passes, not even a flush"
    assert producer.end() is OK
    assert read_all(world.client(), "t")[0] == [b"%d" % number for number in range(20)]


@both_protocols
@pytest.mark.parametrize("commit", [True, False])
def test_an_answered_end_is_an_end(commit: bool, v2: bool) -> None:
    """KAFKA-18957, franz-go pull 928: after EndTxn was answered the transaction was, now and then, open again, and hung
    until its timeout; franz-go asked ListTransactions to find out."""
    world = world_with_topic()
    producer = started(world, v2=v2)
    other = world.client()
    for number in range(60):
        partitions = {number % 2: [b"%d" % number]} if number % 3 else {0: [b"%d" % number], 1: [b"x"]}
        assert set(producer.send("t", partitions).values()) == {OK}
        if number % 4 == 0:
            assert producer.commit_offsets("g", {("t", 0): number}) is OK
        assert producer.end(commit) is OK
        assert world.node.coordinator.open.count == 0
        assert states(other) == {"p": "CompleteCommit" if commit else "CompleteAbort"}
        assert stable_offset(other)[1] is OK
        for partition in (0, 1):
            assert list_offset(other, "t", partition) == list_offset(other, "t", partition, committed=False)
    world.scheduler.advance(2_000)
    assert world.node.store.count(keys.TXNS) == 0, "and what it left is collected"


@pytest.mark.parametrize("turns", range(10))
def test_a_new_transaction_never_joins_the_one_that_completes(turns: int) -> None:
    """KAFKA-18575 (apache/kafka pull 18604): a produce of the next transaction meets the last one while it completes,
    is taken for part of it, and then belongs to none. Sent at every turn of the end."""
    world = world_with_topic(flush_delay_ms=5.0, flush_linger_ms=60_000)
    producer = started(world)
    assert producer.send("t", {0: [b"first"]}) == {0: OK}
    ended = producer.end_request(True)
    next_one = Caller(world.client(), "p", producer.producer_id, producer.epoch + 1)
    for _ in range(turns):
        if not world.scheduler.run_turn() and (due := world.scheduler._next_due()) is not None:
            world.scheduler._now_ms = max(due, world.scheduler._now_ms)
    answered = ended in producer.client.answers
    code = next_one.produce(12, b"second")
    assert code in ((OK,) if answered else (OK, ErrorCode.transaction_abortable))
    world.scheduler.run_until(lambda: ended in producer.client.answers)
    assert producer.client.answers[ended].error_code is OK
    assert read_all(world.client(), "t")[0] == [b"first"]
    assert next_one.abort(5) is OK
    world.scheduler.advance(61_000)
    assert read_all(world.client(), "t")[0] == [b"first"]
    assert list_offset(world.client(), "t") == (2 if code is OK else 1)


@both_protocols
@pytest.mark.parametrize("step", [-1, 1])
def test_an_end_under_another_epoch(step: int, v2: bool) -> None:
    """KAFKA-9600 (apache/kafka pull 8164): EndTxn with an epoch above the coordinator's ended the transaction."""
    world = world_with_topic()
    producer = started(world, v2=v2)
    assert producer.init() is OK
    assert producer.send("t", {0: [b"a"]}) == {0: OK}
    stranger = Caller.of(producer).but(epoch=producer.epoch + step)
    for commit in (True, False):
        for version in range(6):
            code = stranger.end_answer(version, commit=commit).error_code
            assert code in (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch)
    world.scheduler.advance(1_000)
    assert list_offset(world.client(), "t") == 0, "still open"
    assert producer.end() is OK
    assert read_all(world.client(), "t")[0] == [b"a"]


@endings
@both_protocols
@pytest.mark.parametrize("fenced_by", ["timeout", "init"])
def test_a_produce_that_comes_after_its_transaction(fenced_by: str, v2: bool, ending: str) -> None:
    """KAFKA-14053 (apache/kafka pull 12392): a delayed produce arrives when the transaction has timed out, and opens
    one that nobody will ever end."""
    world = world_with_topic()
    producer = started(world, v2=v2, timeout_ms=5_000)
    assert producer.send("t", {0: [b"a"]}) == {0: OK}
    world.scheduler.advance(100)  # it is on the disk: no power cut may take it
    late = Caller.of(producer)
    if fenced_by == "timeout":
        world.scheduler.advance(6_000)
    else:
        assert started(world).producer_id == late.producer_id
    version = 12 if v2 else 9
    assert late.produce(version, b"late", sequence=1) is ErrorCode.invalid_producer_epoch
    assert late.produce(version, b"late", partition=1) is ErrorCode.invalid_producer_epoch
    getattr(world, ending)()
    late = late.but(client=world.client())
    assert late.produce(version, b"late", sequence=1) is ErrorCode.invalid_producer_epoch
    world.scheduler.advance(1_000)
    assert world.node.coordinator.open.count == 0
    assert read_all(world.client(), "t") == ([], 1)
    assert read_all(world.client(), "t", 1) == ([], 0)


@both_protocols
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("sequence", [0, 1, 5])
def test_no_transaction_without_an_end(sequence: int, commit: bool, v2: bool) -> None:
    """KAFKA-12671, kcl issue 10: a produce is overtaken by the end of its transaction, lands behind it in the log, and
    the last stable offset stands still for good."""
    world = world_with_topic()
    producer = started(world, v2=v2)
    assert producer.send("t", {0: [b"a"]}) == {0: OK}
    late = Caller.of(producer)
    assert producer.end(commit) is OK
    code = late.produce(12 if v2 else 9, b"late", sequence=sequence)
    assert code is (ErrorCode.invalid_producer_epoch if v2 else ErrorCode.invalid_txn_state)
    plain = batch(b"plain")
    world.client().ask(ApiKey.PRODUCE, 9, **produce_fields("t", {0: plain}))
    assert list_offset(world.client(), "t") == 2
    assert read_all(world.client(), "t")[0] == [b"a", b"plain"][0 if commit else 1 :]


@pytest.mark.parametrize("ending", ["", "kill", "restart", "cut_power"])
@both_protocols
def test_offsets_of_a_transaction_that_nobody_ends(v2: bool, ending: str) -> None:
    """redpanda issues 6423 and 5543: an application that takes a new transactional id at each start leaves a
    transaction behind, and its group hears UNSTABLE_OFFSET_COMMIT for ever."""
    world = world_with_topic()
    plain = started(world, "steady", v2=v2)
    assert plain.commit_offsets("g", {("t", 0): 3}) is OK
    assert plain.end() is OK
    for number in range(3):
        left = started(world, f"app-{number}", v2=v2, timeout_ms=5_000)
        assert left.commit_offsets("g", {("t", 0): 100 + number}) is OK
        assert stable_offset(world.client()) == (-1, UNSTABLE)
        if ending:
            getattr(world, ending)()
            if ending != "cut_power":
                assert stable_offset(world.client()) == (-1, UNSTABLE)
        world.scheduler.advance(6_000)
        assert stable_offset(world.client()) == (3, OK)
    assert started(world, "steady", v2=v2).commit_offsets("g", {("t", 0): 4}) is OK


@both_protocols
def test_a_waiting_commit_of_offsets_goes_on_when_the_other_times_out(v2: bool) -> None:
    """The same, for whoever waits to commit offsets there (first protocol), or is told to abort (transactions v2)."""
    world = world_with_topic()
    left = started(world, "left", v2=v2, timeout_ms=5_000)
    assert left.commit_offsets("g", {("t", 0): 9}) is OK
    producer = started(world, v2=v2)
    if v2:
        assert producer.commit_offsets("g", {("t", 0): 4}) is ErrorCode.transaction_abortable
        assert producer.end(False) is OK
        world.scheduler.advance(6_000)
    before = world.scheduler._now_ms
    assert producer.commit_offsets("g", {("t", 0): 4}) is OK
    assert world.scheduler._now_ms - before < 6_000
    assert producer.end() is OK
    assert stable_offset(world.client()) == (4, OK)


@both_protocols
def test_where_the_last_stable_offset_stands(v2: bool) -> None:
    """redpanda issue 3036: off by one. It is the first offset of the first open transaction, exactly: what lies below
    can be read, what lies there cannot, and a reader that waits there is woken."""
    world = world_with_topic()
    client = world.client()
    world.client().ask(ApiKey.PRODUCE, 9, **produce_fields("t", {0: batch(b"0", b"1")}))
    assert fetch_one(client, "t", 0).last_stable_offset == 2
    first, second = started(world, "first", v2=v2), started(world, "second", v2=v2)
    first.send("t", {0: [b"2"]})
    second.send("t", {0: [b"3", b"4"]})
    world.client().ask(ApiKey.PRODUCE, 9, **produce_fields("t", {0: batch(b"5")}))

    def stands_at(offset: int) -> None:
        world.scheduler.advance(100)
        answer = fetch_one(client, "t", 0)
        assert (answer.last_stable_offset, answer.high_watermark) == (offset, 6)
        assert list_offset(client, "t") == offset
        assert read_all(client, "t")[1] == offset
        at_the_end = fetch_one(client, "t", offset)
        assert (at_the_end.error_code, bytes(at_the_end.records or b"")) == (OK, b"")
        last = batches(fetch_one(client, "t", offset - 1).records)[-1]
        assert parse_header(last).last_offset == offset - 1

    stands_at(2)
    assert second.end() is OK
    stands_at(2)
    waiting = client.send(ApiKey.FETCH, 11, **fetch_fields("t", 2, max_wait_ms=60_000))
    world.scheduler.advance(100)
    assert waiting not in client.answers
    assert first.end() is OK
    world.scheduler.run_until(lambda: waiting in client.answers)
    stands_at(6)


def test_a_repeat_is_known_however_many_producers_come() -> None:
    """redpanda issue 5356: with many producers the sequences of one are evicted, and its repeat is stored twice. Here
    those that wrote lately stay, and so does each whose transaction is open, however long it is idle; at the limit the
    newcomer is asked to wait."""
    world = world_with_topic(limits=Limits(producers_per_topic=8), transaction_max_timeout_ms=100_000_000)
    client = world.client()
    open_one = started(world, "open", timeout_ms=90_000_000)
    assert open_one.send("t", {0: [b"open"]}) == {0: OK}
    world.scheduler.advance(20 * 60_000)

    def idempotent(producer_id: int, sequence: int = 0) -> tuple[ErrorCode, int]:
        data = batch(b"%d" % producer_id, producer_id=producer_id, epoch=0, sequence=sequence)
        answer = client.ask(ApiKey.PRODUCE, 9, **produce_fields("t", {0: data}))
        one = answer.responses[0].partition_responses[0]
        return one.error_code, one.base_offset

    first = idempotent(1_000)
    assert first == (OK, 1)
    codes = [idempotent(1_000 + number)[0] for number in range(1, 20)]
    assert set(codes) == {OK, ErrorCode.throttling_quota_exceeded}
    assert codes[:6] == [OK] * 6
    assert idempotent(1_000) == first
    world.scheduler.advance(20 * 60_000)
    assert idempotent(2_000)[0] is OK, "by now the idle ones make room"
    repeat = Caller.of(open_one).produce_answer(12, b"open")
    assert (repeat.error_code, repeat.base_offset) == (OK, 0)


def test_an_open_transaction_outlives_the_memory_of_producers() -> None:
    """The same for producer.id.expiration.ms, which a roll applies: a repeat must not be taken for the first batch."""
    world = world_with_topic(producer_id_expiration_ms=1_000, segment_bytes=1 << 16)
    producer = started(world)
    assert producer.send("t", {0: [b"once"]}) == {0: OK}
    world.scheduler.advance(5_000)
    filling = batch(b"x" * 40_000)
    for _ in range(4):
        world.client().ask(ApiKey.PRODUCE, 9, **produce_fields("t", {1: filling}))
    world.scheduler.advance(1_000)
    assert len(world.node.topics.partition(world.node.topics.get("t"), 0).log.segments) > 1, "it has rolled"
    again = Caller.of(producer).produce_answer(12, b"once")
    assert (again.error_code, again.base_offset) == (OK, 0)
    assert producer.end() is OK
    assert read_all(world.client(), "t")[0] == [b"once"]


@pytest.mark.parametrize("ending", ["", "kill", "cut_power"])
@pytest.mark.parametrize("turns", range(12))
@both_protocols
def test_a_commit_whose_answer_got_lost_and_the_offsets_then_read(v2: bool, turns: int, ending: str) -> None:
    """redpanda issue 9571: the commit passed, its answer did not, and the next owner of the partition read the offset
    from before it. A stable read says UNSTABLE_OFFSET_COMMIT or what stands for good."""
    world = world_with_topic(flush_delay_ms=5.0, flush_linger_ms=60_000)
    producer = started(world, v2=v2)
    assert producer.commit_offsets("g", {("t", 0): 1}) is OK
    assert producer.end() is OK
    producer.send("t", {0: [b"result"]})
    assert producer.commit_offsets("g", {("t", 0): 2}) is OK
    number = producer.end_request(True)
    reader = world.client()
    seen: list[tuple[int, ErrorCode]] = []
    for _ in range(turns):
        if not world.scheduler.run_turn() and (due := world.scheduler._next_due()) is not None:
            world.scheduler._now_ms = max(due, world.scheduler._now_ms)
        seen.append(stable_offset(reader))
    acknowledged = number in producer.client.answers
    if ending:
        getattr(world, ending)()
    world.scheduler.advance(61_000 if ending else 100)
    final = stable_offset(world.client())
    records = read_all(world.client(), "t")[0]
    assert final in ((1, OK), (2, OK))
    assert records == ([b"result"] if final[0] == 2 else []), "offsets and records are one"
    if acknowledged or not ending:
        assert final == (2, OK)
    assert (1, OK) not in seen
    if (2, OK) in seen:
        assert final == (2, OK)


def test_producer_ids_cost_nothing() -> None:
    """redpanda issues 10238 and 8507, pull 28233: each producer id that was ever handed out stays in memory until there
    is none left. Here an id is a number from a block; producers that wrote are bounded per topic, and so are
    transactional ids."""
    world = world_with_topic(limits=Limits(transactional_ids=3, producers_per_topic=5))
    client = world.client()

    def new_id(name: str | None = None) -> tuple[ErrorCode, int]:
        answer = client.ask(
            ApiKey.INIT_PRODUCER_ID,
            4,
            transactional_id=name,
            transaction_timeout=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        return answer.error_code, answer.producer_id

    records = len(world.node.store)
    ids = [new_id()[1] for _ in range(5_000)]
    assert len(set(ids)) == 5_000
    assert len(world.node.store) <= records + 1, "the record of the next block"
    for producer_id in ids[:100]:
        data = batch(b"x", producer_id=producer_id, epoch=0, sequence=0)
        client.ask(ApiKey.PRODUCE, 9, **produce_fields("t", {0: data}))
    partition = world.node.topics.partition(world.node.topics.get("t"), 0)
    assert len(partition.producers) == 5
    assert [new_id(f"app-{number}")[0] for number in range(5)] == [OK] * 3 + [ErrorCode.policy_violation] * 2
    assert new_id("app-0")[0] is OK


@endings
@pytest.mark.parametrize("seed", range(4))
def test_every_position_reaches_the_end(seed: int, ending: str) -> None:
    """redpanda issues 8698 and 17966: a reader never gets the end-of-partition event, or OFFSET_OUT_OF_RANGE at a
    position it had reached before a restart; issue 25918: the end is one higher than the last record, and the lag stays
    1. From every offset a reader gets to the end, which is the number of records, whatever committed and aborted."""
    random_ = random.Random(seed)
    world = world_with_topic()
    producers = [started(world, f"p{number}", v2=number % 2 == 0) for number in range(3)]
    committed: list[bytes] = []
    for number in range(40):
        producer = random_.choice(producers)
        values = [b"%d-%d" % (number, n) for n in range(random_.randint(1, 3))]
        assert producer.send("t", {0: values}) == {0: OK}
        commit = random_.random() < 0.5
        assert producer.end(commit) is OK
        committed += values if commit else []
    producers[0].send("t", {0: [b"last, aborted"]})
    assert producers[0].end(False) is OK
    world.scheduler.advance(1_000)
    total = list_offset(world.client(), "t", committed=False)
    for _ in range(2):
        client = world.client()
        assert list_offset(client, "t") == list_offset(client, "t", committed=False) == total
        assert read_all(client, "t") == (committed, total)
        assert len(read_all(client, "t", committed=False)[0]) == total
        for start in range(total + 1):
            position = start
            while position < total:
                answer = fetch_one(client, "t", position, max_bytes=random_.choice([100, 1 << 20]))
                assert (answer.error_code, answer.high_watermark) == (OK, total)
                last = parse_header(batches(answer.records)[-1]).last_offset
                assert last >= position
                position = last + 1
            assert position == total
            at_the_end = fetch_one(client, "t", position)
            assert (at_the_end.error_code, bytes(at_the_end.records or b"")) == (OK, b"")
        getattr(world, ending)()


@both_protocols
@pytest.mark.parametrize("pause_ms", [1, 75, 100, 5_000])
def test_a_late_abort_shows_nothing_meanwhile(pause_ms: int, v2: bool) -> None:
    """kop issue 1283: read_committed consumers got records of a transaction that was aborted 75 ms or more after its
    last record."""
    world = world_with_topic()
    producer = started(world, v2=v2)
    reader = world.client()
    for number in range(5):
        waiting = reader.send(ApiKey.FETCH, 11, **fetch_fields("t", number, max_wait_ms=pause_ms + 1_000))
        assert producer.send("t", {0: [b"%d" % number]}) == {0: OK}
        for _ in range(4):
            world.scheduler.advance(pause_ms / 4)
            answer = fetch_one(reader, "t", number) if waiting in reader.answers else None
            assert answer is None or not answer.records
        assert producer.end(False) is OK
        world.scheduler.run_until(lambda waiting=waiting: waiting in reader.answers)  # type: ignore[misc]
        found = batches(reader.answers[waiting].responses[0].partitions[0].records)
        assert [parse_header(data).is_control for data in found] == [True]
    assert read_all(reader, "t") == ([], 5)
