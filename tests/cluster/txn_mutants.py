"""Transactions over ranges that are wrong on purpose. Each is a patch, and a word on what it breaks."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from broker.ranges.admissions import Admissions
from broker.ranges.controller import Controller
from broker.ranges.member import RangesMember
from broker.ranges.metadata_handover import MetadataHandover
from broker.ranges.outcomes import Outcomes
from broker.ranges.participants import Participants
from broker.ranges.parting import HANDED_OVER, Parting
from broker.ranges.range_handover import RangeHandover
from broker.ranges.settling import RangesSettlement, Reports
from broker.replication import lineage
from txn import ending
from txn.buffer import PartitionTransactions
from txn.ending import Ending
from txn.identities import Identities
from txn.metastore import Put, StoreFailed
from txn.transaction import State, Transaction


def stands_before_it_is_committed():
    """T1: a leader says yes as soon as it is asked."""
    return patch.object(Admissions, "_stands", lambda self, words, answer: answer([True]))


def takes_writes_after_the_end():
    """A closed transaction may write on."""
    end_in = Admissions._end_in

    def mutant(self, key, group, log, led):
        admitted = self._open.get(key[:2])
        partitions = dict(admitted.partitions) if admitted is not None else {}
        written = end_in(self, key, group, log, led)
        if admitted is not None:
            admitted.partitions.update(partitions)
            self._open[key[:2]] = admitted
        return written

    return patch.object(Admissions, "_end_in", mutant)


def says_once_where_it_wrote():
    """The coordinator, whose first question's answer was lost, hears that nothing was written."""
    end_in = Admissions._end_in

    def mutant(self, key, group, log, led):
        again = key in self._closed and group in self._closed[key].terms
        return {} if again else end_in(self, key, group, log, led)

    return patch.object(Admissions, "_end_in", mutant)


def commits_over_a_change_of_leaders():
    """What an earlier leader of a range may have lost is not missed."""
    closed = Participants._closed
    return patch.object(
        Participants,
        "_closed",
        lambda self, transaction, done, *, is_lost: closed(self, transaction, done, is_lost=False),
    )


def answers_before_the_record_is_durable():
    """T2: the ranges' word alone is waited for."""

    def mutant(self, transaction, with_ops, done, refused_ops):
        def closed(error):
            if error is not None:
                self._record_abort(transaction, refused_ops(), lambda failure: done(failure or error))
                return
            transaction.move(State.PREPARING)
            done(None)

        self._participants.close(transaction, closed, commit=True)

    return patch.object(Ending, "_prepare", mutant)


def a_new_coordinator_commits_what_is_preparing():
    """T3: without asking for its positions."""
    return patch.object(
        Ending,
        "settle_prepared",
        lambda self, transaction, done, *, refused_ops: (self.finish_commit(transaction), done(None)),
    )


def a_new_coordinator_aborts_what_is_preparing():
    """The old one may have answered success."""
    return patch.object(
        Ending,
        "settle_prepared",
        lambda self, transaction, done, *, refused_ops: self._record_abort(transaction, refused_ops(), done),
    )


def shows_what_has_no_header():
    """T3: a batch whose transaction nobody remembers is taken for committed."""
    return patch.object(
        Outcomes,
        "_without_header",
        lambda self, key, ended: self.decide(key, aborted=False) if key[2] >> 32 < ended else None,
    )


def shows_what_is_undecided():
    """The last stable offset passes open transactions."""
    return patch.object(PartitionTransactions, "opened", lambda self, key, first: None)


def forgets_what_was_aborted_at_a_start():
    """/aborted is not read."""
    load = Outcomes._load

    def mutant(self, partition):
        with patch.object(PartitionTransactions, "add_aborted", lambda *_: None):
            return load(self, partition)

    return patch.object(Outcomes, "_load", mutant)


def resolves_without_the_aborted_ranges():
    """T8: reports name none."""
    of = Reports._of
    return patch.object(Reports, "_of", lambda self, partition: [*of(self, partition)[:4], []])


def collects_headers_at_once():
    """T8: before the leaders' reports are on record."""

    def mutant(self, transaction, *, has_header=True):
        finished(self, transaction)
        self._queue[-1].lasts.clear()

    finished = RangesSettlement.finished
    return patch.object(RangesSettlement, "finished", mutant)


def resolves_at_the_high_watermark():
    """T8: what is open counts as decided."""
    of = Reports._of

    def mutant(self, partition):
        index, _, is_all, _, ranges = of(self, partition)
        end = partition.high_watermark
        segments = [[segment_id, min(last, end)] for segment_id, _, last in partition.segments_within(0, end)]
        return [index, end, is_all, segments, ranges]

    return patch.object(Reports, "_of", mutant)


@contextmanager
def keeps_what_an_older_coordinator_let_in():
    """Leaders are not told that their producers' transactions are over."""
    with ExitStack() as patches:
        patches.enter_context(patch.object(Admissions, "coordinated_from", lambda self, term: None))
        close = Participants.close

        def mutant(self, transaction, done, *, commit):
            if -1 in transaction.terms.values():
                done(None)
            else:
                close(self, transaction, done, commit=commit)

        patches.enter_context(patch.object(Participants, "close", mutant))
        yield


def an_untraced_transaction_is_not_missed():
    """A change of coordinators takes one that left no trace, and its producer commits the rest."""
    init = Identities.__init__

    def mutant(self, *args, untraced_fence_term, **kwargs):
        init(self, *args, untraced_fence_term=1 if untraced_fence_term else None, **kwargs)

    return patch.object(Identities, "__init__", mutant)


def goes_on_before_the_mark_is_taken_back():
    """A range's leader to which nobody answered its hand-over writes behind its clean mark."""
    return patch.object(RangeHandover, "_take_back", RangeHandover._end)


def goes_on_before_the_coordinators_mark_is_taken_back():
    """The same of the metadata's leader."""
    return patch.object(MetadataHandover, "_take_back", lambda self, controller: self._end())


def takes_lineages_for_intervals():
    """A term between two of a lineage passes, though all of it is lost."""
    of_leader = lineage.of_leader

    def mutant(log, term):
        terms = of_leader(log, term)
        return tuple(range(terms[0], term + 1))

    return patch.object(lineage, "of_leader", mutant)


def keeps_the_term_that_let_it_in_first():
    """A leader that continues a transaction writes without its own term being kept."""
    admit = Controller._admit

    def mutant(self, name, producer_id, epoch, places, *, implicit):
        held = self.coordinator.get(name)
        before = dict(held.open.terms) if held is not None and held.open is not None else {}
        transaction = admit(self, name, producer_id, epoch, places, implicit=implicit)
        transaction.terms |= before
        return transaction

    return patch.object(Controller, "_admit", mutant)


@contextmanager
def accepts_an_older_coordinators_mark():
    """A coordinator that has taken over leaves the mark of the one before."""
    with ExitStack() as patches:
        begun = Parting.begun

        def mutant(self):
            op = begun(self)
            return Put(op.key, op.value | {HANDED_OVER: self.term}) if self.goes_on else op

        patches.enter_context(patch.object(Parting, "begun", mutant))
        yield


def serves_before_its_take_over_is_durable():
    """The next coordinator may go on from the mark before it, as if this one had never been."""
    serve_all = RangesMember._lead_all

    def mutant(self, store, term, life):
        with patch.object(type(store), "when_durable", lambda self, lsn, done: done(None)):
            serve_all(self, store, term, life)

    return patch.object(RangesMember, "_lead_all", mutant)


def leaves_no_headers():
    """The next coordinator hears of no open transaction."""
    return patch.object(Controller, "parting_ops", lambda self: self.parting.ops(self.store, ()))


def forgets_where_transactions_wrote():
    """The OPEN headers do not say which leaders let them in."""
    header = Transaction.header

    def mutant(self, state=None):
        record = header(self, state)
        record.pop("terms", None)
        return record

    return patch.object(Transaction, "header", mutant)


def says_only_what_it_wrote_itself():
    """A leader that continues another's term leaves out what that one took."""
    return patch.object(Outcomes, "writes", lambda self, key: {})


def continues_nothing():
    """Every change of a range's leader may have lost something."""
    return patch.object(lineage, "of_leader", lambda log, term: (term,))


def gives_up_where_the_store_takes_nothing_now():
    """An end that cannot be recorded at that moment is answered as if it never could, its repeat as if it was."""
    return patch.object(ending, "apply_patiently", _impatiently)


def _impatiently(store, scheduler, ops, applied, failed):
    try:
        lsn = store.apply(ops).lsn
    except StoreFailed as failure:
        failed(failure)
        return
    applied(lsn)


MUTANTS = {
    takes_writes_after_the_end: (0, 60),
    answers_before_the_record_is_durable: (0, 60),
    shows_what_has_no_header: (0, 60),
    shows_what_is_undecided: (0, 60),
    forgets_what_was_aborted_at_a_start: (0, 60),
    resolves_without_the_aborted_ranges: (0, 60),
    collects_headers_at_once: (0, 60),
    resolves_at_the_high_watermark: (0, 60),
    keeps_what_an_older_coordinator_let_in: (0, 60),
}
"""With the first seed and the number of seeds in which each is found."""

HANDOVER_MUTANTS = {
    leaves_no_headers: (0, 80),
    forgets_where_transactions_wrote: (0, 80),
    says_only_what_it_wrote_itself: (0, 80),
    continues_nothing: (0, 80),
}
"""Found where leaders change by hand-overs alone; the others of hand-overs by tests of their own."""
