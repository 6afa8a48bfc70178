"""A whole simulated node under random requests: what it must never do, whatever it is asked.

Never: an exception that no handler expected, a callback that raises, an answer that its own schema cannot read, a node
that serves others no more, a folder that the next start cannot open.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from support.sim_node import SimClient, SimNode, batch
from support.sim_producer import Producer, create_topic, fetch_one, produce_fields

from broker.session import Session
from fuzz import random_requests
from fuzz.data_folder import SETTINGS
from wire import codec
from wire.apis import APIS, ApiKey
from wire.errors import ErrorCode
from wire.header import parse_request_header


class Fault(AssertionError):
    """The broker met an exception that it had not expected."""


def world() -> SimNode:
    made = SimNode(seed=5, flush_delay_ms=0.5, **SETTINGS)
    client = made.client()
    create_topic(client, "t", 3)
    create_topic(client, "c", 1, **{"cleanup.policy": "compact"})
    create_topic(client, "probe", 1)
    for number in range(2):
        producer = Producer(client, f"tx-{number}")
        producer.init()
        producer.send("t", {number: [b"one"]})
        producer.end(number == 0)
    return made


class FuzzClient(SimClient):
    """Reads its answers as any client, and takes a fault of the broker's as one of its own."""

    def __init__(self, made: SimNode) -> None:
        super().__init__(made.node, made.scheduler)
        self.session = Session(made.node, self, "fuzz", on_fault=self._fault)

    @staticmethod
    def _fault() -> None:
        raise Fault("a request failed with an exception that nobody expected")

    def write(self, buffers: Sequence[Any]) -> None:
        try:
            super().write(buffers)
        except codec.MalformedRequest as error:
            # kio cannot read the -1 that Kafka answers for a transaction that has not begun.
            if "negative timestamp" not in str(error):
                raise
            self.close()


def send(client: SimClient, chance: random.Random) -> None:
    """One random request."""
    client._correlation_id += 1
    key, version, frame = random_requests.request(chance, client._correlation_id)
    acks_zero = key == ApiKey.PRODUCE and _acks(frame, version) == 0
    if not acks_zero:
        client._asked.append((key, version, client._correlation_id))
    try:
        client.session.received(frame)
    except Fault as fault:
        raise Fault(f"{APIS[key].name} v{version}: {frame.hex()}") from (fault.__context__ or fault)


def _acks(frame: bytes, version: int) -> int:
    body = memoryview(frame)[4:]
    message = codec.decode_request(ApiKey.PRODUCE, version, body[parse_request_header(body).size_bytes :])
    return int(message.acks)


def probe(made: SimNode) -> None:
    """Others are served, and right."""
    client = made.client()
    answer = client.ask(ApiKey.PRODUCE, 9, **produce_fields("probe", {0: batch(b"probe")}))
    one = answer.responses[0].partition_responses[0]
    if made.node.topics.get("probe") is None or one.error_code is not ErrorCode.none:
        # Somebody deleted it, filled its limits or set them low: that is answered, too.
        return
    got = fetch_one(client, "probe", one.base_offset)
    assert got.error_code is ErrorCode.none, got
    assert b"probe" in bytes(got.records)


def run(chance: random.Random) -> None:
    """Some clients, some requests, some time; then a probe, and often a new start."""
    made = world()
    clients = [FuzzClient(made) for _ in range(2)]
    for _ in range(chance.choice((5, 20, 40))):
        at = chance.randrange(len(clients))
        if clients[at].closed:
            clients[at] = FuzzClient(made)
        send(clients[at], chance)
        if chance.random() < 0.3:
            made.scheduler.advance(chance.choice((1, 50, 600)))
    made.scheduler.advance(chance.choice((100, 70_000)))
    probe(made)
    how = chance.random()
    if how < 0.5:
        made.kill()
    elif how < 0.7:
        made.cut_power()
    elif how < 0.9:
        made.restart()
    probe(made)
