"""Changes of a topic's ranges while everything goes on: splits, merges and seals (design, section 5).

Whoever asks says what the ranges shall be, not what to do: where they are so already, nothing happens. So of several
who ask for the same one wins and the others see the result. Changes of one topic wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from broker import layouts
from broker.layout_store import LayoutStore
from broker.topic import Topic
from broker.topics import Topics, storage_error
from storage.layout import LayoutChanged, ReshapeEvent
from storage.range_log import RangeLog
from storage.reshape import Reshape
from wire.errors import ErrorCode, KafkaError

MAX_ATTEMPTS = 3
"""How often a change is begun anew because somebody else changed the layout first."""


@dataclass(frozen=True, slots=True)
class Arranged:
    """The ranges of a topic after a change, (first, last) each; whether this call changed anything."""

    ranges: tuple[tuple[int, int], ...]
    changed: bool


Done = Callable[[Arranged | KafkaError], None]
"""Called once, when the layout is durable and the children take the appends; or with the reason why not."""


class LayoutController:
    """Changes the ranges of one node's topics."""

    def __init__(self, topics: Topics, layout_store: LayoutStore, *, max_ranges: int) -> None:
        self._topics = topics
        self._layout_store = layout_store
        self._max_ranges = max_ranges
        self._waiting: dict[Topic, list[Callable[[], None]]] = {}
        """Topics whose ranges change just now, and who waits in line for that."""
        self._running: set[Reshape] = set()

    def split(self, topic: Topic, at: Sequence[int], done: Done) -> None:
        """Let a range begin at each of these partitions.

        Errors: INVALID_PARTITIONS outside the topic, POLICY_VIOLATION at the limit of ranges, KAFKA_STORAGE_ERROR,
        UNKNOWN_TOPIC_OR_PARTITION (deleted meanwhile).
        """
        self._in_line(
            topic, partial(self._arrange, topic, "split", lambda: self._split_spans(topic, at)), done
        )

    def merge(self, topic: Topic, first: int, last: int, done: Done) -> None:
        """Make one range of those that hold partitions first..last; both must be ends of ranges. Errors as `split`."""
        self._in_line(
            topic, partial(self._arrange, topic, "merge", lambda: _merge_span(topic, first, last)), done
        )

    def seal(self, topic: Topic, partition: int, done: Done) -> None:
        """Seal the active segment of the range of this partition, and go on in a new one.

        Answered when the new one takes the appends; an empty segment is left as it is. Errors as `split`.
        """
        self._in_line(topic, partial(self._seal, topic, partition), done)

    def stop(self) -> None:
        """The node stops. What is under way is left to the next start."""
        for reshape in self._running:
            reshape.stop()
        self._running.clear()

    # -- one at a time

    def _in_line(self, topic: Topic, change: Callable[[Done], None], done: Done) -> None:
        waiting = self._waiting.get(topic)
        if waiting is not None:
            waiting.append(lambda: self._in_line(topic, change, done))
            return
        self._waiting[topic] = []

        def end(result: Arranged | KafkaError) -> None:
            calls = self._waiting.pop(topic)
            done(result)
            for call in calls:
                call()

        if self._topics.get(topic.name) is not topic:
            end(_deleted(topic))
            return
        try:
            change(end)
        except KafkaError as refused:
            end(refused)

    def _split_spans(self, topic: Topic, at: Sequence[int]) -> tuple[list[RangeLog], list[tuple[int, int]]]:
        """The ranges that must change, and what they shall become."""
        count = len(topic.partitions)
        for partition in at:
            if not 0 <= partition < count:
                raise KafkaError(
                    ErrorCode.invalid_partitions, f"topic {topic.name!r} has partitions 0 to {count - 1}"
                )
        touched = [log for log in topic.ranges if any(log.first < partition <= log.last for partition in at)]
        if not touched:
            return [], []
        # Neighbours change together; whoever splits two ranges far apart gets two changes.
        parents = _run_of_neighbours(touched)
        starts = {log.first for log in parents} | {
            partition for partition in at if parents[0].first <= partition <= parents[-1].last
        }
        ordered = sorted(starts)
        ends = [start - 1 for start in ordered[1:]] + [parents[-1].last]
        if len(topic.ranges) - len(parents) + len(ordered) > self._max_ranges:
            raise KafkaError(
                ErrorCode.policy_violation, f"a topic has at most {self._max_ranges} ranges on this broker"
            )
        return parents, list(zip(ordered, ends, strict=True))

    # -- ranges

    def _arrange(
        self,
        topic: Topic,
        what: str,
        wanted: Callable[[], tuple[list[RangeLog], list[tuple[int, int]]]],
        done: Done,
        attempt: int = 1,
        changed: bool = False,
    ) -> None:
        try:
            parents, spans = wanted()
        except KafkaError as refused:
            done(refused)
            return
        if not parents:
            done(_arranged(topic, changed=changed))
            return

        def ended(error: Exception | None) -> None:
            if error is None:
                self._arrange(topic, what, wanted, done, 1, True)
            elif self._topics.get(topic.name) is not topic:
                done(_deleted(topic))
            elif isinstance(error, LayoutChanged) and attempt < MAX_ATTEMPTS:
                self._arrange(topic, what, wanted, done, attempt + 1, changed)
            else:
                done(storage_error(f"{what} of topic {topic.name!r}", error))

        _Change(self, topic, ended).begin(parents, spans)

    # -- seals

    def _seal(self, topic: Topic, partition: int, done: Done) -> None:
        self._topics.partition(topic, partition)
        log = next(one for one in topic.ranges if one.first <= partition <= one.last)
        if not log.active.end_offsets() and not log.has_queued:
            done(_arranged(topic, changed=False))
            return

        def rolled(error: Exception | None) -> None:
            if error is not None:
                done(storage_error(f"seal of topic {topic.name!r}", error))
            else:
                done(_arranged(topic, changed=True))

        log.roll(rolled)


class _Change:
    """One reshape under way: what it needs of the topic, as its owner."""

    def __init__(
        self, controller: LayoutController, topic: Topic, ended: Callable[[Exception | None], None]
    ) -> None:
        self._controller = controller
        self._topic = topic
        self._ended = ended
        self._reshape: Reshape

    def begin(self, parents: list[RangeLog], spans: list[tuple[int, int]]) -> None:
        self._reshape = self._controller._topics.reshape(self._topic, self, parents, spans)
        self._controller._running.add(self._reshape)
        self._reshape.start()

    def publish(self, event: ReshapeEvent, done: Callable[[Exception | None], None]) -> None:
        self._controller._layout_store.change(
            self._topic.name,
            lambda layout: layouts.with_children(layout, event.parents, event.children),
            done,
        )

    def switched(self, children: list[RangeLog]) -> None:
        self._topic.take_over(children)
        for log in children:
            log.reconfigure(self._topic.rules.log_config(self._controller._topics.config))
        self._end(None)

    def retired(self, parent: RangeLog) -> None:
        self._topic.retired.remove(parent)

    def abandoned(self, error: Exception) -> None:
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        self._controller._running.discard(self._reshape)
        self._ended(error)


def _run_of_neighbours(logs: list[RangeLog]) -> list[RangeLog]:
    run = logs[:1]
    for log in logs[1:]:
        if log.first != run[-1].last + 1:
            break
        run.append(log)
    return run


def _merge_span(topic: Topic, first: int, last: int) -> tuple[list[RangeLog], list[tuple[int, int]]]:
    parents = [log for log in topic.ranges if log.first <= last and log.last >= first]
    if first > last or not parents or (parents[0].first, parents[-1].last) != (first, last):
        raise KafkaError(
            ErrorCode.invalid_partitions,
            f"partitions {first}..{last} of {topic.name!r} are not whole ranges; there are "
            + ", ".join(f"{log.first}..{log.last}" for log in topic.ranges),
        )
    return ([], []) if len(parents) == 1 else (parents, [(first, last)])


def _arranged(topic: Topic, *, changed: bool) -> Arranged:
    return Arranged(tuple((log.first, log.last) for log in topic.ranges), changed)


def _deleted(topic: Topic) -> KafkaError:
    return KafkaError(ErrorCode.unknown_topic_or_partition, f"topic {topic.name!r} was deleted")
