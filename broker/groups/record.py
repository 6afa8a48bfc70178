"""The durable form of a group: plain data for msgpack, written when a generation is complete.

Guarantee: `read_record(make_record(group))` gives back the same generation, members and assignments.
Unknown keys are left alone, so that whoever stores a record may add its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from broker.groups.group import Budget, Group, Member
from broker.groups.states import GroupState

GroupRecord: TypeAlias = dict[str, Any]

RECORD_VERSION = 1


class BadGroupRecord(ValueError):
    """A stored group that this version cannot read, or that contradicts itself."""


def make_record(group: Group, assignments: Mapping[str, bytes] | None = None) -> GroupRecord:
    """The group as it is, or as it will be once the leader's `assignments` are in force."""
    return {
        "version": RECORD_VERSION,
        "generation": group.generation_id,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol_name,
        "leader": group.leader_id,
        "members": {
            member.member_id: {
                "instance": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "session_timeout_ms": member.session_timeout_ms,
                "rebalance_timeout_ms": member.rebalance_timeout_ms,
                "protocols": [[name, metadata] for name, metadata in member.protocols],
                "assignment": (
                    member.assignment if assignments is None else assignments.get(member.member_id, b"")
                ),
            }
            for member in group.members.values()
        },
    }


def read_record(group_id: str, record: Mapping[str, Any], budget: Budget) -> Group:
    """A stable or empty group; its deadlines are the caller's to set. Raises BadGroupRecord."""
    group = Group(group_id, budget)
    try:
        if record["version"] != RECORD_VERSION:
            raise BadGroupRecord(f"group {group_id!r}: record version {record['version']!r} is not known")
        for member_id, stored in record["members"].items():
            member = Member(
                member_id,
                group_instance_id=stored["instance"],
                client_id=stored["client_id"],
                client_host=stored["client_host"],
                session_timeout_ms=stored["session_timeout_ms"],
                rebalance_timeout_ms=stored["rebalance_timeout_ms"],
                protocols=[(name, metadata) for name, metadata in stored["protocols"]],
                assignment=stored["assignment"],
            )
            group.add(member, record["protocol_type"])
        group.generation_id = record["generation"]
        group.protocol_type = record["protocol_type"]
        group.protocol_name = record["protocol"]
        group.leader_id = record["leader"]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, BadGroupRecord):
            raise
        raise BadGroupRecord(f"group {group_id!r}: the stored record is not readable ({error!r})") from error
    if group.members:
        if group.leader_id not in group.members or not group.supports(
            group.protocol_type or "", [group.protocol_name or ""]
        ):
            raise BadGroupRecord(f"group {group_id!r}: leader or protocol is not that of its members")
        group.state = GroupState.STABLE
    return group
