"""Who leads instead (KIP-951): the current leader beside an error, and the endpoints of all that were named.

A client that hears it goes there at once instead of asking for metadata first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from broker.cluster_view import NOBODY, Broker, ClusterView
from txn.partition import Partition
from wire.errors import ErrorCode
from wire.packing import NodeEndpoint

OF_PRODUCE = frozenset({ErrorCode.not_leader_or_follower})
OF_FETCH = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch})
"""The errors that come with a hint, as in Kafka."""


class Hinted(Protocol):
    """A partition's result in a Produce or Fetch answer."""

    leader_id: int
    leader_epoch: int


def name_leader(view: ClusterView, partition: Partition | None, result: Hinted) -> None:
    """Put the leader into the result, where this node knows one other than itself."""
    known = view.leadership(partition)
    if known.leader not in (NOBODY, view.node_id):
        result.leader_id, result.leader_epoch = known.leader, known.epoch


def endpoints(brokers: Iterable[Broker], results: Iterable[Hinted]) -> Sequence[NodeEndpoint]:
    """Where the leaders that the results name are reached, each once, by number."""
    named = {result.leader_id for result in results} - {NOBODY}
    if not named:
        return ()
    known = sorted((broker for broker in brokers if broker.id in named), key=lambda broker: broker.id)
    return tuple(NodeEndpoint(broker.id, broker.host, broker.port, broker.rack) for broker in known)
