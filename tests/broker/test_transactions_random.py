"""Exactly-once loops over a node that dies in every way, by seed: what was read is there once, whole, and in order.

Each worker reads its offset, writes the number it finds there to both partitions, commits offset + 1 in the same
transaction, and begins anew from its committed offset whenever anything went wrong. Zombies of it go on with what they
hold. The oracle knows only the rule: the numbers in the output are 0 .. offset - 1, each once, in both partitions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from support.sim_admin import run_turns
from support.sim_node import SimNode
from support.sim_producer import Producer, create_topic, list_offset, read_all

from wire.apis import ApiKey
from wire.errors import ErrorCode

OK = ErrorCode.none
WORKERS = 4
STEPS = 400
TIMEOUT_MS = 20_000


class Worker:
    """One loop, a step at a time: each step is one request, so that others get between."""

    def __init__(self, world: SimNode, number: int, random_: random.Random) -> None:
        self.world = world
        self.number = number
        self.name = f"worker-{number}"
        self.v2 = number % 2 == 0
        self.random = random_
        self.steps = self.loop()
        self.done = 0
        """Transactions whose commit was answered."""

    def committed(self) -> int:
        """The offset to go on from, when no transaction holds it any more."""
        client = self.world.client()
        for _ in range(10):
            answer = client.ask(
                ApiKey.OFFSET_FETCH,
                7,
                group_id="g",
                topics=({"name": "in", "partition_indexes": (self.number,)},),
                require_stable=True,
            )
            one = answer.topics[0].partitions[0]
            if one.error_code is OK:
                return max(0, int(one.committed_offset))
            assert one.error_code is ErrorCode.unstable_offset_commit
            self.world.scheduler.advance(TIMEOUT_MS)
        raise AssertionError("the offset never became stable")

    def loop(self) -> Iterator[bool]:
        """Each item says whether the node dies now."""
        while True:
            producer = Producer(self.world.client(), self.name, v2=self.v2, timeout_ms=TIMEOUT_MS)
            if producer.init() is not OK:
                yield False
                continue
            yield from self.transactions(producer)

    def transactions(self, producer: Producer) -> Iterator[bool]:
        """Until one of them fails: the next instance fences what is left."""
        offset = self.committed()
        while True:
            yield False
            value = b"%d:%d" % (self.number, offset)
            for partition in self.random.sample((0, 1), 2):
                if not self.write(producer, partition, value):
                    return
                yield False
            if producer.commit_offsets("g", {("in", self.number): offset + 1}) is not OK:
                return
            yield False
            commit = self.random.random() < 0.8
            if self.random.random() < 0.1:
                yield from self.cut_short(producer, commit)
                return
            if producer.end(commit) is not OK:
                return
            offset += commit
            self.done += commit

    def cut_short(self, producer: Producer, commit: bool) -> Iterator[bool]:
        """The end is under way, written or flushed or answered or none of it, when everything dies."""
        number = producer.end_request(commit)
        run_turns(self.world, self.random.randint(0, 8))
        answer = producer.client.answers.get(number)
        if answer is not None and answer.error_code is OK:
            self.done += commit
        yield True

    def write(self, producer: Producer, partition: int, value: bytes) -> bool:
        if not self.v2 and producer.add("out", [partition]) is not OK:
            return False
        return producer.send("out", {partition: [value]}, add=False) == {partition: OK}

    def restart(self) -> None:
        """Its process is gone, or believed to be: a zombie may go on."""
        self.steps = self.loop()


def check(world: SimNode, workers: list[Worker]) -> None:
    read = [read_all(world.client(), "out", partition) for partition in (0, 1)]
    for partition, (_, position) in enumerate(read):
        assert position == list_offset(world.client(), "out", partition, committed=False)
    for worker in workers:
        offset = worker.committed()
        assert offset >= worker.done, "what was answered stands"
        expected = [b"%d:%d" % (worker.number, number) for number in range(offset)]
        for values, _ in read:
            assert [value for value in values if value.startswith(b"%d:" % worker.number)] == expected


@pytest.mark.parametrize("seed", range(12))
def test_each_number_once(seed: int) -> None:
    random_ = random.Random(seed)
    world = SimNode(seed=seed, flush_delay_ms=2.0, flush_linger_ms=random_.choice([1, 20, 500]))
    create_topic(world.client(), "in", WORKERS)
    create_topic(world.client(), "out", 2)
    workers = [Worker(world, number, random_) for number in range(WORKERS)]
    zombies: list[Iterator[bool]] = []
    dies = False
    for _ in range(STEPS):
        dice = random_.random()
        worker = random_.choice(workers)
        if dies or dice < 0.01:
            dies = False
            _die(world, random_)
            zombies.clear()
            for one in workers:
                one.restart()
        elif dice < 0.04:
            zombies.append(worker.steps)
            worker.restart()
        elif dice < 0.05:
            world.scheduler.advance(TIMEOUT_MS + 1_000)
        elif dice < 0.15:
            run_turns(world, random_.randint(1, 5))
        elif dice < 0.2 and zombies:
            # It goes on with its old identity until it hears that it is none; what it then starts is a successor.
            dies = next(zombies[random_.randrange(len(zombies))])
        else:
            dies = next(worker.steps)
    for worker in workers:
        worker.restart()
        next(worker.steps)
    world.scheduler.advance(2 * TIMEOUT_MS)
    check(world, workers)
    world.cut_power()
    check(world, workers)
    assert sum(worker.done for worker in workers) > 10, "or the seed shows nothing"


def _die(world: SimNode, random_: random.Random) -> None:
    """With whatever is in flight."""
    getattr(world, random_.choice(["kill", "cut_power", "restart"]))()
