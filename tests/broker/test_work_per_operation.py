"""How much the broker does per operation, as calls of functions: the same on every machine, however loaded it is.

Every call of and out of a function of wire, storage, txn and broker counts; the loop and the disk do not.
A number that jumps is a regression, or a price that somebody wants to pay: then the table says so from now on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from support.sim_node import SimClient, SimNode, batch
from support.sim_producer import Producer, create_topic, fetch_fields, produce_fields

from wire import codec
from wire.apis import ApiKey
from wire.building import build_request
from wire.errors import ErrorCode

ROOT = Path(__file__).resolve().parents[2]
OURS = tuple(str(ROOT / package) + "/" for package in ("wire", "storage", "txn", "broker"))

TABLE = {
    "plain record": 147,
    "transaction of 1 partition": 493,
    "transaction of 10 partitions": 983,
    "fetch of 60 batches": 565,
}
"""Calls per operation."""
JUMP = 1.10


class Counter:
    """Counts while `active`; the client's own encoding and decoding is no work of the broker's."""

    def __init__(self) -> None:
        self.calls = 0

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename.startswith(OURS):
            self.calls += 1

    def start(self) -> None:
        sys.setprofile(self._event)

    def stop(self) -> None:
        sys.setprofile(None)


class CountedClient(SimClient):
    def __init__(self, world: SimNode, counter: Counter) -> None:
        self._counter = counter
        self._counting = False
        super().__init__(world.node, world.scheduler)

    def send(self, key: int, version: int, /, *, answered: bool = True, **fields: Any) -> int:
        self._correlation_id += 1
        if answered:
            self._asked.append((key, version, self._correlation_id))
        entity = build_request(key, version, None, **fields)
        frame = codec.encode_request(key, version, self._correlation_id, "sim", entity)
        if self._counting:
            self._counter.start()
        self.session.received(frame)
        self._counter.stop()
        return self._correlation_id

    def write(self, buffers: Any) -> None:
        self._counter.stop()
        super().write(buffers)
        if self._counting:
            self._counter.start()

    def count(self, work: Callable[[], object], times: int) -> float:
        """Calls per time, after as many that do not count."""
        for _ in range(times):
            work()
        self._scheduler.advance(1_000)
        self._counter.calls = 0
        self._counting = True
        run_until = self._scheduler.run_until

        def counted(done: Callable[[], bool]) -> None:
            self._counter.start()
            try:
                run_until(done)
            finally:
                self._counter.stop()

        self._scheduler.run_until = counted  # type: ignore[method-assign, assignment]
        for _ in range(times):
            work()
        self._counting = False
        self._scheduler.run_until = run_until  # type: ignore[method-assign]
        return self._counter.calls / times


def measure() -> dict[str, float]:
    world = SimNode(flush_delay_ms=0.1)
    client = CountedClient(world, Counter())
    create_topic(client, "t", 10)
    txn = Producer(client, "p", v2=True)
    txn.init()

    def transaction(width: int) -> None:
        assert set(txn.send("t", {p: [b"x" * 100] for p in range(width)}).values()) == {ErrorCode.none}
        assert txn.end(True) is ErrorCode.none

    def plain() -> None:
        answer = client.ask(ApiKey.PRODUCE, 12, **produce_fields("t", {0: batch(b"x" * 100)}))
        assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none

    def fetch() -> None:
        answer = client.ask(ApiKey.FETCH, 12, **fetch_fields("t", 0, 0))
        assert answer.responses[0].partitions[0].records

    return {
        "plain record": client.count(plain, 10),
        "transaction of 1 partition": client.count(lambda: transaction(1), 10),
        "transaction of 10 partitions": client.count(lambda: transaction(10), 10),
        "fetch of 60 batches": client.count(fetch, 5),
    }


def test_no_operation_does_much_more_than_it_did() -> None:
    found = measure()
    for name, calls in TABLE.items():
        assert found[name] <= calls * JUMP, f"{name}: {found[name]} calls, the table says {calls}"
        assert found[name] >= calls / JUMP / 1.1, f"{name}: only {found[name]} calls: let the table say so"
