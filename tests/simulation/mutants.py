"""Faults planted in the broker, each of which must be found: else silence about the right one says nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Change = tuple[Any, str, Any]
"""A class or module, a name in it, and what stands there instead."""


@dataclass(frozen=True, slots=True)
class Mutant:
    seeds: int
    """It is found within so many, from `first` on."""
    plant: Callable[[], list[Change]]
    first: int = 0
    """Not 0 where few seeds have what it takes."""


def _acknowledge_before_flush() -> list[Change]:
    """acks=all is answered when it is written (against D1)."""
    from storage.range_log import RangeLog

    return [(RangeLog, "when_durable", lambda self, lsn, callback: self.when_written(callback))]


def _commit_without_logs() -> list[Change]:
    """A commit waits for the store's log alone, not for those of its partitions (against T2)."""
    from txn.ending import Ending

    prepare = Ending._prepare

    def hasty(self: Any, transaction: Any, *others: Any) -> None:
        transaction.lsns = {}
        prepare(self, transaction, *others)

    return [(Ending, "_prepare", hasty)]


def _recovery_without_positions() -> list[Change]:
    """A start takes every PREPARING transaction for committed, whatever of it is in the logs (against T3)."""
    from txn.recovery import TransactionRecovery

    return [(TransactionRecovery, "_is_whole", lambda *_: True)]


def _no_fence_term() -> list[Change]:
    """After a power cut producers go on as if nothing of their transactions could be missing (against D2)."""
    from txn.identities import Identities
    from txn.recovery import TransactionRecovery

    def nothing_unknown(self: Any, key: Any, writes: Any, held: Any) -> None:
        self._result.unknown += 1

    return [
        (Identities, "may_have_lost", lambda self, held: False),
        (TransactionRecovery, "_unknown", nothing_unknown),
    ]


def _remains_outlive_ends() -> list[Change]:
    """What a power cut left of a transaction marks its producer as cut off at every start until it is settled, also
    where another transaction has committed since (against T5)."""
    from txn import keys

    return [(keys, "term_of", lambda txn_seq: 1 << 32)]


def _settlement_without_aborted() -> list[Change]:
    """Settlement forgets which ranges were aborted (against T8)."""
    from txn.settlement import Settlement

    run = Settlement.run

    def forgetful(self: Any) -> None:
        for finished in self._queue:
            finished.aborted = False
        run(self)

    return [(Settlement, "run", forgetful)]


def _stable_offset_too_early() -> list[Change]:
    """The last stable offset is the high watermark, whatever is open (against D4)."""
    from txn.partition import Partition

    return [(Partition, "last_stable_offset", property(lambda self: self._state.high_watermark))]


def _watermark_before_flush() -> list[Change]:
    """The high watermark moves with the write, not with the flush (against D3)."""
    from storage.range_log import RangeLog

    write_out = RangeLog._write_out

    def hasty(self: Any) -> None:
        write_out(self)
        for log, end in self._written_ends.items():
            log.high_watermark = end

    return [(RangeLog, "_write_out", hasty)]


def _lost_wake() -> list[Change]:
    """A reader that waits is not told that there is something to read."""
    from txn.partition import Partition

    return [(Partition, "wake", lambda self: None)]


def _wrong_index() -> list[Change]:
    """An index entry says one offset too much where it begins a new run."""
    from storage.index import PartitionIndex

    add = PartitionIndex.add

    def wrong(self: Any, base_offset: int, *others: Any) -> bool:
        began = add(self, base_offset, *others)
        if began and len(self.bases) > 3:
            self.bases[-1] = base_offset + 1
        return began

    return [(PartitionIndex, "add", wrong)]


def _no_epoch_check() -> list[Change]:
    """A producer that was fenced is taken for its successor."""
    from txn.identities import Identities

    def holder(self: Any, name: str, producer_id: int, epoch: int, *, aborting: bool = False) -> Any:
        held = self._ids.get(name)
        return (
            real(self, name, held.producer_id, held.epoch, aborting=aborting)
            if held
            else real(self, name, producer_id, epoch)
        )

    real = Identities.holder
    return [(Identities, "holder", holder)]


def _init_without_fence() -> list[Change]:
    """InitProducerId gives the epoch out again that is held by another."""
    from txn.identities import Identities

    bump = Identities.bump

    def none(self: Any, held: Any, by: int = 1, *, previous: Any = None) -> None:
        bump(self, held, 0, previous=previous)

    return [(Identities, "bump", none)]


def _no_duplicates_known() -> list[Change]:
    """A batch that is sent again is written again."""
    from storage.producers import ProducerStates

    return [(ProducerStates, "check", lambda self, *_, **__: None)]


def _children_before_parents() -> list[Change]:
    """After a split, what is flushed counts without all that precedes it in the parents (against S1)."""
    from storage.flush_round import FlushRound

    start = FlushRound.start

    def at_once(self: Any, disk: Any, predecessors: Any = ()) -> None:
        start(self, disk, [lambda tell: disk.scheduler.call_soon(tell, None) for _ in predecessors])

    return [(FlushRound, "start", at_once)]


def _reader_skips_a_parent() -> list[Change]:
    """A reader that comes to the end of a segment leaves the next one out if there is another after it."""
    from storage.partition import PartitionLog

    position = PartitionLog.chain_position

    def skipping(self: Any, offset: int) -> int:
        at = position(self, offset)
        follows = at + 1 < len(self.indexes) and self.indexes[at].start_offset == offset
        return at + 1 if follows else at

    return [(PartitionLog, "chain_position", skipping)]


def _retention_before_log_start() -> list[Change]:
    """Segments go before it is durable that they are hidden, and readers are not told at all."""
    from broker.retention import Retention

    return [(Retention, "_hide", lambda self, topic, verdict: self._take_out(topic, verdict))]


def _compaction_keeps_aborted() -> list[Change]:
    """Compaction takes the records of aborted transactions for the last values of their keys."""
    from txn.buffer import PartitionTransactions

    return [(PartitionTransactions, "aborted_within", lambda self, first, last: [])]


def _compaction_of_undecided() -> list[Change]:
    """Compaction takes segments whose transactions are not over: what is undecided counts as the last value."""
    from broker.settled_segments import SettledSegments

    return [(SettledSegments, "look", lambda self: lambda topic, segment: segment.state == "SEALED")]


def _group_commit_with_a_loser() -> list[Change]:
    """A group transaction is committed with all who ever enlisted and wrote, whether they won or not."""
    from txn.group_losers import GroupLosers

    def spare(self: Any, group: Any, losers: Any) -> None:
        from txn.transaction import State

        for one in losers:
            if one.state is State.PREPARED:
                self._ending.finish_commit(one)
                group.members.pop(one.key, None)
        discard(self, group, [one for one in losers if one.state is not State.COMMITTED])

    discard = GroupLosers.discard
    return [(GroupLosers, "discard", spare)]


def _partitions_shown_one_by_one() -> list[Change]:
    """A committed transaction becomes visible in one partition after the other."""
    from txn.ending import Ending

    expose = Ending.expose

    def slowly(self: Any, transaction: Any) -> None:
        writes = transaction.writes
        for number, partition in enumerate(writes):
            if number:
                self._scheduler.call_later(30 * number, partition.transactions.closed, transaction.key)
                self._scheduler.call_later(30 * number, partition.wake)
        transaction.writes = dict(list(writes.items())[:1])
        expose(self, transaction)
        transaction.writes = writes

    return [(Ending, "expose", slowly)]


def _offsets_of_aborted() -> list[Change]:
    """The offsets of a transaction are committed when it aborts, too."""
    from txn.ending import Ending
    from txn.transaction import State

    expose = Ending.expose

    def anyway(self: Any, transaction: Any) -> None:
        if transaction.state is State.ABORTED:
            for group_id, offsets in transaction.offsets.items():
                self._store.apply(self._offsets.put_ops(group_id, offsets, self._scheduler.now_ms()))
        expose(self, transaction)

    return [(Ending, "expose", anyway)]


MUTANTS: dict[str, Mutant] = {
    "acknowledge-before-flush": Mutant(5, _acknowledge_before_flush),
    "commit-without-logs": Mutant(10, _commit_without_logs),
    "recovery-without-positions": Mutant(20, _recovery_without_positions),
    "no-fence-term": Mutant(20, _no_fence_term),
    "remains-outlive-ends": Mutant(20, _remains_outlive_ends, first=3320),
    "settlement-without-aborted": Mutant(5, _settlement_without_aborted),
    "stable-offset-too-early": Mutant(5, _stable_offset_too_early),
    "watermark-before-flush": Mutant(40, _watermark_before_flush),
    "lost-wake": Mutant(5, _lost_wake),
    "wrong-index": Mutant(5, _wrong_index),
    "no-epoch-check": Mutant(10, _no_epoch_check),
    "init-without-fence": Mutant(5, _init_without_fence),
    "no-duplicates-known": Mutant(20, _no_duplicates_known),
    "children-before-parents": Mutant(300, _children_before_parents),
    "reader-skips-a-parent": Mutant(5, _reader_skips_a_parent),
    "retention-before-log-start": Mutant(5, _retention_before_log_start),
    "compaction-keeps-aborted": Mutant(10, _compaction_keeps_aborted),
    "compaction-of-undecided": Mutant(10, _compaction_of_undecided),
    "group-commit-with-a-loser": Mutant(5, _group_commit_with_a_loser),
    "partitions-shown-one-by-one": Mutant(5, _partitions_shown_one_by_one),
    "offsets-of-aborted": Mutant(10, _offsets_of_aborted),
}


@contextlib.contextmanager
def planted(name: str | None) -> Iterator[None]:
    """The broker with one of them, meanwhile; None: as it is."""
    if name is None:
        yield
        return
    changes = MUTANTS[name].plant()
    before = [(where, what, vars(where)[what]) for where, what, _ in changes]
    for where, what, instead in changes:
        setattr(where, what, instead)
    try:
        yield
    finally:
        for where, what, real in before:
            setattr(where, what, real)
