"""Ranges are split, merged and sealed while producers and transactions go on: nobody notices (design, section 5)."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator

import pytest
from support.sim_admin import run_turns
from support.sim_layout import files_named, files_on_disk
from support.sim_node import SimNode, batch
from support.sim_producer import Producer, create_topic, list_offset, produce_fields, read_all

from broker import layout_controller, layouts
from broker.config import Limits
from broker.layout_controller import Arranged
from storage.layout import LayoutChanged, ReshapeEvent, SegmentInfo
from txn import keys
from wire.apis import ApiKey
from wire.errors import ErrorCode, KafkaError

PARTITIONS = 6
both_protocols = pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])


def world_with_topic(**config: object) -> SimNode:
    world = SimNode(**config)  # type: ignore[arg-type]
    create_topic(world.client(), "t", PARTITIONS)
    return world


def split(world: SimNode, *at: int, topic: str = "t") -> list[Arranged | KafkaError]:
    """Ask for it; the answer stands in the list when it is there."""
    answers: list[Arranged | KafkaError] = []
    found = world.node.topics.get(topic)
    assert found is not None
    world.node.layouts.split(found, at, answers.append)
    return answers


def merge(world: SimNode, first: int, last: int) -> list[Arranged | KafkaError]:
    answers: list[Arranged | KafkaError] = []
    topic = world.node.topics.get("t")
    assert topic is not None
    world.node.layouts.merge(topic, first, last, answers.append)
    return answers


def seal(world: SimNode, partition: int) -> list[Arranged | KafkaError]:
    answers: list[Arranged | KafkaError] = []
    topic = world.node.topics.get("t")
    assert topic is not None
    world.node.layouts.seal(topic, partition, answers.append)
    return answers


def done(world: SimNode, answers: list[Arranged | KafkaError]) -> Arranged:
    world.scheduler.run_until(lambda: bool(answers))
    (answer,) = answers
    assert isinstance(answer, Arranged), answer
    return answer


def ranges(world: SimNode) -> list[tuple[int, int]]:
    topic = world.node.topics.get("t")
    assert topic is not None
    assert [index for log in topic.ranges for index in range(log.first, log.last + 1)] == list(
        range(PARTITIONS)
    )
    assert all(partition.log.first <= partition.index <= partition.log.last for partition in topic.partitions)
    return [(log.first, log.last) for log in topic.ranges]


def contents(world: SimNode, *, committed: bool = True) -> list[list[bytes]]:
    return [read_all(world.client(), "t", p, committed=committed)[0] for p in range(PARTITIONS)]


def test_split_and_merge_and_read_through_all_generations() -> None:
    world = world_with_topic()
    producer = Producer(world.client(), "p")
    producer.init()
    expected: list[list[bytes]] = [[] for _ in range(PARTITIONS)]

    def write(word: str) -> None:
        for partition in range(PARTITIONS):
            value = f"{word}-{partition}".encode()
            assert producer.send("t", {partition: [value]}) == {partition: ErrorCode.none}
            expected[partition].append(value)
        assert producer.end() is ErrorCode.none

    write("one range")
    assert done(world, split(world, 3)) == Arranged(((0, 2), (3, 5)), True)
    write("two")
    assert done(world, split(world, 1, 4, 5)).ranges == ((0, 0), (1, 2), (3, 3), (4, 4), (5, 5))
    write("five")
    assert done(world, merge(world, 1, 4)).ranges == ((0, 0), (1, 4), (5, 5))
    write("three")
    assert done(world, merge(world, 0, 5)).ranges == ((0, 5),)
    write("one again")
    assert done(world, seal(world, 0)).changed
    write("sealed")
    assert contents(world) == expected
    world.scheduler.advance(1_000)
    topic = world.node.topics.get("t")
    assert topic is not None
    assert topic.retired == [], "the old ranges have come to their end"
    layout = world.node.store.get(keys.layout("t"))
    assert layout is not None
    states = [segment["state"] for segment in layout.value["segments"]]
    assert states == ["SEALED"] * (len(states) - 1) + ["ACTIVE"]
    for ending in ("restart", "kill", "cut_power"):
        getattr(world, ending)()
        assert ranges(world) == [(0, 5)]
        assert contents(world) == expected
        assert files_on_disk(world) == files_named(world)
    for partition in range(PARTITIONS):
        for offset in range(6):
            values, position = read_all(world.client(), "t", partition, start=offset)
            assert (values, position) == (expected[partition][offset:], 6)


@pytest.mark.parametrize("commit", [True, False])
@both_protocols
def test_an_open_transaction_passes_through_changes_and_kills(v2: bool, commit: bool) -> None:
    world = world_with_topic()
    producer = Producer(world.client(), "p", v2=v2)
    producer.init()
    written: list[list[bytes]] = [[] for _ in range(PARTITIONS)]

    def write(word: str) -> None:
        for partition in range(PARTITIONS):
            value = f"{word}-{partition}".encode()
            assert producer.send("t", {partition: [value]}) == {partition: ErrorCode.none}
            written[partition].append(value)

    changes: list[Callable[[], list[Arranged | KafkaError]]] = [
        lambda: split(world, 2, 4),
        lambda: merge(world, 0, 3),
        lambda: seal(world, 1),
        lambda: split(world, 1, 5),
        lambda: merge(world, 0, 5),
    ]
    for number, change in enumerate(changes):
        write(f"before {number}")
        answers = change()
        write(f"during {number}")
        done(world, answers)
        if number % 2:
            world.kill()
            producer.client = world.client()
    write("after")
    assert contents(world, committed=True) == [[]] * PARTITIONS
    assert producer.end(commit=commit) is ErrorCode.none
    expected = written if commit else [[]] * PARTITIONS
    assert contents(world) == expected
    for _ in range(2):
        # Nobody waits for the flush of aborted records; the end is shown when they are durable.
        world.scheduler.advance(5_000)
        assert contents(world) == expected
        for partition in range(PARTITIONS):
            assert list_offset(world.client(), "t", partition) == len(written[partition]), "no holes"
        assert world.node.store.count(keys.TXNS) == 0, "settled in every segment, sealed or not"
        world.cut_power(keep="none")


def test_a_commit_over_parents_and_children_costs_one_flush_delay() -> None:
    """Written to a range that is no more, and to the two it became: all are flushed at the same time (S1)."""
    world = world_with_topic(flush_linger_ms=60_000)
    producer = Producer(world.client(), "p")
    producer.init()
    world.disk.flush_delay_ms = lambda path: 5.0
    producer.send("t", {p: [b"before"] for p in range(PARTITIONS)})
    done(world, split(world, 3))
    producer.send("t", {p: [b"after"] for p in range(PARTITIONS)})
    before_ms = world.scheduler._now_ms
    assert producer.end() is ErrorCode.none
    assert world.scheduler._now_ms - before_ms == pytest.approx(5.0, abs=0.1)
    assert contents(world) == [[b"before", b"after"]] * PARTITIONS


@pytest.mark.parametrize("turn", range(30))
def test_a_producer_that_meets_a_change_waits_for_one_flush_more_at_most(turn: int) -> None:
    world = world_with_topic(flush_linger_ms=60_000)
    world.disk.flush_delay_ms = lambda path: 5.0
    client = world.client()
    answers = split(world, 3)
    run_turns(world, turn)
    sent = []
    for number in range(4):
        data = {0: batch(b"a%d" % number, producer_id=7, epoch=0, sequence=number)}
        data |= {5: batch(b"b%d" % number, producer_id=7, epoch=0, sequence=number)}
        sent.append((client.send(ApiKey.PRODUCE, 9, **produce_fields("t", data)), world.scheduler._now_ms))
        run_turns(world, 1)
    for number, at_ms in sent:
        world.scheduler.run_until(lambda number=number: number in client.answers)
        results = client.answers[number].responses[0].partition_responses
        assert [one.error_code for one in results] == [ErrorCode.none] * 2
        assert client.answered_at_ms[number] - at_ms <= 10.5, "its own flush, and one that was under way"
    done(world, answers)
    assert [read_all(world.client(), "t", p)[0] for p in (0, 5)] == [
        [b"%c%d" % (letter, n) for n in range(4)] for letter in b"ab"
    ]


TURNS = 36


@pytest.mark.parametrize("change", ["split", "merge"])
def test_a_change_is_over_within_the_turns_that_are_cut(change: str) -> None:
    world = world_with_topic()
    if change == "merge":
        done(world, split(world, 2, 3))
    producer = Producer(world.client(), "p")
    producer.init()
    producer.send("t", {p: [b"x"] for p in range(PARTITIONS)})
    answers = split(world, 2, 3) if change == "split" else merge(world, 0, 5)
    topic = world.node.topics.get("t")
    assert topic is not None
    turns = 0
    while not answers or topic.retired:
        run_turns(world, 1)
        turns += 1
    assert turns < TURNS - 2


@pytest.mark.parametrize("keep", ["none", "prefix", "sectors", "all"])
@pytest.mark.parametrize("change", ["split", "merge"])
@pytest.mark.parametrize("turn", range(TURNS))
def test_a_power_cut_at_every_turn_leaves_the_old_layout_or_the_new(
    turn: int, change: str, keep: str
) -> None:
    world = world_with_topic()
    producer = Producer(world.client(), "p")
    producer.init()
    if change == "merge":
        done(world, split(world, 2, 3))
    old = ranges(world)
    producer.send("t", {p: [b"committed"] for p in range(PARTITIONS)})
    assert producer.end() is ErrorCode.none
    producer.send("t", {p: [b"open before"] for p in range(PARTITIONS)})
    plain = world.client()
    answers = split(world, 2, 3) if change == "split" else merge(world, 0, 5)
    numbers = []
    for step in range(turn):
        if step % 4 == 1:
            data = {p: batch(b"plain %d" % step) for p in range(PARTITIONS)}
            numbers.append((plain.send(ApiKey.PRODUCE, 9, **produce_fields("t", data)), b"plain %d" % step))
        run_turns(world, 1)
    answered = bool(answers)
    acknowledged = [value for number, value in numbers if number in plain.answers]
    for number, _ in numbers:
        if number in plain.answers:
            results = plain.answers[number].responses[0].partition_responses
            assert [one.error_code for one in results] == [ErrorCode.none] * PARTITIONS
    world.cut_power(keep=keep)
    new = [(0, 1), (2, 2), (3, 5)] if change == "split" else [(0, 5)]
    assert ranges(world) in (old, new)
    if answered:
        assert ranges(world) == new
    assert files_on_disk(world) == files_named(world), "no orphan file"
    sent = [value for _, value in numbers]
    for values in contents(world):
        assert values[0] == b"committed"
        assert values[1:] == sent[: len(values) - 1], "in order, none doubled, none left out"
        assert set(acknowledged) <= set(values), "none that was acknowledged is lost"
    before = contents(world)
    assert producer_goes_on(world, producer)
    assert contents(world) == [[*values, b"next"] for values in before]
    world.cut_power(keep="none")
    assert contents(world) == [[*values, b"next"] for values in before]


def producer_goes_on(world: SimNode, producer: Producer) -> bool:
    producer.client = world.client()
    producer.init()
    sent = producer.send("t", {p: [b"next"] for p in range(PARTITIONS)})
    return set(sent.values()) == {ErrorCode.none} and producer.end() is ErrorCode.none


def test_of_two_who_ask_for_the_same_one_changes_and_the_other_sees_it() -> None:
    world = world_with_topic()
    first, second, third = split(world, 3), split(world, 3), split(world, 1, 3)
    assert done(world, first) == Arranged(((0, 2), (3, 5)), True)
    assert done(world, second) == Arranged(((0, 2), (3, 5)), False)
    assert done(world, third) == Arranged(((0, 0), (1, 2), (3, 5)), True)
    assert done(world, merge(world, 0, 2)).changed
    assert not done(world, merge(world, 0, 2)).changed
    world.scheduler.advance(1_000)
    assert files_on_disk(world) == files_named(world)


def test_a_lost_conditional_write_is_tried_again_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_with_topic()
    publish = layout_controller._Change.publish
    lost: list[ReshapeEvent] = []
    times = 0

    def lose(
        change: layout_controller._Change, event: ReshapeEvent, then: Callable[[Exception | None], None]
    ) -> None:
        if len(lost) < times:
            lost.append(event)
            then(LayoutChanged("another was first"))
        else:
            publish(change, event, then)

    monkeypatch.setattr(layout_controller._Change, "publish", lose)
    times = 2
    assert done(world, split(world, 3)).changed
    assert len({event.children for event in lost}) == 2, "each time with new files"
    times = 9
    answers = split(world, 1)
    world.scheduler.run_until(lambda: bool(answers))
    assert isinstance(answers[0], KafkaError)
    assert "another was first" in str(answers[0])
    assert len(lost) == 2 + layout_controller.MAX_ATTEMPTS
    assert ranges(world) == [(0, 2), (3, 5)]
    world.scheduler.advance(1_000)
    assert files_on_disk(world) == files_named(world)
    producer = Producer(world.client(), "p")
    assert producer_goes_on(world, producer)


def test_a_layout_that_another_changed_first_refuses_the_write() -> None:
    """The condition of the write: the parents are still the ends of their ranges, with the same partitions."""
    before = layouts.new_layout(SegmentInfo(1, 0, 5, "ACTIVE"))
    after = layouts.with_children(before, [1], [(2, 0, 2), (3, 3, 5)])
    assert after["epoch"] == before["epoch"] + 1
    assert [segment["parents"] for segment in after["segments"]] == [[], [1], [1]]
    for parents, children in (
        ([1], [(4, 0, 5)]),
        ([2], [(4, 0, 3)]),
        ([2, 3], [(4, 0, 4)]),
        ([3], [(4, 3, 4), (5, 4, 5)]),
        ([9], [(4, 0, 2)]),
    ):
        with pytest.raises(LayoutChanged):
            layouts.with_children(after, parents, children)
    assert len(after["segments"]) == 3


@pytest.mark.parametrize("turn", range(0, 34, 3))
def test_deleting_the_topic_ends_a_change_of_its_ranges(turn: int) -> None:
    world = world_with_topic()
    create_topic(world.client(), "other")
    producer = Producer(world.client(), "p")
    producer.init()
    producer.send("t", {p: [b"x"] for p in range(PARTITIONS)})
    producer.send("other", {0: [b"y"]})
    answers = split(world, 3)
    run_turns(world, turn)
    assert producer.send("t", {0: [b"z"]}) == {0: ErrorCode.none}
    answer = world.client().ask(
        ApiKey.DELETE_TOPICS, 6, topics=({"name": "t", "topic_id": None},), timeout=30_000
    )
    assert answer.responses[0].error_code is ErrorCode.none
    world.scheduler.run_until(lambda: bool(answers))
    if isinstance(answers[0], KafkaError):
        assert answers[0].code is ErrorCode.unknown_topic_or_partition
    assert producer.end() is ErrorCode.none
    world.scheduler.advance(5_000)
    assert not [folder for folder in world.disk.list("topics") if folder.startswith("t.")]
    assert read_all(world.client(), "other")[0] == [b"y"]
    world.kill()
    assert len(world.node.topics) == 1


def test_what_cannot_be_is_refused() -> None:
    world = world_with_topic(limits=Limits(ranges_per_topic=3))

    def refusal(answers: list[Arranged | KafkaError]) -> ErrorCode:
        world.scheduler.run_until(lambda: bool(answers))
        assert isinstance(answers[0], KafkaError)
        return answers[0].code

    assert refusal(split(world, 6)) is ErrorCode.invalid_partitions
    assert refusal(split(world, -1)) is ErrorCode.invalid_partitions
    assert not done(world, split(world, 0)).changed
    assert refusal(split(world, 1, 2, 3)) is ErrorCode.policy_violation
    done(world, split(world, 1, 2))
    assert refusal(merge(world, 0, 4)) is ErrorCode.invalid_partitions
    assert refusal(merge(world, 2, 1)) is ErrorCode.invalid_partitions
    assert refusal(seal(world, 9)) is ErrorCode.unknown_topic_or_partition
    assert ranges(world) == [(0, 0), (1, 1), (2, 5)]


def test_a_full_disk_leaves_the_ranges_as_they_were() -> None:
    world = world_with_topic()
    world.disk.fail("allocate", ".seg", error=errno.ENOSPC)
    answers = split(world, 3)
    world.scheduler.run_until(lambda: bool(answers))
    assert isinstance(answers[0], KafkaError)
    assert answers[0].code is ErrorCode.kafka_storage_error
    assert ranges(world) == [(0, 5)]
    assert done(world, split(world, 3)).changed


def test_a_failed_flush_of_a_parent_is_the_end_of_its_children() -> None:
    """What was written to the children follows what may be lost in the parent (T4)."""
    world = world_with_topic(flush_linger_ms=60_000)
    client = world.client()
    topic = world.node.topics.get("t")
    assert topic is not None
    parent = topic.ranges[0].active.path
    world.disk.flush_delay_ms = lambda path: 50.0 if path == parent else 1.0
    first = client.send(ApiKey.PRODUCE, 9, **produce_fields("t", {0: batch(b"lost")}))
    answers = split(world, 3)
    done(world, answers)
    world.disk.fail("flush", parent)
    second = client.send(ApiKey.PRODUCE, 9, **produce_fields("t", {0: batch(b"a"), 5: batch(b"b")}))
    for number in (first, second):
        world.scheduler.run_until(lambda number=number: number in client.answers)
    codes = [
        one.error_code
        for number in (first, second)
        for one in client.answers[number].responses[0].partition_responses
    ]
    assert ErrorCode.none not in codes[1:], codes
    assert {log.state for log in topic.ranges} == {"FAILED"}
    world.cut_power(keep="none")
    assert ranges(world) == [(0, 2), (3, 5)]
    producer = Producer(world.client(), "p")
    assert producer_goes_on(world, producer)


def changes(world: SimNode, rng: random.Random) -> Iterator[list[Arranged | KafkaError]]:
    """Random changes, one after another."""
    while True:
        now = ranges(world)
        choice = rng.random()
        if choice < 0.45:
            yield split(world, *rng.sample(range(PARTITIONS), rng.choice((1, 1, 2))))
        elif choice < 0.8 and len(now) > 1:
            start = rng.randrange(len(now) - 1)
            end = rng.randrange(start + 1, len(now))
            yield merge(world, now[start][0], now[end][1])
        else:
            yield seal(world, rng.randrange(PARTITIONS))


@pytest.mark.parametrize("seed", range(12))
def test_two_hundred_random_changes_under_load_with_crashes(seed: int) -> None:
    rng = random.Random(seed)
    world = world_with_topic(seed=seed, flush_delay_ms=rng.choice((0.1, 2.0)))
    producers = [Producer(world.client(), f"p{n}", v2=bool(n % 2)) for n in range(3)]
    expected: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for producer in producers:
        producer.init()
    step = 0
    for _ in range(5):
        stream = changes(world, rng)
        for _ in range(8):
            answers = next(stream)
            written: list[tuple[int, bytes]] = []
            producer = producers[rng.randrange(3)]
            for _ in range(rng.randrange(1, 5)):
                step += 1
                partition, value = rng.randrange(PARTITIONS), b"%d" % step
                assert producer.send("t", {partition: [value]}) == {partition: ErrorCode.none}
                written.append((partition, value))
                run_turns(world, rng.randrange(6))
            commit = rng.random() < 0.7
            assert producer.end(commit=commit) is ErrorCode.none
            if commit:
                for partition, value in written:
                    expected[partition].append(value)
            if rng.random() < 0.7:
                done(world, answers)
        assert contents(world) == expected
        getattr(world, rng.choice(("kill", "cut_power", "restart")))()
        ranges(world)
        assert files_on_disk(world) == files_named(world)
        assert contents(world) == expected
        for producer in producers:
            producer.client = world.client()
            if rng.random() < 0.5 or world.report.nothing_lost is False:
                producer.init()
