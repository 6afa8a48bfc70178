"""sealog's own API for the cluster (design, section 7): status, add, drain, remove."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from broker import cluster_view, node_registry
from broker.call import Call
from broker.cluster_view import NOBODY, Alone, ClusterView, RangeStatus
from broker.handlers.cluster_changes import check_add, check_remove
from broker.node_registry import Event, NodeRecord, NodeRegistry, Standing
from broker.placement import Policy, decide
from txn.metastore import Conflict, StoreFailed
from wire import cluster as messages
from wire import private_api
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node


def handle(node: Node, call: Call, request: messages.Request) -> None:
    view = cluster_view.of(node)
    if isinstance(request, messages.Status):
        _answer(call, _status(node, view))
        return
    if isinstance(view, Alone):
        why = "this broker serves by itself: nodes of a cluster are started with --node-id and --peers"
        _refuse(call, KafkaError(ErrorCode.invalid_request, why))
        return
    if view.controller() != view.node_id:
        _redirect(call, view)
        return
    if view.fixed_members and not isinstance(request, messages.Drain):
        why = "the nodes of this cluster are fixed: none can be added or removed while it runs"
        _refuse(call, KafkaError(ErrorCode.unsupported_version, why))
        return
    try:
        _change(node, call, view, request)
    except KafkaError as error:
        _refuse(call, error)
    except Conflict:
        _refuse(
            call, KafkaError(ErrorCode.invalid_update_version, "another change came in between; try again")
        )
    except StoreFailed as failure:
        _refuse(call, KafkaError(ErrorCode.kafka_storage_error, str(failure)))


def _change(
    node: Node, call: Call, view: ClusterView, request: messages.Add | messages.Drain | messages.Remove
) -> None:
    registry = NodeRegistry(node.store, node.scheduler.now_ms)
    event: Event
    changes: dict[str, str] = {}
    match request:
        case messages.Add():
            event, changes = "add", {"peer": request.peer, "rack": request.rack}
        case messages.Drain():
            event = "undrain" if request.undo else "drain"
        case messages.Remove():
            event = "remove"
    before, changed = registry.check(request.node, event, **changes)
    notes = _notes(registry, view, request) if changed is not before else ()
    plan = (*notes, *_plan(node, view, registry.all() | {request.node: changed}))
    if request.dry_run or changed is before:
        _answer(call, messages.Response(plan=plan))
        return
    lsn = registry.change(request.node, event, **changes)
    assert lsn is not None

    def durable(error: Exception | None) -> None:
        if error is None:
            _answer(call, messages.Response(plan=plan, changed=True))
        else:
            _refuse(call, KafkaError(ErrorCode.kafka_storage_error, str(error)))

    node.store.when_durable(lsn, durable)


def _notes(
    registry: NodeRegistry, view: ClusterView, request: messages.Add | messages.Drain | messages.Remove
) -> tuple[str, ...]:
    """What to know of a change of the cluster's nodes. Raises KafkaError where it cannot be made now."""
    ranges = view.ranges()
    if not ranges or isinstance(request, messages.Drain):
        return ()
    # The first one, if not the only one, is that of which all nodes are members.
    if isinstance(request, messages.Add):
        return check_add(request, registry.all(), ranges[0])
    return check_remove(request, registry.all(), ranges[0], view.away())


def _plan(node: Node, view: ClusterView, nodes: dict[int, NodeRecord]) -> tuple[str, ...]:
    """What placement would do next with these nodes."""
    ranges = [one.for_placement() for one in view.ranges()]
    policy = Policy(replication_factor=max((len(one.replicas) for one in ranges), default=1))
    return tuple(
        decide(node_registry.views(nodes, view.away()), ranges, policy, node.scheduler.now_ms()).lines()
    )


def _status(node: Node, view: ClusterView) -> messages.Response:
    registry = NodeRegistry(node.store, node.scheduler.now_ms)
    nodes = _by_themselves(view) | registry.all()
    return messages.Response(
        cluster_id=node.cluster_id,
        node_id=view.node_id,
        controller=view.controller(),
        nodes=tuple(_nodes(nodes, view.away())),
        ranges=tuple(_range(one) for one in view.ranges()),
        plan=() if isinstance(view, Alone) else _plan(node, view, nodes),
    )


def _by_themselves(view: ClusterView) -> dict[int, NodeRecord]:
    """Nodes that are not on record yet, or that never were there."""
    holders = {node for one in view.ranges() for node in one.replicas}
    found = dict.fromkeys(holders, NodeRecord(Standing.UP.value))
    for one in view.brokers():
        found[one.id] = NodeRecord(Standing.UP.value, f"{one.host}:{one.port}", rack=one.rack or "")
    return found


def _nodes(nodes: dict[int, NodeRecord], away: Collection[int]) -> list[messages.Node]:
    return [
        messages.Node(
            id=number,
            address=one.address,
            peer=one.peer,
            rack=one.rack,
            state=one.state,
            away=number in away,
            since_ms=one.since_ms,
        )
        for number, one in sorted(nodes.items())
        if one.standing is not Standing.REMOVED
    ]


def _range(one: RangeStatus) -> messages.Range:
    return messages.Range(
        name=one.name,
        replicas=one.replicas,
        leader=one.leader,
        epoch=one.epoch,
        learners=one.learners,
        lag=dict(one.lag),
    )


def _redirect(call: Call, view: ClusterView) -> None:
    there: Sequence[str] = [
        f"{one.host}:{one.port}" for one in view.brokers() if one.id == view.controller() != NOBODY
    ]
    _answer(
        call,
        messages.Response(
            error=int(ErrorCode.not_controller),
            message="another node takes changes" if there else "no node takes changes at the moment",
            redirect=there[0] if there else "",
        ),
    )


def _refuse(call: Call, error: KafkaError) -> None:
    _answer(call, messages.Response(error=int(error.code), message=error.message))


def _answer(call: Call, response: messages.Response) -> None:
    call.answer_raw([private_api.encode_response(call.correlation_id, response)])
