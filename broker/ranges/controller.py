"""What the node that leads the metadata's group does for the cluster, as long as it leads.

Topics, settings of topics, groups of consumers and their offsets, producer ids. All of it is on a scheduler that ends
with the leadership (`Life`), and is built anew from the store by the next leader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any
from uuid import UUID

from broker.broker_settings import Level
from broker.cluster_view import Broker
from broker.config import BrokerConfig
from broker.node_registry import NodeRegistry, views
from broker.placement import NodeView
from broker.ranges.changes import LedTopics
from broker.ranges.placement import RangePlacement
from broker.ranges.topics import RangeTopics
from broker.ranges.view import RangesView
from broker.services import StoreServices
from storage.clock import Periodic, Scheduler
from txn import keys
from txn.coordinator import Coordinator, TxnConfig
from txn.ending import Ending
from txn.metastore import Conflict, MetaStore, Put, StoreFailed
from txn.offsets import GroupOffsets
from txn.settlement import Settlement
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
        config: BrokerConfig,
        topics: RangeTopics,
        view: RangesView,
        *,
        members: Callable[[], Collection[int]],
        peer_address: Callable[[int], str],
        hand_over: Callable[[int, int, int], None],
        new_uuid: Callable[[], UUID],
    ) -> None:
        super().__init__(scheduler, config, new_uuid)
        self.store = store
        self.term = term
        self.cluster = view
        self.topics = self.changes = LedTopics(store, scheduler, topics, view, self.node_views, new_uuid)
        self._members = members
        self._peer_address = peer_address
        self.cluster_id = self._find_cluster_id()
        self.offsets = GroupOffsets(store)
        self._settlement = Settlement(store, scheduler)
        self.coordinator = Coordinator(
            store,
            scheduler,
            self.offsets,
            Ending(store, scheduler, self.offsets, self._settlement),
            TxnConfig(max_timeout_ms=config.transaction_max_timeout_ms),
            term=term,
            fence_term=term,
        )
        self.coordinator.restore(())
        self.groups = self._open_groups()
        self.arm_group_timer()
        self.offset_expiry = self._open_offset_expiry()
        self.registry = NodeRegistry(store, scheduler.now_ms)
        self._nodes = Periodic(scheduler, NODES_MS, self.register_nodes)
        self.register_nodes()
        self.placement = RangePlacement(self.registry, topics, view, scheduler, hand_over, store)

    def _find_cluster_id(self) -> str:
        record = self.store.get(keys.NODE)
        if record is not None:
            known: str = record.value["cluster_id"]
            return known
        made = self._new_uuid().hex[:22]
        self.store.apply([Put(keys.NODE, {"cluster_id": made})])
        return made

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

    def stored_settings(self, level: Level) -> dict[str, str]:
        return {}

    def configure(
        self, level: Level, values: dict[str, str], done: Callable[[KafkaError | None], None]
    ) -> None:
        done(
            KafkaError(
                ErrorCode.unsupported_version,
                "a broker's settings cannot be changed while it runs where ranges have groups of their own",
            )
        )


class NoTransactions:
    """In place of the coordinator on a node that takes writes: a batch of a transaction is refused."""

    @property
    def admission(self) -> NoTransactions:
        return self

    def admit_write(self, *_: Any, **__: Any) -> Any:
        raise transactions_refused()


def transactions_refused() -> KafkaError:
    return KafkaError(
        ErrorCode.unsupported_version,
        "transactions are not served yet where ranges have groups of their own (--groups ranges)",
    )
