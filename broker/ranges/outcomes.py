"""What this node's replicas know of transactions: what is undecided, what was aborted (design, T8 and section 14).

Every replica, leader or not, comes to it by itself, from what its group has committed and from what the metadata say:

    a header          COMMITTED, ABORTED: the outcome; otherwise undecided
    no header         below /resolved: visible unless under /aborted; of a coordinator's term that another one has
                      ended ("recovered_term"): aborted; otherwise undecided

An outcome never changes, so it does no harm that one node hears of it later than another: its last stable offset waits.
No I/O but reads of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from broker.ranges.records import first_segment
from storage.layout import TransactionalBatch
from txn import keys
from txn.metastore import Change, Event, MetaStore, Snapshot
from txn.partition import Partition
from txn.transaction import State, WritesBySegment, extend, joined

RECOVERED_TERM = "recovered_term"
"""In the record NODE: what began under a coordinator of an earlier term has a header there, or was aborted."""


class Outcomes:
    """`view` is the metadata as this node has them. `settled(key)` once a header is gone."""

    def __init__(self, view: Callable[[], MetaStore], settled: Callable[[keys.TxnKey], None]) -> None:
        self._view = view
        self._settled = settled
        self._undecided: dict[keys.TxnKey, dict[Partition, WritesBySegment]] = {}
        self._aborted: dict[keys.TxnKey, dict[Partition, WritesBySegment]] = {}
        """The same of those that were aborted, as long as they may have headers: where the news of that is here before
        the coordinator's question, what they wrote is asked for still."""
        self._without: set[keys.TxnKey] = set()
        """Those of them that had no header when something of them was found: none may ever be told."""
        self._loaded: dict[Partition, int] = {}
        """Below that offset all that is under /aborted is known to the partition."""

    # What the log says.

    def serve(self, partition: Partition) -> None:
        """The partition has a log here, or another one: find out what is in it."""
        self.forget(partition)
        start = max(self._load(partition), partition.log_start_offset)
        for batch in partition.log.transactional_batches(partition.index, start):
            key = batch.producer_id, batch.producer_epoch, batch.txn_seq
            self._found(partition, batch.base_offset, batch.last_offset, key)

    def committed(self, partition: Partition, batch: TransactionalBatch) -> None:
        """Before readers see it."""
        self._found(partition, batch.first, batch.last, batch.key)

    def forget(self, partition: Partition) -> None:
        """It is gone from here."""
        partition.transactions.clear()
        self._loaded.pop(partition, None)
        for known in (self._undecided, self._aborted):
            for key, writes in list(known.items()):
                if writes.pop(partition, None) is not None and not writes:
                    del known[key]

    def _found(self, partition: Partition, first: int, last: int, key: keys.TxnKey) -> None:
        outcome = self._outcome(key)
        if outcome is State.COMMITTED:
            return
        if outcome is None and first < self.resolved(partition):
            # It is visible, or under /aborted.
            if first >= self._loaded.get(partition, 0):
                self._load(partition)
            return
        if outcome is None and keys.term_of(key[2]) < self.recovered_term():
            outcome = State.ABORTED
        if outcome is State.ABORTED:
            partition.transactions.add_aborted(key[0], first, last)
            if self.has_header(key):
                writes = self._aborted.setdefault(key, {}).setdefault(partition, {})
                extend(writes, partition.segment_of(first), first, last)
            return
        if outcome is None:
            self._without.add(key)
        segments = self._undecided.setdefault(key, {}).setdefault(partition, {})
        extend(segments, partition.segment_of(first), first, last)
        if key not in partition.transactions:
            partition.transactions.opened(key, first)

    # What the metadata say.

    def _outcome(self, key: keys.TxnKey) -> State | None:
        record = self._view().get(keys.txn(key))
        return State(record.value["state"]) if record is not None else None

    def has_header(self, key: keys.TxnKey) -> bool:
        return self._view().get(keys.txn(key)) is not None

    def recovered_term(self) -> int:
        record = self._view().get(keys.NODE)
        return int(record.value.get(RECOVERED_TERM, 0)) if record is not None else 0

    def resolved(self, partition: Partition) -> int:
        """Everything below has its outcome on record (T8)."""
        view = self._view()
        for segment_id in reversed([*partition.segments(), *self._later(partition, keys.RESOLVED)]):
            record = view.get(keys.resolved(segment_id))
            if record is not None and partition.index in record.value:
                return int(record.value[partition.index])
        return 0

    def _later(self, partition: Partition, prefix: str) -> list[int]:
        """Segments of the range that are not in this replica's log yet, of which something is on record: the metadata
        may be ahead of the log."""
        own = partition.segments()
        if not own:
            return []
        end = first_segment(keys.range_of(own[-1]) + 1)
        later: dict[int, None] = {}
        for key, _ in self._view().scan(prefix, f"{prefix}{own[-1]:020d}{keys.LAST}"):
            segment_id = int(key.split("/")[2])
            if segment_id >= end:
                break
            later[segment_id] = None
        return list(later)

    def _load(self, partition: Partition) -> int:
        """Take in what is under /aborted; up to where it says all."""
        resolved = self.resolved(partition)
        view = self._view()
        for segment_id in [*partition.segments(), *self._later(partition, keys.ABORTED)]:
            for key, record in view.scan(keys.aborted_in(segment_id, partition.index)):
                last, producer_id = record.value
                if last >= partition.log_start_offset:
                    partition.transactions.add_aborted(producer_id, keys.parse_aborted(key)[2], last)
        self._loaded[partition] = resolved
        return resolved

    def headers_told(self, events: Iterable[Event]) -> None:
        """A watch of /txn/."""
        for event in events:
            if isinstance(event, Snapshot):
                self.look()
            elif isinstance(event, Change) and event.new is None:
                key = keys.parse_txn(event.key)
                if key in self._undecided:
                    self._without_header(key, self.recovered_term())
                self._aborted.pop(key, None)
                self._settled(key)
            elif isinstance(event, Change) and event.new is not None:
                state = State(event.new.value["state"])
                if state in (State.COMMITTED, State.ABORTED):
                    self.decide(keys.parse_txn(event.key), aborted=state is State.ABORTED)

    def resolved_told(self, _: Iterable[Event]) -> None:
        """A watch of /resolved/: what was found after its header had gone is decided by that alone."""
        self._without &= self._undecided.keys()
        for key in list(self._without):
            if self._outcome(key) is None:
                self._without_header(key, self.recovered_term())

    def look(self) -> None:
        """At all that is undecided here: another coordinator may have ended what the one before left."""
        ended = self.recovered_term()
        for key in [
            one for one in self._aborted if keys.term_of(one[2]) < ended and not self.has_header(one)
        ]:
            del self._aborted[key]
        for key in list(self._undecided):
            outcome = self._outcome(key)
            if outcome in (State.COMMITTED, State.ABORTED):
                self.decide(key, aborted=outcome is State.ABORTED)
            elif outcome is None:
                self._without_header(key, ended)

    def _without_header(self, key: keys.TxnKey, ended: int) -> None:
        """Its header was settled and collected before this node heard of it, or it never had one."""
        writes = self._undecided[key]
        if all(
            write.first < self.resolved(partition)
            for partition, segments in writes.items()
            for write in segments.values()
        ):
            for partition in writes:
                self._load(partition)
            self.decide(key, aborted=False)
        elif keys.term_of(key[2]) < ended:
            self.decide(key, aborted=True)

    def decide(self, key: keys.TxnKey, *, aborted: bool) -> None:
        """The outcome of a transaction, which is final; harmless when repeated."""
        writes = self._undecided.pop(key, {})
        if aborted and writes and (self.has_header(key) or keys.term_of(key[2]) >= self.recovered_term()):
            known = self._aborted.setdefault(key, {})
            for partition, segments in writes.items():
                known[partition] = joined(known.get(partition, {}), segments)
        for partition, segments in writes.items():
            for write in segments.values() if aborted else ():
                # Each by its own first batch: that is the name of the record of it, which another one's must not have.
                partition.transactions.add_aborted(key[0], write.first, write.last)
            partition.transactions.closed(key)
            partition.wake()

    # For the coordinator.

    def writes(self, key: keys.TxnKey) -> dict[Partition, WritesBySegment]:
        """What is in the committed log here of a transaction that is not settled."""
        found = dict(self._aborted.get(key, {}))
        for partition, segments in self._undecided.get(key, {}).items():
            found[partition] = joined(found.get(partition, {}), segments)
        return found


def words_of(writes: WritesBySegment, index: int) -> list[list[Any]]:
    """As notes say it: [partition, segment, first, last]."""
    return [[index, segment_id, write.first, write.last] for segment_id, write in writes.items()]
