"""sealog's own API: the nodes of a cluster and what they hold, seen and changed (design, section 7)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from wire.private_answer import Answer

NodeId = Annotated[int, Meta(ge=0, lt=1 << 31)]
Address = Annotated[str, Meta(max_length=300)]
Rack = Annotated[str, Meta(max_length=249)]


class _Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="op"):
    pass


class Status(_Request, frozen=True, kw_only=True, tag="status"):
    """The nodes, and the ranges as the node that is asked sees them; lags only of those that it leads."""


class _Change(_Request, frozen=True, kw_only=True):
    """`dry_run`: only say what would follow."""

    node: NodeId
    dry_run: bool = False


class Add(_Change, frozen=True, kw_only=True, tag="add"):
    """Let a node come in when it starts. `peer`: where the other nodes reach it, HOST:PORT."""

    peer: Address
    rack: Rack = ""


class Drain(_Change, frozen=True, kw_only=True, tag="drain"):
    """Move leaders, and what can be moved of the replicas, off a node; with `undo`, let it have some again."""

    undo: bool = False


class Remove(_Change, frozen=True, kw_only=True, tag="remove"):
    """Take a node out for good: its replicas go elsewhere, or just go."""


Request = Status | Add | Drain | Remove


class Node(Struct, frozen=True, kw_only=True):
    """`address` for clients, `peer` for nodes, HOST:PORT; `away`: it does not answer the node that was asked;
    `since_ms`: of its state, milliseconds since the epoch."""

    id: int
    address: str = ""
    peer: str = ""
    rack: str = ""
    state: str = "UP"
    away: bool = False
    since_ms: int = 0


class Range(Struct, frozen=True, kw_only=True):
    """Whatever is replicated as one log. `leader` -1: none is known; `lag`: entries behind, by replica, where the node
    that was asked leads."""

    name: str
    replicas: tuple[int, ...]
    leader: int
    epoch: int
    learners: tuple[int, ...] = ()
    lag: dict[int, int] = {}


class Response(Answer, frozen=True, kw_only=True):
    """`redirect`: where the node is that takes changes, with the error NOT_CONTROLLER. `plan`: the next moves in words.
    `changed`: whether the call changed anything."""

    redirect: str = ""
    cluster_id: str = ""
    node_id: int = -1
    controller: int = -1
    nodes: tuple[Node, ...] = ()
    ranges: tuple[Range, ...] = ()
    plan: tuple[str, ...] = ()
    changed: bool = False
