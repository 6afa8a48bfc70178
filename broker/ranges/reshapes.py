"""Ranges of a topic are split and merged while everything goes on: the controller's side (docs/raft.md, section 8).

    asked for      a wish in the parents' records           then their leaders end them
    all ended      one batch: the parents are succeeded     then nodes make the children's replicas and serve them
    not needed     the parents' records go                  every member has the children, no transaction asks a parent

Whoever asks says what the ranges shall be, not what to do: of several who ask for the same one changes them, and the
others see it done. Runs with the controller, on its scheduler, and ends with it; the steps are decided anew from the
records, so a successor goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.layout_controller import Arranged
from broker.ranges import lineage
from broker.ranges.leaders import Led
from broker.ranges.records import RangeRecord
from broker.ranges.topics import RangeTopics, ReplicatedTopic
from broker.topics import storage_error
from storage.clock import Periodic, Scheduler
from storage.segment import Segment
from txn import keys
from txn.metastore import ABSENT, Delete, MetaStore, MetaStoreError, Op, Put, StoreFailed
from wire.errors import ErrorCode, KafkaError

log = logging.getLogger("sealog")

LOOK_MS: Final = 200
PATIENCE_MS: Final = 30_000
"""So long whoever asked is kept waiting. What was begun goes on all the same."""

Done = Callable[[Arranged | KafkaError], None]
Parents = dict[int, RangeRecord]


@dataclass(slots=True, eq=False)
class _Asked:
    """`next_step` gives what is to change now: the parents, and the spans of their children; nothing where the ranges
    are as they shall be; None where that cannot be said, or done, before something else has ended."""

    topic: ReplicatedTopic
    next_step: Callable[[], tuple[Parents, list[lineage.Span]] | None]
    done: Done
    deadline_ms: int
    changed: bool = False


class RangeReshapes:
    """`led(group)`: what its leader says of it; `new_group()` a number for one more; `is_needed(group)`: whether some
    transaction has to ask its leader something still."""

    def __init__(
        self,
        store: MetaStore,
        topics: RangeTopics,
        scheduler: Scheduler,
        *,
        led: Callable[[int], Led | None],
        new_group: Callable[[], int],
        is_needed: Callable[[int], bool],
        max_ranges: int,
    ) -> None:
        self._store = store
        self._topics = topics
        self._scheduler = scheduler
        self._led = led
        self._new_group = new_group
        self._is_needed = is_needed
        self._max_ranges = max_ranges
        self._asked: list[_Asked] = []
        self._is_looking = False
        self._periodic = Periodic(scheduler, LOOK_MS, self.look)

    # Asking.

    def split(self, topic: ReplicatedTopic, at: Sequence[int], done: Done) -> None:
        """Let a range begin at each of these partitions. Errors: INVALID_PARTITIONS outside the topic, POLICY_VIOLATION
        at the limit of ranges, UNKNOWN_TOPIC_OR_PARTITION (deleted meanwhile), REQUEST_TIMED_OUT (it goes on)."""
        self._ask(topic, lambda: self._next_split(topic, at), done)

    def merge(self, topic: ReplicatedTopic, first: int, last: int, done: Done) -> None:
        """Make one range of those that hold partitions first..last; both must be ends of ranges. Errors as `split`, and
        INVALID_REPLICA_ASSIGNMENT where they are on different nodes."""
        self._ask(topic, lambda: self._next_merge(topic, first, last), done)

    def seal(self, topic: ReplicatedTopic, partition: int, done: Done) -> None:
        done(
            KafkaError(
                ErrorCode.unsupported_version, "a segment of a replicated range is sealed by its leader alone"
            )
        )

    def spans(self, topic: ReplicatedTopic) -> tuple[lineage.Span, ...]:
        """Its ranges, in order."""
        ranges = [self._topics.ranges[group] for group, _ in topic.groups]
        return tuple((one.first, one.last) for one in ranges)

    def segments(self, topic: ReplicatedTopic) -> dict[int, tuple[Segment, tuple[int, ...]]]:
        """By id, each with what it continues, as far as this node has replicas."""
        found: dict[int, tuple[Segment, tuple[int, ...]]] = {}
        for group, _ in topic.groups:
            log = self._topics.replica_of(group)
            for one in log.segments if log is not None else ():
                assert log is not None
                found[one.segment_id] = one, log.parents_of(one)
        return found

    def _ask(
        self,
        topic: ReplicatedTopic,
        next_step: Callable[[], tuple[Parents, list[lineage.Span]] | None],
        done: Done,
    ) -> None:
        deadline_ms = self._scheduler.monotonic_ms() + PATIENCE_MS
        self._asked.append(_Asked(topic, next_step, done, deadline_ms))
        self.look()

    def _ranges(self, topic: ReplicatedTopic) -> Parents:
        """Those that have its partitions now, in order, by the newest records."""
        found: Parents = {}
        for group, _ in topic.groups:
            record = self._record(group)
            if record is not None:
                found[group] = record
        return found

    def _record(self, group: int) -> RangeRecord | None:
        found = self._store.get(keys.replicated_range(group))
        return RangeRecord.of(found.value) if found is not None else None

    def _next_split(
        self, topic: ReplicatedTopic, at: Sequence[int]
    ) -> tuple[Parents, list[lineage.Span]] | None:
        count = len(topic.partitions)
        if not all(0 <= partition < count for partition in at):
            raise KafkaError(
                ErrorCode.invalid_partitions, f"topic {topic.name!r} has partitions 0 to {count - 1}"
            )
        ranges = self._ranges(topic)
        touched = {
            group: record
            for group, record in ranges.items()
            if any(record.first < partition <= record.last for partition in at)
        }
        if not touched:
            return {}, []
        for group, record in touched.items():
            if lineage.is_at_rest(record):
                spans = lineage.cut(record.first, record.last, at)
                if len(ranges) - 1 + len(spans) > self._max_ranges:
                    raise KafkaError(
                        ErrorCode.policy_violation, f"a topic has at most {self._max_ranges} ranges"
                    )
                return {group: record}, spans
        return None

    def _next_merge(
        self, topic: ReplicatedTopic, first: int, last: int
    ) -> tuple[Parents, list[lineage.Span]] | None:
        ranges = self._ranges(topic)
        parents = {
            group: record for group, record in ranges.items() if record.first <= last and record.last >= first
        }
        records = list(parents.values())
        if not all(lineage.is_at_rest(record) for record in records):
            return None
        if first > last or not records or (records[0].first, records[-1].last) != (first, last):
            there = ", ".join(f"{record.first}..{record.last}" for record in ranges.values())
            raise KafkaError(
                ErrorCode.invalid_partitions,
                f"partitions {first}..{last} of {topic.name!r} are not whole ranges; there are {there}",
            )
        if len(records) == 1:
            return {}, []
        if not lineage.same_members(records):
            raise KafkaError(
                ErrorCode.invalid_replica_assignment,
                "ranges whose replicas are on different nodes cannot be merged: "
                + ", ".join(f"{one.first}..{one.last} on {sorted(one.replicas)}" for one in records),
            )
        return parents, [(first, last)]

    # Looking.

    def look(self) -> None:
        """Records, or what leaders say, may be others now."""
        if self._is_looking or not self._store.takes():
            return
        self._is_looking = True
        try:
            for asked in list(self._asked):
                self._go_on(asked)
            self._succeed()
            self._forget()
        except MetaStoreError as error:
            log.info("ranges are not changed now: %s", error)
        finally:
            self._is_looking = False

    def _go_on(self, asked: _Asked) -> None:
        topic = asked.topic
        try:
            if self._topics.get(topic.name) is not topic:
                raise KafkaError(ErrorCode.unknown_topic_or_partition, f"topic {topic.name!r} was deleted")
            while True:
                step = asked.next_step()
                if step is None or not step[0]:
                    break
                self._wish(*step)
                asked.changed = True
            if step is not None:
                self._over(asked, Arranged(self.spans(topic), asked.changed))
            elif self._scheduler.monotonic_ms() > asked.deadline_ms:
                raise KafkaError(
                    ErrorCode.request_timed_out, f"the ranges of {topic.name!r} are being changed still"
                )
        except StoreFailed as failure:
            self._over(asked, storage_error(f"topic {topic.name!r}", failure))
        except KafkaError as refused:
            self._over(asked, refused)

    def _over(self, asked: _Asked, result: Arranged | KafkaError) -> None:
        self._asked.remove(asked)
        asked.done(result)

    def _wish(self, parents: Parents, spans: Sequence[lineage.Span]) -> None:
        """Raises MetaStoreError."""
        children = [(self._new_group(), first, last) for first, last in spans]
        ops: list[Op] = []
        for group in parents:
            key = keys.replicated_range(group)
            found = self._store.get(key)
            assert found is not None
            changed = lineage.wished(RangeRecord.of(found.value), children)
            ops.append(Put(key, changed.value(), found.version))
        self._store.apply(ops)

    def _succeed(self) -> None:
        """Where all parents of a change have ended, the children begin."""
        changes: dict[tuple[tuple[int, int, int], ...], Parents] = {}
        for group, told in self._topics.ranges.items():
            if told.becomes and not told.retired:
                changes.setdefault(told.becomes, {})[group] = told
        for parents in changes.values():
            leds = {group: led for group in parents if (led := self._led(group)) is not None}
            newest = {group: record for group in parents if (record := self._record(group)) is not None}
            if newest.keys() != parents.keys() or any(one.retired for one in newest.values()):
                continue
            if all(lineage.has_ended(record, leds.get(group)) for group, record in newest.items()):
                retired, children = lineage.succeeded(newest, leds, self._scheduler.now_ms())
                self._store.apply(
                    [
                        *(Put(keys.replicated_range(group), one.value()) for group, one in retired.items()),
                        *(
                            Put(keys.replicated_range(group), one.value(), ABSENT)
                            for group, one in children.items()
                        ),
                    ]
                )
                log.info("ranges %s are succeeded by %s", sorted(retired), sorted(children))

    def _forget(self) -> None:
        """Parents that nobody needs any more."""
        for group, record in list(self._topics.ranges.items()):
            if not record.retired or self._record(group) is None:
                continue
            leds = {child: self._led(child) for child, _, _ in record.becomes}
            if lineage.is_over(record, self._topics.ranges, leds) and not self._is_needed(group):
                self._store.apply([Delete(keys.replicated_range(group))])

    def close(self) -> None:
        self._periodic.close()
