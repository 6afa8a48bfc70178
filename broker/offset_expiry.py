"""Offsets of groups that are gone, and then the groups, are forgotten after a while (Kafka's offsets.retention).

An offset expires when nobody can need it: of a group without members, so long after both its commit and the last
member's leaving; of a stable group of consumers, so long after its commit, if no member reads the topic any more; of
a group that nobody ever joined, so long after its commit. What an open transaction holds stays. An empty group without
offsets goes too. Source: Kafka's OffsetMetadataManager; KIP-211, KIP-496.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from broker.group_views import subscribed_topics
from broker.groups import ConsumerGroupState, GroupDescription, GroupState
from storage.clock import Scheduler, Timer
from txn.metastore import MetaStore, StoreFailed
from txn.offsets import GroupOffsets

OFFSETS_PER_TURN = 2_000
"""A sweep looks at so many offsets, and then lets others have their turn."""

DeleteGroup = Callable[[str], None]
EmptySince = Callable[[str], int]


class OffsetExpiry:
    """Sweeps in intervals, a bounded piece per turn of the loop. Times in milliseconds of the wall clock."""

    def __init__(
        self,
        store: MetaStore,
        scheduler: Scheduler,
        offsets: GroupOffsets,
        describe: Callable[[str], GroupDescription | None],
        group_ids: Callable[[], list[str]],
        delete_group: DeleteGroup,
        empty_since_ms: EmptySince,
    ) -> None:
        """`describe`: a group that has or had members. `group_ids`: all groups. `empty_since_ms`: when the last member
        left; 0 where that is not known."""
        self._store = store
        self._scheduler = scheduler
        self._offsets = offsets
        self._describe = describe
        self._group_ids = group_ids
        self._delete_group = delete_group
        self._empty_since_ms = empty_since_ms
        self._retention_ms = 0
        self._interval_ms = 0
        self._timer: Timer | None = None
        self._sweep: Iterator[None] | None = None

    def configure(self, retention_ms: int, interval_ms: int) -> None:
        """Sweep from now on, every `interval_ms`."""
        self._retention_ms = retention_ms
        self._interval_ms = interval_ms
        self.close()
        self._arm()

    def close(self) -> None:
        """No more sweeps."""
        self._sweep = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._timer = self._scheduler.call_later(self._interval_ms, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._sweep = self._all_groups()
        self._step(self._sweep)

    def _step(self, sweep: Iterator[None]) -> None:
        if self._sweep is not sweep:
            return  # closed, or begun anew
        try:
            next(sweep)
        except StopIteration:
            self._arm()
        except StoreFailed:
            return  # the store has said so to everyone
        else:
            self._scheduler.call_soon(self._step, sweep)

    def _all_groups(self) -> Iterator[None]:
        seen = 0
        for group_id in self._group_ids():
            seen += 1 + self._expire(group_id)
            if seen >= OFFSETS_PER_TURN:
                seen = 0
                yield

    def _expire(self, group_id: str) -> int:
        """Look at one group; how many offsets it has."""
        group = self._describe(group_id)
        empty = group is None or group.state in (GroupState.EMPTY, ConsumerGroupState.EMPTY)
        read: frozenset[str] = frozenset()
        empty_since_ms = 0
        if group is not None and empty:
            if not group.generation_id:
                return 0  # somebody is about to join it for the first time
            empty_since_ms = self._empty_since_ms(group_id)
        elif group is not None:
            subscribed = subscribed_topics(group)
            if subscribed is None:
                return 0
            read = subscribed
        latest_ms = self._scheduler.now_ms() - self._retention_ms
        committed = list(self._offsets.commit_times_ms(group_id))
        expired = [
            at
            for at, commit_ms in committed
            if max(commit_ms, empty_since_ms) <= latest_ms
            and at[0] not in read
            and not self._offsets.is_pending(group_id, *at)
        ]
        if expired:
            self._store.apply(self._offsets.delete_ops(group_id, expired))
        gone = empty and len(expired) == len(committed)
        if group is not None and gone and not self._offsets.pending_partitions(group_id):
            self._delete_group(group_id)
        return len(committed)
