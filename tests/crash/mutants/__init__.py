"""Brokers that are wrong on purpose: `python -m tests.crash.mutants NAME serve ...` runs one.

A mutant is a function that patches the broker's classes in its own process before the broker starts.
"""

from collections.abc import Callable
from typing import Any

Mutate = Callable[[], None]


class _Hasty:
    """Something with when_durable that takes written for durable."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def when_durable(self, _: int, done: Callable[..., None]) -> None:
        self._real.when_written(lambda error=None: done(error))


def commit_before_flush() -> None:
    """A commit is answered when it is written, not when it is durable (against T2)."""
    from txn.ending import Ending

    commit = Ending.commit

    def hasty(self: Any, transaction: Any, *args: Any, **options: Any) -> None:
        store, lsns = self._store, transaction.lsns
        self._store = _Hasty(store)
        transaction.lsns = {_Hasty(log): position for log, position in lsns.items()}
        try:
            commit(self, transaction, *args, **options)
        finally:
            self._store, transaction.lsns = store, lsns

    Ending.commit = hasty  # type: ignore[method-assign, assignment]


def recovery_without_positions() -> None:
    """Recovery takes every PREPARING transaction for committed, whatever of it is in the logs (against T3)."""
    from txn.recovery import TransactionRecovery

    TransactionRecovery._is_whole = lambda *_: True  # type: ignore[method-assign]


MUTANTS: dict[str, Mutate] = {
    mutate.__name__.replace("_", "-"): mutate for mutate in (commit_before_flush, recovery_without_positions)
}
