"""This node's replicas of ranges that take over the partitions of others: a split, or a merge.

    WAITING -> MAKING -> made         from this node's replicas of the parents, when they have ended here, all durable
            -> FETCHING -> made       from another member's replica, where they are not here, or not any more

Guarantee: what is made holds all that the parents had, as `storage.replica_child` has it: a range that began without
could give its node's vote to a log that lacks what was acknowledged. Until then the group takes no part here.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.ranges.records import RangeRecord, directory, first_segment
from broker.replication.range_fetch import AncestorFetch
from broker.replication.transfer import FetchFailed, Send
from storage.ancestry import AncestorsAside, Parent
from storage.clock import Scheduler
from storage.disk import Disk
from storage.layout import LogConfig
from storage.replica_child import NewRange, complete_child, make_child

if TYPE_CHECKING:
    from broker.ranges.hosting import Hosted

log = logging.getLogger("sealog")


RETRY_MS: Final = 500


class Step(Enum):
    WAITING = "waiting for its parents"
    MAKING = "being made"
    FETCHING = "being fetched"


class Births:
    """`hosted_of(group)`: what is here; `made(hosted, error)` when its folder is whole; `send` takes notes to other
    nodes that `broker.replication.range_fetch` answers."""

    def __init__(
        self,
        node_id: int,
        disk: Disk,
        scheduler: Scheduler,
        hosted_of: Callable[[int], Hosted | None],
        log_config: Callable[[RangeRecord], LogConfig],
        made: Callable[[Hosted, OSError | None], None],
        send: Send,
    ) -> None:
        self._node_id = node_id
        self._disk = disk
        self._scheduler = scheduler
        self._hosted_of = hosted_of
        self._log_config = log_config
        self._made = made
        self._send = send
        self._fetches: dict[int, AncestorFetch] = {}
        self._attempts = 0
        self._steps: dict[Hosted, Step] = {}
        self._is_look_due = False

    def begin(self, hosted: Hosted) -> None:
        self._steps[hosted] = Step.WAITING
        self.look_soon()

    def is_waiting(self, hosted: Hosted) -> bool:
        """Whether nothing of it is here that counts, and nothing under way that could not be left."""
        return self._steps.get(hosted) in (Step.WAITING, Step.FETCHING)

    def forget(self, hosted: Hosted) -> None:
        self._steps.pop(hosted, None)
        fetch = self._fetches.pop(hosted.number, None)
        if fetch is not None:
            fetch.close()

    def close(self) -> None:
        self._steps.clear()
        for fetch in self._fetches.values():
            fetch.close()
        self._fetches.clear()

    def look_soon(self) -> None:
        """A parent may have come to its end here."""
        if self._steps and not self._is_look_due:
            self._is_look_due = True
            self._scheduler.call_soon(self._look)

    def _look(self) -> None:
        self._is_look_due = False
        for hosted in [one for one, step in self._steps.items() if step is Step.WAITING]:
            if not all(map(self._is_expected, hosted.record.parents)):
                self._fetch(hosted)
                continue
            parents = self._parents(hosted.record)
            if parents is not None:
                self._make(hosted, parents)

    def _is_expected(self, group: int) -> bool:
        """Whether this node's replica of a parent comes to its end, should it not have."""
        hosted = self._hosted_of(group)
        if hosted is None:
            return False
        return hosted.replica.state == "OPEN" if hosted.replica is not None else hosted.is_coming_up

    def _parents(self, record: RangeRecord) -> list[Parent] | None:
        """None: not all are here and at their end."""
        found: list[Parent] = []
        for group in record.parents:
            hosted = self._hosted_of(group)
            replica = hosted.replica if hosted is not None else None
            parent = replica.as_parent() if replica is not None and replica.state == "OPEN" else None
            if parent is None:
                return None
            found.append(parent)
        return found

    def _make(self, hosted: Hosted, parents: list[Parent]) -> None:
        self._steps[hosted] = Step.MAKING
        make_child(
            self._disk,
            new_range(hosted.number, hosted.record),
            parents,
            self._log_config(hosted.record),
            partial(self._over, hosted),
        )

    # From another node.

    def is_fetching(self, group: int) -> bool:
        return group in self._fetches

    def heard(self, peer: int, note: Sequence[Any]) -> None:
        self._fetches[note[1]].heard(peer, note)

    def _fetch(self, hosted: Hosted) -> None:
        """From one member after the other: any that has a replica will do."""
        others = [node for node in hosted.record.replicas if node != self._node_id]
        if not others:
            self._scheduler.call_later(RETRY_MS, self.look_soon)
            return
        self._steps[hosted] = Step.FETCHING
        self._attempts += 1
        try:
            aside = AncestorsAside(self._disk, directory(hosted.number), hosted.record.id)
        except OSError as error:
            self._over(hosted, error)
            return
        self._fetches[hosted.number] = AncestorFetch(
            hosted.number,
            aside,
            self._disk,
            self._scheduler,
            self._send,
            others[self._attempts % len(others)],
            partial(self._fetched, hosted, aside),
        )

    def _fetched(self, hosted: Hosted, aside: AncestorsAside, error: Exception | None) -> None:
        self._fetches.pop(hosted.number, None)
        if hosted not in self._steps:
            return
        if isinstance(error, FetchFailed):
            log.info("range group %d is not here yet: %s", hosted.number, error)
            self._steps[hosted] = Step.WAITING
            self._scheduler.call_later(RETRY_MS, self.look_soon)
            return
        self._steps[hosted] = Step.MAKING
        try:
            if error is not None:
                raise error if isinstance(error, OSError) else OSError(errno.EIO, str(error))
            complete_child(
                self._disk,
                new_range(hosted.number, hosted.record),
                aside.ancestry,
                self._log_config(hosted.record),
                partial(self._over, hosted),
            )
        except OSError as failure:
            self._over(hosted, failure)

    def _over(self, hosted: Hosted, error: OSError | None) -> None:
        if self._steps.pop(hosted, None) is not None:
            self._made(hosted, error)


def new_range(group: int, record: RangeRecord) -> NewRange:
    return NewRange(
        directory(group),
        record.id,
        record.first,
        record.last,
        first_segment(group),
        record.created_ms,
        record.members,
    )
