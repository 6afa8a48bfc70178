"""Fetching a range's sealed segments from another node, over notes that may be lost, doubled or late."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from broker.replication.patient_question import ASK_AGAIN_MS, MAX_ASKED
from broker.replication.range_fetch import SegmentFetch, SegmentSource
from broker.replication.range_restore import PAUSE_MS, RangeRestore, Step
from broker.replication.transfer import FetchFailed
from raftish.membership import Membership
from raftish.messages import SnapshotRequest
from storage.replica_front import ReplicaFront
from tests.storage.replica_chains import PER_SEGMENT, Chain, aside_of
from tests.storage.replica_model import open_one

GROUP = 16
SOURCE, BEHIND = 1, 2
LAST = 4 * PER_SEGMENT


class Fetching:
    """One fetch; `answers` and `questions` are on their way until `deliver`."""

    def __init__(self, *, least_index: int = 5, piece_bytes: int = 700, tail: int = 2) -> None:
        self.theirs = Chain(4, tail=tail)
        self.mine = Chain(0)
        self.questions: deque[Any] = deque()
        self.answers: deque[Any] = deque()
        self.told: list[Any] = []
        self.asked = 0
        self.source = SegmentSource(
            lambda group: self.theirs.replica if group == GROUP else None,
            lambda peer, note: self.answers.append(note),
            self.theirs.scheduler.monotonic_ms,
            piece_bytes=piece_bytes,
        )
        self.aside = aside_of(self.mine.disk)
        self.fetch = SegmentFetch(
            GROUP,
            self.aside,
            self.mine.disk,
            self.mine.scheduler,
            self._ask,
            SOURCE,
            least_index,
            self.told.append,
        )

    def _ask(self, peer: int, note: Any) -> None:
        assert peer == SOURCE
        self.asked += 1
        self.questions.append(note)

    def deliver(self) -> None:
        """Everything that is on its way."""
        while self.questions:
            self.source.heard(BEHIND, self.questions.popleft())
        while self.answers:
            self.fetch.heard(SOURCE, self.answers.popleft())
        self.mine.scheduler.advance(5)

    def run(self) -> Any:
        for _ in range(500):
            self.deliver()
            if self.told:
                return self.told[0]
        raise AssertionError("it does not end")


def test_all_sealed_segments_come_by_pieces() -> None:
    fetching = Fetching()
    assert fetching.run() is None
    assert fetching.aside.chain == [(n, 0) for n in (1, 2, 3, 4)]
    assert fetching.aside.last_index == LAST
    for segment in fetching.theirs.replica.segments[:-1]:
        path = fetching.aside.path(segment.segment_id)
        whole = segment.file().pread(segment.file_size, 0)
        assert fetching.mine.disk.durable_content(path) == whole
    size = sum(segment.file_size for segment in fetching.theirs.replica.segments[:-1])
    assert fetching.asked >= size // 700, "no piece is larger than it may be"
    assert not fetching.mine.disk.open_files - {
        segment.file() for segment in fetching.mine.replica.segments
    }, "no file of it stays open"


def test_what_is_lost_or_comes_twice_or_from_elsewhere_changes_nothing() -> None:
    fetching = Fetching()
    number = 0
    while not fetching.told:
        number += 1
        if number % 3 == 0 and fetching.answers:
            fetching.answers.popleft()
            fetching.mine.scheduler.advance(ASK_AGAIN_MS + 1)
        for note in list(fetching.answers):
            fetching.fetch.heard(SOURCE + 5, note)
            fetching.answers.append(note)
        fetching.deliver()
    assert fetching.told == [None]
    assert fetching.aside.last_index == LAST


def test_a_node_that_is_silent_is_asked_so_often_and_no_more() -> None:
    fetching = Fetching()
    fetching.mine.scheduler.advance(ASK_AGAIN_MS * (MAX_ASKED + 1))
    assert fetching.asked == MAX_ASKED
    assert isinstance(fetching.told[0], FetchFailed)
    fetching.deliver()
    assert len(fetching.told) == 1


def test_what_retention_takes_meanwhile_takes_nothing_from_the_rest() -> None:
    fetching = Fetching()
    while fetching.aside.chain != [(1, 0)] or fetching.fetch._position < 700:
        fetching.deliver()
    replica = fetching.theirs.replica
    for partition, end in replica.segments[1].end_offsets().items():
        replica.partition(partition).advance_log_start(end)
    assert ReplicaFront(fetching.theirs.disk, fetching.theirs.scheduler, replica).drop() == [1, 2]
    fetching.theirs.scheduler.advance(50)
    assert fetching.run() is None
    assert fetching.aside.chain == [(3, 0), (4, 0)]
    assert [name for name in fetching.mine.disk.list("r") if name.endswith(".seg.tmp")] == [
        fetching.aside.path(3).split("/")[1],
        fetching.aside.path(4).split("/")[1],
    ]


def test_segments_that_do_not_go_far_enough_are_of_no_use() -> None:
    fetching = Fetching(least_index=LAST + 1)
    assert "is needed" in str(fetching.run())
    fetching = Fetching(least_index=LAST)
    assert fetching.run() is None


def test_a_node_without_sealed_segments_is_of_no_use() -> None:
    fetching = Fetching()
    fetching.theirs = Chain(0)
    assert "no sealed segments" in str(fetching.run())


@pytest.mark.parametrize("error", ["write", "flush"])
def test_an_error_of_the_own_disk_is_told_as_such(error: str) -> None:
    fetching = Fetching()
    fetching.mine.disk.fail(error, ".seg.tmp", after=1)
    told = fetching.run()
    assert isinstance(told, OSError)


def test_a_full_disk_is_no_end() -> None:
    fetching = Fetching()
    fetching.mine.disk.fail("write", ".seg.tmp", error=28)
    assert isinstance(fetching.run(), FetchFailed)


def test_a_restore_that_failed_leaves_nothing_and_is_not_begun_again_at_once() -> None:
    fetching = Fetching()
    fetching.fetch.close()
    mine = fetching.mine
    before = mine.disk.list("r")
    restore = RangeRestore(
        GROUP,
        mine.replica,
        ReplicaFront(mine.disk, mine.scheduler, mine.replica),
        mine.disk,
        mine.scheduler,
        fetching._ask,
        SnapshotRequest(SOURCE, BEHIND, 1, 5, 1, Membership(frozenset({SOURCE, BEHIND}))),
        reopen=lambda: pytest.fail("it is not replaced"),
        replaced=lambda replica: pytest.fail("it is not replaced"),
        done=fetching.told.append,
        failed=lambda error: pytest.fail(str(error)),
    )
    fetching.fetch = restore  # type: ignore[assignment]  # it hears the same
    while restore._fetch._position < 700:
        fetching.deliver()
    assert len(mine.disk.list("r")) == len(before) + 1
    fetching.questions.clear()
    mine.scheduler.advance(ASK_AGAIN_MS * (MAX_ASKED + 1) - 50)
    assert restore.step is Step.OVER
    assert mine.disk.list("r") == before
    assert not fetching.told
    mine.scheduler.advance(PAUSE_MS + 100)
    assert len(fetching.told) == 1
    assert isinstance(fetching.told[0], FetchFailed)


def test_a_piece_that_was_changed_on_the_way_fails_the_fetch() -> None:
    fetching = Fetching()
    fetching.deliver()
    fetching.source.heard(BEHIND, fetching.questions.popleft())
    *place, data = fetching.answers.pop()
    changed = data[:200] + bytes([data[200] ^ 4]) + data[201:]
    fetching.answers.append([*place, changed])
    told = fetching.run()
    assert isinstance(told, FetchFailed)
    assert "is no segment of this range" in str(told)


def test_no_file_of_the_old_log_is_removed_any_more_when_the_files_change_hands() -> None:
    fetching = Fetching()
    fetching.fetch.close()
    mine = fetching.mine = Chain(3)
    for partition, end in mine.replica.segments[1].end_offsets().items():
        mine.replica.partition(partition).advance_log_start(end)
    front = ReplicaFront(mine.disk, mine.scheduler, mine.replica)
    replaced: list[Any] = []
    restore = RangeRestore(
        GROUP,
        mine.replica,
        front,
        mine.disk,
        mine.scheduler,
        fetching._ask,
        SnapshotRequest(SOURCE, BEHIND, 1, 5, 1, Membership(frozenset({SOURCE, BEHIND}))),
        reopen=lambda: open_one(mine.disk, mine.scheduler),
        replaced=replaced.append,
        done=fetching.told.append,
        failed=lambda error: pytest.fail(str(error)),
    )
    fetching.fetch = restore  # type: ignore[assignment]  # it hears the same
    when_idle, dropped = front.when_idle, []

    def and_drop(callback: Any) -> None:
        """Retention comes between the answer and whoever waits for it."""
        when_idle(callback)
        dropped.append(front.drop())

    front.when_idle = and_drop  # type: ignore[method-assign]
    assert fetching.run() is None
    assert dropped == [[1, 2], []]
    assert front.drop() == ()
    assert [one.segment_id for one in replaced[0].segments] == [1, 2, 3, 4, 5]
    assert replaced[0].last_index == LAST
    mine.scheduler.advance(100)
    assert [name for name in mine.disk.list("r") if name.endswith(".seg")] == [
        f"{number:020d}.seg" for number in range(1, 6)
    ]


def test_what_compaction_writes_anew_meanwhile_is_fetched_anew() -> None:
    fetching = Fetching()
    segments = fetching.theirs.replica.segments

    def written_anew(*numbers: int) -> None:
        """As far as a fetch can see."""
        for segment in segments:
            if segment.segment_id in numbers:
                segment.header = segment.header._replace(generation=1)

    while fetching.aside.chain != [(1, 0), (2, 0)] or fetching.fetch._position < 700:
        fetching.deliver()
    written_anew(4)
    while len(fetching.aside.chain) < 3:
        fetching.deliver()
    written_anew(2)
    while fetching.aside.chain and not fetching.told:
        fetching.deliver()
    assert not fetching.told
    assert fetching.fetch._names[0][:2] == (1, 0), "from the begin on: the second one is another file now"


def test_what_compaction_writes_anew_before_it_has_come_costs_nothing() -> None:
    fetching = Fetching()
    segments = fetching.theirs.replica.segments
    while fetching.aside.chain != [(1, 0), (2, 0)] or fetching.fetch._position < 700:
        fetching.deliver()
    segments[3].header = segments[3].header._replace(generation=1)
    while fetching.fetch._names[0][:2] in ((3, 0), (4, 0)):
        fetching.deliver()
    assert fetching.aside.chain == [(1, 0), (2, 0), (3, 0)]
    assert fetching.fetch._names[0][:2] == (4, 1)
