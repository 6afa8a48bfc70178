"""Which segments nothing can happen to any more: the one place that retention, compaction and the sidecars ask."""

from __future__ import annotations

from collections.abc import Callable

from broker.topic import Topic
from storage.segment import Segment
from txn.settlement import Settlement


class SettledSegments:
    """A segment is settled when it is sealed, all in it is below the last stable offsets, and every outcome in it is
    recorded for good: it does not depend on any transaction's header."""

    def __init__(self, settlement: Settlement) -> None:
        self._settlement = settlement

    def look(self) -> Callable[[Topic, Segment], bool]:
        """Says of a topic's segment whether it is settled; as things stand in this turn of the loop."""
        unsettled = self._settlement.unsettled_segments()

        def is_settled(topic: Topic, segment: Segment) -> bool:
            return (
                segment.state == "SEALED"
                and segment.segment_id not in unsettled
                and all(
                    not index.runs or index.end_offset <= topic.partitions[partition].last_stable_offset
                    for partition, index in segment.indexes.items()
                )
            )

        return is_settled
