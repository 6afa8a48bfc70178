"""sealog's own API: group transactions (design T10). `wire.private_api` says how its messages travel."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from wire.private_answer import Answer

Name = Annotated[str, Meta(min_length=1, max_length=249)]
Batch = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Milliseconds = Annotated[int, Meta(ge=1, lt=1 << 53)]


class Member(Struct, frozen=True, array_like=True):
    """A producer's identity as it writes: what names a member."""

    transactional_id: str
    producer_id: int
    epoch: int


class Offset(Struct, frozen=True, array_like=True):
    """One consumer offset that is committed with the group."""

    group: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class _Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="op"):
    sink: Name
    batch: Batch = 0
    attempt: Name = "-"


class Enlist(_Request, frozen=True, kw_only=True, tag="enlist"):
    """Make a member's transaction part of an attempt. A higher generation supersedes a lower one."""

    member: Member
    timeout_ms: Milliseconds
    generation: Batch = 0


class Commit(_Request, frozen=True, kw_only=True, tag="commit"):
    """Commit exactly these members, with these offsets, and discard every other."""

    members: tuple[Member, ...]
    offsets: tuple[Offset, ...] = ()


class Abort(_Request, frozen=True, kw_only=True, tag="abort"):
    """Discard an attempt."""


class Extend(_Request, frozen=True, kw_only=True, tag="extend"):
    """More time for an undecided attempt, from now on."""

    timeout_ms: Milliseconds


class Describe(_Request, frozen=True, kw_only=True, tag="describe"):
    """What is known of a sink: its last batch, and the batches that are not decided."""


Request = Enlist | Commit | Abort | Extend | Describe


class Undecided(Struct, frozen=True, kw_only=True):
    """A batch that is not decided. `voted` of `members` have voted; `deadline_ms` is wall-clock time."""

    batch: int
    attempt: str
    members: int
    voted: int
    deadline_ms: int


class Response(Answer, frozen=True, kw_only=True):
    """`batch`, `attempt` and `members` are the recorded outcome's where `repeated`: decided before this call."""

    batch: int = -1
    attempt: str = ""
    members: int = 0
    repeated: bool = False
    undecided: tuple[Undecided, ...] = ()
