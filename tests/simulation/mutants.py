"""Faults planted in the broker, each of which the simulation must find: else its silence about the right one says nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Mutant:
    """`plant` gives (class or module, name, what stands there instead) for each place that it changes."""

    seeds: int
    """It is found within so many, from 0 on."""
    plant: Callable[[], list[tuple[Any, str, Any]]]


def _acknowledge_before_flush() -> list[tuple[Any, str, Any]]:
    """acks=all is answered when it is written (against D1)."""
    from storage.range_log import RangeLog

    def hasty(self: Any, lsn: int, callback: Any) -> None:
        self.when_written(callback)

    return [(RangeLog, "when_durable", hasty)]


MUTANTS: dict[str, Mutant] = {
    "acknowledge-before-flush": Mutant(20, _acknowledge_before_flush),
}


@contextlib.contextmanager
def planted(name: str | None) -> Iterator[None]:
    """The broker with one of them, meanwhile; None: as it is."""
    if name is None:
        yield
        return
    changes = MUTANTS[name].plant()
    before = [(where, what, vars(where)[what]) for where, what, _ in changes]
    for where, what, instead in changes:
        setattr(where, what, instead)
    try:
        yield
    finally:
        for where, what, real in before:
            setattr(where, what, real)
