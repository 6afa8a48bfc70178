"""What a session meets on every node whose ranges have groups of their own: which handler answers where.

    HERE            from this node's replicas, and from what it knows of the cluster
    at the leader   of the metadata's group: here while this node is it (`Controller`), handed on to it otherwise

Writes wait while a range is handed over to others by a split or a merge.

Guarantee: when this node leads the metadata no more, whoever waits for the controller's answer is cut off before
anything of it can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from broker.broker_settings import BrokerSettings
from broker.call import Call
from broker.cluster_view import NOBODY
from broker.config import BrokerConfig
from broker.handlers import HANDLERS, describe_configs, metadata
from broker.handlers.config_resources import BROKER_RESOURCE
from broker.handlers.produce import TOPIC_ID_VERSION
from broker.ranges.admissions import Admissions
from broker.ranges.controller import Controller
from broker.ranges.log_starts import LogStarts
from broker.ranges.topics import RangeTopics
from broker.ranges.view import RangesView
from broker.read_ahead import Budget
from broker.replication.standby import Relay, hand_on
from storage.clock import Scheduler
from txn.partition import Partition
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
LOOK_AGAIN_MS: Final = 5
MOST_HELD_MS: Final = 10_000
"""A write waits no longer for the ranges that succeed the one it is for."""


class RangesNode:
    """In place of a `broker.node.Node`, for sessions. `cluster_id` is known once the metadata's first leader was."""

    def __init__(
        self,
        settings: BrokerSettings,
        scheduler: Scheduler,
        topics: RangeTopics,
        view: RangesView,
        relay: Relay,
        cluster_id: Callable[[], str],
        log_starts: LogStarts,
        admissions: Admissions,
    ) -> None:
        self.settings = settings
        self.scheduler = scheduler
        self.topics = topics
        self.cluster = view
        self.changes = log_starts
        self.coordinator = admissions
        """What takes writes asks it, as a node asks its coordinator."""
        self.read_ahead_budget = Budget(self.config.limits.read_ahead_bytes)
        self.controller: Controller | None = None
        self._relay = relay
        self._cluster_id = cluster_id
        self._most_asked = 1000
        self._asked: set[Call] = set()
        """Calls that the controller here has not answered yet, and some that it has."""
        self.handlers: Mapping[int, Handler] = {
            key: handler if key in HERE else self._at_the_leader(handler) for key, handler in HANDLERS.items()
        } | {
            ApiKey.API_VERSIONS: self._api_versions,
            ApiKey.METADATA: self._metadata,
            ApiKey.PRODUCE: self._produce,
            ApiKey.DESCRIBE_CONFIGS: self._describe_configs,
        }

    @property
    def config(self) -> BrokerConfig:
        """What is in force."""
        return self.settings.current

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

    def _describe_configs(self, node: Any, call: Call, request: Any) -> None:
        """What this node's file says is known here alone."""
        own = BROKER_RESOURCE, str(self.config.node_id)
        if any((one.resource_type, one.resource_name) != own for one in request.resources):
            self._at_the_leader(HANDLERS[ApiKey.DESCRIBE_CONFIGS])(node, call, request)
        else:
            describe_configs.handle(self, call, request)  # type: ignore[arg-type]  # a node, as far as handlers go

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

        def admitted() -> None:
            # A range may have come to its end while the coordinator was asked.
            self._when_it_may_go_on(call, request, deadline_ms, begin, otherwise=write)

        def begin() -> None:
            if request.transactional_id is None:
                write()
            else:
                self.coordinator.before_write(call, request, admitted, moved)

        def moved() -> None:
            """This node may not have heard of it yet."""
            if self.scheduler.monotonic_ms() > deadline_ms:
                write()
            else:
                call.hold()
                self.scheduler.call_later(LOOK_AGAIN_MS, call.release, start)

        def start() -> None:
            self._when_it_may_go_on(call, request, deadline_ms, begin, otherwise=begin)

        deadline_ms = self.scheduler.monotonic_ms() + MOST_HELD_MS
        start()

    def _when_it_may_go_on(
        self,
        call: Call,
        request: Any,
        deadline_ms: int,
        again: Callable[[], None],
        *,
        otherwise: Callable[[], None],
    ) -> None:
        """`otherwise` at once, unless ranges are handed over to others just now: then `again`, when they have been; the
        connection waits. After the deadline clients hear that somebody else leads, and come again."""
        if (
            not self.topics.changing
            or self.scheduler.monotonic_ms() > deadline_ms
            or not self._is_handed_over(call, request)
        ):
            otherwise()
        else:
            call.hold()
            self._wait(call, request, deadline_ms, again)

    def _wait(self, call: Call, request: Any, deadline_ms: int, again: Callable[[], None]) -> None:
        if self.scheduler.monotonic_ms() <= deadline_ms and self._is_handed_over(call, request):
            self.scheduler.call_later(LOOK_AGAIN_MS, self._wait, call, request, deadline_ms, again)
        else:
            call.release(again)

    def _is_handed_over(self, call: Call, request: Any) -> bool:
        return any(self.cluster.is_handed_over(one) for one in self._written_to(call, request))

    def _is_held(self, call: Call, request: Any) -> bool:
        """Whether another node is about to lead a partition of the request: it waits for that."""
        return self.cluster.is_any_held() and any(
            self.cluster.is_held(one) for one in self._written_to(call, request)
        )

    def _written_to(self, call: Call, request: Any) -> Iterator[Partition]:
        by_id = call.version >= TOPIC_ID_VERSION
        for data in request.topic_data:
            topic = self.topics.get_by_id(data.topic_id) if by_id else self.topics.get(data.name)
            partitions = topic.partitions if topic is not None else []
            for part in data.partition_data:
                if 0 <= part.index < len(partitions):
                    yield partitions[part.index]
