"""DeleteRecords: the log start moves when that is durable, and never back; transactions go on above it.
OffsetForLeaderEpoch: where an epoch ended."""

from __future__ import annotations

import pytest
from support.sim_admin import change, delete_records, delete_topic, grow, run_turns, send
from support.sim_node import SimClient, SimNode
from support.sim_producer import Producer, create_topic, fetch_fields, fetch_one, list_offset, read_all

from txn import keys
from wire.apis import ApiKey
from wire.errors import ErrorCode

HIGH_WATERMARK = -1


def world_with_records(count: int = 10, **config: object) -> SimNode:
    world = SimNode(**config)  # type: ignore[arg-type]
    client = world.client()
    create_topic(client, "t", 2)
    for number in range(count):
        send(client, "t", {0: [b"%d" % number]})
    return world


def delete_fields(offset: int) -> dict[str, object]:
    partitions = ({"partition_index": 0, "offset": offset},)
    return {"topics": ({"name": "t", "partitions": partitions},), "timeout": 30_000}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_records_below_are_gone_and_stay_gone(version: int) -> None:
    world = world_with_records()
    client = world.client()
    assert delete_records(client, "t", {0: 4}, version) == {0: (ErrorCode.none, 4)}
    for ending in ("", "kill", "cut_power", "restart"):
        if ending:
            getattr(world, ending)()
        client = world.client()
        assert list_offset(client, "t", at=-2) == 4
        assert list_offset(client, "t") == 10
        assert fetch_one(client, "t", 3).error_code is ErrorCode.offset_out_of_range
        found = fetch_one(client, "t", 4)
        assert (found.error_code, found.log_start_offset) == (ErrorCode.none, 4)
        assert read_all(client, "t")[0] == [b"%d" % number for number in range(4, 10)]
        assert send(client, "t", {1: [b"x"]})[1].log_start_offset == 0


def test_minus_one_means_the_high_watermark() -> None:
    world = world_with_records()
    client = world.client()
    assert delete_records(client, "t", {0: HIGH_WATERMARK}) == {0: (ErrorCode.none, 10)}
    assert read_all(client, "t") == ([], 10)
    assert send(client, "t", {0: [b"next"]})[0].base_offset == 10
    world.cut_power()
    assert read_all(world.client(), "t") == ([b"next"], 11)


def test_a_log_start_never_moves_back() -> None:
    world = world_with_records()
    client = world.client()
    delete_records(client, "t", {0: 7})
    assert delete_records(client, "t", {0: 3}) == {0: (ErrorCode.none, 7)}
    world.kill()
    assert list_offset(world.client(), "t", at=-2) == 7


def test_each_partition_gets_its_own_answer() -> None:
    world = world_with_records()
    client = world.client()
    found = delete_records(client, "t", {0: 11, 1: 0, 2: 0, -1: 0})
    assert found == {
        0: (ErrorCode.offset_out_of_range, -1),
        1: (ErrorCode.none, 0),
        2: (ErrorCode.unknown_topic_or_partition, -1),
        -1: (ErrorCode.unknown_topic_or_partition, -1),
    }
    assert delete_records(client, "t", {0: -2}) == {0: (ErrorCode.offset_out_of_range, -1)}
    assert delete_records(client, "absent", {0: 0}) == {0: (ErrorCode.unknown_topic_or_partition, -1)}
    assert list_offset(client, "t", at=-2) == 0


def test_nothing_above_the_high_watermark_can_go() -> None:
    """What is not durable yet a crash may take back, and its offsets would be given out again."""
    world = SimNode(flush_linger_ms=60_000)
    client = world.client()
    create_topic(client, "t")
    producer = Producer(client, "p")
    producer.init()
    producer.send("t", {0: [b"unflushed"]})
    assert delete_records(client, "t", {0: 1}) == {0: (ErrorCode.offset_out_of_range, -1)}
    assert delete_records(client, "t", {0: HIGH_WATERMARK}) == {0: (ErrorCode.none, 0)}


def test_a_compacted_topic_keeps_its_records() -> None:
    """POLICY_VIOLATION, as in Kafka, unless the policy says delete as well."""
    world = SimNode()
    client = world.client()
    create_topic(client, "t")
    send(client, "t", {0: [b"x"]})
    assert change(client, 2, "t", [("cleanup.policy", 0, "compact")])[0] is ErrorCode.none
    assert send(client, "t", {0: [b"x"]})[0].error_code is ErrorCode.invalid_record, "it has no key"
    assert delete_records(client, "t", {0: 1}) == {0: (ErrorCode.policy_violation, -1)}
    assert change(client, 2, "t", [("cleanup.policy", 2, "delete")])[0] is ErrorCode.none
    assert delete_records(client, "t", {0: 1}) == {0: (ErrorCode.none, 1)}


@pytest.mark.parametrize("keep", ["none", "prefix", "all"])
def test_what_was_answered_outlives_a_power_cut_at_any_moment(keep: str) -> None:
    answered = 0
    for turns in range(12):
        world = world_with_records(4, flush_linger_ms=60_000)
        client = world.client()
        number = client.send(ApiKey.DELETE_RECORDS, 2, **delete_fields(3))
        run_turns(world, turns)
        done = number in client.answers
        answered += done
        world.cut_power(keep=keep)
        start = list_offset(world.client(), "t", at=-2)
        assert start == 3 if done else start in (0, 3)
        assert list_offset(world.client(), "t") == 4
    assert 0 < answered < 12


def test_a_waiting_fetch_hears_that_its_offset_is_gone() -> None:
    """It waits inside the log, with more bytes asked for than there are."""
    world = world_with_records()
    reader = world.client()
    fields = fetch_fields("t", 2, max_wait_ms=30_000)
    fields["min_bytes"] = 1 << 20
    number = reader.send(ApiKey.FETCH, 11, **fields)
    world.scheduler.advance(100)
    assert number not in reader.answers
    delete_records(world.client(), "t", {0: 5})
    world.scheduler.advance(100)
    assert reader.answers[number].responses[0].partitions[0].error_code is ErrorCode.offset_out_of_range


def test_a_deleted_topic_of_the_same_name_begins_at_zero() -> None:
    world = world_with_records()
    client = world.client()
    delete_records(client, "t", {0: 5})
    assert delete_topic(client, "t") is ErrorCode.none
    create_topic(client, "t", 2)
    for ending in ("", "kill"):
        if ending:
            getattr(world, ending)()
        assert list_offset(world.client(), "t", at=-2) == 0


def test_a_range_that_was_added_has_log_starts_too() -> None:
    world = world_with_records()
    client = world.client()
    grow(client, "t", 4)
    send(client, "t", {3: [b"a"]})
    send(client, "t", {3: [b"b"]})
    assert delete_records(client, "t", {3: 1, 0: 2}) == {
        3: (ErrorCode.none, 1),
        0: (ErrorCode.none, 2),
    }
    world.cut_power()
    assert read_all(world.client(), "t", 3)[0] == [b"b"]
    assert list_offset(world.client(), "t", at=-2) == 2


class TestTransactions:
    def aborted(self, client: SimClient, name: str, value: bytes) -> None:
        producer = Producer(client, name)
        producer.init()
        producer.send("t", {0: [value]})
        assert producer.end(commit=False) is ErrorCode.none

    def test_aborted_ranges_below_are_forgotten_in_memory_and_in_the_store(self) -> None:
        world = world_with_records(1)
        client = world.client()
        for number in range(5):
            self.aborted(client, f"p{number}", b"no")
            send(client, "t", {0: [b"yes-%d" % number]})
        world.scheduler.advance(2_000)
        partition = world.node.topics.get("t").partitions[0]
        assert (partition.transactions.aborted_count, world.node.store.count(keys.ABORTED)) == (5, 5)
        # 0: plain, 1: aborted, 2: plain, 3: aborted, ...
        assert delete_records(client, "t", {0: 4}) == {0: (ErrorCode.none, 4)}
        assert (partition.transactions.aborted_count, world.node.store.count(keys.ABORTED)) == (3, 3)
        expected = [b"yes-1", b"yes-2", b"yes-3", b"yes-4"]
        for ending in ("", "kill", "cut_power"):
            if ending:
                getattr(world, ending)()
            assert read_all(world.client(), "t")[0] == expected
        assert world.node.topics.get("t").partitions[0].transactions.aborted_count == 3

    def test_an_aborted_range_across_the_log_start_still_hides_what_is_above(self) -> None:
        world = world_with_records(0)
        client = world.client()
        producer = Producer(client, "p")
        producer.init()
        for number in range(4):
            producer.send("t", {0: [b"no-%d" % number]})
        assert producer.end(commit=False) is ErrorCode.none
        send(client, "t", {0: [b"yes"]})
        assert delete_records(client, "t", {0: 2}) == {0: (ErrorCode.none, 2)}
        for ending in ("", "kill", "cut_power"):
            if ending:
                getattr(world, ending)()
            assert read_all(world.client(), "t") == ([b"yes"], 5)
            world.scheduler.advance(2_000)

    @pytest.mark.parametrize("commit", [True, False])
    @pytest.mark.parametrize("ending", ["", "kill"])
    def test_an_open_transaction_goes_on_above_its_deleted_beginning(self, commit: bool, ending: str) -> None:
        world = world_with_records(2)
        client = world.client()
        producer = Producer(client, "p")
        producer.init()
        producer.send("t", {0: [b"first"]})
        producer.send("t", {0: [b"second"]})
        world.scheduler.advance(100)
        assert list_offset(client, "t") == 2
        assert delete_records(client, "t", {0: 3}) == {0: (ErrorCode.none, 3)}
        assert list_offset(client, "t") == 3, "the last stable offset is not below the log start"
        if ending:
            getattr(world, ending)()
            producer.client = world.client()
        assert producer.send("t", {0: [b"third"]}) == {0: ErrorCode.none}
        assert producer.end(commit=commit) is ErrorCode.none
        world.scheduler.advance(100)  # nobody waits for the flush of aborted records
        expected = [b"second", b"third"] if commit else []
        for again in ("", "cut_power", "restart"):
            if again:
                getattr(world, again)()
            assert read_all(world.client(), "t") == (expected, 5)
            world.scheduler.advance(2_000)

    def test_a_transaction_that_is_deleted_as_a_whole_can_commit(self) -> None:
        world = world_with_records(0)
        producer = Producer(world.client(), "p")
        producer.init()
        producer.send("t", {0: [b"gone"], 1: [b"kept"]})
        world.scheduler.advance(100)
        delete_records(world.client(), "t", {0: HIGH_WATERMARK})
        world.kill()
        producer.client = world.client()
        assert producer.end() is ErrorCode.none
        world.cut_power()
        assert read_all(world.client(), "t", 0) == ([], 1)
        assert read_all(world.client(), "t", 1) == ([b"kept"], 1)


class TestEpochs:
    @staticmethod
    def ask(
        client: SimClient, epoch: int, *, current: int = -1, version: int = 4, partition: int = 0
    ) -> tuple:
        answer = client.ask(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            version,
            replica_id=-1,
            topics=(
                {
                    "topic": "t",
                    "partitions": (
                        {
                            "partition": partition,
                            "current_leader_epoch": current,
                            "leader_epoch": epoch,
                        },
                    ),
                },
            ),
        )
        one = answer.topics[0].partitions[0]
        return one.error_code, one.leader_epoch, one.end_offset

    @pytest.mark.parametrize("version", [2, 3, 4])
    def test_each_epoch_ends_where_the_next_begins(self, version: int) -> None:
        world = world_with_records(3)  # epoch 1
        world.kill()
        world.kill()
        send(world.client(), "t", {0: [b"x", b"y"]})  # epoch 3
        world.kill()
        client = world.client()
        answers = {epoch: self.ask(client, epoch, version=version)[1:] for epoch in range(6)}
        assert answers == {
            0: (0, 0),  # before all that is known, as Kafka answers: where the first begins
            1: (1, 3),
            2: (1, 3),  # wrote nothing: the one before it
            3: (3, 5),
            4: (4, 5),  # the present one
            5: (-1, -1),
        }
        assert self.ask(client, -1)[1:] == (-1, -1)

    def test_a_present_epoch_ends_at_the_end(self) -> None:
        world = world_with_records(3)
        assert self.ask(world.client(), 1) == (ErrorCode.none, 1, 3)
        send(world.client(), "t", {0: [b"x"]})
        assert self.ask(world.client(), 1) == (ErrorCode.none, 1, 4)
        assert self.ask(world.client(), 1, partition=1) == (ErrorCode.none, 1, 0)

    def test_deleted_epochs_end_at_the_log_start(self) -> None:
        world = world_with_records(3)
        world.kill()
        send(world.client(), "t", {0: [b"x", b"y"]})
        delete_records(world.client(), "t", {0: 4})
        assert self.ask(world.client(), 1)[1:] == (1, 4)

    def test_what_a_client_believes_of_the_leader_is_checked(self) -> None:
        world = world_with_records(1)
        world.kill()
        client = world.client()
        assert self.ask(client, 1, current=1)[0] is ErrorCode.fenced_leader_epoch
        assert self.ask(client, 1, current=2) == (ErrorCode.none, 1, 1)
        assert self.ask(client, 1, current=3)[0] is ErrorCode.unknown_leader_epoch
        assert self.ask(client, 1, partition=7)[0] is ErrorCode.unknown_topic_or_partition
