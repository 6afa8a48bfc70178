"""A rolling restart of three real processes whose ranges have groups of their own, with transactions of stock clients
under way all the time: no call fails and none aborts. Both transaction protocols (kafka-clients speaks the second).

kafka-python is left out: it loses a request for good when its connection breaks at the wrong moment
(`tests.crash.clients`), as connections do where a node goes."""

from __future__ import annotations

import threading
import time

from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.adapter_aiokafka import AioKafka
from tests.clients.adapter_confluent import Confluent
from tests.clients.adapter_java import Java
from tests.cluster.brokers import TIMEOUT_S
from tests.cluster.test_operating import status, until
from tests.cluster.test_ranges_processes import RangeBrokers
from tests.crash.isolated import isolated

PARTITIONS = 6
CLIENTS = (Confluent, AioKafka, Java)
STEP_S = 0.05


class Transactions(threading.Thread):
    """One transactional producer after another record, all partitions in each transaction, which takes so long that
    leaders change in the midst of it. It ends with the first call that fails."""

    def __init__(self, client, bootstrap):
        super().__init__(daemon=True)
        self.name = client.name
        self.client = client(bootstrap)
        self.committed: list[bytes] = []
        self.aborted: list[bytes] = []
        self.count = 0
        self.error: BaseException | None = None
        self.stopping = False

    def run(self):
        try:
            producer = self.client.producer(transactional_id=self.name)
            producer.init_transactions()
            while not self.stopping:
                self.one(producer)
            producer.close()
        except BaseException as error:  # noqa: BLE001 - the test's failure
            self.error = error

    def one(self, producer):
        self.count += 1
        values = [f"{self.name}-{self.count}-{n}".encode() for n in range(2 * PARTITIONS)]
        producer.begin()
        for number, value in enumerate(values):
            producer.send("t", number % PARTITIONS, value)
            time.sleep(STEP_S)
        producer.flush()
        if self.count % 5:
            producer.commit()
            self.committed += values
        else:
            producer.abort()
            self.aborted += values


def rolling(folder):
    with RangeBrokers(folder) as brokers:
        brokers.leader()
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        admin.create_topics([NewTopic("t", PARTITIONS, 3)])["t"].result(60)
        loads = [Transactions(client, brokers.bootstrap) for client in CLIENTS]
        for load in loads:
            load.start()

        def go_on():
            """Each has ended transactions since."""
            before = {load: load.count for load in loads}
            deadline = time.monotonic() + TIMEOUT_S
            while waiting := [
                load.name for load in loads if load.count < before[load] + 2 and not load.error
            ]:
                assert time.monotonic() < deadline, f"{waiting} do not go on\n{brokers.logs()}"
                time.sleep(0.05)
            failed = {load.name: repr(load.error) for load in loads if load.error}
            assert not failed, f"{failed}\n{brokers.logs()}"

        def whole():
            """All are there, and leaders are spread again but for what is just being moved."""
            found = status(brokers, 0)
            return found and not found.plan[1:] and not any(node.away for node in found.nodes)

        go_on()
        for node in brokers.nodes:
            assert brokers.terminate(node) == 0
            go_on()
            brokers.launch(node)
            until(whole, f"node {node} does not come back, or leaders are not spread")
            go_on()
        for load in loads:
            load.stopping = True
        for load in loads:
            load.join(60)
            assert not load.is_alive()
            assert load.error is None, repr(load.error)
        seen = read(loads[0].client, sum(len(load.committed) for load in loads))
        assert len(seen) == len(set(seen))
        assert set(seen) == {value for load in loads for value in load.committed}
        return {load.name: (load.count, len(load.aborted)) for load in loads}


def read(client, count):
    consumer = client.consumer()
    consumer.assign([("t", partition) for partition in range(PARTITIONS)])
    values = []
    deadline = time.monotonic() + 60
    while len(values) < count and time.monotonic() < deadline:
        values += [record.value for record in consumer.poll(0.2)]
    values += [record.value for record in consumer.poll(0.5)]
    consumer.close()
    return values


def test_a_rolling_restart_fails_no_call_and_aborts_no_transaction(tmp_path):
    ended = isolated(rolling, tmp_path)
    print(ended)
    assert all(aborted for _, aborted in ended.values())
