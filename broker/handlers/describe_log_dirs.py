"""DescribeLogDirs (key 35; KIP-113): one folder, and how much of each partition is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.call import Call
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from broker.node import Node


def handle(node: Node, call: Call, request: Any) -> None:
    """Sizes are of the partitions' entries; segments are shared by the partitions of a range, preallocated space and
    indexes are nobody's. Free space is not reported."""
    if request.topics is None:
        wanted = [(topic, topic.partitions) for topic in node.topics]
    else:
        wanted = []
        for one in request.topics:
            topic = node.topics.get(one.topic)
            if topic is not None:
                count = len(topic.partitions)
                partitions = [topic.partitions[index] for index in one.partitions if 0 <= index < count]
                wanted.append((topic, partitions))
    topics = tuple(
        call.build(
            "DescribeLogDirsTopic",
            name=topic.name,
            partitions=tuple(
                call.build(
                    "DescribeLogDirsPartition",
                    partition_index=partition.index,
                    partition_size=partition.size_bytes,
                    offset_lag=0,
                    is_future_key=False,
                )
                for partition in partitions
            ),
        )
        for topic, partitions in wanted
        if partitions
    )
    call.answer(
        error_code=ErrorCode.none,
        results=(
            call.build(
                "DescribeLogDirsResult",
                error_code=ErrorCode.none,
                log_dir=node.config.data,
                topics=topics,
                total_bytes=-1,
                usable_bytes=-1,
            ),
        ),
    )
