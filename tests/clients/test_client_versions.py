"""What every client really sends is served: each API and version of its requests, taken down by a proxy on the way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.clients.api_recorder import ApiRecorder
from tests.clients.client_adapters import CLIENTS
from tests.clients.fixtures import Opened
from tests.clients.raw_kafka import RawKafka
from tests.clients.scenario_tools import take, transaction, values
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.left_out import leave_out
from wire.apis import APIS, ApiKey

PRODUCE_AT_LEAST = {client.name: 3 for client in CLIENTS} | {"kafka-clients": 12, "franz-go": 12}
"""The newest clients write by transactions v2 (KIP-890), where the server has them."""


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiRecorder]:
    """A proxy before a broker that gives its clients the proxy's address."""
    if "SEALOG_TEST_BOOTSTRAP" in os.environ:
        leave_out(
            "left out: sealog differs from Apache Kafka here on purpose", "it is sealog's table of versions"
        )
    folder = tmp_path_factory.mktemp("recorded")
    port = free_port()
    with ApiRecorder(port) as recorder:
        (folder / "sealog.toml").write_text(f'advertised_listener = "{recorder.address}"')
        with BrokerProcess(
            folder / "data", port=port, args=["--config", str(folder / "sealog.toml")]
        ) as process:
            recorder.sent.clear()
            yield recorder
            process.sigterm()


@pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: kind.name)
def test_every_request_is_of_a_version_that_is_served(recorder: ApiRecorder, kind: type) -> None:
    name = f"of-{kind.name}"
    with RawKafka(f"127.0.0.1:{recorder.target_port}") as raw:
        raw.create_topic(name, 1)
    recorder.sent.clear()
    with ExitStack() as stack:
        clients = Opened(kind(recorder.address), stack)
        if clients.can("transactional_id"):
            producer = clients.producer(transactional_id=f"{name}.tx")
            transaction(producer, {(name, 0): [b"no"]}, commit=False)
            transaction(producer, {(name, 0): [b"yes"]})
        else:
            producer = clients.producer()
            producer.send(name, 0, b"yes")
            producer.flush()
        consumer = clients.consumer(group=f"{name}.group")
        consumer.subscribe(name)
        assert values(take(consumer, 1)) == [b"yes"]
        consumer.commit({(name, 0): 2})
        assert consumer.committed((name, 0)) == 2

    # Of ApiVersions any version is answered: that is how a client finds out.
    asked = {(key, version) for key, version in recorder.sent if key != ApiKey.API_VERSIONS}
    unserved = {
        (key, version)
        for key, version in asked
        if key not in APIS or not APIS[key].min_served <= version <= APIS[key].max_version
    }
    assert unserved == set()
    wanted = {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP}
    wanted |= {ApiKey.SYNC_GROUP, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH}
    if clients.can("transactional_id"):
        wanted |= {ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN}
    assert wanted <= {key for key, _ in asked}, "the scenario reaches what it is for"
    assert min(recorder.versions(ApiKey.PRODUCE)) >= PRODUCE_AT_LEAST[kind.name]
