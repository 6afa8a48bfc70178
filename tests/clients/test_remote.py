"""The adapter for clients of other languages itself, against a driver of a few lines that does as it is told."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from tests.clients import remote
from tests.clients.adapter_base import Record
from tests.clients.driver_process import DriverDied, DriverRefused, running
from tests.clients.remote import RemoteClient, RemoteConsumer, RemoteProducer
from tests.support.left_out import SECTIONS

DRIVER = """
import json, sys, time
for line in sys.stdin:
    request = json.loads(line)
    answer, asked = {"id": request["id"], "ok": True, "result": None}, request.get("topic")
    if request["op"] in ("producer", "consumer"):
        answer["result"] = 5
    elif request["op"] == "poll":
        answer["result"] = [
            {"topic": "t", "partition": 1, "offset": 7, "key": None, "value": "AP8=", "headers": [["h", ""]]}
        ]
    elif request["op"] == "begin":
        answer = {"id": request["id"], "ok": False, "error": {"class": "Fenced", "message": "why", "fenced": True}}
    elif asked == "hang":
        print("about to hang", file=sys.stderr, flush=True)
        time.sleep(600)
    elif asked == "leave":
        sys.exit("it had enough")
    elif asked == "babble":
        print("no JSON")
    elif asked == "late":
        answer["id"] -= 1
    print(json.dumps(answer), flush=True)
"""


class Scripted(RemoteClient):
    name = "scripted"
    lacks: ClassVar[Mapping[str, str]] = {
        "transactional_id": "it never learned how",
        "compression=zstd": "nor this",
        "seek": "nor that",
    }

    @classmethod
    def command(cls) -> Sequence[str]:
        return [sys.executable, "-c", DRIVER]


@pytest.fixture
def client() -> Iterator[Scripted]:
    yield Scripted("nowhere")
    for driver in [driver for driver in running if driver.name == Scripted.name]:
        driver.end()


def test_what_is_sent_and_what_comes_back(client: Scripted) -> None:
    consumer = client.consumer(group="g")
    assert consumer.poll(0.1) == [Record("t", 1, 7, None, b"\x00\xff", (("h", b""),))]
    consumer.close()
    consumer.close()


def test_a_refusal_is_an_error_of_the_client(client: Scripted) -> None:
    with pytest.raises(DriverRefused, match="Fenced: why") as caught:
        client.producer().begin()
    assert client.is_fenced(caught.value)
    assert not client.is_fenced(RuntimeError())


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("hang", "no answer for (.|\n)*about to hang"),
        ("leave", "it ended(.|\n)*it had enough"),
        ("babble", "JSONDecodeError"),
        ("late", "an answer to 1 for request 2"),
    ],
)
def test_a_driver_that_fails_is_ended_and_the_next_user_gets_another(
    client: Scripted, monkeypatch: pytest.MonkeyPatch, topic: str, said: str
) -> None:
    monkeypatch.setattr(remote, "CALL_TIMEOUT_S", 2.0)
    monkeypatch.setattr(remote, "HANG_S", 0.0)
    producer = client.producer()
    first = Scripted.driver()
    with pytest.raises(DriverDied, match=said):
        producer.send(topic, 0, b"")
    assert not first.alive
    producer.close()
    client.producer().flush()
    assert Scripted.driver() is not first


@pytest.mark.parametrize(
    "use",
    [
        lambda client: client.producer(transactional_id="t"),
        lambda client: client.producer(compression="zstd"),
        lambda client: client.consumer().seek(("t", 0), 1),
    ],
)
def test_what_a_client_lacks_is_left_out_and_listed(
    client: Scripted, use: Callable[[Scripted], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: dict[str, list[str]] = {}
    monkeypatch.setattr("tests.support.left_out.SECTIONS", listed)
    with pytest.raises(pytest.skip.Exception, match=r"never learned|nor"):
        use(client)
    ((line,),) = listed.values()
    assert "test_what_a_client_lacks" in line
    assert not any("test_what_a_client_lacks" in line for lines in SECTIONS.values() for line in lines)


def test_what_it_does_not_lack_goes_through(client: Scripted) -> None:
    producer = client.producer(compression="gzip", idempotent=True)
    assert isinstance(producer, RemoteProducer)
    consumer = client.consumer()
    assert isinstance(consumer, RemoteConsumer)
    producer.send_offsets(consumer, {("t", 0): 1})
