"""Transactions that live through several splits and merges, with a crash at every change of the disk on the way.

Two of them overlap, one commits and one aborts: begun before the first change and between two, written to before,
during and after each, ended after. A plain producer writes beside them. Where the process is killed, everybody repeats
what was not answered and goes on; where the power goes, what was acknowledged is there, and each transaction wholly or
not at all.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.sim_disk import PowerCut
from support.sim_layout import files_named, files_on_disk
from support.sim_node import SimNode, batch
from support.sim_producer import Producer, create_topic, list_offset, produce_fields, read_all
from support.sim_sealed import all_settled, committed_on_disk

from broker.layout_controller import Arranged
from txn import keys
from wire.apis import ApiKey
from wire.errors import ErrorCode, KafkaError

PARTITIONS = 4
PLAIN_ID = 7
T0 = 1_700_000_000_000
"""The timestamp of what transactions write; plain records have later ones, each its own."""

CHANGES: tuple[tuple[str, tuple[int, ...], list[tuple[int, int]]], ...] = (
    ("split", (2,), [(0, 1), (2, 3)]),
    ("split", (1,), [(0, 0), (1, 1), (2, 3)]),  # of what was split
    ("merge", (1, 3), [(0, 0), (1, 3)]),  # of what was split at different times
    ("split", (2,), [(0, 0), (1, 1), (2, 3)]),  # again, where it was before
    ("merge", (0, 3), [(0, 3)]),
)

Step = Callable[[], None]


class Story:
    """The steps, and what is known to be written. A step that is cut short may be taken again."""

    def __init__(self, *, v2: bool, first_commits: bool) -> None:
        self.world = SimNode(flush_delay_ms=0.5)
        create_topic(self.world.client(), "t", PARTITIONS)
        self.first = Producer(self.world.client(), "first", v2=v2)
        self.second = Producer(self.world.client(), "second", v2=not v2)
        for producer in (self.first, self.second):
            producer.init()
        self.outcome = {self.first: first_commits, self.second: not first_commits}
        self.log: list[list[tuple[bytes, Producer | None]]] = [[] for _ in range(PARTITIONS)]
        """Per partition what was acknowledged, in order: the value, and whose transaction it is in."""
        self.pending: tuple[int, bytes, Producer | None] | None = None
        """What was sent and not answered."""
        self.ended: set[Producer] = set()
        self.ending: Producer | None = None
        self._plain_sequences = [0] * PARTITIONS
        self._answers: list[Arranged | KafkaError] | None = None

    def steps(self) -> list[Step]:
        found = [*self._writes("begin", [0, 1, 2, 3], self.first)]
        for number, (kind, arguments, spans) in enumerate(CHANGES):
            if number == 1:
                found += self._writes("begin", [3, 0, 2], self.second)
            found.append(lambda kind=kind, arguments=arguments: self._ask(kind, arguments))
            # Appends while files are made and layouts written: no write waits for the change.
            if number <= 3:
                found += self._writes(f"during {number}", [(number * 2) % 4, 1], self.first)
            if number >= 1:
                found += self._writes(f"during {number}", [3, number % 3], self.second)
            found += self._writes(f"during {number}", [number % 4], None)
            found.append(
                lambda kind=kind, arguments=arguments, spans=spans: self._done(kind, arguments, spans)
            )
            if number <= 2:
                found += self._writes(f"after {number}", [0, 3], self.first)
            if number >= 1:
                found += self._writes(f"after {number}", [2], self.second)
            if number == 3:
                found.append(lambda: self._end(self.first))
        found += self._writes("after all", [0, 1], self.second)
        found.append(lambda: self._end(self.second))
        found += self._writes("last", [0, 1, 2, 3], None)
        return found

    def _writes(self, word: str, partitions: list[int], producer: Producer | None) -> list[Step]:
        who = producer.name if producer is not None else "plain"
        return [
            lambda partition=partition: self._write(partition, f"{who} {word} {partition}".encode(), producer)  # type: ignore[misc]
            for partition in partitions
        ]

    def _write(self, partition: int, value: bytes, producer: Producer | None) -> None:
        self.pending = (partition, value, producer)
        if producer is None:
            sequence = self._plain_sequences[partition]
            data = batch(
                value, producer_id=PLAIN_ID, epoch=0, sequence=sequence, timestamp=T0 + 1_000 * (1 + sequence)
            )
            answer = self.world.client().ask(ApiKey.PRODUCE, 9, **produce_fields("t", {partition: data}))
            code = answer.responses[0].partition_responses[0].error_code
            self._plain_sequences[partition] += code is ErrorCode.none
        else:
            before = dict(producer.sequences)
            try:
                code = producer.send("t", {partition: [value]})[partition]
            except PowerCut:
                producer.sequences = before  # it is sent again, as it was
                raise
        assert code is ErrorCode.none, (value, code)
        self.pending = None
        self.log[partition].append((value, producer))

    def _ask(self, kind: str, arguments: tuple[int, ...]) -> None:
        self._answers = answers = []
        topic = self.world.node.topics.get("t")
        assert topic is not None
        if kind == "split":
            self.world.node.layouts.split(topic, arguments, answers.append)
        else:
            self.world.node.layouts.merge(topic, *arguments, answers.append)

    def _done(self, kind: str, arguments: tuple[int, ...], spans: list[tuple[int, int]]) -> None:
        if self._answers is None:
            self._ask(kind, arguments)
        answers = self._answers
        assert answers is not None
        self.world.scheduler.run_until(lambda: bool(answers))
        assert isinstance(answers[0], Arranged), answers
        assert list(answers[0].ranges) == spans

    def _end(self, producer: Producer) -> None:
        self.ending = producer
        assert producer.end(commit=self.outcome[producer]) is ErrorCode.none
        self.ending = None
        self.ended.add(producer)

    def restarted(self) -> None:
        """Clients connect anew, and nobody answers what the old process was asked."""
        self._answers = None
        for producer in (self.first, self.second):
            producer.client = self.world.client()

    # What readers see.

    def expected(self, partition: int, committed: set[Producer]) -> list[bytes]:
        return [value for value, owner in self.log[partition] if owner is None or owner in committed]

    def check_readers(self, committed: set[Producer]) -> None:
        """From the beginning, from old offsets on, and by time."""
        for partition in range(PARTITIONS):
            client = self.world.client()
            wanted = self.expected(partition, committed)
            values, end = read_all(client, "t", partition)
            assert values == wanted
            assert end == len(self.log[partition]), "nobody is held back, and no offset is without a record"
            everything = [value for value, _ in self.log[partition]]
            assert read_all(client, "t", partition, committed=False)[0] == everything
            plain = 0
            for offset, (_, owner) in enumerate(self.log[partition]):
                if owner is not None and offset % 3 != partition % 3:
                    continue
                rest = [value for value, of in self.log[partition][offset:] if of is None or of in committed]
                assert read_all(client, "t", partition, start=offset)[0] == rest
                if owner is None:
                    plain += 1
                    assert list_offset(client, "t", partition, at=T0 + 1_000 * plain) == offset
        assert files_on_disk(self.world) == files_named(self.world)

    def check_settled(self, committed: set[Producer]) -> None:
        """When all is settled the sealed segments' own files say the same."""
        self.world.scheduler.advance(5_000)
        assert self.world.node.store.count(keys.TXNS) == 0
        assert all_settled(self.world)
        for partition in range(PARTITIONS):
            wanted = self.expected(partition, committed)
            sealed = committed_on_disk(self.world, partition)
            assert sealed == wanted[: len(sealed)]


def played(story: Story, cut_at: int) -> bool:
    """Play until the power goes at that change of the disk, counted from the first step; whether it went."""
    story.world.disk.stop_after(cut_at)
    for step in story.steps():
        try:
            step()
        except PowerCut:
            return True
    return False


def changes_of_the_disk() -> int:
    story = Story(v2=True, first_commits=True)
    before = story.world.disk.changes
    assert not played(story, 1 << 40)
    return story.world.disk.changes - before


CUTS = 280
"""More than there are changes of the disk in the story."""
PARTS = 4
"""Of each of the two tests; every eighth change is enough for the kill, which loses less."""


def test_the_story_is_over_within_the_changes_that_are_cut() -> None:
    total = changes_of_the_disk()
    assert CUTS - 60 < total < CUTS, total


@pytest.mark.parametrize("part", range(PARTS))
def test_a_kill_at_every_eighth_change_of_the_disk(part: int) -> None:
    for cut_at in range(1 + 8 * part, CUTS, 8 * PARTS):
        tell_of_a_kill(cut_at, v2=cut_at % 16 == 1, first_commits=cut_at % 64 < 32)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_power_cut_at_every_change_of_the_disk(part: int) -> None:
    for cut_at in range(1 + part, CUTS, PARTS):
        keep = ("none", "sectors", "prefix", "all")[cut_at // PARTS % 4]
        tell_of_a_power_cut(cut_at, keep, v2=cut_at % 2 == 1, first_commits=cut_at % 4 < 2)


def tell_of_a_kill(cut_at: int, *, v2: bool, first_commits: bool) -> None:
    story = Story(v2=v2, first_commits=first_commits)
    story.world.disk.stop_after(cut_at)
    steps = story.steps()
    while steps:
        try:
            steps[0]()
        except PowerCut:
            story.world.kill()
            story.restarted()
        else:
            del steps[0]
    story.world.disk.stop_after(1 << 40)
    committed = {story.first if first_commits else story.second}
    story.check_readers(committed)
    story.check_settled(committed)


def tell_of_a_power_cut(cut_at: int, keep: str, *, v2: bool, first_commits: bool) -> None:
    story = Story(v2=v2, first_commits=first_commits)
    if not played(story, cut_at):
        return
    story.world.cut_power(keep=keep)
    story.restarted()
    check_after_a_power_cut(story)


def check_after_a_power_cut(story: Story) -> None:
    """Transactional writes that nobody ended may be gone, from any offset on; the rest is as it was told."""
    world = story.world
    may_commit = {one for one in (story.ending,) if one is not None and story.outcome[one]}
    must_commit = {one for one in story.ended if story.outcome[one]}
    for partition in range(PARTITIONS):
        sent = list(story.log[partition])
        if story.pending is not None and story.pending[0] == partition:
            sent.append((story.pending[1], story.pending[2]))
        found = read_all(world.client(), "t", partition, committed=False)[0]
        assert found == [value for value, _ in sent[: len(found)]], "in order, none doubled, none left out"
        kept = [owner for _, owner in story.log[partition][len(found) :]]
        assert None not in kept, "a plain record was acknowledged"
        assert not must_commit & set(kept), "a committed record was acknowledged"
        story.log[partition] = sent[: len(found)]
    seen = {
        owner
        for partition in range(PARTITIONS)
        for value in read_all(world.client(), "t", partition)[0]
        for known, owner in story.log[partition]
        if known == value and owner is not None
    }
    assert must_commit <= seen <= must_commit | may_commit
    story.check_readers(seen)
    for producer in (story.first, story.second):
        assert producer.init() is ErrorCode.none
        sent_now = producer.send("t", {p: [b"next"] for p in range(PARTITIONS)})
        assert set(sent_now.values()) == {ErrorCode.none}
        assert producer.end() is ErrorCode.none
        for partition in range(PARTITIONS):
            story.log[partition].append((b"next", None))
    world.scheduler.advance(5_000)
    assert world.node.store.count(keys.TXNS) == 0
    for partition in range(PARTITIONS):
        assert read_all(world.client(), "t", partition)[0] == story.expected(partition, seen)
