"""How far the files were durable, noted in another: what was flushed long ago stays noticed.

Of each unsealed segment the metadata store keeps the durable end; of the store a file of its own does. An entry's claim
(design, section 10) speaks of what precedes it, so damage at the very end of a segment would look like a write that a
crash tore; so does the end of the store's log. Guarantee: what was durable at the last pass, or at a clean stop, is
never cut by a start. A pass writes only of what has grown, and nobody waits for it; an older note, or none, is as true.
"""

from __future__ import annotations

from broker.durable_note import DurableNote
from broker.topic import Topic
from broker.topics import Topics
from storage.clock import Periodic, Scheduler
from txn import keys
from txn.metastore import MetaStore, Op, Put, StoreFailed

INTERVAL_MS = 5_000


class DurableEnds:
    """Notes the ends of all topics' unsealed segments, in bytes of their files, and the store's last batch."""

    def __init__(self, topics: Topics, store: MetaStore, scheduler: Scheduler, of_store: DurableNote) -> None:
        self._topics = topics
        self._store = store
        self._of_store = of_store
        self._passes = Periodic(scheduler, INTERVAL_MS, self._timed)

    def _timed(self) -> None:
        try:
            self.note()
        except StoreFailed:
            self._passes.close()  # the store has said so; what it holds stays true

    def note(self) -> None:
        """Raises StoreFailed."""
        self._of_store.write(self._store.durable_lsn)
        ops: list[Op] = []
        for topic in self._topics:
            ends = _ends(topic)
            key = keys.durable_ends(topic.name)
            record = self._store.get(key)
            if ends != (record.value if record is not None else {}):
                ops.append(Put(key, ends))
        if ops:
            self._store.apply(ops)

    def close(self) -> None:
        self._passes.close()


def _ends(topic: Topic) -> dict[int, int]:
    return {
        segment.segment_id: segment.durable_end
        for log in topic.logs
        for segment in log.unsealed
        if segment.durable_end
    }
