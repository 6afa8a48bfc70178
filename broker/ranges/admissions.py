"""Transactions at the leaders of ranges: what may be written, and what the coordinator asks (design, section 14).

    write     the first write of a transaction to a partition asks the coordinator ("admit"); what is let in is kept
    close     the coordinator ends the transaction here: no further write of it, and where it wrote
    stands    whether what it wrote is committed, as soon as that is known

Guarantees: no batch is appended under a transaction that was closed here, in whatever order notes come; what "close"
says is all that this leader's term holds of it; "stands" is answered by a leader alone, and no only where the position
can never be committed: it is not in the log of a leader whose own term has a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from broker.call import Call
from broker.handlers.produce import IMPLICIT_ADD_VERSION, TOPIC_ID_VERSION
from broker.ranges.asking import Answer, Asking, Words
from broker.ranges.outcomes import Outcomes, words_of
from broker.ranges.topics import RangeTopics
from broker.ranges.view import RangesView
from storage.sequencing import SequencedRange
from txn import keys
from txn.partition import Partition
from txn.transaction import UNKNOWN_TERM, TopicPartition, WritesBySegment, extend, joined, within
from wire.batch import TRANSACTIONAL_BIT, parse_header
from wire.errors import ErrorCode, KafkaError

Producer = tuple[int, int]
"""(producer id, epoch)"""
Led = tuple[int, int]
"""(range's group, leader epoch)"""


@dataclass(slots=True, eq=False)
class Admitted:
    """A transaction that may write here."""

    key: keys.TxnKey
    partitions: dict[TopicPartition, Led] = field(default_factory=dict)
    """Each with the range, and the leader epoch, in which the coordinator let it in last."""
    writes: dict[Partition, WritesBySegment] = field(default_factory=dict)
    lsns: dict[SequencedRange, int] = field(default_factory=dict)

    two_phase = False
    untraced = True
    """That it is open is on record by now, where that is due: nothing has to be waited for here."""

    @property
    def txn_seq(self) -> int:
        return self.key[2]


@dataclass(slots=True, eq=False)
class Closed:
    """Where a transaction wrote that takes no more writes here: until it is settled, the coordinator may ask again."""

    terms: dict[int, int] = field(default_factory=dict)
    """By group, the term of this leader's in which it was closed last."""
    writes: dict[Partition, WritesBySegment] = field(default_factory=dict)
    lsns: dict[SequencedRange, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Asked:
    """What waits for the coordinator's word, for one producer of one request."""

    producer: Producer
    wanted: dict[TopicPartition, Led]
    done: Callable[[KafkaError | None], None]
    moved: Callable[[], None]
    cancel: Callable[[], None] = lambda: None


class Told(Protocol):
    def __call__(self, producer: Producer, error: KafkaError | None, *, moved: bool = False) -> None: ...


class Admissions:
    """In place of a node's coordinator, for Produce. `coordinator()` is the number of the node that it is."""

    def __init__(
        self,
        topics: RangeTopics,
        view: RangesView,
        asking: Asking,
        outcomes: Outcomes,
        coordinator: Callable[[], int | None],
    ) -> None:
        self._topics = topics
        self._view = view
        self._asking = asking
        self._outcomes = outcomes
        self._coordinator = coordinator
        self._open: dict[Producer, Admitted] = {}
        self._waiting: list[_Asked] = []
        self._refused: dict[Producer, KafkaError] = {}
        """Of the request that is being worked on."""
        self._closed: dict[keys.TxnKey, Closed] = {}
        asking.serve("close", self._close)
        asking.serve("stands", self._stands)
        asking.serve("forget", self._forget)

    @property
    def admission(self) -> Admissions:
        return self

    @property
    def open(self) -> Admissions:
        return self

    def abort_by_administrator(self, producer_id: int, reply: Callable[[KafkaError | None], None]) -> None:
        """As `OpenTransactions.abort_by_administrator`, by the coordinator."""

        def told(answer: Words | None) -> None:
            assert answer is not None
            word, *rest = answer
            reply(KafkaError(ErrorCode(rest[0]), rest[1]) if word == "no" else None)

        self._asking.ask("abort", lambda: [producer_id], told, where=self._coordinator)

    # Writing.

    def before_write(
        self, call: Call, request: Any, write: Callable[[], None], again: Callable[[], None]
    ) -> None:
        """Call `write` when the coordinator has said what it must of the transaction; the connection waits. `again`
        where others have succeeded a range meanwhile."""
        asked = self._unknown(call, request)
        if not asked:
            write()
            return
        call.hold()
        waiting = len(asked)
        refused: dict[Producer, KafkaError] = {}
        has_moved = False

        def told(producer: Producer, error: KafkaError | None, *, moved: bool = False) -> None:
            nonlocal waiting, has_moved
            has_moved |= moved
            if error is not None:
                refused[producer] = error
            waiting -= 1
            if not waiting:
                call.release(again if has_moved else lambda: self._write(refused, write))

        implicit = call.version >= IMPLICIT_ADD_VERSION
        for producer, wanted in asked.items():
            self._ask(request.transactional_id, producer, wanted, told, implicit=implicit)

    def _write(self, refused: dict[Producer, KafkaError], write: Callable[[], None]) -> None:
        self._refused = refused
        try:
            write()
        finally:
            self._refused = {}

    def _unknown(self, call: Call, request: Any) -> dict[Producer, dict[TopicPartition, Led]]:
        """Of each producer of the request, the partitions led here that were not let in yet in this term."""
        found: dict[Producer, dict[TopicPartition, Led]] = {}
        for data in request.topic_data:
            topic = (
                self._topics.get_by_id(data.topic_id)
                if call.version >= TOPIC_ID_VERSION
                else self._topics.get(data.name)
            )
            if topic is None:
                continue
            for part in data.partition_data:
                if not 0 <= part.index < len(topic.partitions):
                    continue
                partition = topic.partitions[part.index]
                led = self._led_in(partition)
                if led is None:
                    continue
                try:
                    header = parse_header(part.records)
                except (KafkaError, TypeError):
                    continue  # the handler says so
                producer = header.producer_id, header.producer_epoch
                if header.attributes & TRANSACTIONAL_BIT and not self._is_in(producer, partition):
                    found.setdefault(producer, {})[topic.name, part.index] = led
        return found

    def _led_in(self, partition: Partition) -> Led | None:
        """Where this node takes writes to it; None where it does not lead it."""
        group = self._topics.group_of(partition)
        if group is None or not self._view.leads(partition) or self._topics.serving_group(partition) != group:
            return None
        return group, partition.log.term

    def _is_in(self, producer: Producer, partition: Partition) -> bool:
        admitted = self._open.get(producer)
        led = self._led_in(partition)
        at = partition.topic, partition.index
        return admitted is not None and led is not None and admitted.partitions.get(at) == led

    def _ask(
        self,
        name: str,
        producer: Producer,
        wanted: dict[TopicPartition, Led],
        told: Told,
        *,
        implicit: bool,
    ) -> None:
        asked = _Asked(
            producer,
            wanted,
            lambda error: told(producer, error),
            lambda: told(producer, None, moved=True),
        )
        places = [[group, *at, list(self._view.lineage(group))] for at, (group, _) in wanted.items()]
        words = [name, *producer, implicit, places]
        self._waiting.append(asked)
        asked.cancel = self._asking.ask(
            "admit", lambda: words, lambda answer: self._told(asked, answer), where=self._coordinator
        )

    def _told(self, asked: _Asked, answer: Words | None) -> None:
        if asked not in self._waiting:
            return  # closed meanwhile
        self._waiting.remove(asked)
        assert answer is not None
        word, *rest = answer
        if word == "moved":
            asked.moved()
            return
        if word == "no":
            code, message = rest
            asked.done(KafkaError(ErrorCode(code), message))
            return
        key = (*asked.producer, rest[0])
        admitted = self._open.get(asked.producer)
        if admitted is not None and admitted.key[2] > key[2]:
            asked.done(_not_now("a coordinator that is one no more has answered"))
            return
        if admitted is None or admitted.key != key:
            admitted = self._open[asked.producer] = Admitted(key)
        admitted.partitions |= asked.wanted
        asked.done(None)

    def admit_write(
        self, name: str | None, producer_id: int, epoch: int, at: TopicPartition, *, implicit: bool
    ) -> Admitted:
        """As `txn.admission.Admission.admit_write`, of what was asked for."""
        if name is None:
            raise KafkaError(
                ErrorCode.transactional_id_authorization_failed,
                "a transactional batch without a transactional id",
            )
        producer = producer_id, epoch
        if producer in self._refused:
            raise self._refused[producer]
        admitted = self._open.get(producer)
        if admitted is None:
            raise _not_now("it does not lead the partition as it did")
        self.admit_further(admitted, at, implicit=implicit)
        return admitted

    def admit_further(self, transaction: Admitted, at: TopicPartition, *, implicit: bool) -> None:
        topic, index = at
        if not self._is_in(transaction.key[:2], self._topics.partition(self._topics.get(topic), index)):
            raise _not_now("it does not lead the partition as it did")

    @staticmethod
    def wrote(
        transaction: Admitted, partition: Partition, segment_id: int, first: int, last: int, lsn: int
    ) -> None:
        extend(transaction.writes.setdefault(partition, {}), segment_id, first, last)
        transaction.lsns[partition.log] = lsn

    @staticmethod
    def when_traced(two_phase: bool, done: Callable[[Exception | None], None]) -> None:
        """The coordinator waited for that."""
        done(None)

    # Ending.

    def _led(self, group: int, indexes: Iterable[int]) -> tuple[SequencedRange, list[Partition]] | None:
        """The log of a range that this node leads, and these partitions in order; None where it does not. The range may
        have been succeeded by others, which have its partitions now."""
        partitions = self._topics.partitions_of(group)
        found = [partitions[index] for index in indexes if index in partitions]
        replica = self._topics.replica_of(group)
        return (replica, found) if replica is not None and replica.leads and found else None

    def _close(self, words: Words, answer: Answer) -> None:
        """[producer id, epoch, txn_seq, group, [[partition, term that it was let in under]...]] -> [lineage, writes]

        What the transaction wrote under a term that is not in the lineage may be lost.
        """
        producer_id, epoch, txn_seq, group, expected = words
        terms = dict(expected)
        led = self._led(group, terms)
        if led is None:
            answer(None)
            return
        key = producer_id, epoch, txn_seq
        log, partitions = led
        term, lineage = log.term, self._view.lineage(group)
        is_all_own = set(terms.values()) == {term} == set(lineage)
        if max(terms.values()) > term or (not is_all_own and not self._view.group_knows_end(group)):
            answer(None)
            return
        closed = self._closed.get(key)
        if closed is None or group not in closed.terms:
            # A repeat comes late: who waits may be the same producer's next transaction, under the same epoch.
            self._refuse_waiting(key, group, partitions)
        own = self._end_in(key, group, log, partitions)
        # What an earlier leader took is committed by now.
        before = {} if is_all_own else self._outcomes.writes(key)
        for partition in partitions:
            if terms[partition.index] not in (*lineage, UNKNOWN_TERM):
                # Batches of it may be missing: after its abort its sequences may go on from anywhere.
                partition.producers.forget(producer_id)
        answer(
            [
                list(lineage),
                [
                    word
                    for partition in partitions
                    for word in words_of(
                        within(joined(before.get(partition, {}), own.get(partition, {})), group),
                        partition.index,
                    )
                ],
            ]
        )

    def _refuse_waiting(self, key: keys.TxnKey, group: int, led: list[Partition]) -> None:
        """A write that waits for the coordinator's word came too late, should it be of this transaction."""
        places = {(partition.topic, partition.index) for partition in led}
        for asked in list(self._waiting):
            wanted = {at for at, (of, _) in asked.wanted.items() if of == group}
            if asked.producer == key[:2] and places & wanted:
                self._waiting.remove(asked)
                asked.cancel()
                asked.done(KafkaError(ErrorCode.transaction_abortable, "its transaction is ending"))

    def _end_in(
        self, key: keys.TxnKey, group: int, log: SequencedRange, led: list[Partition]
    ) -> dict[Partition, WritesBySegment]:
        """No more of it there; what it wrote under this leader, however often that is asked."""
        closed = self._closed.setdefault(key, Closed())
        if closed.terms.get(group) != log.term:
            # Of an earlier leadership of this node: what is left of that is committed.
            for partition in led:
                writes = closed.writes.get(partition, {})
                for segment_id in within(writes, group):
                    del writes[segment_id]
            closed.lsns.pop(log, None)
        closed.terms[group] = log.term
        admitted = self._open.get(key[:2])
        if admitted is not None and admitted.key == key:
            for partition in led:
                at = partition.topic, partition.index
                let_in = admitted.partitions.get(at)
                if let_in is not None and let_in[0] == group:
                    del admitted.partitions[at]
                writes = admitted.writes.get(partition, {})
                mine = within(writes, group)
                for segment_id in mine:
                    del writes[segment_id]
                if mine and not writes:
                    del admitted.writes[partition]
                # What another term of this node's took is committed, and the coordinator finds it so. Where it was let
                # in to a successor since, this is all of it.
                if mine and (let_in == (group, log.term) or (let_in is not None and let_in[0] != group)):
                    closed.writes[partition] = joined(closed.writes.get(partition, {}), mine)
                    if log in admitted.lsns:
                        closed.lsns[log] = admitted.lsns[log]
            if not admitted.partitions and not admitted.writes:
                del self._open[key[:2]]
        return closed.writes

    def _stands(self, words: Words, answer: Answer) -> None:
        """[producer id, epoch, txn_seq, group, term, positions or None] -> [whether it is committed]"""
        producer_id, epoch, txn_seq, group, term, positions = words
        partitions = self._topics.partitions_of(group)
        led = self._led(group, partitions)
        if led is None:
            answer(None)
            return
        key = producer_id, epoch, txn_seq
        log, _ = led
        closed = self._closed.get(key)
        if closed is not None and closed.terms.get(group) == log.term and term in self._view.lineage(group):
            lsn = closed.lsns.get(log, 0)
            log.when_durable(lsn, lambda error: answer([True] if error is None else None))
            return
        if positions is None:
            answer(None)
            return
        if not self._view.group_knows_end(group):
            answer(None)
            return
        verdicts = [self._stands_at(partitions[index], key, term, last) for index, _, _, last in positions]
        if False in verdicts:
            answer([False])
        else:
            answer([True] if None not in verdicts else None)

    @staticmethod
    def _stands_at(partition: Partition, key: keys.TxnKey, term: int, last: int) -> bool | None:
        """T1, of one position; None: not known yet."""
        if last < partition.log_start_offset:
            return True  # records were deleted, the transaction's too
        if last >= partition.high_watermark:
            return None if last < partition.end_offset else False
        batch = partition.log.batch_at(partition.index, last)
        return (
            batch is not None
            and (batch.producer_id, batch.producer_epoch, batch.txn_seq) == key
            and batch.term <= term
            and batch.last_offset == last
        )

    def settled(self, key: keys.TxnKey) -> None:
        """Its header is gone: nobody asks for it any more."""
        self._closed.pop(key, None)

    def coordinated_from(self, term: int) -> None:
        """What began under coordinators of earlier terms and has no header is over; what has one goes on, or ends
        without another write."""
        for producer, admitted in list(self._open.items()):
            if keys.term_of(admitted.key[2]) < term and not self._outcomes.has_header(admitted.key):
                del self._open[producer]
        for key in list(self._closed):
            if keys.term_of(key[2]) < term and not self._outcomes.has_header(key):
                del self._closed[key]

    def _forget(self, words: Words, answer: Answer) -> None:
        """[producer id]: its sequences begin anew everywhere."""
        for topic in self._topics:
            for partition in topic.partitions:
                partition.producers.forget(words[0])
        answer([True])


def _not_now(message: str) -> KafkaError:
    return KafkaError(ErrorCode.not_leader_or_follower, message)
