"""A node's topics and ranges follow the committed records, in their order: docs/raft.md, section 8, 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.ranges.hosting import Hosting
from broker.ranges.moving import Moving
from broker.ranges.records import RangeRecord
from broker.ranges.topics import RangeTopics
from txn import keys
from txn.metastore import Change, Event, MetaStore, Snapshot


class RecordWatch:
    """`on_gone(group)`: a range is on record no more; `on_settled` after each round of news."""

    def __init__(
        self,
        topics: RangeTopics,
        hosting: Hosting,
        moving: Moving,
        *,
        on_gone: Callable[[int], None],
        on_settled: Callable[[], None],
    ) -> None:
        self._topics = topics
        self._hosting = hosting
        self._moving = moving
        self._on_gone = on_gone
        self._on_settled = on_settled

    def watch(self, view: MetaStore) -> None:
        view.watch(self._ranges_told, prefix=keys.RANGES)
        view.watch(self._topics_told, prefix=keys.TOPICS)

    def _topics_told(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Snapshot):
                named = {entry.key[len(keys.TOPICS) :]: entry.record.value for entry in event.entries}
                for topic in list(self._topics):
                    if topic.name not in named:
                        self._topics.topic_is(topic.name, None)
                for name, value in named.items():
                    self._topics.topic_is(name, value)
            else:
                self._topics.topic_is(event.key[len(keys.TOPICS) :], _value(event))
        self._settle()

    def _ranges_told(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Snapshot):
                named = {
                    keys.parse_range(entry.key): RangeRecord.of(entry.record.value) for entry in event.entries
                }
                for group in set(self._topics.ranges) - set(named):
                    self._range_is(group, None, event.lsn)
                for group, told in named.items():
                    self._range_is(group, told, event.lsn)
            else:
                value = _value(event)
                record = RangeRecord.of(value) if value is not None else None
                self._range_is(keys.parse_range(event.key), record, event.lsn)
        self._settle()

    def _range_is(self, group: int, record: RangeRecord | None, lsn: int) -> None:
        self._topics.range_is(group, record)
        if record is None:
            self._hosting.disappeared(group)
            self._on_gone(group)
        else:
            self._hosting.appeared(group, record, lsn)
            self._moving.touch(group)

    def _settle(self) -> None:
        self._topics.settle()
        self._on_settled()


def _value(event: Change) -> Any:
    return event.new.value if event.new is not None else None
