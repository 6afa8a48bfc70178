"""sealog's own API for layouts (design, section 5): split, merge, seal, describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from broker.call import Call
from broker.layout_controller import Arranged
from broker.ranges.reshapes import RangeReshapes
from broker.ranges.topics import ReplicatedTopic
from broker.topic import Topic
from storage.segment import Segment
from wire import layouts as messages
from wire import private_api
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node


def handle(node: Node, call: Call, request: messages.Request) -> None:
    def reply(result: Arranged | KafkaError) -> None:
        if isinstance(result, KafkaError):
            response = messages.Response(error=int(result.code), message=result.message)
        else:
            response = messages.Response(ranges=result.ranges, changed=result.changed)
        _answer(call, response)

    topic = node.topics.get(request.topic)
    if topic is None:
        reply(KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no topic {request.topic!r}"))
        return
    match request:
        case messages.Split():
            node.layouts.split(topic, request.at, reply)
        case messages.Merge():
            node.layouts.merge(topic, request.first, request.last, reply)
        case messages.Seal():
            node.layouts.seal(topic, request.partition, reply)
        case messages.Describe():
            _answer(
                call, _describe(node, topic) if isinstance(topic, Topic) else _describe_ranges(node, topic)
            )


def _describe(node: Node, topic: Topic) -> messages.Response:
    open_in: dict[int, int] = {}
    for transaction in node.coordinator.open_transactions():
        written = {
            segment_id
            for partition, segments in transaction.writes.items()
            if partition.topic == topic.name
            for segment_id in segments
        }
        for segment_id in written:
            open_in[segment_id] = open_in.get(segment_id, 0) + 1
    layout = node.topics.layout_store.get(topic.name)
    return messages.Response(
        ranges=tuple((log.first, log.last) for log in topic.ranges),
        epoch=layout["epoch"] if layout is not None else 0,
        segments=tuple(
            _segment(one, open_in.get(one.segment_id, 0)) for _, one in sorted(topic.segments().items())
        ),
        advice=tuple(
            messages.Advice(action=one.action, first=one.first, last=one.last, reason=one.reason)
            for one in node.balancer.advice(topic)
        ),
    )


def _describe_ranges(node: Node, topic: ReplicatedTopic) -> messages.Response:
    """Where each range has leaders of its own: of segments, those that the controller has itself."""
    layouts = cast(RangeReshapes, node.layouts)
    return messages.Response(
        ranges=layouts.spans(topic),
        segments=tuple(
            msgspec.structs.replace(_segment(one, 0), parents=parents)
            for _, (one, parents) in sorted(layouts.segments(topic).items())
        ),
        advice=(
            messages.Advice(
                action="none",
                first=0,
                last=len(topic.partitions) - 1,
                reason="ranges with leaders of their own are split and merged by hand",
            ),
        ),
    )


def _segment(segment: Segment, open_transactions: int) -> messages.Segment:
    header = segment.header
    return messages.Segment(
        id=segment.segment_id,
        first=header.first,
        last=header.last,
        state="SEALED" if segment.state == "SEALED" else "ACTIVE",
        parents=header.parents,
        created_ms=header.created_ms,
        term=header.term,
        size_bytes=segment.file_size if segment.state == "SEALED" else segment.end,
        records=sum(index.end_offset - index.start_offset for index in segment.indexes.values()),
        open=open_transactions,
    )


def _answer(call: Call, response: messages.Response) -> None:
    call.answer_raw([private_api.encode_response(call.correlation_id, response)])
