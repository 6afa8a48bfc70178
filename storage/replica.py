"""A range whose log is replicated by a group: one copy, which is both the group's log and the partitions'.

    sequencing   the leader gives offsets, keeps producers, and proposes what a turn appended (`storage.sequencing`)
    log          `write`, `entries`, `term_at`: entries with numbers; conflicting tails go (`storage.numbered_chain`)
    commit       `commit_to`: the one thing that moves high watermarks, and that answers who waits

Guarantees: whatever a truncation takes away, offsets, leader epochs, indexes and producers are then as if it had never
been; nothing committed is ever taken away; a position that was taken back is never told as done, and who waits for
one hears NOT_LEADER_OR_FOLLOWER as soon as the leader steps down. A roll is an entry, so all replicas cut at the same
place.
The group itself is above: this knows no consensus (docs/raft.md, section 7).
"""

from __future__ import annotations

import errno
import struct
from collections import deque
from collections.abc import Callable, Sequence

from typing_extensions import Buffer

from storage.compacted_names import Names
from storage.flusher import Outcome, tell_all
from storage.format import ENTRY_HEADER_BYTES, bare_size
from storage.layout import Appended, TransactionalBatch
from storage.lost_positions import LostPositions
from storage.numbered_chain import NumberedChain
from storage.numbering import NORMAL, EntryLike
from storage.partition import PartitionLog
from storage.payloads import BadPayload, Batch, Roll, decode, encode_batch, encode_roll
from storage.uncommitted import Rolled, Uncommitted, revocable
from wire.batch import BatchHeader
from wire.errors import ErrorCode, KafkaError

Propose = Callable[[Sequence[bytes]], int]
"""Hands payloads to the group, together and in order; the index that the first one got. Raises `NotTaken`."""

_PRODUCER_ID_AT = 43 - 16
"""In a batch without its first 16 bytes; the epoch follows."""
_PRODUCER = struct.Struct(">qh")


class NotTaken(Exception):
    """The group took nothing: this node does not lead it in the term that was meant, or it is full."""


class RangeReplica(NumberedChain):
    """Opened by `storage.replica_recovery`. FOLLOWING until `begin_leading`.

    Positions ("lsn") count what was appended here in this life, as a `RangeLog`'s do; one stands for its whole turn.
    """

    names: Names
    """What compaction has made of its segments (`storage.replica_compaction`)."""
    _propose: Propose | None = None
    _roll_is_under_way: Roll | None = None
    is_held = False
    """It leads, and takes nothing: another node is to lead."""

    def _prepare(self) -> None:
        self.names = {}
        self._pending: deque[Uncommitted] = deque()
        """Proposed, and not handed back to be written yet."""
        self._proposed_lsn = self._written_lsn = self._committed_lsn = 0
        self._lost = LostPositions()
        self._waiting: list[tuple[int, Outcome]] = []
        self._waiting_written: list[tuple[int, Outcome]] = []
        for record in self._uncommitted:
            self._count(record)

    # Leading and following.

    @property
    def leads(self) -> bool:
        return self._propose is not None

    @property
    def is_retiring(self) -> bool:
        """Whether its end is in the log, or proposed: it takes no data, unless that is truncated."""
        roll = self._roll_is_under_way
        return self._retired_at > 0 or (roll is not None and roll.retires)

    @property
    def durable_lsn(self) -> int:
        return self._committed_lsn

    def begin_leading(self, term: int, propose: Propose) -> None:
        """This node leads its group in `term`, and all entries that its group's log has are written here."""
        self.stop_leading()
        self._take_back_pending()
        self._term = term
        self._propose = propose

    def follow(self, term: int) -> None:
        """Another node leads in `term`, or none is known yet."""
        self.stop_leading()
        self._term = max(term, self._term)

    def hold(self) -> None:
        """Propose what is queued, and take nothing more in this leadership: until `go_on`."""
        self._write_out()
        self.is_held = self._propose is not None

    def go_on(self) -> None:
        """This node leads still, and takes appends again."""
        self.is_held = False
        self._roll_if_due()

    def stop_leading(self) -> None:
        """What is proposed stays in the log until it is truncated; what is not proposed never was."""
        self.is_held = False
        if self._propose is None:
            return
        self._propose = None
        self._roll_is_under_way = None
        queue, self._queue = self._queue, {}
        if queue:
            for log, entries in queue.items():
                for _, rest, size, base_offset, *_ in reversed(entries):
                    self._queued_bytes -= size + ENTRY_HEADER_BYTES
                    log.end_offset = base_offset
                    if _has_producer(rest):
                        revocable(log).revoke()
            self._lost.add(self._proposed_lsn, self._appended_lsn)
        self._refuse_waiting(self._not_leading())

    def _refuse_waiting(self, error: KafkaError) -> None:
        waiting = self._waiting + self._waiting_written
        self._waiting, self._waiting_written = [], []
        for _, callback in waiting:
            self._scheduler.call_soon(callback, error)

    def _not_leading(self) -> KafkaError:
        return KafkaError(
            ErrorCode.not_leader_or_follower, f"this node does not lead the range in {self.directory}"
        )

    # Appending, as the leader.

    def append(
        self,
        partition: int,
        header: BatchHeader,
        batch: Buffer,
        *,
        txn_seq: int = 0,
        require_known_producer: bool = False,
    ) -> Appended:
        """As `SequencedRange.append`; raises NOT_LEADER_OR_FOLLOWER as well."""
        if (self._propose is None or self.is_held or self.is_retiring) and self._state == "OPEN":
            raise self._not_leading()
        appended = super().append(
            partition, header, batch, txn_seq=txn_seq, require_known_producer=require_known_producer
        )
        roll = self._roll_is_under_way
        if roll is not None and not appended.duplicate:
            return appended._replace(segment_id=roll.child_id)
        return appended

    def _write_out(self) -> None:
        """Propose everything queued, together."""
        if not self._queue or self._propose is None or self._state != "OPEN":
            return
        records: list[Uncommitted] = []
        payloads: list[bytes] = []
        queue, self._queue = self._queue, {}
        for log, entries in queue.items():
            for prefix, rest, size, base_offset, end_offset, txn_seq, _ in entries:
                record = Uncommitted(log, base_offset, end_offset, ENTRY_HEADER_BYTES + size)
                record.has_producer = _has_producer(rest)
                if txn_seq:
                    record.transaction = (*_PRODUCER.unpack_from(rest, _PRODUCER_ID_AT), txn_seq)
                record.payload = encode_batch(log.partition, txn_seq, prefix, rest)
                record.after = record.lsn = self._proposed_lsn
                records.append(record)
                payloads.append(record.payload)
        records[-1].lsn = self._proposed_lsn = self._appended_lsn
        self._hand_over(records, payloads)

    def _hand_over(self, records: list[Uncommitted], payloads: list[bytes]) -> None:
        assert self._propose is not None
        self._pending.extend(records)
        try:
            first = self._propose(payloads)
        except NotTaken:
            for _ in records:
                self._take_back_last()
            self._tell_lost()
            return
        for record in records:
            record.index = first
            first += 1

    def when_written(self, callback: Outcome) -> None:
        """Call back when all appended so far is in this node's log: it is lost with this node's leadership still."""
        if self._propose is None:
            self._scheduler.call_soon(callback, self._not_leading())
        elif self._appended_lsn > self._written_lsn:
            self._waiting_written.append((self._appended_lsn, callback))
        else:
            self._scheduler.call_soon(callback, None)

    def when_durable(self, lsn: int, callback: Outcome) -> None:
        """Call back when everything up to `lsn` is committed, or will not be known to be by this leader."""
        if lsn in self._lost:
            self._scheduler.call_soon(callback, self._not_leading())
        elif lsn <= self._committed_lsn:
            self._scheduler.call_soon(callback, None)
        elif self._propose is None:
            self._scheduler.call_soon(callback, self._not_leading())
        else:
            self._waiting.append((lsn, callback))

    def request_flush(self) -> None:
        """The group flushes what it has, always."""

    def retire(self) -> bool:
        """Take no more data: other ranges take the partitions over, behind the same entry on all replicas. False as
        `roll`."""
        return self.roll(retires=True)

    def roll(self, *, retires: bool = False) -> bool:
        """Let a new segment take over, at the same place on all replicas. False where this does not lead, or takes
        nothing, or a roll is under way, or it is retiring."""
        if self._propose is None or self.is_held or self._roll_is_under_way is not None:
            return False
        if self._state != "OPEN" or self.is_retiring:
            return False
        self._write_out()
        if self._propose is None:
            return False
        roll = Roll(self._hooks.allocate_segment_id(), self._scheduler.now_ms(), retires)
        record = Uncommitted(None, 0, 0, bare_size(encode_roll(roll)))
        record.payload = encode_roll(roll)
        record.roll = Rolled(*self._as_of_now())
        self._queued_bytes += record.size
        self._count(record)
        self._roll_is_under_way = roll
        self._hand_over([record], [record.payload])
        return True

    def _count(self, record: Uncommitted) -> None:
        record.after = self._appended_lsn
        self._appended_lsn += record.size
        record.lsn = self._proposed_lsn = self._appended_lsn

    # The group's log.

    def write(self, truncate_from: int | None, entries: Sequence[EntryLike]) -> None:
        """Cut off the end, then append. Blocks for the device where there is an end to cut. Raises OSError; the replica
        is FAILED then."""
        if self._state != "OPEN":
            raise OSError(errno.EIO, f"the log in {self.directory} is {self._state.lower()}")
        try:
            if truncate_from is not None or any(entry.term != self._term for entry in entries):
                # Somebody else leads by now, or will.
                self.stop_leading()
            if truncate_from is not None:
                self._take_back_pending()
                self._truncate(truncate_from)
                self._tell_lost()
            self._write_entries([(entry, *self._take_in(entry)) for entry in entries])
        except BadPayload as error:
            failure = OSError(errno.EBADMSG, str(error))
            self.fail(failure)
            raise failure from error
        except OSError as error:
            self.fail(error)
            raise
        self._tell_written()
        if not self._queue and not self._pending:
            self._capture_if_due()
        self._roll_if_due()

    def _tell_written(self) -> None:
        if self._uncommitted:
            self._written_lsn = self._uncommitted[-1].lsn
        written = [callback for lsn, callback in self._waiting_written if lsn <= self._written_lsn]
        if written:
            self._waiting_written = [one for one in self._waiting_written if one[0] > self._written_lsn]
            for callback in written:
                self._scheduler.call_soon(callback, None)

    def _roll_if_due(self) -> None:
        segment = self._active
        if segment.end >= self._roll_at or segment.runs >= self.config.max_index_entries:
            self.roll()

    def _take_in(self, entry: EntryLike) -> tuple[Uncommitted, Batch | Roll | None]:
        """Its record, and what it says. A leader's own has its offsets and its producer already."""
        pending = self._pending
        if pending and pending[0].index == entry.index and pending[0].payload is entry.payload:
            record = pending.popleft()
            self._queued_bytes -= record.size
            record.payload = b""
            own = decode(entry.payload, entry.term, check=False)
            if isinstance(own, Roll):
                self._roll_is_under_way = None
            return record, own
        if pending and pending[0].index <= entry.index:
            # Another leader's stands there.
            self._take_back_pending()
            self._tell_lost()
        if entry.kind != NORMAL:
            record = Uncommitted(None, 0, 0, bare_size(entry.payload))
            self._count(record)
            return record, None
        content = decode(entry.payload, entry.term)
        if isinstance(content, Roll):
            record = Uncommitted(None, 0, 0, bare_size(entry.payload))
            record.roll = Rolled(*self._as_of_now())
        else:
            record = self._follow(content)
        self._count(record)
        return record, content

    def _follow(self, batch: Batch) -> Uncommitted:
        """Take in a batch with the offsets that its leader gave."""
        header = batch.header
        if not self.first <= batch.partition <= self.last:
            raise BadPayload(f"a batch of partition {batch.partition} in {self.first}..{self.last}")
        log = self._partitions[batch.partition - self.first]
        if header.base_offset != log.end_offset:
            raise BadPayload(
                f"partition {batch.partition} ends at {log.end_offset}, the batch begins at {header.base_offset}"
            )
        record = Uncommitted(
            log, header.base_offset, header.last_offset + 1, ENTRY_HEADER_BYTES + header.size_bytes
        )
        if header.producer_id >= 0:
            record.has_producer = True
            log.producers.update(header, header.base_offset, self._scheduler.now_ms())
        if batch.txn_seq:
            record.transaction = (header.producer_id, header.producer_epoch, batch.txn_seq)
        log.end_offset = record.end_offset
        return record

    # Taking back.

    def _take_back_pending(self) -> None:
        while self._pending:
            self._take_back_last()

    def _take_back_last(self) -> None:
        record = self._pending.pop()
        self._queued_bytes -= record.size
        if record.roll is not None:
            self._roll_is_under_way = None
        record.take_back()
        self._taken_back(record)

    def _taken_back(self, record: Uncommitted) -> None:
        self._lost.add(record.after, self._appended_lsn)

    def _tell_lost(self) -> None:
        """Whoever waits for what was taken back."""
        lost = [callback for lsn, callback in self._waiting + self._waiting_written if lsn in self._lost]
        self._waiting = [one for one in self._waiting if one[0] not in self._lost]
        self._waiting_written = [one for one in self._waiting_written if one[0] not in self._lost]
        for callback in lost:
            self._scheduler.call_soon(callback, self._not_leading())

    # Committing.

    def commit_to(self, index: int) -> None:
        """Everything up to `index` is committed, and written here, durable here or not yet."""
        if index <= self._commit_index:
            return
        self._commit_index = index
        moved: dict[PartitionLog, int] = {}
        transactional: list[TransactionalBatch] = []
        records = self._uncommitted
        while records and records[0].index <= index:
            record = records.popleft()
            record.commit()
            self._committed_lsn = record.lsn
            if record.log is not None:
                moved[record.log] = record.end_offset
                if record.transaction is not None:
                    place = record.log.partition, record.base_offset, record.end_offset - 1
                    transactional.append(TransactionalBatch(*place, record.transaction))
            elif record.roll is not None:
                self._roll_committed(record.roll)
        self._write_checkpoint()
        self._seal_next()
        if transactional and self._hooks.on_transactional is not None:
            self._hooks.on_transactional(transactional)
        self._tell_progress(moved)
        if self._waiting:
            lsn = self._committed_lsn
            reached = [callback for wanted, callback in self._waiting if wanted <= lsn]
            self._waiting = [waiter for waiter in self._waiting if waiter[0] > lsn]
            tell_all(self._scheduler, reached, None)

    # The end.

    def _may_checkpoint(self) -> bool:
        return not self._uncommitted and not self._pending

    def _drop_queued(self, error: KafkaError) -> None:
        super()._drop_queued(error)
        self._propose = None
        self._queue = {}
        self._refuse_waiting(error)

    def close(self) -> None:
        """As `RangeChain.close`; what is not proposed never was."""
        self.stop_leading()
        super().close()


def _has_producer(rest: memoryview) -> bool:
    return not rest[_PRODUCER_ID_AT] & 0x80
