"""What the node that leads the metadata's group does for the cluster, as long as it leads.

Topics, settings of topics, groups of consumers and their offsets, producer ids. All of it is on a scheduler that ends
with the leadership (`Life`), and is built anew from the store by the next leader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from broker.broker_settings import BrokerSettings, Level
from broker.cluster_view import Broker
from broker.node_registry import NodeRegistry, views
from broker.placement import NodeView
from broker.ranges import lineage, log_starts, outcome_records
from broker.ranges.asking import Answer, Words
from broker.ranges.changes import LedTopics
from broker.ranges.participants import Participants
from broker.ranges.parting import Parting
from broker.ranges.placement import RangePlacement
from broker.ranges.records import RangeRecord
from broker.ranges.reshapes import RangeReshapes
from broker.ranges.settings import record_of
from broker.ranges.settling import RangesSettlement
from broker.ranges.topics import RangeTopics
from broker.ranges.view import RangesView
from broker.services import StoreServices
from storage.clock import Periodic, Scheduler
from txn import keys
from txn.coordinator import Coordinator, TxnConfig
from txn.ending import Ending
from txn.group_state import GroupTransaction
from txn.id_blocks import IdBlocks
from txn.identities import unavailable
from txn.metastore import Conflict, MetaStore, Op, Put, StoreFailed
from txn.offsets import GroupOffsets
from txn.partition import Partition
from txn.takeover import TakenOver, take_over
from txn.transaction import UNKNOWN_TERM, State, Transaction, TransactionalId
from wire.errors import ErrorCode, KafkaError

log = logging.getLogger("sealog")

NODES_MS = 1000


class Controller(StoreServices):
    """In place of a `broker.node.Node` for the handlers that answer from the store. Raises StoreFailed."""

    def __init__(
        self,
        store: MetaStore,
        term: int,
        scheduler: Scheduler,
        settings: BrokerSettings,
        topics: RangeTopics,
        view: RangesView,
        *,
        members: Callable[[], Collection[int]],
        peer_address: Callable[[int], str],
        hand_over: Callable[[int, int, int], None],
        new_uuid: Callable[[], UUID],
        participants: Participants,
        settlement: RangesSettlement,
        confirm: Callable[[Callable[[Exception | None], None]], None],
    ) -> None:
        """`topics` are all that `store` names. `confirm` says whether this node leads the metadata still."""
        super().__init__(scheduler, settings.current, new_uuid)
        # Those of the node: it follows what is recorded here, as every other one does.
        self.settings = settings
        self.store = store
        self.term = term
        self.cluster = view
        self.topics = self.changes = LedTopics(store, scheduler, topics, view, self.node_views, new_uuid)
        self._ranges = topics
        self._members = members
        self._peer_address = peer_address
        self._confirm = confirm
        self._participants = participants
        self._settlement = settlement
        self.offsets = GroupOffsets(store)
        self._ending = Ending(store, scheduler, self.offsets, settlement, participants)
        self._take_over()
        self.groups = self._open_groups()
        self.arm_group_timer()
        self.offset_expiry = self._open_offset_expiry()
        self.registry = NodeRegistry(store, scheduler.now_ms)
        self._nodes = Periodic(scheduler, NODES_MS, self.register_nodes)
        self.register_nodes()
        self.placement = RangePlacement(self.registry, topics, view, scheduler, hand_over, store)
        self.layouts = RangeReshapes(
            store,
            topics,
            scheduler,
            led=view.said_of,
            new_group=self.changes.new_group,
            is_needed=self._is_needed,
            max_ranges=settings.current.limits.ranges_per_topic,
        )

    # Transactions.

    def _take_over(self) -> None:
        """From the coordinator before this one, in one batch (`txn.takeover`)."""
        record = self.store.get(keys.NODE)
        before: dict[str, Any] = record.value if record is not None else {}
        self.cluster_id: str = before.get("cluster_id") or self._new_uuid().hex[:22]
        self.parting = Parting.after(before, self.term, self.cluster_id)
        producer_ids = IdBlocks(self.store, keys.PRODUCER_IDS)
        found = take_over(
            self.store,
            self._find_partition,
            lambda: producer_ids.allocate()[0],
            self.scheduler.now_ms(),
            goes_on=self.parting.goes_on,
        )
        self.taken_over_lsn = self.store.apply([*found.ops, self.parting.begun()]).lsn
        """Durable before this controller serves anybody, or one after the next might go on from a mark before it."""
        config, limits = self.config, self.config.limits
        self.coordinator = Coordinator(
            self.store,
            self.scheduler,
            self.offsets,
            self._ending,
            TxnConfig(
                max_timeout_ms=config.transaction_max_timeout_ms,
                max_open_transactions=limits.open_transactions,
                max_transactional_ids=limits.transactional_ids,
            ),
            term=self.term,
            # What was begun and is not there any more left a trace, but for transactions v2 (`txn.untraced`).
            fence_term=1,
            untraced_fence_term=self.parting.untraced_fence,
        )
        self.coordinator.restore(found.ids.values(), found.groups.values())
        self.coordinator.ends.forget_producer = self._participants.forget_producer
        self._configure_id_expiry()
        self._go_on(found)

    def _find_partition(self, name: str, index: int) -> Partition | None:
        topic = self.topics.get(name)
        return topic.partitions[index] if topic is not None and index < len(topic.partitions) else None

    def _go_on(self, found: TakenOver) -> None:
        outcome_records.forget_gone(self.store, self.scheduler, lineage.alive(self._ranges.ranges))
        for transaction in found.committed:
            self._settlement.finished(transaction)
        for transaction in found.open:
            for group_id, offsets in list(transaction.offsets.items()):
                self.offsets.hold(transaction, group_id, offsets)
            if transaction.membership is not None:
                group = found.groups[transaction.membership[:2]]
                group.members[transaction.key] = transaction
        for transaction in found.preparing:
            self._decide(
                transaction, found.groups.get(transaction.membership[:2]) if transaction.membership else None
            )
        for group in found.groups.values():
            self._wait_for_votes(group)
        self._closing = len(found.aborted)
        for transaction in found.aborted:
            held = self.coordinator.get(transaction.transactional_id)
            if held is not None and not held.busy:
                held.busy = True
            else:
                held = None
            self._participants.close(transaction, partial(self._released, held), commit=False)

    def _released(self, held: TransactionalId | None, _: KafkaError | None) -> None:
        self._closing -= 1
        if held is not None:
            self.coordinator.release(held)

    @property
    def is_closing(self) -> bool:
        """Whether some leader may not have heard yet of what was aborted when this began."""
        return self._closing > 0

    def parting_ops(self) -> list[list[Op]]:
        """As `Parting.ops`, of what is open."""
        living = (held.open for held in self.coordinator.transactional_ids() if held.open is not None)
        return self.parting.ops(self.store, living)

    def _decide(self, transaction: Transaction, group: GroupTransaction | None) -> None:
        """A PREPARING one; who comes for its id, or its group, waits (T3)."""
        held = self.coordinator.get(transaction.transactional_id)
        if held is not None and held.open is not transaction:
            # Its end was answered and the next one has begun; that it is committed was about to be recorded.
            held = None
        for group_id, offsets in list(transaction.offsets.items()):
            self.offsets.hold(transaction, group_id, offsets)
        if held is not None:
            held.busy = True
        if group is not None:
            group.members[transaction.key] = transaction

        def done(error: KafkaError | None) -> None:
            if held is not None:
                self.coordinator.open.closed(held)
            if group is not None:
                if transaction.state is not State.PREPARED:
                    group.members.pop(transaction.key, None)
                self._wait_for_votes(group)

        def refused() -> list[Op]:
            if held is None:
                return []
            held.commit_refused()
            return [Put(keys.txid(held.name), held.record())]

        self._ending.settle_prepared(transaction, done, refused_ops=refused)

    @staticmethod
    def _wait_for_votes(group: GroupTransaction) -> None:
        """Nothing is done with a group as long as nobody knows whether a vote of it is whole."""
        group.busy = any(member.state is State.PREPARING for member in group.members.values())
        if not group.busy:
            group.go_on()

    def admit(self, words: Words, answer: Answer) -> None:
        """A range's leader asks: [name, producer id, epoch, implicit, [group, topic, partition, lineage]...] ->
        ["ok", txn_seq], or ["no", error code, message], or ["moved"]: others have succeeded one of these ranges.
        `lineage` as of `broker.replication.lineage`; its own term is the last.

        No is said only by who leads the metadata for certain: whoever does may know of a newer epoch.
        """
        name, producer_id, epoch, implicit, places = words
        if not self.store.takes():
            answer(None)
            return
        if not all(self._takes_writes(group) for group, *_ in places):
            answer(["moved"])
            return
        if self.coordinator.open.in_line(name, lambda: self.admit(words, answer)):
            return  # what its predecessor left of it is being ended
        try:
            transaction = self._admit(name, producer_id, epoch, places, implicit=implicit)
        except (KafkaError, StoreFailed) as failure:
            refusal = failure if isinstance(failure, KafkaError) else unavailable(failure)

            def confirmed(error: Exception | None) -> None:
                answer(["no", int(refusal.code), refusal.message] if error is None else None)

            self._confirm(confirmed)
            return
        if implicit and transaction.untraced:
            answer(["ok", transaction.txn_seq])
            return
        self.coordinator.admission.when_traced(
            False, lambda error: answer(["ok", transaction.txn_seq] if error is None else None)
        )

    def _admit(
        self, name: str, producer_id: int, epoch: int, places: Words, *, implicit: bool
    ) -> Transaction:
        """Raises KafkaError as `Admission.admit_write`; TRANSACTION_ABORTABLE where what it wrote to a partition before
        may be lost, as that has another leader now; NOT_LEADER_OR_FOLLOWER where who asks is the leader no more. Raises
        StoreFailed."""
        admission = self.coordinator.admission
        for _, topic, index, _ in places:
            if self._find_partition(topic, index) is None:
                raise KafkaError(ErrorCode.unknown_topic_or_partition, f"{topic}-{index} is not known here")
        (_, topic, index, _), *_ = places
        transaction = admission.admit_write(name, producer_id, epoch, (topic, index), implicit=implicit)
        for group, topic, index, terms in places:
            place = group, topic, index
            admission.admit_further(transaction, (topic, index), implicit=implicit)
            kept, term = transaction.terms.get(place, UNKNOWN_TERM), terms[-1]
            if kept > term:
                raise KafkaError(
                    ErrorCode.not_leader_or_follower, f"{topic}-{index} is led in the later term {kept}"
                )
            if kept != UNKNOWN_TERM and kept not in terms:
                raise KafkaError(
                    ErrorCode.transaction_abortable,
                    f"{topic}-{index} has another leader now, and may have lost some of the transaction",
                )
            # Before it writes there: a leader after it that has nothing of its term must not pass for one that has.
            transaction.terms[place] = term
        return transaction

    def _takes_writes(self, group: int) -> bool:
        """One that others have succeeded does not; a leader that thinks so has not heard of what ended it."""
        record = self._ranges.ranges.get(group)
        return record is not None and not record.retired

    def _is_needed(self, group: int) -> bool:
        """Whether a transaction without an outcome wrote to the range, or its leader has yet to answer."""
        living = [held.open for held in self.coordinator.transactional_ids() if held.open is not None]
        return self._participants.awaits(group) or any(
            group == place[0]
            for transaction in (*living, *self.coordinator.open_transactions())
            for place in transaction.terms
        )

    def abort_by_administrator(self, words: Words, answer: Answer) -> None:
        """A range's leader asks: [producer id] -> ["ok"] or ["no", error code, message]."""

        def ended(error: KafkaError | None) -> None:
            answer(["ok"] if error is None else ["no", int(error.code), error.message])

        self.coordinator.open.abort_by_administrator(words[0], ended)

    def record_log_starts(self, name: str, topic_id: bytes, offsets: Mapping[int, int]) -> None:
        """A leader wishes for them (`log_starts`)."""
        starts = log_starts.record(self.store, name, topic_id, offsets)
        topic = self.topics.get(name)
        if starts is not None and topic is not None:
            groups = lineage.alive({group: self._ranges.ranges[group] for group, _ in topic.groups})
            outcome_records.forget_below(self.store, self.scheduler, groups, starts)

    def forget_range(self, group: int, record: RangeRecord | None) -> None:
        """Its record is gone."""
        before = record.before if record is not None else ()
        gone = {group, *before} - lineage.alive(self._ranges.ranges)
        outcome_records.forget_ranges(self.store, self.scheduler, sorted(gone))

    def forget_partition(self, partition: Partition) -> None:
        """Its topic is gone."""
        self.coordinator.forget_partition(partition)
        self._settlement.forget_partition(partition)

    # The nodes.

    def register_nodes(self) -> None:
        """Every member is on record, with where clients reach it and its rack, as far as it said so."""
        brokers: dict[int, Broker] = {one.id: one for one in self.cluster.brokers()}
        known = self.registry.all()
        try:
            for node in self._members():
                one = brokers.get(node)
                changes = {"peer": self._peer_address(node)}
                if one is not None:
                    changes |= {"address": f"{one.host}:{one.port}", "rack": one.rack or ""}
                if node not in known:
                    self.registry.change(node, "found", **changes)
                elif one is not None:
                    self.registry.change(node, "start", **changes)
        except (KafkaError, StoreFailed, Conflict) as error:
            log.info("the nodes cannot be recorded: %s", error)

    def node_views(self) -> Sequence[NodeView]:
        """As placement sees them."""
        return views(self.registry.all(), self.cluster.away())

    # Settings.

    def settings_of(self, name: str) -> tuple[Level, str]:
        """Of any member. They are checked by what this node's file says."""
        if name == "":
            return Level.ALL_BROKERS, record_of(Level.ALL_BROKERS, 0)
        node = next((node for node in self._members() if name == str(node)), None)
        if node is None:
            raise KafkaError(ErrorCode.invalid_request, f"no broker of this cluster is {name!r}")
        return Level.BROKER, record_of(Level.BROKER, node)

    def configure(
        self,
        level: Level,
        record_key: str,
        values: dict[str, str],
        done: Callable[[KafkaError | None], None],
    ) -> None:
        """`done` when it is durable; every node puts it in force when it hears of it."""
        try:
            lsn = self.store.apply([Put(record_key, values)]).lsn
        except StoreFailed as failure:
            done(unavailable(failure))
            return
        self.store.when_durable(lsn, lambda error: done(unavailable(error) if error is not None else None))

    def reconfigure(self) -> None:
        """Other settings are in force on this node."""
        self._reconfigure()
