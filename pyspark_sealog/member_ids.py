"""The transactional ids of a Python worker's tasks: few, however many batches it writes.

The broker remembers every transactional id for days, so a worker uses its own again, batch after batch. Guarantee:
never while the id's last vote may still be undecided. Spark starts a batch of a sink when the one before is committed,
so an id is free for a later batch of the same sink; for anything else a new one is made.
"""

from __future__ import annotations

import uuid
from typing import Final

_MOST: Final = 256


class MemberIds:
    """Ids that have been used up to a batch of a sink."""

    def __init__(self) -> None:
        self._used: list[tuple[str, int, str]] = []

    def take(self, sink: str, batch: int) -> str:
        """An id that nobody else has."""
        for place, (of_sink, of_batch, name) in enumerate(self._used):
            if of_sink == sink and of_batch < batch:
                del self._used[place]
                return name
        return f"spark-{sink[:100]}-{uuid.uuid4().hex}"

    def voted(self, sink: str, batch: int, name: str) -> None:
        """Its task has ended well: free again once a later batch of this sink begins."""
        self._used.append((sink, batch, name))
        del self._used[:-_MOST]
