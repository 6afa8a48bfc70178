"""The topics that groups subscribe to, by name and by regular expression.

Guarantees: a pattern is matched in time linear in the length of a name, whatever the pattern (RE2); memory and
the number of patterns are bounded; what a pattern matches is always that of the topics there are now, and each
topic is matched once per pattern in its life.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from hashlib import blake2b
from typing import Final, Protocol
from uuid import UUID

from broker.patterns import compile_pattern
from wire.errors import ErrorCode, KafkaError

MAX_PATTERNS: Final = 10_000
"""Different patterns of all groups of a broker."""


class TopicInfo(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def id(self) -> UUID: ...

    @property
    def partitions(self) -> Sized: ...


class TopicSource(Protocol):
    """The topics of the broker."""

    @property
    def changes(self) -> int:
        """Grows whenever a topic is made, deleted or given more partitions."""
        ...

    def get(self, name: str) -> TopicInfo | None: ...

    def get_by_id(self, topic_id: UUID | None) -> TopicInfo | None: ...

    def __iter__(self) -> Iterator[TopicInfo]: ...


def topics_hash(topics: TopicSource, names: Iterable[str]) -> int:
    """What there is of these topics as one number of 64 bits: it changes with each id and partition count.

    It is stored with a group, so that a start finds out whether its topics are still what they were. 0 where none of
    them is there, as in a group that knows none yet.
    """
    digest = blake2b(digest_size=8)
    found = False
    for name in sorted(names):
        topic = topics.get(name)
        if topic is not None:
            found = True
            digest.update(b"%s/%s/%d\n" % (name.encode(), topic.id.bytes, len(topic.partitions)))
    if not found:
        return 0
    return int.from_bytes(digest.digest(), "big", signed=True)


class TopicPatterns:
    """Which topics each pattern in use matches, shared by all groups."""

    def __init__(self, topics: TopicSource) -> None:
        self._topics = topics
        self._users: dict[str, int] = {}
        self._matches: dict[str, frozenset[str]] = {}
        self._names: frozenset[str] = frozenset()
        self._changes_seen: int | None = None

    def __len__(self) -> int:
        return len(self._users)

    def check(self, pattern: str) -> None:
        """Refuse a pattern that cannot be used.

        Raises:
            KafkaError: INVALID_REGULAR_EXPRESSION; GROUP_MAX_SIZE_REACHED where there are too many.
        """
        if pattern in self._users:
            return
        if len(self._users) >= MAX_PATTERNS:
            raise KafkaError(
                ErrorCode.group_max_size_reached,
                f"this broker has its limit of {MAX_PATTERNS} topic patterns",
            )
        compile_pattern(pattern)

    def acquire(self, pattern: str) -> None:
        """Somebody subscribes to a pattern that `check` let pass."""
        self._users[pattern] = self._users.get(pattern, 0) + 1

    def release(self, pattern: str) -> None:
        """Somebody subscribes to it no more."""
        self._users[pattern] -= 1
        if not self._users[pattern]:
            del self._users[pattern]
            self._matches.pop(pattern, None)

    def matches(self, pattern: str) -> frozenset[str]:
        """The names of the topics that a pattern in use matches from end to end."""
        self._catch_up()
        found = self._matches.get(pattern)
        if found is None:
            found = self._matches[pattern] = _matching(pattern, self._names)
        return found

    def _catch_up(self) -> None:
        if self._changes_seen == self._topics.changes:
            return
        self._changes_seen = self._topics.changes
        names = frozenset(topic.name for topic in self._topics)
        new, gone = names - self._names, self._names - names
        self._names = names
        for pattern, matched in self._matches.items():
            self._matches[pattern] = (matched - gone) | _matching(pattern, new)


def _matching(pattern: str, names: frozenset[str]) -> frozenset[str]:
    compiled = compile_pattern(pattern)
    return frozenset(name for name in names if compiled.fullmatch(name) is not None)
