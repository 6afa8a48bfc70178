"""Reading from a near replica (KIP-392): the leader's choice, and what a follower may answer. Pure.

A consumer that names its rack is sent to a replica there by the leader, once, and then asks that one. A follower shows
what it knows to be committed, and nothing more; where the consumer is ahead of it, that is not an error of its offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wire.errors import ErrorCode

NONE = -1
"""In place of a preferred replica: read from the leader."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A follower as the leader knows it. Offsets of one partition; `in_sync`: it has nearly all, and answers."""

    node: int
    rack: str | None
    start_offset: int
    end_offset: int
    in_sync: bool = True


def preferred(
    client_rack: str, leader_rack: str | None, followers: Iterable[Replica], fetch_offset: int
) -> int:
    """The node in the client's rack to read from, or NONE: the leader is as near, or no other has that offset.

    Of several the one that has most.
    """
    if not client_rack or client_rack == leader_rack:
        return NONE
    able = [
        one
        for one in followers
        if one.in_sync and one.rack == client_rack and one.start_offset <= fetch_offset <= one.end_offset
    ]
    return min(able, key=lambda one: (-one.end_offset, one.node)).node if able else NONE


def follower_error(fetch_offset: int, start_offset: int, end_offset: int) -> ErrorCode:
    """How a follower answers a consumer's fetch from this offset; `none`: with what lies below its high watermark.

    Above its end it does not know: the consumer may well be right. OFFSET_NOT_AVAILABLE makes clients ask the leader.
    """
    if fetch_offset > end_offset:
        return ErrorCode.offset_not_available
    if fetch_offset < start_offset:
        return ErrorCode.offset_out_of_range
    return ErrorCode.none
