"""What a session meets on every node whose ranges have groups of their own: which handler answers where.

    HERE            from this node's replicas, and from what it knows of the cluster
    at the leader   of the metadata's group: here while this node is it (`Controller`), handed on to it otherwise
    not served      the rest; ApiVersions does not name it, so clients say so themselves

Guarantee: when this node leads the metadata no more, whoever waits for the controller's answer is cut off before
anything of it can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.call import Call
from broker.cluster_view import NOBODY
from broker.config import BrokerConfig
from broker.handlers import HANDLERS, metadata
from broker.handlers.produce import TOPIC_ID_VERSION
from broker.ranges.admissions import Admissions
from broker.ranges.controller import Controller
from broker.ranges.log_starts import LogStarts
from broker.ranges.topics import RangeTopics
from broker.ranges.view import RangesView
from broker.read_ahead import Budget
from broker.replication.standby import Relay, hand_on
from storage.clock import Scheduler
from txn.patience import AGAIN_MS
from wire.apis import ApiKey

Handler = Callable[[Any, Call, Any], None]

HERE: Final = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.DELETE_RECORDS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.FIND_COORDINATOR,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_LOG_DIRS,
    }
)
NOT_SERVED: Final = frozenset(
    {
        ApiKey.SEALOG_LAYOUT,
    }
)


class RangesNode:
    """In place of a `broker.node.Node`, for sessions. `cluster_id` is known once the metadata's first leader was."""

    def __init__(
        self,
        config: BrokerConfig,
        scheduler: Scheduler,
        topics: RangeTopics,
        view: RangesView,
        relay: Relay,
        cluster_id: Callable[[], str],
        log_starts: LogStarts,
        admissions: Admissions,
    ) -> None:
        self.config = config
        self.scheduler = scheduler
        self.topics = topics
        self.cluster = view
        self.changes = log_starts
        self.coordinator = admissions
        """What takes writes asks it, as a node asks its coordinator."""
        self.read_ahead_budget = Budget(config.limits.read_ahead_bytes)
        self.controller: Controller | None = None
        self._relay = relay
        self._cluster_id = cluster_id
        self._most_asked = 1000
        self._asked: set[Call] = set()
        """Calls that the controller here has not answered yet, and some that it has."""
        self.handlers: Mapping[int, Handler] = {
            key: handler if key in HERE else self._at_the_leader(handler)
            for key, handler in HANDLERS.items()
            if key not in NOT_SERVED
        } | {
            ApiKey.API_VERSIONS: self._api_versions,
            ApiKey.METADATA: self._metadata,
            ApiKey.PRODUCE: self._produce,
        }

    @property
    def cluster_id(self) -> str:
        return self._cluster_id()

    # The controller.

    def serve_as(self, controller: Controller | None) -> None:
        """From now on; None: another node leads the metadata. What waits for the one of before is cut off."""
        self.controller = controller
        asked, self._asked = self._asked, set()
        for call in asked:
            if not call.answered and not call.abandoned:
                call.disconnect("another node leads the metadata now")

    def _at_the_leader(self, handler: Handler) -> Handler:
        def handle(node: Any, call: Call, request: Any) -> None:
            controller = self.controller
            if controller is None:
                hand_on(self._relay, call, request)
                return
            if not controller.store.takes():
                # Nothing may be refused half way.
                call.hold()
                self.scheduler.call_later(AGAIN_MS, call.release, lambda: handle(node, call, request))
                return
            handler(controller, call, request)
            if not call.answered:
                self._remember(call)

        return handle

    def _remember(self, call: Call) -> None:
        if len(self._asked) >= self._most_asked:
            self._asked = {one for one in self._asked if not (one.answered or one.abandoned)}
            self._most_asked = max(1000, 2 * len(self._asked))
        self._asked.add(call)

    # Handlers of its own.

    def _is_cut_off(self, call: Call) -> bool:
        """Where no leader of the metadata is known, others may know better who leads what: a client that has a
        connection to this node alone would ask it again and again, so it is cut off, and not greeted."""
        if self.controller is not None or self.cluster.controller() != NOBODY:
            return False
        call.disconnect("no leader of the metadata is known")
        return True

    def _api_versions(self, node: Any, call: Call, request: Any) -> None:
        if not self._is_cut_off(call):
            HANDLERS[ApiKey.API_VERSIONS](node, call, request)

    def _metadata(self, node: Any, call: Call, request: Any) -> None:
        """A topic that is not known here may be new, or shall be made."""
        if self._is_cut_off(call):
            return
        if self.controller is None and all(self._knows(one) for one in request.topics or ()):
            metadata.handle(self, call, request)  # type: ignore[arg-type]  # a node, as far as handlers go
        else:
            self._at_the_leader(HANDLERS[ApiKey.METADATA])(node, call, request)

    def _knows(self, wanted: Any) -> bool:
        topic_id = getattr(wanted, "topic_id", None)
        if topic_id is not None:
            return self.topics.get_by_id(topic_id) is not None
        return wanted.name is not None and self.topics.get(wanted.name) is not None

    def _produce(self, node: Any, call: Call, request: Any) -> None:
        if self._is_held(call, request):
            call.hold()
            self.scheduler.call_later(AGAIN_MS, call.release, lambda: self._produce(node, call, request))
            return

        def write() -> None:
            HANDLERS[ApiKey.PRODUCE](self, call, request)  # type: ignore[arg-type]  # a node, as far as handlers go

        if request.transactional_id is None:
            write()
        else:
            self.coordinator.before_write(call, request, write)

    def _is_held(self, call: Call, request: Any) -> bool:
        """Whether another node is about to lead a partition of the request: it waits for that."""
        if not self.cluster.is_any_held():
            return False
        by_id = call.version >= TOPIC_ID_VERSION
        for data in request.topic_data:
            topic = self.topics.get_by_id(data.topic_id) if by_id else self.topics.get(data.name)
            partitions = topic.partitions if topic is not None else ()
            for part in data.partition_data:
                if 0 <= part.index < len(partitions) and self.cluster.is_held(partitions[part.index]):
                    return True
        return False
