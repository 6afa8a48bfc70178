"""Positions of a replicated range that were taken back: whoever asks for one hears that it is gone.

Guarantee: a position that was taken back is never told as done, however far the log goes on after it. Bounded: of what
is long ago only that it is not known any more is kept, which is told as gone, never as done.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

REMEMBERED: Final = 1000


class LostPositions:
    """Positions ("lsn") that were given out, (after, upto] each, in order."""

    def __init__(self) -> None:
        self._upto: list[int] = []
        self._after: list[int] = []
        self._unknown_upto = 0

    def add(self, after: int, upto: int) -> None:
        """Everything behind `after` up to `upto` is gone."""
        while self._after and self._after[-1] >= after:
            self._after.pop()
            self._upto.pop()
        self._after.append(after)
        self._upto.append(upto)
        if len(self._upto) > REMEMBERED:
            self._unknown_upto = self._upto.pop(0)
            self._after.pop(0)

    def __contains__(self, lsn: int) -> bool:
        at = bisect_left(self._upto, lsn)
        return 0 < lsn <= self._unknown_upto or (at < len(self._upto) and self._after[at] < lsn)
