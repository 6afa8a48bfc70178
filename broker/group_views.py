"""Groups as an administrator sees them: those with members, now or before, and those that only hold offsets.

A group that nobody ever joined exists as long as it has offsets, and is shown as Empty, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups import GroupDescription, GroupOverview, GroupState
from broker.groups.consumer.embedded import MalformedProtocol, read_subscription

if TYPE_CHECKING:
    from broker.services import StoreServices

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of consumers: their metadata names the topics they subscribe to."""


def all_groups(node: StoreServices) -> list[GroupOverview]:
    """Every group once."""
    groups = {group.group_id: group for group in node.groups.list_groups()}
    for group_id in node.offsets.group_ids():
        if group_id not in groups:
            groups[group_id] = GroupOverview(group_id, "", GroupState.EMPTY)
    return list(groups.values())


def describe(node: StoreServices, group_id: str) -> GroupDescription | None:
    """None for a group that does not exist."""
    described = node.groups.describe(group_id)
    if described is not None:
        return described
    if next(node.offsets.all_committed(group_id), None) is None:
        return None
    return GroupDescription(group_id, GroupState.EMPTY, 0, "", "", None, ())


def subscribed_topics(group: GroupDescription) -> frozenset[str] | None:
    """The topics that the members of a group of consumers read; None where that cannot be said now.

    A group of the new protocol knows; a stable classic group's members say it in their metadata. No members, no
    topics. Other kinds of groups, and groups that rebalance, do not say.
    """
    if group.topics is not None:
        return group.topics
    if group.protocol_type != CONSUMER_PROTOCOL:
        return None
    if not group.members:
        return frozenset()
    if group.state is not GroupState.STABLE:
        return None
    try:
        return frozenset().union(*(read_subscription(member.metadata).topics for member in group.members))
    except MalformedProtocol:
        return None
