"""Questions between nodes, over notes that may be lost: asked until they are answered.

    ["ask", number, kind, words]          ["told", number, words]

A question goes to whom `where` names at that moment, again and again, as the one who can answer may be another by then.
So a question must be one that may be asked twice. Who cannot answer now says nothing. A question to this node itself
takes the same way, without the network.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Final

from storage.clock import Scheduler, Timer

RETRY_MS: Final = 100
"""How long an answer is waited for before the question is sent again; twice as long each time, up to the second."""
LONGEST_RETRY_MS: Final = 800

Words = list[Any]
Told = Callable[[Words | None], None]
"""Called once, with the answer; None: there is nobody any more who could give one."""
Answer = Callable[[Words | None], None]
"""To be called once by who was asked; None: not now, the question comes again."""


AskLeader = Callable[[str, int, Callable[[], Words], Told], Callable[[], None]]
"""(kind, group, words, told): a question to whoever leads that range, as long as there is one. Its end."""


class Asked:
    """One question that is not answered yet."""

    def __init__(
        self,
        kind: str,
        scheduler: Scheduler,
        where: Callable[[], int | None],
        words: Callable[[], Words],
        told: Told,
        alive: Callable[[], bool],
    ) -> None:
        self.kind = kind
        self.scheduler = scheduler
        self.where = where
        self.words = words
        self.told = told
        self.alive = alive
        self.timer: Timer | None = None
        self.wait_ms = RETRY_MS


class Asking:
    """`say(node, words)` sends a note to another node, or loses it. `first_number` is one that no earlier life used."""

    def __init__(
        self, node_id: int, scheduler: Scheduler, say: Callable[[int, Words], None], first_number: int
    ) -> None:
        self._node_id = node_id
        self._scheduler = scheduler
        self._say = say
        self._numbers = count(first_number)
        self._asked: dict[int, Asked] = {}
        self._answering: set[tuple[int, int]] = set()
        self._served: dict[str, Callable[[Words, Answer], None]] = {}

    def serve(self, kind: str, answer: Callable[[Words, Answer], None]) -> None:
        """Who answers questions of that kind here, from now on."""
        self._served[kind] = answer

    def ask(
        self,
        kind: str,
        words: Callable[[], Words],
        told: Told,
        *,
        where: Callable[[], int | None],
        alive: Callable[[], bool] = lambda: True,
        scheduler: Scheduler | None = None,
    ) -> Callable[[], None]:
        """`told` on that scheduler. `words` are taken anew for each time. What this gives ends the question untold."""
        number = next(self._numbers)
        asked = Asked(kind, scheduler or self._scheduler, where, words, told, alive)
        self._asked[number] = asked
        self._send(number)
        return partial(self._end, number)

    def end_all(self, scheduler: Scheduler) -> None:
        """Nobody waits any more on that scheduler."""
        for number, asked in list(self._asked.items()):
            if asked.scheduler is scheduler:
                self._end(number)

    def _end(self, number: int) -> None:
        asked = self._asked.pop(number, None)
        if asked is not None and asked.timer is not None:
            asked.timer.cancel()

    def _send(self, number: int) -> None:
        asked = self._asked.get(number)
        if asked is None:
            return
        if not asked.alive():
            self._told(number, None)
            return
        asked.timer = asked.scheduler.call_later(asked.wait_ms, self._send, number)
        asked.wait_ms = min(2 * asked.wait_ms, LONGEST_RETRY_MS)
        node = asked.where()
        if node is None:
            return
        words = ["ask", number, asked.kind, asked.words()]
        if node == self._node_id:
            self._scheduler.call_soon(self.heard, node, words)
        else:
            self._say(node, words)

    def heard(self, peer: int, words: Words) -> None:
        """A note of either kind."""
        if words[0] == "ask":
            _, number, kind, question = words
            self._hear_question(peer, number, kind, question)
        else:
            _, number, answer = words
            self._told(number, answer)

    def _hear_question(self, peer: int, number: int, kind: str, question: Words) -> None:
        answer = self._served.get(kind)
        if answer is None or (peer, number) in self._answering:
            return
        self._answering.add((peer, number))
        answer(question, partial(self._answered, peer, number))

    def _answered(self, peer: int, number: int, words: Words | None) -> None:
        self._answering.discard((peer, number))
        if words is None:
            return
        if peer == self._node_id:
            self._told(number, words)
        else:
            self._say(peer, ["told", number, words])

    def _told(self, number: int, words: Words | None) -> None:
        asked = self._asked.get(number)
        if asked is not None:
            self._end(number)
            asked.scheduler.call_soon(asked.told, words)
