"""One question after the other to another node, over notes that may be lost: each is sent again until the next one, and
after `MAX_ASKED` times without an answer the node counts as silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from storage.clock import Scheduler, Timer

ASK_AGAIN_MS: Final = 1000
MAX_ASKED: Final = 3


class PatientQuestion:
    """`send` takes a note to `node`, or loses it; `silent(reason)` when it has not answered."""

    def __init__(
        self,
        scheduler: Scheduler,
        send: Callable[[int, list[Any]], None],
        node: int,
        silent: Callable[[str], None],
    ) -> None:
        self.words: list[Any] = []
        """The last one."""
        self._scheduler = scheduler
        self._send = send
        self._node = node
        self._silent = silent
        self._asked = 0
        self._timer: Timer | None = None
        self._is_closed = False

    def ask(self, words: list[Any]) -> None:
        """This is asked from now on, and the one before is not."""
        if not self._is_closed:
            self.words = words
            self._asked = 0
            self._again()

    def _again(self) -> None:
        if self._asked == MAX_ASKED:
            self._silent(f"node {self._node} is silent")
            return
        self._asked += 1
        self.answered()
        self._timer = self._scheduler.call_later(ASK_AGAIN_MS, self._again)
        self._send(self._node, self.words)

    def answered(self) -> None:
        """It is not asked again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Nothing is asked any more."""
        self._is_closed = True
        self.answered()
