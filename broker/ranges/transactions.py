"""All of a node that has to do with transactions where ranges have groups of their own, wired together.

asking        questions between nodes          outcomes        what readers may see, at every replica
admissions    writes, at a range's leader      settling        reports of a range's leader
participants  the ranges, for the coordinator, which is the metadata's leader (`broker.ranges.controller`)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from broker.cluster_view import NOBODY
from broker.ranges.admissions import Admissions
from broker.ranges.asking import Answer, Asking, Told, Words
from broker.ranges.controller import Controller
from broker.ranges.outcomes import Outcomes
from broker.ranges.participants import Participants
from broker.ranges.settling import RangesSettlement, Reports
from broker.ranges.topics import RangeTopics
from broker.ranges.view import RangesView
from storage.clock import Scheduler
from storage.layout import TransactionalBatch
from txn import keys
from txn.metastore import Event, MetaStore
from txn.partition import Partition


class RangeTransactions:
    """`say(node, words)` sends a note; `metadata()` is this node's view of the store; `nodes()` all members."""

    def __init__(
        self,
        node_id: int,
        scheduler: Scheduler,
        topics: RangeTopics,
        view: RangesView,
        *,
        say: Callable[[int, Words], None],
        metadata: Callable[[], MetaStore],
        nodes: Callable[[], Any],
        first_number: int,
    ) -> None:
        self._node_id = node_id
        self._topics = topics
        self._view = view
        self._say = say
        self._nodes = nodes
        self.controller: Controller | None = None
        self.asking = Asking(node_id, scheduler, say, first_number)
        self.outcomes = Outcomes(metadata, lambda key: self.admissions.settled(key))
        self.admissions = Admissions(topics, view, self.asking, self.outcomes, self._coordinator)
        self._reports = Reports(topics, view, self.outcomes, self.asking)
        self.asking.serve("admit", self._by_the_controller(Controller.admit))
        self.asking.serve("abort", self._by_the_controller(Controller.abort_by_administrator))
        topics.on_served = self.outcomes.serve
        topics.on_absent = self.outcomes.forget
        topics.on_dropped = self._dropped

    def _coordinator(self) -> int | None:
        node = self._view.controller()
        return node if node != NOBODY else None

    # What is heard.

    def watch(self, view: MetaStore) -> None:
        """From now on, of the metadata as this node has them."""
        view.watch(self.outcomes.headers_told, prefix=keys.TXNS)
        view.watch(self.outcomes.resolved_told, prefix=keys.RESOLVED)
        view.watch(self._node_told, key=keys.NODE)

    def _node_told(self, events: list[Event]) -> None:
        self.outcomes.look()
        self.admissions.coordinated_from(self.outcomes.recovered_term())

    def committed(self, group: int, batches: list[TransactionalBatch]) -> None:
        """In a range's log here; before readers see them."""
        partitions = self._topics.partitions_of(group)
        replica = self._topics.replica_of(group)
        for batch in batches:
            # Otherwise it is served from another log, or its topic is not known yet: all is found when it is.
            if batch.partition in partitions and partitions[batch.partition].log is replica:
                self.outcomes.committed(partitions[batch.partition], batch)

    def heard(self, peer: int, words: Words) -> None:
        if words[0] == "decided":
            *key, aborted = words[1:]
            self.outcomes.decide((key[0], key[1], key[2]), aborted=aborted)
        else:
            self.asking.heard(peer, words)

    def _tell(self, words: Words) -> None:
        """All nodes, this one too."""
        for node in self._nodes() or ():
            if node == self._node_id:
                self.heard(node, words)
            else:
                self._say(node, words)

    def _dropped(self, partition: Partition) -> None:
        self.outcomes.forget(partition)
        if self.controller is not None:
            self.controller.forget_partition(partition)

    # The coordinator.

    def _by_the_controller(
        self, handle: Callable[[Controller, Words, Answer], None]
    ) -> Callable[[Words, Answer], None]:
        def ask(words: Words, answer: Answer) -> None:
            if self.controller is None:
                answer(None)
            else:
                handle(self.controller, words, answer)

        return ask

    def _ask_leader(
        self, scheduler: Scheduler, kind: str, group: int, words: Callable[[], Words], told: Told
    ) -> Callable[[], None]:
        return self.asking.ask(
            kind,
            words,
            told,
            where=partial(self._view.leader_of, group),
            alive=lambda: group in self._topics.ranges,
            scheduler=scheduler,
        )

    def participants(self, scheduler: Scheduler) -> Participants:
        """For a coordinator that ends with that scheduler."""
        return Participants(self._topics, partial(self._ask_leader, scheduler), self._tell)

    def settlement(self, store: MetaStore, scheduler: Scheduler) -> RangesSettlement:
        return RangesSettlement(store, scheduler, self._topics, partial(self._ask_leader, scheduler))

    def lead(self, controller: Controller) -> None:
        self.controller = controller

    def follow(self, scheduler: Scheduler) -> None:
        """The coordinator of that scheduler is over."""
        self.controller = None
        self.asking.end_all(scheduler)
