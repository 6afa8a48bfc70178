"""The nodes of a cluster as records of the metadata store, `/nodes/<id>`: a plain state machine.

    (none) --add--> JOINING --start--> UP <--drain / undrain--> DRAINING
    (none) --found--> UP                UP, DRAINING, JOINING --remove--> LEAVING --emptied--> REMOVED --add--> JOINING

A node of a new cluster is there from the beginning (found); any other one is added before it starts. LEAVING gives up
what it holds; REMOVED is remembered, so that a node that comes back does not take itself in again. A JOINING node that
was heard arrives: it stays JOINING, and its folder is on record. Whether a node answers is no record: `views` is told
who is away.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Literal, cast

from broker.placement import NodeView, State
from txn import keys
from txn.metastore import ABSENT, MetaStore, Put
from wire.errors import ErrorCode, KafkaError


class Standing(StrEnum):
    JOINING = "JOINING"
    UP = "UP"
    DRAINING = "DRAINING"
    LEAVING = "LEAVING"
    REMOVED = "REMOVED"


Event = Literal["found", "add", "arrive", "start", "drain", "undrain", "remove", "emptied"]

TRANSITIONS: Mapping[tuple[Standing | None, Event], Standing] = {
    (None, "found"): Standing.UP,
    (None, "add"): Standing.JOINING,
    (Standing.REMOVED, "add"): Standing.JOINING,
    (Standing.JOINING, "arrive"): Standing.JOINING,
    (Standing.JOINING, "start"): Standing.UP,
    (Standing.UP, "start"): Standing.UP,
    (Standing.DRAINING, "start"): Standing.DRAINING,
    (Standing.LEAVING, "start"): Standing.LEAVING,
    (Standing.UP, "drain"): Standing.DRAINING,
    (Standing.DRAINING, "undrain"): Standing.UP,
    (Standing.JOINING, "remove"): Standing.LEAVING,
    (Standing.UP, "remove"): Standing.LEAVING,
    (Standing.DRAINING, "remove"): Standing.LEAVING,
    (Standing.LEAVING, "emptied"): Standing.REMOVED,
}

REPEATS: Mapping[Event, Collection[Standing]] = {
    "found": (Standing.UP, Standing.DRAINING, Standing.LEAVING),
    "add": (Standing.JOINING,),
    "drain": (Standing.DRAINING,),
    "undrain": (Standing.UP,),
    "remove": (Standing.LEAVING, Standing.REMOVED),
}
"""Where an event has happened already: it changes nothing, and is no error."""

STAYING = (Standing.JOINING, Standing.UP)

_PLACEMENT: Mapping[Standing, State] = {
    Standing.UP: "up",
    Standing.DRAINING: "draining",
    Standing.LEAVING: "leaving",
}


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node. `address` and `peer` are HOST:PORT, for clients and for nodes; "" until they are known."""

    state: str
    address: str = ""
    peer: str = ""
    rack: str = ""
    since_ms: int = 0
    """When it came to be in this state."""
    folder: str = ""
    """What the folder is known by with which it came, where ranges have groups of their own: a node that has promised
    something comes back with this one or not at all."""

    @property
    def standing(self) -> Standing:
        return Standing(self.state)


def after(record: NodeRecord | None, event: Event, now_ms: int, **changes: str) -> NodeRecord:
    """The record after an event; `changes` are fields that become others. The same object: nothing changes.

    Raises:
        KafkaError: INVALID_REQUEST: not in this state.
    """
    standing = record.standing if record is not None else None
    if record is not None and standing in REPEATS.get(event, ()):
        return record
    target = TRANSITIONS.get((standing, event))
    if target is None:
        now = "is not known" if standing is None else f"is {standing.lower()}"
        raise KafkaError(ErrorCode.invalid_request, f"the node {now}: {event} is not possible")
    base = record if record is not None and event != "add" else NodeRecord(target.value)
    changed = replace(base, **cast(dict[str, Any], changes))
    if record is None or target is not standing:
        changed = replace(changed, state=target.value, since_ms=now_ms)
    return record if changed == record else changed


class NodeRegistry:
    """The records in a store. Changes are conditional: of two that meet, one fails and may be tried again."""

    def __init__(self, store: MetaStore, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms

    def all(self) -> dict[int, NodeRecord]:
        """By number, those that were removed too."""
        return {
            keys.parse_cluster_node(key): NodeRecord(**record.value)
            for key, record in self._store.scan(keys.NODES)
        }

    def check(self, node_id: int, event: Event, **changes: str) -> tuple[NodeRecord | None, NodeRecord]:
        """(the record now, the one that the event would leave).

        Raises:
            KafkaError: INVALID_REQUEST.
        """
        nodes = self.all()
        before = nodes.get(node_id)
        changed = after(before, event, self._now_ms(), **changes)
        if event in ("drain", "remove") and changed is not before:
            others = [one for number, one in nodes.items() if number != node_id and one.standing in STAYING]
            if not others:
                raise KafkaError(ErrorCode.invalid_request, "no other node would stay")
        return before, changed

    def change(self, node_id: int, event: Event, **changes: str) -> int | None:
        """The lsn at which the change is durable; None: there is nothing to change.

        Raises:
            KafkaError: INVALID_REQUEST.
            StoreFailed, Conflict: as from the store.
        """
        before, changed = self.check(node_id, event, **changes)
        if changed is before:
            return None
        key = keys.cluster_node(node_id)
        found = self._store.get(key)
        expect = found.version if found is not None else ABSENT
        return self._store.apply([Put(key, asdict(changed), expect)]).lsn


def views(nodes: Mapping[int, NodeRecord], away: Collection[int]) -> list[NodeView]:
    """For placement: a node that leaves is leaving also where it is away; JOINING and REMOVED ones are not there."""
    found = []
    for number, record in sorted(nodes.items()):
        state = _PLACEMENT.get(record.standing)
        if state is None:
            continue
        if number in away and state != "leaving":
            state = "away"
        found.append(NodeView(number, record.rack or None, state, record.since_ms))
    return found
