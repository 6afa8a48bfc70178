"""The durable form of a group of the new protocol: plain data for msgpack, one record for the group and two per member.

A member's record says what it wants, its assignment record what it has and should have. They are apart because a
new target changes the assignments of many members, whose subscriptions may be long, and of few the subscriptions.

Guarantee: `read_group(make_change(group, ...))` gives back the same group; a record that contradicts itself or
the others is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from uuid import UUID

from broker.groups.consumer.group import AlreadyOwned, ConsumerGroup, GroupChange, Header, Write
from broker.groups.consumer.member import (
    ClassicSide,
    Epochs,
    Member,
    MemberState,
    Partitions,
    Profile,
)
from broker.groups.record import BadGroupRecord, GroupRecord

KIND: Final = "consumer"
"""What tells a group's record from that of a classic group, which has no kind."""

RECORD_VERSION: Final = 1


@dataclass(slots=True)
class StoredGroup:
    """What the store has of one group."""

    state: Mapping[str, Any] | None = None
    members: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    assignments: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def is_consumer_group(self) -> bool:
        return self.state is not None and self.state.get("kind") == KIND


_Stored: TypeAlias = Mapping[str, Any]


def make_change(group: ConsumerGroup, write: Write) -> GroupChange:
    """What of the group has to be stored since what `write` remembers."""
    change = GroupChange(_state_record(group), whole=write.header is None)
    for member_id, (before, target_before) in write.members.items():
        member = group.members.get(member_id)
        if member is None:
            if before is not None:
                change.members[member_id] = change.assignments[member_id] = None
            continue
        if before is None or before.profile != member.profile:
            change.members[member_id] = _profile_record(member.profile)
        target = group.target_of(member_id)
        if before is None or _progress(before) != _progress(member) or (target_before or {}) != target:
            change.assignments[member_id] = _assignment_record(member, target)
    return change


def read_group(group_id: str, stored: StoredGroup) -> ConsumerGroup:
    """The group, closed and without timers. Raises BadGroupRecord."""
    group = ConsumerGroup(group_id)
    try:
        state = stored.state
        if state is None or state["kind"] != KIND or state["version"] != RECORD_VERSION:
            raise BadGroupRecord(f"group {group_id!r}: its record is not known to this version: {state!r}")
        if len(stored.members) != state["members"] or stored.members.keys() != stored.assignments.keys():
            raise BadGroupRecord(f"group {group_id!r}: its records do not belong together")
        for member_id, record in stored.members.items():
            _read_member(group, member_id, record, stored.assignments[member_id])
        group.set_header(Header(state["epoch"], state["assignment_epoch"], state["topics_hash"]))
    except (KeyError, TypeError, AttributeError, ValueError, AlreadyOwned) as error:
        if isinstance(error, BadGroupRecord):
            raise
        raise BadGroupRecord(f"group {group_id!r}: the stored record is not readable ({error!r})") from error
    return group


def _state_record(group: ConsumerGroup) -> GroupRecord:
    return {
        "version": RECORD_VERSION,
        "kind": KIND,
        "epoch": group.header.epoch,
        "assignment_epoch": group.header.assignment_epoch,
        "topics_hash": group.header.topics_hash,
        "members": len(group.members),
    }


def _profile_record(profile: Profile) -> GroupRecord:
    classic = profile.classic
    return {
        "instance": profile.instance_id,
        "rack": profile.rack_id,
        "client_id": profile.client_id,
        "client_host": profile.client_host,
        "rebalance_timeout_ms": profile.rebalance_timeout_ms,
        "topics": sorted(profile.topics),
        "pattern": profile.pattern,
        "assignor": profile.assignor,
        "classic": None
        if classic is None
        else {
            "session_timeout_ms": classic.session_timeout_ms,
            "protocols": [[name, metadata] for name, metadata in classic.protocols],
        },
    }


def _progress(member: Member) -> tuple[Any, ...]:
    return member.epoch, member.previous_epoch, member.state, member.assigned, member.revoking


def _assignment_record(member: Member, target: Partitions) -> GroupRecord:
    return {
        "epoch": member.epoch,
        "previous_epoch": member.previous_epoch,
        "state": member.state.value,
        "assigned": _epochs_record(member.assigned),
        "revoking": _epochs_record(member.revoking),
        "target": [[topic_id.bytes, sorted(target[topic_id])] for topic_id in sorted(target)],
    }


def _epochs_record(epochs: Epochs) -> list[list[Any]]:
    """[topic id, partitions, their epochs]..."""
    return [
        [topic_id.bytes, (numbers := sorted(epochs[topic_id])), [epochs[topic_id][n] for n in numbers]]
        for topic_id in sorted(epochs)
    ]


def _read_member(group: ConsumerGroup, member_id: str, record: _Stored, assignment: _Stored) -> None:
    classic = record["classic"]
    profile = Profile(
        instance_id=record["instance"],
        rack_id=record["rack"],
        client_id=record["client_id"],
        client_host=record["client_host"],
        rebalance_timeout_ms=record["rebalance_timeout_ms"],
        topics=frozenset(record["topics"]),
        pattern=record["pattern"],
        assignor=record["assignor"],
        classic=None
        if classic is None
        else ClassicSide(
            classic["session_timeout_ms"],
            tuple((name, metadata) for name, metadata in classic["protocols"]),
        ),
    )
    group.put(
        Member(
            member_id=member_id,
            profile=profile,
            epoch=assignment["epoch"],
            previous_epoch=assignment["previous_epoch"],
            state=MemberState(assignment["state"]),
            assigned=_read_epochs(assignment["assigned"]),
            revoking=_read_epochs(assignment["revoking"]),
        )
    )
    group.set_target(
        member_id,
        {UUID(bytes=topic_id): frozenset(numbers) for topic_id, numbers in assignment["target"]},
    )


def _read_epochs(stored: list[list[Any]]) -> dict[UUID, dict[int, int]]:
    return {
        UUID(bytes=topic_id): dict(zip(numbers, epochs, strict=True)) for topic_id, numbers, epochs in stored
    }
