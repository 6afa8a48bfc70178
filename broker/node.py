"""One broker node without its sockets: everything that answers requests, wired together, started and stopped.

Disk, scheduler, boot id and randomness are handed in, so that a simulator can run a whole node.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from broker import data_folder
from broker.call import Call
from broker.cluster_view import ClusterView
from broker.compactor import Compactor, Worker
from broker.config import BrokerConfig
from broker.durable_ends import DurableEnds
from broker.durable_note import DurableNote
from broker.handlers import HANDLERS
from broker.layout_controller import LayoutController
from broker.layout_load import LayoutBalancer
from broker.layout_policy import Decision, Policy
from broker.log_start_files import LogStartFiles
from broker.read_ahead import Budget
from broker.removals import Removals
from broker.retention import Retention
from broker.services import StoreServices
from broker.settled_files import SettledFiles
from broker.settled_segments import SettledSegments
from broker.topic import Topic
from broker.topic_changes import TopicChanges
from broker.topics import Topics
from storage.clock import Scheduler
from storage.disk import Disk
from storage.recovery import RecoveryReport
from txn import keys
from txn.coordinator import Coordinator, TxnConfig
from txn.ending import Ending, LocalRanges
from txn.metastore import CorruptStore, MetaStore, Options, Put, StoreFailed
from txn.offsets import GroupOffsets
from txn.outcomes import forget_left_over
from txn.partition import Partition
from txn.recovery import Recovered, TransactionRecovery
from txn.settlement import Settlement
from wire.errors import KafkaError

log = logging.getLogger("sealog")

METADATA_FOLDER = "metadata"
METADATA_LINGER_MS = 500
"""What nobody waits for, as COMMITTED (T1), goes with the next commit's flush: one of its own would be under way, and
waited for, when that comes."""


@dataclass(slots=True)
class StartReport:
    """What a start found: for the operator, and for tests."""

    term: int
    nothing_lost: bool
    transactions: Recovered
    ranges: list[RecoveryReport] = field(default_factory=list)


class Node(StoreServices):
    """A broker's state and services. `start` before anything else; `stop` for a clean end."""

    def __init__(
        self,
        disk: Disk,
        scheduler: Scheduler,
        config: BrokerConfig,
        *,
        boot_id: str,
        new_uuid: Callable[[], UUID],
        advertised: tuple[str, int],
        compaction_worker: Worker,
        least_term: int = 0,
    ) -> None:
        """`least_term`: in a cluster, the raft term in which this node leads; leader epochs are no lower."""
        super().__init__(scheduler, config, new_uuid)
        self.advertised = advertised
        self.read_ahead_budget = Budget(config.limits.read_ahead_bytes)
        self._disk = disk
        self._boot_id = boot_id
        self._compaction_worker = compaction_worker
        self._least_term = least_term
        self.topics: Topics
        self.changes: TopicChanges
        self.layouts: LayoutController
        self.balancer: LayoutBalancer
        self.compactor: Compactor
        self.retention: Retention
        self.removals: Removals
        self.settled_files: SettledFiles
        self.log_start_files: LogStartFiles
        self.durable_ends: DurableEnds
        self.cluster_id = ""
        self.term = 0
        self.cluster: ClusterView | None = None
        """Of a node of a cluster."""
        self.handlers: Mapping[int, Callable[[Any, Call, Any], None]] = HANDLERS

    # -- start

    def start(self, ready: Callable[[Exception | None], None]) -> StartReport:
        """Open and recover everything; `ready` when what was decided is durable and requests may be served.

        Raises:
            ForeignFolder, CorruptLog, MetaStoreError, LostCommit: the folder cannot be served; says why.
        """
        data_folder.claim(self._disk)
        self._durable_note = DurableNote(self._disk)
        self.store, report = MetaStore.open(
            self._disk,
            METADATA_FOLDER,
            keys.SCHEMA,
            self.scheduler,
            Options(
                flush_linger_ms=max(METADATA_LINGER_MS, self.config.flush_linger_ms),
                # In a cluster the next leader has what is committed, and must know which transactions were open:
                # the first protocol cannot tell the end of one that left no trace from a repeat of the last one's (T5).
                # (Transactions v2 do without: `txn.untraced`.)
                written_is_durable=self._least_term > 0,
                snapshot_log_bytes=self.config.snapshot_log_bytes,
            ),
            durable_lsn=self._durable_note.lsn,
        )
        if report.torn is not None:
            log.warning("metadata: %s", report.torn)
        if report.created and self._disk.list("topics"):
            raise CorruptStore(
                METADATA_FOLDER, 0, "all of its files are missing, though the folder has topics"
            )
        self._restore_settings()
        record = self.store.get(keys.NODE)
        before: dict[str, Any] = record.value if record else {}
        term = max(before.get("starts", 0) + 1, self._least_term)
        self.term = term
        nothing_lost = before.get("clean", False) or before.get("boot_id") == self._boot_id
        # In a cluster nothing is lost without a trace (C3): recovery marks whose transaction is.
        traced = nothing_lost or self._least_term > 0
        fence_term = before.get("fence_term", 1) if traced else term
        untraced_fence_term = before.get("untraced_fence_term", 1) if nothing_lost else term
        self.cluster_id = before.get("cluster_id") or self._new_uuid().hex[:22]
        self._node_record = {
            "starts": term,
            "boot_id": self._boot_id,
            "fence_term": fence_term,
            "untraced_fence_term": untraced_fence_term,
            "cluster_id": self.cluster_id,
            "clean": False,
        }
        self.topics = Topics(
            self._disk,
            self.store,
            self.scheduler,
            self.config,
            self._new_uuid,
            term=term,
            on_failure=self._log_failed,
        )
        self.changes = TopicChanges(self._disk, self.store, self.scheduler, self.topics)
        self.layouts = LayoutController(
            self.topics, self.topics.layout_store, max_ranges=self.config.limits.ranges_per_topic
        )
        ranges = self.topics.open_all()
        for cut in ranges:
            for tail in cut.cuts:
                log.warning(
                    "%s: a torn tail of %d bytes was cut at %d", tail.path, tail.dropped, tail.position
                )
        self.offsets = GroupOffsets(self.store)
        settlement = Settlement(self.store, self.scheduler)
        self._settlement = settlement
        recovered = TransactionRecovery(
            self.store,
            {topic.name: topic.partitions for topic in self.topics},
            self.topics.segment_topics(),
            self.offsets,
            settlement,
            now_ms=self.scheduler.now_ms(),
            nothing_lost=nothing_lost,
        ).run()
        self.coordinator = Coordinator(
            self.store,
            self.scheduler,
            self.offsets,
            Ending(self.store, self.scheduler, self.offsets, settlement, LocalRanges()),
            TxnConfig(
                max_timeout_ms=self.config.transaction_max_timeout_ms,
                two_phase_commit=self.config.transaction_two_phase_commit,
                max_open_transactions=self.config.limits.open_transactions,
                max_transactional_ids=self.config.limits.transactional_ids,
            ),
            term=term,
            fence_term=fence_term,
            untraced_fence_term=untraced_fence_term if self._least_term > 0 else None,
        )
        self.coordinator.restore(recovered.ids, recovered.groups)
        forget_left_over(self.store, self.scheduler, self.topics.segment_topics().keys())
        self._configure_id_expiry()
        self.store.when_failed(lambda error: log.error("the metadata store has failed: %s", error))
        self.topics.forget_partition = self._forget_partition
        self.coordinator.ends.forget_producer = self._forget_producer
        self.groups = self._open_groups()
        self.arm_group_timer()
        self.offset_expiry = self._open_offset_expiry()
        self.balancer = LayoutBalancer(
            self.topics,
            self.layouts,
            self.scheduler,
            Policy(),
            interval_ms=self.config.layout_check_interval_ms,
            automatic=self.config.layout_automatic,
            on_decision=self._log_decision,
        )
        settled = SettledSegments(settlement)
        self.removals = Removals(self._disk, self.scheduler)
        self.topics.remove_later = self.removals.remove_folder
        self.settled_files = SettledFiles(self.topics, settled, self._disk, self.scheduler)
        self.log_start_files = LogStartFiles(self.topics, self.changes.log_starts, self._disk, self.scheduler)
        self.changes.on_log_start_moved = self.log_start_files.moved
        self.compactor = Compactor(
            self.topics,
            self.store,
            settled,
            self.removals,
            self._disk,
            self.scheduler,
            self._compaction_worker,
            interval_ms=self.config.compaction_interval_ms,
            max_keys=self.config.limits.compaction_keys,
        )
        self.retention = Retention(
            self.topics,
            self.changes,
            self.store,
            settled,
            self.removals,
            self.scheduler,
            interval_ms=self.config.retention_check_interval_ms,
        )
        self.durable_ends = DurableEnds(self.topics, self.store, self.scheduler, self._durable_note)
        lsn = self.store.apply([Put(keys.NODE, self._node_record)]).lsn
        self.store.when_durable(lsn, ready)
        return StartReport(term, nothing_lost, recovered, ranges)

    @staticmethod
    def _log_failed(error: KafkaError) -> None:
        log.error("%s; it takes no more writes until a restart", error.message)

    @staticmethod
    def _log_decision(topic: Topic, decision: Decision) -> None:
        log.warning(
            "%s: %s of %d-%d: %s", topic.name, decision.action, decision.first, decision.last, decision.reason
        )

    def _forget_producer(self, producer_id: int) -> None:
        for topic in self.topics:
            for partition in topic.partitions:
                partition.producers.forget(producer_id)

    def _forget_partition(self, partition: Partition) -> None:
        self.coordinator.forget_partition(partition)
        self._settlement.forget_partition(partition)

    # -- stop

    def stop(self, done: Callable[[Exception | None], None]) -> None:
        """A clean stop: everything written is flushed, and open transactions are handed to the next start (D2).

        `done` when the last file is closed, with the error of a store that has failed.
        """
        if self._group_timer is not None:
            self._group_timer.cancel()
        self.coordinator.close()
        self.offset_expiry.close()
        self._settlement.close()
        self.balancer.close()
        self.compactor.close()
        self.retention.close()
        self.settled_files.close()
        self.log_start_files.close()
        self.removals.close()
        self.durable_ends.close()
        self.layouts.stop()
        clean = self.topics.close()
        try:
            self._settlement.run()
            self.durable_ends.note()
            self.store.apply([Put(keys.NODE, {**self._node_record, "clean": clean})])
        except StoreFailed as failure:
            log.error("not a clean stop: the metadata store has failed: %s", failure)

        def closed(error: Exception | None) -> None:
            self._durable_note.close(self.store.durable_lsn)
            done(error)

        self.store.close(closed)
