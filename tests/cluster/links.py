"""The network between the nodes of a cluster: one proxy process, told on its standard input what each way is to do.

Each ordered pair of nodes has an address of its own, TCP and UDP on one port: what node 1 takes for node 2. A `Way` is
what becomes of bytes from one node to another, whoever made the stream: cut, they wait as they would for TCP to send
them again, and datagrams are lost; a way may also be slow and lose some.

    with Links({1: address, 2: address, 3: address}) as links:
        links.addresses[1, 2]            # what node 1 is told of node 2
        links.set((1, 2), cut=True)      # nothing gets from 1 to 2
        links.heal(reset=True)           # all is well again, streams are broken off
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
from dataclasses import dataclass
from itertools import permutations
from typing import Self

from tests.support.broker_process import CHECKOUT, free_port

Address = tuple[str, int]
Pair = tuple[int, int]
CHUNK_BYTES = 1 << 16


class Links:
    """The proxies of all ordered pairs of these nodes, in a process of their own."""

    def __init__(self, nodes: dict[int, Address]) -> None:
        self.pairs = list(permutations(nodes, 2))
        self.addresses: dict[Pair, Address] = {pair: ("127.0.0.1", free_port()) for pair in self.pairs}
        proxies = [
            (source, target, self.addresses[source, target][1], *nodes[target])
            for source, target in self.pairs
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.links", json.dumps(proxies)],
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def set(self, pair: Pair, *, cut: bool = False, delay_ms: float = 0, loss: float = 0) -> None:
        """`loss`: the chance of a datagram to be lost, and of a chunk of a stream to end it."""
        self._say(pair=pair, cut=cut, delay_ms=delay_ms, loss=loss)

    def heal(self, *, reset: bool) -> None:
        """Every way is well; with `reset` those streams that were in trouble are broken off."""
        self._say(heal=True, reset=reset)

    def _say(self, **command: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> None:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        assert answer == "done", f"the proxy says {answer!r}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(slots=True)
class Way:
    cut: bool = False
    delay_ms: float = 0
    loss: float = 0

    @property
    def well(self) -> bool:
        return not (self.cut or self.delay_ms or self.loss)


class _Proxies:
    def __init__(self, proxies: list[tuple[int, int, int, str, int]]) -> None:
        self.ways = {(source, target): Way() for source, target, *_ in proxies}
        self.changed = asyncio.Event()
        self.streams: dict[asyncio.Task[None], Pair] = {}
        self._proxies = proxies

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for source, target, port, *address in self._proxies:
            pair, goal = (source, target), (str(address[0]), int(address[1]))

            async def accept(
                reader: asyncio.StreamReader,
                writer: asyncio.StreamWriter,
                pair: Pair = pair,
                goal: Address = goal,
            ) -> None:
                task = asyncio.current_task()
                assert task is not None
                self.streams[task] = pair
                try:
                    await self._carry(pair, goal, reader, writer)
                except asyncio.CancelledError:
                    pass
                finally:
                    del self.streams[task]
                    writer.transport.abort()

            await asyncio.start_server(accept, "127.0.0.1", port)
            await loop.create_datagram_endpoint(
                lambda way=self.ways[pair], goal=goal: _Datagrams(way, goal),  # type: ignore[misc]
                local_addr=("127.0.0.1", port),
            )

    async def _carry(
        self, pair: Pair, goal: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        there, back = self.ways[pair], self.ways[pair[1], pair[0]]
        # A stream is made by packets both ways.
        await self._passable(there)
        await self._passable(back)
        try:
            far_reader, far_writer = await asyncio.open_connection(*goal)
        except OSError:
            return
        pumps = [
            asyncio.ensure_future(self._pump(there, reader, far_writer)),
            asyncio.ensure_future(self._pump(back, far_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            far_writer.transport.abort()

    async def _passable(self, way: Way) -> None:
        while way.cut:
            await self.changed.wait()

    async def _pump(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._passable(way)
                if way.delay_ms:
                    await asyncio.sleep(way.delay_ms / 1000)
                    await self._passable(way)
                if way.loss and random.random() < way.loss / 10:
                    return
                writer.write(data)
                await writer.drain()

    def obey(self, command: dict[str, object]) -> None:
        if "heal" in command:
            ill = {pair for pair, way in self.ways.items() if not way.well}
            if command["reset"]:
                for task, pair in self.streams.items():
                    if pair in ill or pair[::-1] in ill:
                        task.cancel()
            for way in self.ways.values():
                way.cut, way.delay_ms, way.loss = False, 0, 0
        else:
            source, target = command["pair"]  # type: ignore[misc]
            way = self.ways[source, target]  # type: ignore[has-type]
            way.cut, way.delay_ms, way.loss = command["cut"], command["delay_ms"], command["loss"]  # type: ignore[assignment]
        self.changed.set()
        self.changed = asyncio.Event()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, way: Way, goal: Address) -> None:
        self._way, self._goal = way, goal

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: object) -> None:
        if self._way.cut or random.random() < self._way.loss:
            return
        if self._way.delay_ms:
            loop = asyncio.get_running_loop()
            loop.call_later(self._way.delay_ms / 1000, self._transport.sendto, data, self._goal)  # type: ignore[attr-defined]
        else:
            self._transport.sendto(data, self._goal)  # type: ignore[attr-defined]

    def error_received(self, exc: Exception) -> None:
        """Nobody listens there at the moment."""


async def _main() -> None:
    proxies = _Proxies(json.loads(sys.argv[1]))
    await proxies.start()
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    print("done", flush=True)
    while line := await commands.readline():
        proxies.obey(json.loads(line))
        print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(_main())
