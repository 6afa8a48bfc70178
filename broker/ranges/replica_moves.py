"""Writes what placement decides of replicas into the records of ranges, and takes in what their leaders report.

Runs with the controller, on its scheduler, and ends with it. It keeps nothing: a successor reads the same records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from broker.placement import Move
from broker.ranges.leaders import Led
from broker.ranges.moves import dropped, forgotten, ordered, settled
from broker.ranges.records import RangeRecord
from broker.ranges.topics import RangeTopics
from storage.clock import Periodic, Scheduler
from txn import keys
from txn.metastore import MetaStore, MetaStoreError, Put

log = logging.getLogger("sealog")

LOOK_MS: Final = 200


class ReplicaMoves:
    """`led(group)`: what its leader says of it, this node included."""

    def __init__(
        self, store: MetaStore, topics: RangeTopics, scheduler: Scheduler, led: Callable[[int], Led | None]
    ) -> None:
        self._store = store
        self._topics = topics
        self._led = led
        self._periodic = Periodic(scheduler, LOOK_MS, self.look)

    def order(self, group: int, move: Move) -> None:
        self._change(group, lambda record: ordered(record, move))

    def look(self) -> None:
        for group, record in list(self._topics.ranges.items()):
            led = self._led(group) if record.target or record.left else None
            if led is not None:
                self._settle(group, led)

    def _settle(self, group: int, led: Led) -> None:
        self._change(group, lambda record: settled(record, led.step, led.voters))
        self._change(group, lambda record: forgotten(record, led.step, is_whole=led.is_whole))

    def dropped(self, group: int, node: int) -> None:
        """Nothing of it is left on that node."""
        self._change(group, lambda record: dropped(record, node))

    def _change(self, group: int, change: Callable[[RangeRecord], RangeRecord | None]) -> None:
        """By the newest record, committed or not: what is under way may be an earlier change of it."""
        key = keys.replicated_range(group)
        try:
            found = self._store.get(key)
            changed = change(RangeRecord.of(found.value)) if found is not None else None
            if found is not None and changed is not None:
                self._store.apply([Put(key, changed.value(), found.version)])
        except MetaStoreError as error:
            log.info("range group %d is not moved now: %s", group, error)
