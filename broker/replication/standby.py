"""What a node answers that does not lead: NOT_LEADER_OR_FOLLOWER about data; the rest the leader answers.

Sessions meet it in place of a node. `Relay` hands a request on to the leader as it came, and its answer back: so
Metadata and FindCoordinator name the leader wherever they are asked. Without a leader the connection is closed, on
which clients try another node; but what belongs to a transactional id is answered NOT_COORDINATOR: librdkafka comes
back to a coordinator that only cut it off, for ever, and asks for another on that code alone. A new connection is not
greeted then: a client that has only this one would ask it again and again, instead of the other nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, Protocol

from broker.call import Call
from broker.cluster_view import NOBODY, ClusterView
from broker.config import BrokerConfig
from broker.handlers import (
    HANDLERS,
    add_partitions_to_txn,
    api_versions,
    fetch,
    list_offsets,
    offset_for_leader_epoch,
    produce,
    txn_offset_commit,
)
from storage.clock import Scheduler
from wire import codec, private_api
from wire.apis import APIS, ApiKey
from wire.errors import ErrorCode, KafkaError

_OF_DATA: Final = {
    ApiKey.PRODUCE: produce.handle,
    ApiKey.FETCH: fetch.handle,
    ApiKey.LIST_OFFSETS: list_offsets.handle,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch.handle,
}


class Relay(Protocol):
    """Takes whole request frames to the leader."""

    def ask(self, frame: bytes, done: Callable[[bytes | None], None]) -> None:
        """`done` with the whole answering frame, or with None where there is no leader, or it went."""
        ...


class _Elsewhere:
    """In place of a node's topics: all are led elsewhere."""

    def get(self, name: str) -> _Elsewhere:
        return self

    def get_by_id(self, topic_id: Any) -> _Elsewhere:
        return self

    def partition(self, topic: Any, index: int) -> NoReturn:
        raise KafkaError(ErrorCode.not_leader_or_follower, "another node leads it")


class Standby:
    """In place of a `broker.node.Node`, for sessions."""

    def __init__(
        self, config: BrokerConfig, scheduler: Scheduler, relay: Relay, cluster: ClusterView | None = None
    ) -> None:
        self.config = config
        self.scheduler = scheduler
        self.cluster = cluster
        self.topics = _Elsewhere()
        self._relay = relay
        self.handlers: Mapping[int, Callable[[Any, Call, Any], None]] = {
            key: _OF_DATA.get(ApiKey(key), self._hand_on) for key in HANDLERS
        } | {ApiKey.API_VERSIONS: self._greet}

    def _greet(self, node: Any, call: Call, request: Any) -> None:
        if self.cluster is not None and self.cluster.controller() == NOBODY:
            call.disconnect("no leader is known")
        else:
            api_versions.handle(node, call, request)

    def _hand_on(self, node: Any, call: Call, request: Any) -> None:
        hand_on(self._relay, call, request)


def hand_on(relay: Relay, call: Call, request: Any) -> None:
    """Let the leader answer; where there is none, refuse."""
    if APIS[call.api_key].is_private:
        frame = private_api.encode_request(call.api_key, call.correlation_id, call.client_id, request)
    else:
        frame = codec.encode_request(call.api_key, call.version, call.correlation_id, call.client_id, request)

    def answered(answer: bytes | None) -> None:
        if call.abandoned:
            return
        if answer is None:
            _no_leader(call, request)
        else:
            call.answer_raw([answer])

    relay.ask(frame, answered)


def _no_leader(call: Call, request: Any) -> None:
    code = ErrorCode.not_coordinator
    match call.api_key:
        case ApiKey.ADD_PARTITIONS_TO_TXN:
            add_partitions_to_txn.refuse_all(call, request, code)
        case ApiKey.TXN_OFFSET_COMMIT:
            txn_offset_commit.refuse_all(call, request, code)
        case ApiKey.ADD_OFFSETS_TO_TXN:
            call.answer(error_code=code)
        case ApiKey.END_TXN:
            call.answer(error_code=code, producer_id=-1, producer_epoch=-1)
        case ApiKey.INIT_PRODUCER_ID if request.transactional_id is not None:
            call.answer(error_code=code, producer_id=-1, producer_epoch=-1)
        case _:
            call.disconnect("the cluster has no leader at the moment")
