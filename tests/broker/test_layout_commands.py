"""`sealog layout`, `split`, `merge`, `seal` against a real process, and the picture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from broker.cli import main
from broker.layout_picture import draw
from tests.clients.raw_kafka import RawKafka
from tests.support.broker_process import BrokerProcess
from wire.layouts import Response, Segment


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("layout") / "data") as process:
        with RawKafka(process.address) as raw:
            raw.create_topic("t", 12)
        yield process


def run(server: BrokerProcess, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--bootstrap-server", server.address])


def test_the_whole_way(server: BrokerProcess) -> None:
    assert run(server, "split", "t", "--into", "3").output == "now: 0-3, 4-7, 8-11\n"
    assert run(server, "split", "t", "--at", "4,8").output == "already: 0-3, 4-7, 8-11\n"
    assert run(server, "split", "t", "--at", "2").output == "now: 0-1, 2-3, 4-7, 8-11\n"
    assert run(server, "merge", "t", "--range", "2-7").output == "now: 0-1, 2-7, 8-11\n"
    assert "nothing to seal" in run(server, "seal", "t").output
    picture = run(server, "layout", "t").output
    assert "t: 12 partitions in 3 ranges, 7 segments, layout epoch" in picture
    assert picture.count(" active ") - picture.count("█ active") == 3
    plan = run(server, "layout", "t", "--plan").output.splitlines()
    assert [line.split()[:2] for line in plan] == [["none", "0-1"], ["none", "2-7"], ["none", "8-11"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("layout", "nothing"), "there is no topic 'nothing'"),
        (("split", "t", "--at", "12"), "has partitions 0 to 11"),
        (("split", "t", "--at", "x"), "is not P[,P...]"),
        (("split", "t"), "either --at or --into"),
        (("merge", "t", "--range", "1-5"), "are not whole ranges; there are"),
        (("merge", "t", "--range", "15"), "is not FIRST-LAST"),
        (("seal", "t", "--partition", "12"), "unknown_topic_or_partition"),
    ],
)
def test_what_is_wrong_is_said(server: BrokerProcess, words: tuple[str, ...], said: str) -> None:
    result = run(server, *words)
    assert result.exit_code != 0
    assert said in result.output


def test_a_broker_that_is_not_there() -> None:
    result = CliRunner().invoke(main, ["layout", "t", "--bootstrap-server", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "127.0.0.1:1" in result.output


def segment(number: int, first: int, last: int, *parents: int, **more: object) -> Segment:
    defaults = {"state": "SEALED", "created_ms": 0, "term": 1, "size_bytes": 2_000_000, "records": 12_345}
    return Segment(id=number, first=first, last=last, parents=parents, **(defaults | more))  # type: ignore[arg-type]


def test_the_picture() -> None:
    response = Response(
        ranges=((0, 1), (2, 3)),
        epoch=5,
        segments=(
            segment(1, 0, 3, open=2),
            segment(2, 0, 1, 1, state="ACTIVE"),
            segment(3, 2, 3, 1, state="ACTIVE"),
            segment(4, 2, 3, 3, state="ACTIVE", size_bytes=100, records=0),
        ),
    )
    assert draw("t", response, 80) == [
        "t: 4 partitions in 2 ranges, 4 segments, layout epoch 5",
        "",
        " segment  0                      3  state        size    records  open  since",
        "       1  ░░░░░░░░░ 0-3 ░░░░░░░░░░  sealed    1.9 MiB     12,345     2  1970-01-01 00:00:00Z",
        "       2  ███ 0-1 ████              active    1.9 MiB     12,345        1970-01-01 00:00:00Z",
        "       3              ▒▒▒ 2-3 ▒▒▒▒  full      1.9 MiB     12,345        1970-01-01 00:00:00Z",
        "       4              ███ 2-3 ████  active      100 B          0        1970-01-01 00:00:00Z",
        "",
        "█ active   ▒ handed over, not sealed yet   ░ sealed",
        "open: transactions with records there that have no outcome yet",
    ]
