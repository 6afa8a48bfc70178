"""The records of outcomes of segments that are gone: collected in bounded batches, beside the work.

Nothing that names such a segment is left when this begins, so it may end anywhere: a start removes the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from itertools import islice

from storage.clock import Scheduler
from txn import keys
from txn.metastore import Delete, MetaStore, Op, Put, StoreFailed, TryAgain
from txn.patience import AGAIN_MS

BATCH_OPS = 2_000
"""So many at a time: a segment may have hundreds of thousands, more than a batch or a turn of the loop should hold."""


def forget_segments(store: MetaStore, scheduler: Scheduler, segment_ids: Iterable[int]) -> None:
    """Remove all that is recorded of the outcomes in these segments."""

    def paths() -> Iterator[str]:
        for segment_id in segment_ids:
            if store.get(keys.resolved(segment_id)) is not None:
                yield keys.resolved(segment_id)
            yield from (key for key, _ in store.scan(keys.aborted_in(segment_id)))

    delete_in_batches(store, scheduler, paths)


def delete_in_batches(store: MetaStore, scheduler: Scheduler, paths: Callable[[], Iterable[str]]) -> None:
    """Delete the records that `paths` gives; it is asked anew in each turn, until it gives none."""
    ops: list[Op] = [Delete(path) for path in islice(paths(), BATCH_OPS)]
    if not ops:
        return
    try:
        store.apply(ops)
    except TryAgain:
        scheduler.call_later(AGAIN_MS, delete_in_batches, store, scheduler, paths)
        return
    except StoreFailed:
        return  # the store says so to everyone; the next start removes them
    if len(ops) == BATCH_OPS:
        scheduler.call_soon(delete_in_batches, store, scheduler, paths)


def merge_resolved(store: MetaStore, segment_ids: Iterable[int], into: int) -> list[Op]:
    """What is resolved in these segments is so in another, which takes over all that they hold."""
    merged: dict[int, int] = {}
    for segment_id in (*segment_ids, into):
        record = store.get(keys.resolved(segment_id))
        for partition, offset in record.value.items() if record is not None else ():
            merged[partition] = max(offset, merged.get(partition, 0))
    return [Put(keys.resolved(into), merged)] if merged else []


def forget_left_over(store: MetaStore, scheduler: Scheduler, named: Container[int]) -> None:
    """Remove what an end in the middle left: the records of segments that no layout names. `named` is asked at once."""
    left = [
        key
        for prefix in (keys.RESOLVED, keys.ABORTED)
        for key, _ in store.scan(prefix)
        if int(key.split("/")[2]) not in named
    ]
    # Numbers of segments are never given again, so what is left over stays so.
    delete_in_batches(store, scheduler, lambda: (key for key in left if store.get(key) is not None))
