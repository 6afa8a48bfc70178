"""Kills, power cuts and clean restarts of a whole node: who hears what, and what readers see (design D2, T3-T5, T8)."""

from __future__ import annotations

import pytest
from support.sim_groups import Member
from support.sim_node import SimNode, batch
from support.sim_producer import Producer, create_topic, list_offset, produce_fields, read_all

from txn import keys
from wire.apis import ApiKey
from wire.errors import ErrorCode

both_protocols = pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])


def world_with_topic(**config: object) -> SimNode:
    world = SimNode(**config)  # type: ignore[arg-type]
    create_topic(world.client(), "t", 2)
    return world


def reconnect(world: SimNode, producer: Producer) -> None:
    producer.client = world.client()


@both_protocols
@pytest.mark.parametrize("ending", ["kill", "restart"])
def test_an_open_transaction_lives_on_over_a_kill_and_a_clean_restart(v2: bool, ending: str) -> None:
    world = world_with_topic()
    producer = Producer(world.client(), "p", v2=v2)
    producer.init()
    producer.send("t", {0: [b"a"]})
    getattr(world, ending)()
    assert world.report.transactions.resumed == 1
    reconnect(world, producer)
    assert producer.send("t", {0: [b"b"], 1: [b"c"]}) == {0: ErrorCode.none, 1: ErrorCode.none}
    assert list_offset(world.client(), "t") == 0
    assert producer.end() is ErrorCode.none
    assert read_all(world.client(), "t", 0)[0] == [b"a", b"b"]
    assert read_all(world.client(), "t", 1)[0] == [b"c"]


@both_protocols
@pytest.mark.parametrize("keep", ["none", "all", "prefix", "sectors"])
def test_after_a_power_cut_an_open_transaction_can_only_abort(v2: bool, keep: str) -> None:
    world = world_with_topic(flush_linger_ms=60_000)
    producer = Producer(world.client(), "p", v2=v2)
    producer.init()
    producer.send("t", {0: [b"a"]})
    world.cut_power(keep=keep)
    reconnect(world, producer)
    if v2:
        assert producer.send("t", {1: [b"b"]}) == {1: ErrorCode.invalid_producer_epoch}
    else:
        assert producer.add("t", [1]) is ErrorCode.invalid_producer_id_mapping
        assert producer.send("t", {0: [b"b"]}, add=False) == {0: ErrorCode.transaction_abortable}
    assert producer.end(commit=True) is not ErrorCode.none, "commit never answers success"
    assert producer.end(commit=False) is ErrorCode.none, "abort lets the client go on"
    producer.init()
    assert producer.send("t", {0: [b"c"]}) == {0: ErrorCode.none}
    assert producer.end() is ErrorCode.none
    assert read_all(world.client(), "t", 0)[0] == [b"c"]


@both_protocols
@pytest.mark.parametrize("keep", ["none", "prefix", "all"])
def test_an_acknowledged_commit_survives_a_power_cut(v2: bool, keep: str) -> None:
    world = world_with_topic(flush_linger_ms=60_000)
    producer = Producer(world.client(), "p", v2=v2)
    producer.init()
    producer.send("t", {0: [b"a"], 1: [b"b"]})
    assert producer.end() is ErrorCode.none
    world.cut_power(keep=keep)
    assert read_all(world.client(), "t", 0)[0] == [b"a"]
    assert read_all(world.client(), "t", 1)[0] == [b"b"]


@both_protocols
def test_a_repeated_end_gets_the_recorded_outcome_also_after_a_restart(v2: bool) -> None:
    world = world_with_topic()
    producer = Producer(world.client(), "p", v2=v2)
    producer.init()
    producer.send("t", {0: [b"a"]})
    identity = producer.producer_id, producer.epoch
    assert producer.end() is ErrorCode.none
    after = producer.producer_id, producer.epoch
    for ending in ("", "kill", "restart"):
        if ending:
            getattr(world, ending)()
            reconnect(world, producer)
        producer.producer_id, producer.epoch = identity
        assert producer.end() is ErrorCode.none
        assert (producer.producer_id, producer.epoch) == after
        producer.producer_id, producer.epoch = identity
        assert producer.end(commit=False) is not ErrorCode.none, "the opposite is an error (T5)"
    assert read_all(world.client(), "t", 0)[0] == [b"a"]


@pytest.mark.parametrize("keep", ["none", "prefix", "sectors", "all"])
@pytest.mark.parametrize("cut_at", range(12))
@both_protocols
def test_a_commit_cut_anywhere_is_whole_or_absent_and_stays_so(v2: bool, cut_at: int, keep: str) -> None:
    """The power goes at each turn of the loop between EndTxn and its answer; a repeat never hears the opposite."""
    world = world_with_topic(flush_linger_ms=60_000)
    client = world.client()
    producer = Producer(client, "p", v2=v2)
    producer.init()
    producer.send("t", {0: [b"a"], 1: [b"b"]})
    number = producer.end_request(True)
    for _ in range(cut_at):
        if not world.scheduler.run_turn():
            due = world.scheduler._next_due()
            if due is None:
                break
            world.scheduler._now_ms = due
    acknowledged = number in client.answers
    world.cut_power(keep=keep)
    seen = [read_all(world.client(), "t", p)[0] for p in (0, 1)]
    assert seen in ([[b"a"], [b"b"]], [[], []]), "atomic"
    if acknowledged:
        assert seen == [[b"a"], [b"b"]]
    for partition in (0, 1):
        assert read_all(world.client(), "t", partition)[1] == list_offset(
            world.client(), "t", partition, committed=False
        )
    world.cut_power(keep=keep)
    assert [read_all(world.client(), "t", p)[0] for p in (0, 1)] == seen, "a verdict never changes (T4)"
    reconnect(world, producer)
    again = producer.end()
    if again is ErrorCode.none:
        assert seen == [[b"a"], [b"b"]]
    elif again in (ErrorCode.transaction_abortable, ErrorCode.invalid_producer_id_mapping):
        assert seen == [[], []], "who is told to abort must not have committed"
        assert producer.end(commit=False) is ErrorCode.none
    else:
        assert again in (ErrorCode.producer_fenced, ErrorCode.invalid_txn_state), again
    assert [read_all(world.client(), "t", p)[0] for p in (0, 1)] == seen


@pytest.mark.parametrize("keep", ["none", "prefix", "all"])
@pytest.mark.parametrize("trace", ["flushed", "a write", "none"])
def test_which_transaction_an_end_means_after_a_power_cut(trace: str, keep: str) -> None:
    """First protocol, a commit, then a transaction that a power cut takes: the client goes on if a trace of that stayed
    or it writes once more; else its end is refused for good, as it could be the commit's repeat."""
    world = world_with_topic(flush_linger_ms=60_000)
    producer = Producer(world.client(), "p", v2=False, timeout_ms=600_000)
    producer.init()
    producer.send("t", {0: [b"a"]})
    assert producer.end() is ErrorCode.none
    producer.send("t", {0: [b"lost"]})
    if trace == "flushed":
        world.scheduler.advance(61_000)
    world.cut_power(keep=keep)
    reconnect(world, producer)
    if trace == "a write":
        assert producer.add("t", [0]) is ErrorCode.invalid_producer_id_mapping
    if trace == "none" and keep != "all":
        for commit in (True, False):
            assert producer.end(commit=commit) is ErrorCode.producer_fenced
        producer.init()
    else:
        assert producer.end() is ErrorCode.invalid_producer_id_mapping
        assert producer.end(commit=False) is ErrorCode.none
        producer.sequences.clear()
    producer.send("t", {0: [b"b"]})
    assert producer.end() is ErrorCode.none
    assert read_all(world.client(), "t", 0)[0] == [b"a", b"b"]


def test_aborted_records_stay_away_after_settlement_and_restarts() -> None:
    world = world_with_topic()
    producer = Producer(world.client(), "p")
    producer.init()
    for number in range(30):
        producer.send("t", {0: [b"%d" % number]})
        producer.end(commit=number % 3 == 0)
    expected = [b"%d" % number for number in range(0, 30, 3)]
    assert read_all(world.client(), "t")[0] == expected
    world.scheduler.advance(5_000)
    assert world.node.store.count(keys.TXNS) == 0, "settled headers are collected"
    assert world.node.store.count(keys.TXN_OPS) == 0
    assert read_all(world.client(), "t")[0] == expected
    for ending in ("kill", "cut_power", "restart"):
        getattr(world, ending)()
        assert read_all(world.client(), "t")[0] == expected, ending


def test_settlement_does_not_pass_an_open_transaction() -> None:
    """An aborted one that reaches across the LSO is recorded up to it, and again when it can be (T8)."""
    world = world_with_topic()
    outer, inner = Producer(world.client(), "outer"), Producer(world.client(), "inner")
    outer.init()
    inner.init()
    inner.send("t", {0: [b"aborted-1"]})
    outer.send("t", {0: [b"outer"]})
    inner.send("t", {0: [b"aborted-2"]})
    inner.end(commit=False)
    world.scheduler.advance(5_000)
    assert list_offset(world.client(), "t") == 1
    assert world.node.store.count(keys.TXNS) == 2
    world.kill()
    reconnect(world, outer)
    assert outer.end() is ErrorCode.none
    world.scheduler.advance(5_000)
    assert world.node.store.count(keys.TXNS) == 0
    for ending in ("kill", "cut_power"):
        getattr(world, ending)()
        assert read_all(world.client(), "t")[0] == [b"outer"]


def test_batches_whose_transaction_nobody_remembers_are_aborted() -> None:
    """The data was flushed, the header was not: it never committed (T3)."""
    world = world_with_topic(flush_linger_ms=60_000)
    plain, producer = world.client(), Producer(world.client(), "p")
    producer.init()
    producer.send("t", {0: [b"lost"]})
    # A plain record asks for a flush of the same range; the metadata log lingers on.
    plain.ask(ApiKey.PRODUCE, 9, **produce_fields("t", {0: batch(b"plain")}))
    world.cut_power(keep="none")
    assert world.report.transactions.unknown == 1
    assert read_all(world.client(), "t") == ([b"plain"], 2)
    world.scheduler.advance(70_000)
    world.cut_power(keep="none")
    assert world.report.transactions.unknown == 0, "settled once and for all"
    assert read_all(world.client(), "t") == ([b"plain"], 2)


def test_timeouts_abort_and_fence() -> None:
    world = world_with_topic()
    producer = Producer(world.client(), "p", timeout_ms=2_000)
    producer.init()
    producer.send("t", {0: [b"a"]})
    world.scheduler.advance(1_900)
    assert list_offset(world.client(), "t") == 0
    world.scheduler.advance(300)
    assert list_offset(world.client(), "t") == 1
    assert producer.send("t", {0: [b"b"]}) == {0: ErrorCode.invalid_producer_epoch}
    assert producer.end() is ErrorCode.producer_fenced, "a commit after the timeout (KAFKA-20785)"
    assert producer.end(commit=False) is ErrorCode.none, (
        "an abort gets the bumped epoch, and the producer goes on"
    )
    assert producer.send("t", {0: [b"c"]}) == {0: ErrorCode.none}
    assert producer.end() is ErrorCode.none
    assert read_all(world.client(), "t")[0] == [b"c"]


def test_a_deadline_outlives_a_kill() -> None:
    world = world_with_topic()
    producer = Producer(world.client(), "p", timeout_ms=2_000)
    producer.init()
    producer.send("t", {0: [b"a"]})
    world.kill()
    assert world.report.transactions.resumed == 1
    world.scheduler.advance(2_500)
    assert read_all(world.client(), "t") == ([], 1)


@both_protocols
def test_offsets_in_a_transaction_follow_its_outcome(v2: bool) -> None:
    world = world_with_topic()
    producer = Producer(world.client(), "p", v2=v2)
    producer.init()

    def committed(*, stable: bool = False) -> tuple[int, ErrorCode]:
        answer = world.client().ask(
            ApiKey.OFFSET_FETCH,
            7,
            group_id="g",
            topics=({"name": "t", "partition_indexes": (1,)},),
            require_stable=stable,
        )
        one = answer.topics[0].partitions[0]
        return one.committed_offset, one.error_code

    for outcome, offset in ((True, 3), (False, 7), (True, 9)):
        before = committed()[0]
        producer.send("t", {0: [b"x"]})
        assert producer.commit_offsets("g", {("t", 1): offset}) is ErrorCode.none
        assert committed() == (before, ErrorCode.none)
        assert committed(stable=True) == (-1, ErrorCode.unstable_offset_commit)
        world.kill()
        reconnect(world, producer)
        assert committed(stable=True) == (-1, ErrorCode.unstable_offset_commit), "pending over a kill"
        assert producer.end(commit=outcome) is ErrorCode.none
        assert committed(stable=True) == (offset if outcome else before, ErrorCode.none)
    world.cut_power()
    assert committed(stable=True) == (9, ErrorCode.none)


def test_after_a_power_cut_a_member_of_a_group_hears_what_every_client_goes_on_after() -> None:
    """Kafka Streams 4.3 ends at TRANSACTION_ABORTABLE. Offsets that no member sends are still told that."""
    world = world_with_topic(flush_linger_ms=60_000)
    producer, member = Producer(world.client(), "p"), Member(world.client(), "g", "t").settle()
    producer.init()
    assert producer.commit_offsets("g", {("t", 0): 1}, member) is ErrorCode.none
    world.cut_power()
    reconnect(world, producer)
    member = Member(world.client(), "g", "t").settle()
    assert producer.commit_offsets("g", {("t", 0): 2}, member) is ErrorCode.illegal_generation
    assert producer.commit_offsets("other", {("t", 0): 2}) is ErrorCode.transaction_abortable
    assert producer.end(commit=False) is ErrorCode.none
    assert producer.commit_offsets("g", {("t", 0): 3}, member) is ErrorCode.none
    assert producer.end() is ErrorCode.none


def test_two_open_transactions_cannot_hold_one_offset() -> None:
    """Kafka takes both and keeps the one written later; here the second is refused as abortable (design, section 4)."""
    world = world_with_topic()
    first, second = Producer(world.client(), "first"), Producer(world.client(), "second")
    first.init()
    second.init()
    assert first.commit_offsets("g", {("t", 0): 1}) is ErrorCode.none
    assert second.commit_offsets("g", {("t", 0): 2}) is ErrorCode.transaction_abortable
    assert second.end(commit=False) is ErrorCode.none
    assert first.end() is ErrorCode.none
    assert second.commit_offsets("g", {("t", 0): 2}) is ErrorCode.none


def test_fencing_inside_init_aborts_what_was_open() -> None:
    world = world_with_topic()
    old, new = Producer(world.client(), "p"), Producer(world.client(), "p")
    old.init()
    old.send("t", {0: [b"old"]})
    assert new.init() is ErrorCode.none
    assert new.epoch == old.epoch + 2
    assert old.send("t", {0: [b"zombie"]}) == {0: ErrorCode.invalid_producer_epoch}
    identity = old.producer_id, old.epoch
    for commit in (True, False):
        assert old.end(commit=commit) is ErrorCode.producer_fenced
        assert (old.producer_id, old.epoch) == identity, "never the identity of its successor"
    new.send("t", {0: [b"new"]})
    assert new.end() is ErrorCode.none
    assert read_all(world.client(), "t")[0] == [b"new"]


def test_deleting_a_topic_lets_its_open_transaction_commit() -> None:
    world = world_with_topic()
    create_topic(world.client(), "gone")
    producer = Producer(world.client(), "p")
    producer.init()
    producer.send("gone", {0: [b"x"]})
    producer.send("t", {0: [b"y"]})
    answer = world.client().ask(
        ApiKey.DELETE_TOPICS, 6, topics=({"name": "gone", "topic_id": None},), timeout=30_000
    )
    assert answer.responses[0].error_code is ErrorCode.none
    assert producer.end() is ErrorCode.none
    world.scheduler.advance(5_000)
    assert not [path for path in world.disk.list("topics") if path.startswith("gone")]
    world.kill()
    assert read_all(world.client(), "t")[0] == [b"y"]
    assert len(world.node.topics) == 1


def test_a_folder_of_another_make_is_refused() -> None:
    from support.sim_disk import SimDisk

    from broker.data_folder import ForeignFolder, claim

    disk = SimDisk()
    disk.replace("SEALOG", b"sealog format 99\n")
    with pytest.raises(ForeignFolder, match="99"):
        claim(disk)
    stranger = SimDisk()
    stranger.replace("precious.txt", b"x")
    with pytest.raises(ForeignFolder, match="precious"):
        claim(stranger)
