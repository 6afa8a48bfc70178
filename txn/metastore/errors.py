"""What the store raises. Every error leaves the store exactly as it was before the call that raised it."""

from __future__ import annotations


class MetaStoreError(Exception):
    """The base of all errors of the store."""


class Conflict(MetaStoreError):
    """A condition of a batch did not hold; nothing of the batch was applied.

    `actual` is the key's version now: `ABSENT` when there is no such record, `WITHIN_BATCH` when an earlier
    operation of the same batch wrote it.
    """

    def __init__(self, key: str, expected: int, actual: int) -> None:
        super().__init__(f"{key}: expected version {expected}, found {actual} (0 is absent)")
        self.key = key
        self.expected = expected
        self.actual = actual


class InvalidOperation(MetaStoreError, ValueError):
    """A key, a value or an index key that the store cannot hold; nothing of the batch was applied."""


class LimitExceeded(InvalidOperation):
    """A batch, a key or a value is over its limit (`Options`); nothing of the batch was applied."""


class StoreFailed(MetaStoreError):
    """A write or a flush of the log failed, or the store is closed: nothing can be changed any more.

    What was not yet durable then stays in doubt until the store is opened again. Reads go on.
    """


class NotLeading(StoreFailed):
    """Another node leads, so this one changes nothing; nothing of the batch was applied. `leader`: which, if known."""

    def __init__(self, leader: int | None) -> None:
        where = f"node {leader} leads" if leader is not None else "no leader is known"
        super().__init__(f"this node does not lead the store: {where}")
        self.leader = leader


class TryAgain(StoreFailed):
    """Not at this moment: too much waits to be committed, or leadership is being handed over. Nothing was applied."""


class OutcomeUnknown(StoreFailed):
    """This node stopped leading before it knew: the batch may have been committed, may yet be, or never will be."""


class BatchLost(StoreFailed):
    """The batch is not committed and never will be: another stands in its place."""


class Diverged(MetaStoreError):
    """A committed batch does not fit the state here: this node must not go on."""


class CorruptStore(MetaStoreError):
    """Something that was durable is damaged or missing, so the store refuses to open.

    `file` is a path below the disk's root, `position` a byte position in it.
    """

    def __init__(self, file: str, position: int, reason: str) -> None:
        super().__init__(f"{file} at byte {position}: {reason}")
        self.file = file
        self.position = position
        self.reason = reason


class UnknownFormat(MetaStoreError):
    """A file was written in a format that this version does not read."""

    def __init__(self, file: str, found: int, known: int) -> None:
        super().__init__(
            f"{file}: written in format version {found}; this version of the program reads {known}"
        )
        self.file = file
        self.found = found
        self.known = known
