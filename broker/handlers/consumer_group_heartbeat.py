"""ConsumerGroupHeartbeat (key 68; KIP-848): a member of the new group protocol joins, lives or leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from broker.call import Call
from broker.groups import HeartbeatRequest, HeartbeatResult
from wire.building import to_ms

if TYPE_CHECKING:
    from broker.node import Node

NAMES_ITSELF_VERSION = 1


def handle(node: Node, call: Call, request: Any) -> None:
    def reply(result: HeartbeatResult) -> None:
        call.answer(
            error_code=result.error,
            error_message=result.message,
            member_id=result.member_id,
            member_epoch=result.member_epoch,
            heartbeat_interval=result.heartbeat_interval_ms,
            assignment=None
            if result.assignment is None
            else call.build(
                "Assignment",
                topic_partitions=tuple(
                    call.build(
                        "TopicPartitions",
                        topic_id=topic_id,
                        partitions=tuple(sorted(result.assignment[topic_id])),
                    )
                    for topic_id in sorted(result.assignment)
                ),
            ),
        )

    timeout_ms = to_ms(request.rebalance_timeout)
    node.groups.consumer_heartbeat(
        HeartbeatRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            client_id=call.client_id,
            client_host=call.client_host,
            rebalance_timeout_ms=None if timeout_ms == -1 else timeout_ms,
            topics=request.subscribed_topic_names,
            pattern=getattr(request, "subscribed_topic_regex", None),
            assignor=request.server_assignor,
            owned=_owned(request.topic_partitions),
            names_itself=call.version >= NAMES_ITSELF_VERSION,
        ),
        node.scheduler.monotonic_ms(),
        reply,
    )
    node.arm_group_timer()


def _owned(topics: Any) -> dict[UUID, frozenset[int]] | None:
    if topics is None:
        return None
    owned: dict[UUID, frozenset[int]] = {}
    for topic in topics:
        # The topic id of all zeros, which is None here, is nobody's.
        if topic.topic_id is not None and topic.partitions:
            known = owned.get(topic.topic_id, frozenset())
            owned[topic.topic_id] = known | frozenset(topic.partitions)
    return owned
