"""A Kafka Streams application over power cuts: its open transaction is gone, it hears so, and counts on exactly.

It lives on if the power goes before it sends the offsets of its transaction. Between these and the answer to its commit
no error would do: kafka-clients 4.3.1 hands on none from EndTxn that both a plain producer and Streams go on after,
and plain producers are spared. Streams' own handler of uncaught exceptions says then whether it starts again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.clients.adapter_confluent import Confluent
from tests.clients.fixtures import Opened
from tests.clients.test_kafka_streams import Stream
from tests.crash.rounds import PoweredMachine
from tests.crash.test_client_power_cut import cut_power, machine
from tests.support.streams_app import CountWords

__all__ = ("machine",)


@pytest.fixture
def stream(machine: PoweredMachine) -> Iterator[Stream]:
    with ExitStack() as stack:
        yield Stream(machine.broker, Opened(Confluent(machine.broker.address), stack), "count-words")


def test_counts_are_exact_over_power_cuts(machine: PoweredMachine, stream: Stream, tmp_path: Path) -> None:
    with CountWords(
        machine.broker.address, stream.application, stream.source, stream.sink, tmp_path / "state"
    ) as app:
        for _ in range(2):
            stream.write(500)
            stream.read_more(100, app)
            stream.pause_in_a_transaction(app)
            cut_power(machine)
            app.go_on()
            stream.write(500)
            stream.read_all(app)
