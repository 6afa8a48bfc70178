"""Virtual time for many processes in one: who runs next, and when, from one seed.

A `Process` is what a broker gets for its `Scheduler` and what a client's coroutines run on. When it dies, whatever it
had planned never happens. Callbacks of one process run in the order of their calls, as on an event loop; time moves
only when nobody is ready, and timers that fall due at one instant go in a seeded order. Clocks of processes may jump;
the loop's own time never does.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from tests.support.sim_disk import PowerCut

T = TypeVar("T")
START_MS = 1_700_000_000_000


class Timer:
    __slots__ = ("args", "callback", "process")

    def __init__(self, process: Process, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.process = process
        self.callback: Callable[..., Any] | None = callback
        self.args = args

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """Runs the callbacks of all processes. Times in ms."""

    def __init__(self, seed: str) -> None:
        self.now_ms = 0.0
        self.steps = 0
        """Callbacks run so far."""
        self._random = random.Random(seed).random
        self._ready: deque[tuple[Process, Callable[..., Any], tuple[Any, ...]]] = deque()
        self._timers: list[tuple[float, float, int, Timer]] = []
        self._counter = 0

    def soon(self, process: Process, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._ready.append((process, callback, args))

    def later(
        self, process: Process, delay_ms: float, callback: Callable[..., Any], args: tuple[Any, ...]
    ) -> Timer:
        timer = Timer(process, callback, args)
        self._counter += 1
        due_ms = self.now_ms + delay_ms if delay_ms > 0 else self.now_ms
        heapq.heappush(self._timers, (due_ms, self._random(), self._counter, timer))
        return timer

    def run(self, until: Callable[[], bool], *, max_steps: int) -> bool:
        """Run until the condition holds; False where it never can, or not within so many callbacks."""
        ready, timers = self._ready, self._timers
        limit = self.steps + max_steps
        while not until():
            while timers and timers[0][0] <= self.now_ms:
                timer = heapq.heappop(timers)[3]
                if timer.callback is not None:
                    ready.append((timer.process, timer.callback, timer.args))
            count = len(ready)
            if not count:
                while timers and timers[0][3].callback is None:
                    heapq.heappop(timers)
                if not timers:
                    return False
                self.now_ms = max(self.now_ms, timers[0][0])
                continue
            if self.steps > limit:
                return False
            self.steps += count
            for _ in range(count):
                process, callback, args = ready.popleft()
                if not process.alive:
                    continue
                if process.fuse:
                    process.fuse -= 1
                    if not process.fuse:
                        process.burnt()
                        continue
                try:
                    callback(*args)
                except PowerCut:
                    process.cut()
                except Exception as error:  # noqa: BLE001 - whatever a process's callback raises is its own matter
                    process.failed(error)
        return True


class Process:
    """One process: a `storage.clock.Scheduler`, and where coroutines run."""

    def __init__(self, loop: Loop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.alive = True
        self.fuse = 0
        """So many callbacks from now `burnt` is called in place of the callback; 0: never."""
        self.burnt: Callable[[], None] = lambda: None
        self.cut: Callable[[], None] = self._unexpected_cut
        self.failed: Callable[[Exception], None] = self._raise
        self.wall_offset_ms = 0
        """What the wall clock is wrong by."""

    def _unexpected_cut(self) -> None:
        raise AssertionError(f"{self.name} touched a disk that is gone")

    @staticmethod
    def _raise(error: Exception) -> None:
        raise error

    def now_ms(self) -> int:
        return START_MS + int(self.loop.now_ms) + self.wall_offset_ms

    def monotonic_ms(self) -> int:
        return int(self.loop.now_ms)

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        self.loop.soon(self, callback, args)

    def call_later(self, delay_ms: float, callback: Callable[..., Any], *args: Any) -> Timer:
        return self.loop.later(self, delay_ms, callback, args)

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> Task:
        task = Task(self, coroutine)
        self.loop.soon(self, task.step, ())
        return task

    def sleep(self, delay_ms: float) -> Future[None]:
        future: Future[None] = Future(self)
        self.loop.later(self, delay_ms, future.set, (None,))
        return future


class Future(Generic[T]):
    """A value to come; one coroutine may wait for it. The first `set` or `fail` counts."""

    __slots__ = ("done", "error", "process", "value", "waiter")

    def __init__(self, process: Process) -> None:
        self.process = process
        self.done = False
        self.value: T | None = None
        self.error: Exception | None = None
        self.waiter: Task | None = None

    def set(self, value: T) -> None:
        if not self.done:
            self.done, self.value = True, value
            self._wake()

    def fail(self, error: Exception) -> None:
        if not self.done:
            self.done, self.error = True, error
            self._wake()

    def _wake(self) -> None:
        if self.waiter is not None:
            self.process.loop.soon(self.process, self.waiter.step, ())

    def __await__(self) -> Generator[Future[T], None, T]:
        if not self.done:
            yield self
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


class Task:
    """A coroutine on a process. What it raises ends the whole run: actors handle what they expect."""

    __slots__ = ("_coroutine", "done", "process")

    def __init__(self, process: Process, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.process = process
        self.done = False
        self._coroutine = coroutine

    def step(self) -> None:
        if self.done:
            return
        try:
            future = self._coroutine.send(None)
        except StopIteration:
            self.done = True
            return
        future.waiter = self
        if future.done:
            self.process.loop.soon(self.process, self.step, ())

    def cancel(self) -> None:
        """It never runs on."""
        if not self.done:
            self.done = True
            self._coroutine.close()
