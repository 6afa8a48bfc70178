"""Hands requests on to the leader over connections of its own, and gives them up where it does not lead any more.

A client whose request is given up is cut off, and asks another node: one that is held here for long would have found
the next leader meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

log = logging.getLogger("sealog")

PATIENCE_S: Final = 0.5
"""So long no leader may be known."""
LOOK_S: Final = 0.05
MAX_ANSWER_BYTES: Final = 256 << 20

Address = tuple[str, int]
T = TypeVar("T")


class _GivenUp(Exception):
    """There is no leader, or it is another one now."""


class LeaderRelay:
    """A `broker.replication.standby.Relay`: one request at a time on each of its connections.

    `address` gives where the leader is reached; None where none is known, or this node leads.
    """

    def __init__(self, address: Callable[[], Address | None]) -> None:
        self._address = address
        self._idle: list[tuple[Address, asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, frame: bytes, done: Callable[[bytes | None], None]) -> None:
        task = asyncio.get_running_loop().create_task(self._ask(frame, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, frame: bytes, done: Callable[[bytes | None], None]) -> None:
        answer = None
        try:
            address, reader, writer = await self._connect()
            try:
                writer.write(frame)
                answer = await self._while_it_leads(address, _read_answer(reader))
            finally:
                if answer is not None:
                    self._idle.append((address, reader, writer))
                else:
                    writer.close()
        except (OSError, EOFError, _GivenUp) as error:
            log.info("a request could not be handed on to the leader: %s", error)
        done(answer)

    async def _connect(self) -> tuple[Address, asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises `_GivenUp`."""
        ends = time.monotonic() + PATIENCE_S
        while time.monotonic() < ends:
            address = self._address()
            while self._idle:
                kept = self._idle.pop()
                if kept[0] == address and not kept[1].at_eof() and not kept[2].is_closing():
                    return kept
                kept[2].close()
            if address is not None:
                try:
                    return address, *await asyncio.wait_for(asyncio.open_connection(*address), PATIENCE_S)
                except (OSError, TimeoutError):
                    pass
            await asyncio.sleep(LOOK_S)
        raise _GivenUp("none is reached")

    async def _while_it_leads(self, address: Address, work: Awaitable[T]) -> T:
        """Raises `_GivenUp`: a leader that hangs, or cannot be heard, answers nothing and closes nothing."""
        task = asyncio.ensure_future(work)
        led = time.monotonic()
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=LOOK_S)
                now = self._address()
                if now == address:
                    led = time.monotonic()
                elif now is not None or time.monotonic() - led > PATIENCE_S:
                    break
            if not task.done():
                raise _GivenUp(f"{address[0]}:{address[1]} does not lead any more")
            return task.result()
        finally:
            task.cancel()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for _, _, writer in self._idle:
            writer.close()


async def _read_answer(reader: asyncio.StreamReader) -> bytes | None:
    """A whole frame; None where it is too large."""
    head = await reader.readexactly(4)
    size = int.from_bytes(head, "big")
    return head + await reader.readexactly(size) if size <= MAX_ANSWER_BYTES else None
