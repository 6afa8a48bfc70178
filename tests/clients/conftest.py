"""The broker, the clients and the topics of the behaviour tests.

By default one sealog process serves the whole session. `SEALOG_TEST_BOOTSTRAP=host:port` uses a running
broker instead, Apache Kafka unless `SEALOG_TEST_BROKER=sealog` says otherwise: the same scenarios must hold
there, which is what proves the scenarios themselves. Where sealog differs on purpose, a test says
`sealog_only(reason)`.
"""

import itertools
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack

import pytest

from tests.clients.client_adapters import CLIENTS
from tests.clients.driver_process import running
from tests.clients.fixtures import Broker, Opened
from tests.clients.raw_kafka import RawKafka
from tests.support.broker_process import BrokerProcess
from tests.support.left_out import leave_out

_run = f"{os.getpid():x}{int(time.time()) & 0xFFFFFF:x}"
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    if bootstrap := os.environ.get("SEALOG_TEST_BOOTSTRAP"):
        is_sealog = os.environ.get("SEALOG_TEST_BROKER", "kafka") == "sealog"
        yield Broker(bootstrap, is_sealog, None)
        return
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as server:
        assert server.process is not None
        yield Broker(server.address, True, server.process.pid)
        server.sigterm()


@pytest.fixture
def sealog_only(broker: Broker) -> Callable[[str], None]:
    """Called first in a test of a deliberate difference: against Apache Kafka it is left out, and listed."""

    def check(reason: str) -> None:
        if not broker.is_sealog:
            leave_out("left out: sealog differs from Apache Kafka here on purpose", reason)

    return check


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows what the drivers wrote to their stderr."""
    report = yield
    if report.failed:
        report.sections += [(f"stderr of {driver.name}", driver.stderr_tail()) for driver in running]
    return report


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Names that no other test of this or an earlier run has used."""
    return lambda word: f"{word}-{_run}-{next(_numbers)}"


@pytest.fixture
def raw(broker: Broker) -> Iterator[RawKafka]:
    with RawKafka(broker.bootstrap) as connection:
        yield connection


@pytest.fixture
def topic(raw: RawKafka, unique: Callable[[str], str]) -> Callable[..., str]:
    """Create a topic: topic(partitions=1) -> its name."""

    def create(partitions: int = 1) -> str:
        name = unique("topic")
        raw.create_topic(name, partitions)
        return name

    return create


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def clients(request: pytest.FixtureRequest, broker: Broker) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield Opened(request.param(broker.bootstrap), stack)
