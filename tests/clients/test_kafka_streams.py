"""A Kafka Streams application with processing.guarantee=exactly_once_v2: every count comes out once, in order.

The application (drivers/streams/CountWords.java) hands on each word with its count so far, so whoever reads what is
committed must find 1, 2, 3 ... for each word: a record that was lost, or counted twice, shows, and so does an output
that came from a transaction that was aborted.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.clients.adapter_confluent import Confluent
from tests.clients.features import STREAMS, shows
from tests.clients.fixtures import Opened
from tests.clients.raw_kafka import RawKafka
from tests.clients.scenario_tools import eventually
from tests.clients.test_client_restart import server
from tests.support.broker_process import ServerProcess
from tests.support.streams_app import CountWords

__all__ = ("server",)

PARTITIONS = 2
WORDS = [f"word {number}" for number in range(9)]
EARLIEST = -2
TOPIC = 2
"""The resource type of DescribeConfigs."""


class Stream:
    """The application's topics: words go in, counts come out."""

    def __init__(self, server: ServerProcess, opened: Opened, application: str) -> None:
        self.server = server
        self.application = application
        self.source, self.sink = f"{application}.in", f"{application}.out"
        with RawKafka(server.address) as raw:
            for name in (self.source, self.sink):
                raw.create_topic(name, PARTITIONS)
        self._random = random.Random(5)
        self._producer = opened.producer(idempotent=True)
        self._consumer = opened.consumer()
        self._consumer.assign([(self.sink, partition) for partition in range(PARTITIONS)])
        self.written: Counter[str] = Counter()
        self.read: defaultdict[str, list[int]] = defaultdict(list)

    def write(self, number: int) -> None:
        for word in self._random.choices(WORDS, k=number):
            self._producer.send(self.source, self._random.randrange(PARTITIONS), word.encode())
            self.written[word] += 1
        self._producer.flush()

    def step(self) -> None:
        """Read what there is. Each count must follow the one before it."""
        for record in self._consumer.poll(0.1):
            assert record.key is not None
            assert record.value is not None
            counts = self.read[record.key.decode()]
            counts.append(int(record.value))
            assert counts[-1] == len(counts), f"{record}, after {counts[-5:-1]}"

    @property
    def number_read(self) -> int:
        return sum(map(len, self.read.values()))

    def read_more(self, number: int, app: CountWords) -> None:
        goal = self.number_read + number

        def done() -> bool:
            app.check_alive()
            return self.number_read >= goal

        eventually(done, lambda: f"{goal} counts; came {self.number_read}", step=self.step)

    def read_all(self, app: CountWords) -> None:
        """Everything that was written is counted, and behind it comes nothing."""
        self.read_more(self.written.total() - self.number_read, app)
        assert {word: len(counts) for word, counts in self.read.items()} == self.written
        for partition in range(PARTITIONS):
            at = (self.sink, partition)
            eventually(
                lambda: self._consumer.position(at) >= self._consumer.begin_and_end(at)[1],  # noqa: B023
                f"the end of {at}",
                step=self.step,
            )
        assert self.number_read == self.written.total()

    def open_transactions(self) -> list[str]:
        with RawKafka(self.server.address) as raw:
            found = raw.call("list_transactions", 0, state_filters=["Ongoing"], producer_id_filters=[])
        return [
            each.transactional_id
            for each in found.transaction_states
            if each.transactional_id.startswith(self.application)
        ]

    def until_in_a_transaction(self, app: CountWords) -> None:
        """Write, and read, until the application is at work in a transaction."""

        def busy() -> bool:
            app.check_alive()
            self.write(20)
            return bool(self.open_transactions())

        eventually(busy, "a transaction of the application", step=self.step)

    def pause_in_a_transaction(self, app: CountWords) -> None:
        """Stop the application at work in a transaction, but not in its last steps: it has sent no offsets yet."""
        while True:
            self.until_in_a_transaction(app)
            app.pause()
            if self.open_transactions() and not self.offsets_are_pending():
                return
            app.go_on()

    def offsets_are_pending(self) -> bool:
        with RawKafka(self.server.address) as raw:
            groups = [{"group_id": self.application, "topics": None}]
            (group,) = raw.call("offset_fetch", 8, groups=groups, require_stable=True).groups
        return any(
            part.error_code is not ErrorCode.none for topic in group.topics for part in topic.partitions
        )


@pytest.fixture
def stream(server: ServerProcess, unique: Callable[[str], str]) -> Iterator[Stream]:
    with ExitStack() as stack:
        yield Stream(server, Opened(Confluent(server.address), stack), unique("count-words"))


@pytest.fixture
def app(stream: Stream, tmp_path: Path) -> Iterator[Callable[[str], CountWords]]:
    """An instance of the application with a state folder of its own, by this name; not started yet."""
    with ExitStack() as stack:

        def build(name: str) -> CountWords:
            made = CountWords(
                stream.server.address, stream.application, stream.source, stream.sink, tmp_path / name
            )
            stack.callback(made.__exit__)
            return made

        yield build


def configs(raw: RawKafka, topic: str) -> dict[str, str]:
    resources = [{"resource_type": TOPIC, "resource_name": topic, "configuration_keys": None}]
    found: Any = raw.call("describe_configs", 1, resources=resources, include_synonyms=False)
    return {config.name: config.value for config in found.results[0].configs}


@shows("exactly-once loop", client=STREAMS)
def test_counts_are_exact_over_kills_of_the_application_and_the_broker(
    server: ServerProcess, stream: Stream, app: Callable[[str], CountWords]
) -> None:
    with app("one") as one:
        stream.write(500)
        stream.read_more(100, one)
        while True:
            stream.until_in_a_transaction(one)
            one.sigkill()
            left_open = stream.open_transactions()
            one.start()
            if left_open:
                break
            stream.read_more(1, one)
        stream.write(500)
        # What it left open is for its successor to abort; what it counted after the last commit counts anew.
        stream.read_more(300, one)
        stream.until_in_a_transaction(one)
        server.sigkill()
        server.start()
        stream.write(500)
        stream.read_all(one)
        with RawKafka(server.address) as raw:
            changelog = configs(raw, f"{stream.application}-counts-changelog")
            repartition = f"{stream.application}-words-repartition"
            assert changelog["cleanup.policy"] == "compact"
            assert configs(raw, repartition)["cleanup.policy"] == "delete"
            assert configs(raw, repartition)["retention.ms"] == "-1"
            # It deletes what it has read of its repartition topic itself, by DeleteRecords.
            eventually(
                lambda: any(raw.list_offset(repartition, n, EARLIEST) > 0 for n in range(PARTITIONS)),
                "the purge of the repartition topic",
                step=lambda: stream.write(1),
            )
        stream.read_all(one)


def members(server: ServerProcess, group: str) -> tuple[str, set[str]]:
    """The state of a group, and its member ids."""
    with RawKafka(server.address) as raw:
        found = raw.call("describe_groups", 3, groups=[group], include_authorized_operations=False).groups[0]
    return found.group_state, {member.member_id for member in found.members}


@shows("exactly-once loop", client=STREAMS)
def test_an_instance_that_wakes_up_after_its_tasks_were_given_away_adds_nothing(
    server: ServerProcess, stream: Stream, app: Callable[[str], CountWords]
) -> None:
    """It stops in mid-transaction for longer than its session, and another takes its tasks.

    Its transactional ids are its own, so nobody fences it by them, and its transaction has five minutes: what keeps
    it from committing is that its member is unknown by now (KIP-447).
    """
    with app("first") as first:
        stream.write(300)
        stream.read_more(100, first)
        stream.pause_in_a_transaction(first)
        _, before = members(server, stream.application)
        assert before
        with app("second") as second:

            def taken_over() -> bool:
                second.check_alive()
                state, now = members(server, stream.application)
                return state == "Stable" and not now & before

            eventually(taken_over, "another owner of the tasks")
            stream.write(300)
            assert stream.open_transactions()
            first.go_on()
            stream.write(300)
            stream.read_all(second)
            first.check_alive()
