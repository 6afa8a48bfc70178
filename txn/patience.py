"""Steps that must be recorded, where the store may say "not at this moment" (`TryAgain`): tried until it takes them.

In between nothing is half done: what the steps change in memory was changed before, and whoever asked waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from storage.clock import Scheduler
from txn.metastore import MetaStore, Op, StoreFailed, TryAgain

AGAIN_MS: Final = 20


def apply_patiently(
    store: MetaStore,
    scheduler: Scheduler,
    ops: Sequence[Op],
    applied: Callable[[int], None],
    failed: Callable[[StoreFailed], None],
) -> None:
    """`applied(lsn)`, mostly at once; `failed` where the store takes nothing any more."""
    try:
        lsn = store.apply(ops).lsn
    except TryAgain:
        scheduler.call_later(AGAIN_MS, apply_patiently, store, scheduler, ops, applied, failed)
        return
    except StoreFailed as failure:
        failed(failure)
        return
    applied(lsn)
