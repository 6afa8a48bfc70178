"""A client library that ends its process is one producer's end, and the next producer has another process."""

import os
import signal

import pytest

from tests.crash.clients import Lost, MustAbort
from tests.crash.load import Load
from tests.crash.rdkafka_process import LIBRARY_ABORTED, RdkafkaProcess


class Moody:
    """A producer whose calls end as their arguments say."""

    def __init__(self, address, transactional_id, settings):
        settings["logger"].debug("made for %s", transactional_id)

    def init(self):
        pass

    def begin(self):
        raise MustAbort("begin refused") from ValueError("why")

    def commit(self):
        os.abort()

    def abort(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def send(self, topic, partition, value):
        raise Lost(topic)

    def close(self):
        pass


@pytest.fixture
def process():
    process = RdkafkaProcess(Moody)
    yield process
    process.end()


def test_errors_come_back_as_they_are_with_what_the_library_said(process):
    producer = process("nowhere:1", "id")
    producer.init()
    with pytest.raises(MustAbort, match="begin refused") as raised:
        producer.begin()
    assert "why" in str(raised.value.__cause__)
    assert process.aborts == 0


def test_a_loss_comes_with_what_the_library_said_before_unless_it_was_fenced(process):
    producer = process("nowhere:1", "some-id")
    with pytest.raises(Lost, match="OUT_OF_ORDER") as lost:
        producer.send("OUT_OF_ORDER", 0, b"")
    assert "made for some-id" in str(lost.value.__cause__)
    with pytest.raises(Lost) as fenced:
        producer.send("_FENCED", 0, b"")
    assert "made for" not in str(fenced.value.__cause__)


def test_an_assertion_loses_one_producer_and_the_next_has_another_process(process):
    producer = process("nowhere:1", "id")
    for _ in range(2):
        with pytest.raises(Lost, match=LIBRARY_ABORTED):
            producer.commit()
    producer.close()
    assert process.aborts == 1
    process("nowhere:1", "id").init()


def test_a_process_that_ends_otherwise_is_a_failure(process):
    with pytest.raises(AssertionError, match="ended with -9"):
        process("nowhere:1", "id").abort()


def test_a_loads_librdkafka_workers_have_a_process_each_and_its_report_tells_of_their_ends():
    load = Load("nowhere:1", 1, librdkafka=2, kafka_python=1)
    processes = [worker.factory for worker in load.transactional if worker.library == "librdkafka"]
    assert len(set(map(id, processes))) == 2
    processes[0].aborts, processes[1].aborts = 1, 2
    assert "processes that librdkafka ended: 3" in load.report()
