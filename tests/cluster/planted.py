"""Brokers that are wrong on purpose, and the seeds of a simulation that betray them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

Mutant = Callable[[], contextlib.AbstractContextManager[Any]]
Run = Callable[[int], Any]
"""One seed of a simulation; it raises what it finds."""


@dataclass(frozen=True)
class Planted:
    mutant: Mutant
    first_seed: int
    """The first in which it was found: there it must be found again, or in one of the `WITHIN` from there on."""


def found_in(run: Run, mutant: Mutant, seed: int) -> str | None:
    """What it is betrayed by; None: nothing."""
    with mutant():
        try:
            run(seed)
        except Exception as error:  # noqa: BLE001 - whatever it breaks
            return f"{type(error).__name__}: {str(error)[:100]}"
    return None


def must_be_found(run: Run, mutant: Mutant, first: int, seeds: int) -> None:
    """In one of so many seeds from the first on."""
    for seed in range(first, first + seeds):
        found = found_in(run, mutant, seed)
        if found is not None:
            print(f"seed {seed}: {found}")
            return
    pytest.fail(f"{seeds} seeds did not find it")


def survey(run: Run, planted: Iterable[Planted], seeds: int) -> None:
    """How often each is found."""
    for one in planted:
        found = {seed: said for seed in range(seeds) if (said := found_in(run, one.mutant, seed))}
        print(f"{one.mutant.__name__}: {len(found)} of {seeds}: {list(found.items())[:2]}", flush=True)
