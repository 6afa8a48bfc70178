"""What is asked before nodes come and go: refusals with their reason, and what an operator should know of the outcome.

Of the group of which all nodes are members: that of everything, or that of the metadata. A majority of them serves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from broker.cluster_view import METADATA, RangeStatus
from broker.config import ConfigError, parse_address
from broker.node_registry import NodeRecord, Standing
from raftish.membership import MAX_MEMBERS
from wire import cluster as messages
from wire.errors import ErrorCode, KafkaError


def check_add(request: messages.Add, nodes: Mapping[int, NodeRecord], group: RangeStatus) -> tuple[str, ...]:
    """Lines for the operator.

    Raises:
        KafkaError: REASSIGNMENT_IN_PROGRESS, INVALID_REQUEST.
    """
    try:
        _, port = parse_address(request.peer)
    except ConfigError as error:
        raise KafkaError(ErrorCode.invalid_request, f"where is the node reached? {error}") from error
    if not port:
        raise KafkaError(ErrorCode.invalid_request, f"{request.peer!r} names no port")
    _check_alone(request.node, nodes)
    before = nodes.get(request.node)
    if group.name == METADATA and before is not None and before.standing is Standing.REMOVED:
        # What it promised in the groups of ranges is not known any more, and others may still count on it.
        raise KafkaError(
            ErrorCode.invalid_request,
            f"node {request.node} was removed: a node comes in under a number that none had before",
        )
    for node, record in nodes.items():
        if node != request.node and record.standing is not Standing.REMOVED and record.peer == request.peer:
            raise KafkaError(ErrorCode.invalid_request, f"node {node} is at {request.peer} already")
    voters = {*group.replicas, request.node}
    if len(voters) > MAX_MEMBERS:
        raise KafkaError(ErrorCode.invalid_request, f"a cluster has at most {MAX_MEMBERS} nodes")
    return _tolerance(len(voters))


def check_remove(
    request: messages.Remove, nodes: Mapping[int, NodeRecord], group: RangeStatus, away: Collection[int]
) -> tuple[str, ...]:
    """As `check_add`."""
    _check_alone(request.node, nodes)
    if request.node not in group.replicas:
        return ()
    rest = set(group.replicas) - {request.node}
    if not rest:
        raise KafkaError(ErrorCode.invalid_request, f"node {request.node} is the last one of the cluster")
    up = rest - set(away)
    if 2 * len(up) <= len(rest):
        raise KafkaError(
            ErrorCode.invalid_request,
            f"of the nodes that would stay ({_names(rest)}) a majority must be there; {_names(rest - up)} "
            f"{'is' if len(rest - up) == 1 else 'are'} away: start or remove "
            f"{'it' if len(rest - up) == 1 else 'them'} first",
        )
    return _tolerance(len(rest))


def _check_alone(node: int, nodes: Mapping[int, NodeRecord]) -> None:
    """One at a time; to give up one that is coming in, it is removed."""
    for other, record in nodes.items():
        if other == node:
            continue
        if record.standing is Standing.JOINING:
            how = f"wait for it, or give it up: sealog cluster remove {other}"
            raise KafkaError(ErrorCode.reassignment_in_progress, f"node {other} is coming in: {how}")
        if record.standing is Standing.LEAVING:
            raise KafkaError(ErrorCode.reassignment_in_progress, f"node {other} is leaving: wait for it")


def _tolerance(count: int) -> tuple[str, ...]:
    """What that number of nodes stands."""
    lost = (count - 1) // 2
    said = f"{count} node{'s' if count > 1 else ''} go on after the loss of {lost or 'none'}"
    if count % 2 == 0:
        said += f", no more than {count - 1} would: an odd number is better"
    return (said,)


def _names(nodes: Collection[int]) -> str:
    return ", ".join(str(node) for node in sorted(nodes)) or "none"
