"""The coordinator's side of transactions whose ranges are led elsewhere (design, sections 4 and 14).

    close      each leader that let the transaction in ends it there, and says where it wrote
    standing   the leaders say that what it wrote is committed: asked together with the first, so that a commit
               waits for one round trip to the leaders and one flush

Guarantees: a transaction is closed where its range has a leader of the term that let it in, or one that continues that
term (`broker.replication.lineage`), or its commit is refused; a position counts as lost only by the word of a leader
that knows its end (T1). A range that is gone with its topic is asked nothing any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from broker.ranges.asking import AskLeader, Told, Words
from broker.ranges.outcomes import words_of
from broker.ranges.topics import RangeTopics
from txn import keys
from txn.transaction import UNKNOWN_RANGE, SegmentWrite, State, Transaction, within
from wire.errors import ErrorCode, KafkaError

Done = Callable[[KafkaError | None], None]


@dataclass(slots=True, eq=False)
class _Standing:
    """What is known of the positions of one transaction that is about to commit."""

    left: int = 0
    lost: bool = False
    done: Callable[[Exception | None], None] | None = None
    ends: list[Callable[[], None]] = field(default_factory=list)

    def tell(self) -> None:
        if not self.left and self.done is not None:
            self.done(LostPosition("what it wrote to a range can never be committed") if self.lost else None)


class LostPosition(Exception):
    """A position of a PREPARING transaction that is not in its range's log, for good."""


class Participants:
    """`ask` ends with the leadership of the metadata. `tell(words)` is a note to all nodes, which may be lost."""

    def __init__(
        self,
        topics: RangeTopics,
        ask: AskLeader,
        tell: Callable[[Words], None],
    ) -> None:
        self._topics = topics
        self._ask = ask
        self._tell = tell
        self._standing: dict[keys.TxnKey, _Standing] = {}
        self._asked: Counter[int] = Counter()

    def awaits(self, group: int) -> bool:
        """Whether some question to its leader is not answered yet."""
        return self._asked[group] > 0

    def _question(self, kind: str, group: int, words: Callable[[], Words], told: Told) -> Callable[[], None]:
        is_over = False

        def over() -> None:
            nonlocal is_over
            self._asked[group] -= not is_over
            is_over = True

        def answered(answer: Words | None) -> None:
            over()
            told(answer)

        def end() -> None:
            over()
            give_up()

        self._asked[group] += 1
        give_up = self._ask(kind, group, words, answered)
        return end

    def close(self, transaction: Transaction, done: Done, *, commit: bool) -> None:
        """No further write of it anywhere; `done` when `transaction.writes` says all that it wrote.

        Errors: TRANSACTION_ABORTABLE where some of it may be lost, for a commit.
        """
        groups = self._groups(transaction)
        waiting = len(groups)
        is_lost = False

        def told(group: int, terms: dict[int, int], answer: Words | None) -> None:
            nonlocal waiting, is_lost
            if answer is not None:
                lineage, written = answer
                if any(term not in lineage for term in terms.values()):
                    is_lost = True
                    self._forget_in_successors(group, transaction.producer_id)
                self._note(transaction, group, written)
            waiting -= 1
            if not waiting:
                self._closed(transaction, done, is_lost=commit and is_lost)

        for group, terms in groups.items():
            words = [*transaction.key, group, list(terms.items())]
            self._question("close", group, partial(list, words), partial(told, group, terms))
        if commit:
            # On the heels of the other question, so that it finds the transaction closed.
            self._begin_standing(transaction, groups)
        if not groups:
            done(None)

    def _forget_in_successors(self, group: int, producer_id: int) -> None:
        """As its leader does, where its partitions are others' by now."""
        record = self._topics.ranges.get(group)
        for child, _, _ in record.becomes if record is not None and record.retired else ():
            if child in self._topics.ranges:
                self._ask("forget", child, lambda: [producer_id], lambda answer: None)

    def _closed(self, transaction: Transaction, done: Done, *, is_lost: bool) -> None:
        if not is_lost:
            done(None)
            return
        self._forget(transaction.key)
        done(
            KafkaError(
                ErrorCode.transaction_abortable,
                "a partition that it wrote to has another leader now, and may have lost some of it",
            )
        )

    def when_standing(self, transaction: Transaction, done: Callable[[Exception | None], None]) -> None:
        """`done(None)` when all that it wrote is committed in its ranges; with `LostPosition` when some of it never
        will be. Neither, as long as nobody knows."""
        standing = self._standing.get(transaction.key)
        if standing is None:
            # Of a coordinator before this one, which has recorded where it wrote.
            standing = self._begin_standing(transaction, self._groups(transaction))

        def told(error: Exception | None) -> None:
            self._forget(transaction.key)
            done(error)

        standing.done = told
        standing.tell()

    def decided(self, transaction: Transaction) -> None:
        """Readers need not wait until the metadata tell them."""
        aborted = transaction.state is State.ABORTED
        if transaction.terms:
            self._tell(["decided", *transaction.key, aborted])

    def forget_producer(self, producer_id: int) -> None:
        """Its sequences begin anew in every partition."""
        for group in self._topics.ranges:
            self._ask("forget", group, lambda: [producer_id], lambda answer: None)

    def _forget(self, key: keys.TxnKey) -> None:
        standing = self._standing.pop(key, None)
        if standing is not None:
            for end in standing.ends:
                end()

    def _groups(self, transaction: Transaction) -> dict[int, dict[int, int]]:
        """Per range, its partitions in the transaction, each with the leader epoch that let it in; UNKNOWN_TERM. Ranges
        that others have succeeded among them."""
        found: dict[int, dict[int, int]] = {}
        for (group, name, index), term in transaction.terms.items():
            groups = [group] if group != UNKNOWN_RANGE else self._topics.groups_with(name, index)
            for one in groups:
                if one in self._topics.ranges:
                    found.setdefault(one, {})[index] = term
        return found

    def _begin_standing(self, transaction: Transaction, groups: dict[int, dict[int, int]]) -> _Standing:
        standing = self._standing[transaction.key] = _Standing()
        for group, terms in groups.items():
            self._ask_standing(transaction, standing, group, max(terms.values()))
        return standing

    def _ask_standing(self, transaction: Transaction, standing: _Standing, group: int, term: int) -> None:
        def words() -> Words:
            positions = [
                word
                for partition, writes in transaction.writes.items()
                for word in words_of(within(writes, group), partition.index)
            ]
            known = transaction.state is not State.OPEN
            return [*transaction.key, group, term, positions if known else None]

        def told(answer: Words | None) -> None:
            standing.left -= 1
            standing.lost |= answer is not None and not answer[0]
            standing.tell()

        standing.left += 1
        standing.ends.append(self._question("stands", group, words, told))

    def _note(self, transaction: Transaction, group: int, written: Words) -> None:
        partitions = self._topics.partitions_of(group)
        for index, segment_id, first, last in written:
            partition = partitions.get(index)
            if partition is not None:
                transaction.writes.setdefault(partition, {})[segment_id] = SegmentWrite(first, last)
