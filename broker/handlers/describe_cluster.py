"""DescribeCluster (key 60; KIP-700, KIP-919): one broker, which is its own controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.call import Call
from broker.handlers.metadata import brokers
from broker.handlers.operations import CLUSTER, allowed
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from broker.node import Node

_BROKERS, _CONTROLLERS = 1, 2


def handle(node: Node, call: Call, request: Any) -> None:
    endpoint_type = getattr(request, "endpoint_type", _BROKERS)
    if endpoint_type != _BROKERS:
        known = endpoint_type == _CONTROLLERS
        call.answer(
            error_code=ErrorCode.mismatched_endpoint_type if known else ErrorCode.unsupported_endpoint_type,
            error_message="this is a broker's address; there are no others",
            endpoint_type=_BROKERS,
            cluster_id="",
            brokers=(),
        )
        return
    call.answer(
        error_code=ErrorCode.none,
        endpoint_type=_BROKERS,
        cluster_id=node.cluster_id,
        controller_id=node.config.node_id,
        brokers=tuple(
            call.build("DescribeClusterBroker", broker_id=node_id, host=host, port=port)
            for node_id, host, port in brokers(node)
        ),
        cluster_authorized_operations=allowed(CLUSTER, request.include_cluster_authorized_operations),
    )
