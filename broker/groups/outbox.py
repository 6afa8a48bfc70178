"""Calls to the outside, held back until the state they tell of is complete.

Guarantee: a callback handed to an `Outbox` runs after the public call that caused it has finished changing
state, in the order of adding, exactly once; so a reply may call straight back into the coordinator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVarTuple, Unpack

Args = TypeVarTuple("Args")


class Outbox:
    """A context manager around each public call; the outermost one delivers."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._depth = 0

    def add(self, callback: Callable[[Unpack[Args]], None], *args: *Args) -> None:
        """Call `callback(*args)` when the outermost `with` ends."""
        self._calls.append(lambda: callback(*args))

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        try:
            if self._depth == 1:
                self._deliver()
        finally:
            self._depth -= 1

    def _deliver(self) -> None:
        failure: Exception | None = None
        while self._calls:
            try:
                self._calls.popleft()()
            except Exception as error:  # noqa: BLE001 - raised below, when everybody has been called
                failure = failure or error
        if failure is not None:
            raise failure
