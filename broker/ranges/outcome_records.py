"""The records of outcomes that nobody needs any more, at the controller (design, section 6): of what lies below the log
starts, and of ranges that are gone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial

from broker.ranges.records import first_segment
from storage.clock import Scheduler
from txn import keys
from txn.metastore import MetaStore
from txn.outcomes import delete_in_batches, forget_left_over


def forget_below(
    store: MetaStore, scheduler: Scheduler, groups: Collection[int], starts: Mapping[int, int]
) -> None:
    """Nothing of these ranges' partitions is there below the log starts, which are on record before this begins."""
    for group in groups:
        delete_in_batches(store, scheduler, partial(_below, store, group, starts))


def _below(store: MetaStore, group: int, starts: Mapping[int, int]) -> Iterator[str]:
    for key in _of_group(store, keys.ABORTED, group):
        _, partition, _ = keys.parse_aborted(key)
        record = store.get(key)
        if record is not None and record.value[0] < starts.get(partition, 0):
            yield key
    for key in _of_group(store, keys.RESOLVED, group):
        record = store.get(key)
        if record is not None and all(limit <= starts.get(index, 0) for index, limit in record.value.items()):
            yield key


def forget_ranges(store: MetaStore, scheduler: Scheduler, groups: Collection[int]) -> None:
    """No range has segments of them any more."""

    def all_of_them() -> Iterator[str]:
        for group in groups:
            yield from _of_group(store, keys.ABORTED, group)
            yield from _of_group(store, keys.RESOLVED, group)

    delete_in_batches(store, scheduler, all_of_them)


def _of_group(store: MetaStore, prefix: str, group: int) -> Iterator[str]:
    """Keys of `/aborted/` or `/resolved/`, which both begin with a segment's number."""
    end = first_segment(group + 1)
    before = f"{prefix}{first_segment(group) - 1:020d}{keys.LAST}"
    for key, _ in store.scan(prefix, before):
        if int(key.split("/")[2]) >= end:
            return
        yield key


class _Segments:
    """Those of the ranges that there are."""

    def __init__(self, groups: Collection[int]) -> None:
        self._groups = groups

    def __contains__(self, segment: object) -> bool:
        return isinstance(segment, int) and keys.range_of(segment) in self._groups


def forget_gone(store: MetaStore, scheduler: Scheduler, groups: Collection[int]) -> None:
    """Of all ranges but these: they went with their topics."""
    forget_left_over(store, scheduler, _Segments(groups))
