"""How far a node has come on its way into a cluster, or out of it, told line by line until it is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from broker.client import ClusterClient
from broker.cluster_view import METADATA
from broker.node_registry import Standing
from wire.cluster import Response
from wire.errors import KafkaError

POLL_S = 0.5


class Stage(NamedTuple):
    said: str
    is_done: bool = False


def coming_in(node: int, seen: Response) -> Stage:
    """Of a node that was added, as a status shows it."""
    record = next((one for one in seen.nodes if one.id == node), None)
    if record is None:
        return Stage(f"node {node} was removed before it came in", True)
    for one in seen.ranges:
        if node in one.replicas:
            # It votes before it is noted as up; until then no other node can come in.
            is_done = record.state != Standing.JOINING
            return Stage(f"node {node} takes part: the cluster has {_count(len(one.replicas))}", is_done)
        if node in one.learners:
            return Stage(f"node {node} gets what the others have, {one.lag.get(node, 0):,} entries are left")
    return Stage(
        f"node {node} is waited for: sealog serve --node-id {node} --peers {node}@{record.peer},... "
        "with the other nodes behind it, an empty folder and the cluster's secret"
    )


def going_out(node: int, seen: Response) -> Stage:
    """Of a node that is being removed."""
    if all(one.id != node for one in seen.nodes):
        left = max((len(one.replicas) for one in seen.ranges), default=0)
        return Stage(f"node {node} is out: the cluster has {_count(left)}. Its process ends by itself", True)
    of_ranges = any(one.name == METADATA for one in seen.ranges)
    held = sum(node in (*one.replicas, *one.learners) for one in seen.ranges if one.name != METADATA)
    if of_ranges and held:
        return Stage(f"node {node} gives its replicas away, {held} are left")
    if any(one.leader == node for one in seen.ranges):
        return Stage(f"node {node} hands its leadership over")
    return Stage(f"node {node} is being taken out")


def _count(nodes: int) -> str:
    return f"{nodes} node{'' if nodes == 1 else 's'}"


def follow(
    server: str,
    stage: Callable[[int, Response], Stage],
    node: int,
    say: Callable[[str], None],
    *,
    timeout_s: float,
) -> bool:
    """Tell every stage until the last one; False: it did not come in time. Asks whichever node answers."""
    ends = time.monotonic() + timeout_s
    servers = [server]
    told = ""
    while time.monotonic() < ends:
        answers = (status_of(one, timeout_s=5.0) for one in servers)
        seen = next((answer for answer in answers if answer is not None), None)
        if seen is not None and seen.controller >= 0:
            servers = [server, *(one.address for one in seen.nodes if one.address not in ("", server))]
            now = stage(node, seen)
            if now.said != told:
                told = now.said
                say(f"  {told}")
            if now.is_done:
                return True
        time.sleep(POLL_S)
    return False


def status_of(server: str, *, timeout_s: float) -> Response | None:
    """As this node sees it; None where it does not say."""
    try:
        with ClusterClient(server, timeout_s=timeout_s) as client:
            return client.status()
    except (OSError, ValueError, KafkaError):
        return None
