"""ConsumerGroupDescribe (key 69; KIP-848): groups of the new protocol. Others do not exist for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.call import Call
from broker.groups import ConsumerMemberDescription
from broker.handlers.operations import GROUP, allowed
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from broker.node import Node

_CLASSIC, _CONSUMER = 0, 1
"""Kinds of members (version 1 and above)."""


def handle(node: Node, call: Call, request: Any) -> None:
    asked = request.include_authorized_operations
    call.answer(groups=tuple(_group(node, call, group_id, asked) for group_id in request.group_ids))


def _group(node: Node, call: Call, group_id: str, asked: bool) -> Any:
    group = node.groups.describe_consumer_group(group_id)
    if group is None:
        return call.build(
            "DescribedGroup",
            group_id=group_id,
            error_code=ErrorCode.group_id_not_found if group_id else ErrorCode.invalid_group_id,
            error_message=f"there is no consumer group {group_id!r}" if group_id else None,
        )
    return call.build(
        "DescribedGroup",
        error_code=ErrorCode.none,
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        members=tuple(_member(node, call, member) for member in group.members),
        authorized_operations=allowed(GROUP, asked),
    )


def _member(node: Node, call: Call, member: ConsumerMemberDescription) -> Any:
    return call.build(
        "Member",
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.topics,
        subscribed_topic_regex=member.pattern,
        assignment=_assignment(node, call, member.assignment),
        target_assignment=_assignment(node, call, member.target),
        member_type=_CLASSIC if member.speaks_classic else _CONSUMER,
    )


def _assignment(node: Node, call: Call, partitions: Any) -> Any:
    topics = ((node.topics.get_by_id(topic_id), numbers) for topic_id, numbers in partitions.items())
    return call.build(
        "Assignment",
        topic_partitions=tuple(
            call.build(
                "TopicPartitions",
                topic_id=topic.id,
                topic_name=topic.name,
                partitions=tuple(sorted(numbers)),
            )
            for topic, numbers in topics
            if topic is not None
        ),
    )
