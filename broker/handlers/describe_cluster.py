"""DescribeCluster (key 60; KIP-700, KIP-919): the brokers, each of which may be the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker import cluster_view
from broker.call import Call
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
    view = cluster_view.of(node)
    call.answer(
        error_code=ErrorCode.none,
        endpoint_type=_BROKERS,
        cluster_id=node.cluster_id,
        controller_id=view.controller(),
        brokers=tuple(
            call.build("DescribeClusterBroker", broker_id=one.id, host=one.host, port=one.port, rack=one.rack)
            for one in view.brokers()
        ),
        cluster_authorized_operations=allowed(CLUSTER, request.include_cluster_authorized_operations),
    )
