"""Parts of transactions over ranges by themselves: questions between nodes, and what a settlement may forget."""

from __future__ import annotations

from types import SimpleNamespace

from support.sim_loop import SimScheduler

from broker.ranges.asking import LONGEST_RETRY_MS, RETRY_MS, Asking
from broker.ranges.settling import RangesSettlement, Reports
from broker.replication.life import Life
from txn.buffer import PartitionTransactions
from txn.metastore import Delete
from txn.settlement import PASS_DELAY_MS
from txn.transaction import SegmentWrite, State, Transaction


class Nodes:
    """Two of them; `lose` says of a note whether it is lost."""

    def __init__(self, lose=lambda words: False):
        self.scheduler = SimScheduler()
        self.lose = lose
        self.sent = []
        self.asking = {
            node: Asking(
                node, self.scheduler, lambda to, words, node=node: self._say(node, to, words), 100 * node
            )
            for node in (1, 2)
        }

    def _say(self, source, target, words):
        self.sent.append(words[0])
        if not self.lose(words):
            self.scheduler.call_later(1, self.asking[target].heard, source, words)


def test_a_question_is_asked_until_it_is_answered():
    lost = [True, True, False, True]
    nodes = Nodes(lambda words: lost.pop(0) if lost else False)
    asked, told = [], []

    def answer(words, done):
        asked.append(words)
        done([len(asked)])

    nodes.asking[2].serve("count", answer)
    nodes.asking[1].ask("count", lambda: ["x"], told.append, where=lambda: 2)
    nodes.scheduler.advance(10_000)
    # Two questions and an answer got lost; nobody asks on when one has come.
    assert told == [[2]]
    assert asked == [["x"]] * 2
    assert nodes.sent == ["ask", "ask", "ask", "told", "ask", "told"]


def test_a_question_follows_who_can_answer_and_waits_where_nobody_can():
    nodes = Nodes()
    at, told = [None], []
    nodes.asking[1].serve("who", lambda words, done: done([1]))
    nodes.asking[2].serve("who", lambda words, done: done(None))
    nodes.asking[1].ask("who", list, told.append, where=lambda: at[0])
    nodes.scheduler.advance(5_000)
    at[0] = 2  # says "not now"
    nodes.scheduler.advance(5_000)
    assert not told
    at[0] = 1  # this node itself
    nodes.scheduler.advance(LONGEST_RETRY_MS + 1)
    assert told == [[1]]
    assert "told" not in nodes.sent


def test_who_is_still_to_answer_is_not_asked_twice_and_old_questions_end():
    nodes = Nodes()
    waiting, told = [], []
    nodes.asking[2].serve("wait", lambda words, done: waiting.append(done))
    life, alive = Life(nodes.scheduler), [True]
    life.release()
    nodes.asking[1].ask("wait", list, told.append, where=lambda: 2, alive=lambda: alive[0])
    nodes.asking[1].ask("wait", list, told.append, where=lambda: 2, scheduler=life)
    nodes.asking[1].ask("wait", list, told.append, where=lambda: 2)()
    nodes.scheduler.advance(20 * RETRY_MS)
    assert len(waiting) == 3
    nodes.asking[1].end_all(life)
    waiting[1](["too late"])
    waiting[2](["nobody waits"])
    nodes.scheduler.advance(10)
    assert not told
    alive[0] = False
    nodes.scheduler.advance(LONGEST_RETRY_MS + 1)
    assert told == [None]


class Place:
    """A partition."""

    index = 0


class Store:
    def __init__(self):
        self.deleted = []

    def takes(self):
        return True

    def get(self, key):
        return None

    def apply(self, ops):
        self.deleted += [op.key for op in ops if isinstance(op, Delete)]


def test_a_report_from_before_an_abort_says_nothing_of_what_it_wrote():
    """That nothing is above the limit was true then. Without its header the batches would be open for ever."""
    scheduler, store = SimScheduler(), Store()
    partition = Place()
    topics = SimpleNamespace(group_of=lambda _: 7, partitions_of=lambda _: {0: partition})
    asked = []
    settlement = RangesSettlement(
        store, scheduler, topics, lambda kind, group, words, told: asked.append(told)
    )

    def aborted(seq, first, last):
        transaction = Transaction("x", 1, 0, seq, 0, 0, State.ABORTED)
        transaction.writes = {partition: {70: SegmentWrite(first, last)}}
        settlement.finished(transaction)

    aborted(1, 0, 4)
    scheduler.advance(PASS_DELAY_MS)
    aborted(2, 5, 9)
    asked.pop()([[0, 5, True, [[70, 5]], [[70, 0, 4, 1]]]])
    assert len(store.deleted) == 1
    scheduler.advance(PASS_DELAY_MS)
    # Asked after its end: what is above the limit can never come.
    asked.pop()([[0, 5, True, [], []]])
    assert len(store.deleted) == 2
    assert not settlement.backlog


def test_a_report_tells_two_aborted_transactions_apart_where_a_segment_begins():
    """One reaches over from the segment before, another begins where the segment does: each is a record of its own."""
    transactions = PartitionTransactions()
    transactions.add_aborted(1, 2, 7)
    transactions.add_aborted(4, 5, 5)
    partition = SimpleNamespace(
        index=0,
        last_stable_offset=9,
        end_offset=9,
        transactions=transactions,
        segments_within=lambda first, last: [
            one for one in [(70, 0, 5), (71, 5, 9)] if one[1] <= last and one[2] > first
        ],
    )
    outcomes = SimpleNamespace(resolved=lambda _: 1)
    reports = Reports(SimpleNamespace(), SimpleNamespace(), outcomes, SimpleNamespace(serve=lambda *_: None))
    index, limit, is_all, segments, ranges = reports._of(partition)
    assert (index, limit, is_all) == (0, 9, True)
    assert sorted(ranges) == [[70, 2, 4, 1], [71, 2, 7, 1], [71, 5, 5, 4]]
    # Each segment says so by itself: a replica that is behind may have the first one alone.
    assert segments == [[70, 5], [71, 9]]
