"""`sealog dump`: all that is in a file, for people and for programs; what is damaged is named, never a traceback."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.sim_layout import seal
from support.sim_node import SimNode, batch
from support.sim_producer import Producer, create_topic, produce_fields
from support.sim_sealed import export

from broker.cli import main
from raftish.membership import Membership, encode
from storage.numbering import MEMBERSHIP, NOOP, Entry
from tests.storage.replica_chains import Chain
from wire.apis import ApiKey
from wire.records import Record, build_batch


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A settled segment, a sealed one with an open transaction, an active one; partitions 0 to 2 of "t"."""
    world = SimNode()
    create_topic(world.client(), "t", 3)
    producer = Producer(world.client(), "p")
    blocker = Producer(world.client(), "b")
    producer.init()
    blocker.init()
    for commit in (True, False):
        producer.send("t", {0: [b"first", b"second"], 1: [b"\x1b[31mred"]})
        producer.end(commit=commit)
    world.scheduler.advance(1_000)
    seal(world)
    world.scheduler.advance(3_000)
    blocker.send("t", {2: [b"open"]})
    producer.send("t", {2: [b"behind it"]})
    producer.end(commit=False)
    record = Record(b"\xff\x00", None, headers=(("h", b"v"), ("n", None)), timestamp=5)
    world.client().ask(ApiKey.PRODUCE, 9, **produce_fields("t", {1: build_batch([record], compression=4)}))
    seal(world)
    world.client().ask(ApiKey.PRODUCE, 9, **produce_fields("t", {0: batch(b"active")}))
    world.scheduler.advance(1_000)
    return export(world, tmp_path_factory.mktemp("dump") / "data")


@pytest.fixture
def data(exported: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "data"
    shutil.copytree(exported, copy)
    return copy


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["dump", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def items(*arguments: object, exit_code: int = 0) -> list[dict[str, Any]]:
    result = run("--json", *arguments)
    assert result.exit_code == exit_code, result.output
    return [json.loads(line) for line in result.output.splitlines()]


def of(kind: str, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for item in found if item["kind"] == kind]


def segments(data: Path) -> list[Path]:
    return sorted((data / "topics").glob("t.*/*.seg"))


def test_a_topic_of_a_data_folder(data: Path) -> None:
    found = items(data / "t", "--records")
    assert [(one["state"], one["settled"], one["topic"]) for one in of("segment", found)] == [
        ("SEALED", True, "t"),
        ("SEALED", False, None),
        ("ACTIVE", False, None),
    ]
    assert [(one["partition"], one["base_offset"], one["outcome"]) for one in of("batch", found)] == [
        (0, 0, "committed"),
        (1, 0, "committed"),
        (0, 2, "aborted"),
        (1, 1, "aborted"),
        (2, 0, "open"),
        (2, 1, "aborted"),
        (1, 2, None),
        (0, 4, None),
    ]
    assert {one["partition"]: one["aborted"] for one in of("partition", found)[:2]} == {
        0: [[1, 2, 3]],
        1: [[1, 1, 1]],
    }
    records = of("record", found)
    assert [one["value"] for one in records[:3]] == ["first", "second", "\x1b[31mred"]
    assert records[-2] == {
        "kind": "record",
        "partition": 1,
        "offset": 2,
        "timestamp_ms": 5,
        "key": {"base64": "/wA="},
        "value": None,
        "headers": [["h", "v"], ["n", None]],
    }
    assert not of("problem", found)
    assert found == items(next((data / "topics").iterdir()), "--records"), "the same by its folder"


def test_what_is_asked_for(data: Path) -> None:
    def batches(*arguments: object) -> list[tuple[int, int]]:
        return [(one["partition"], one["base_offset"]) for one in of("batch", items(data / "t", *arguments))]

    assert batches("--partition", 0) == [(0, 0), (0, 2), (0, 4)]
    assert batches("--partition", 0, "--from-offset", 1) == [(0, 0), (0, 2), (0, 4)]
    assert batches("--partition", 0, "--from-offset", 2) == [(0, 2), (0, 4)]
    assert batches("--partition", 0, "--from-offset", 4) == [(0, 4)]
    assert batches("--limit", 3) == [(0, 0), (1, 0), (0, 2)]
    assert batches("--limit", 0) == []
    assert batches("--partition", 9) == []
    records = of("record", items(data / "t", "--partition", 0, "--from-offset", 1, "--limit", 1, "--records"))
    assert [one["offset"] for one in records] == [1]


def test_a_file_that_was_copied_elsewhere(data: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "else" / "where" / "deep"
    elsewhere.mkdir(parents=True)
    copy = elsewhere / "copy.seg"
    shutil.copy(segments(data)[0], copy)
    found = items(copy)
    assert {one["outcome"] for one in of("batch", found)} == {"unknown"}
    shutil.copy(segments(data)[0].with_suffix(".settled"), elsewhere / "copy.settled")
    assert {one["outcome"] for one in of("batch", items(copy))} == {"committed", "aborted"}
    (outcomes,) = items(elsewhere / "copy.settled")
    assert (outcomes["topic"], outcomes["partitions"]["0"]) == (
        "t",
        {"first": 0, "end": 4, "aborted": [[1, 2, 3]]},
    )


def test_lines_for_people_have_nothing_a_terminal_would_act_on(data: Path) -> None:
    result = run(data / "t", "--records")
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert '"\\u001b[31mred"' in result.output
    assert "topic t, segment 1, partitions 0-2, sealed, settled, " in result.output
    assert "partition 0: offsets 0 to 4 (excluded)" in result.output
    assert "aborted 2-3 of 1" in result.output
    assert 'key base64:"/wA=" value null headers "h"="v" "n"=null' in result.output
    assert "offsets 2-3, 2 records" in result.output
    assert run(segments(data)[0].with_suffix(".settled")).output.count("aborted") == 2


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_kind_of_damage_has_its_position(data: Path, number: int) -> None:
    path = segments(data)[number]
    content = path.read_bytes()
    sealed = number < 2
    (entry, *_) = of("batch", items(path))
    step = max(1, len(content) // 60) if sealed else 4_001
    for at in [*range(0, len(content), step), entry["position"] + 40]:
        damaged = bytearray(content)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        result = run("--json", path, "--records")
        problems = [json.loads(line) for line in result.output.splitlines() if '"problem"' in line]
        assert all(one["path"] == str(path) and one["position"] >= 0 and one["reason"] for one in problems)
        if at < 4_096 or entry["position"] <= at < entry["position"] + entry["size_bytes"]:
            assert problems, at
            assert result.exit_code == (1 if sealed or at < 4_096 else 0)
    for size in (0, 7, 4_095, 5_000 if sealed else 4_100):
        path.write_bytes(content[:size])
        result = run(path)
        assert result.exit_code in (0, 1)
        assert result.exit_code == 1 or not sealed or size == 5_000
    path.write_bytes(content)
    assert run(path).exit_code == 0


def test_what_is_no_file_of_ours(data: Path, tmp_path: Path) -> None:
    stranger = tmp_path / "x.txt"
    stranger.write_bytes(b"hello" * 2_000)
    for path, said in (
        (stranger, "at byte 0: this is no segment file"),
        (tmp_path / "absent", "no file, and no topic"),
        (data / "nosuchtopic", "no file, and no topic"),
        (tmp_path, "has no segments"),
    ):
        result = run(path)
        assert result.exit_code == 1
        assert said in result.output
    stranger.write_bytes(b"SEALOGST" + b"\1" * 100)
    assert "the header is damaged" in run(stranger).output
    stranger.write_bytes(b"metastor" + b"\1" * 100)
    assert run(stranger).exit_code == 1


def test_the_metadata_store(data: Path) -> None:
    found = items(data / "metadata")
    puts = {one["key"]: one["value"] for one in of("put", found)}
    assert puts["/topic/t"]["partitions"] == 3
    assert puts["/resolved/00000000000000000001"] == {"0": 4, "1": 2}
    assert any(one["key"].startswith("/txn/") for one in of("delete", found))
    assert [one["lsn"] for one in of("put", found)] == sorted(one["lsn"] for one in of("put", found))
    assert '"/topic/t"' in run(data / "metadata").output
    (log,) = (data / "metadata").glob("log-*")
    content = log.read_bytes()
    damaged = bytearray(content)
    damaged[of("put", found)[3]["position"] + 9] ^= 1
    log.write_bytes(damaged)
    (problem,) = of("problem", items(log, exit_code=1))
    assert problem["position"] == of("put", found)[3]["position"]


def test_a_segment_of_a_replicated_range_shows_its_numbers_and_what_its_group_says(tmp_path: Path) -> None:
    chain = Chain(2)
    last = chain.replica.last_index
    packed = encode(Membership(frozenset({1, 2}), frozenset({9})))
    said = [(NOOP, b""), (MEMBERSHIP, packed), (MEMBERSHIP, b"?")]
    chain.replica.write(None, [Entry(2, last + n, *one) for n, one in enumerate(said, 1)])
    paths = []
    for segment in chain.replica.segments:
        paths.append(tmp_path / segment.path.rpartition("/")[2])
        paths[-1].write_bytes(chain.disk.content(segment.path))
    found = items(paths[1])
    (segment_,) = of("segment", found)
    assert segment_["log"] == {"first_index": 6, "last_index": 10, "previous_term": 1, "members": None}
    assert [one["index"] for one in of("batch", found)] == [6, 7, 8, 9]
    assert of("entry", found) == [
        {
            "kind": "entry",
            "position": found[-1]["position"],
            "index": 10,
            "term": 1,
            "says": "roll",
            "child": 3,
            "created_ms": 110,
        }
    ]
    assert not of("entry", items("--partition", 0, paths[1]))
    found = of("entry", items(paths[2]))
    assert [(one["index"], one["says"]) for one in found] == [(13, "noop"), (14, "members"), (15, "members")]
    assert found[1]["members"] == {"voters": [1, 2], "learners": [9]}
    text = run(*paths).output
    assert "entries 6 to 10 after term 1, members unknown" in text
    assert "entry 10 term 1: goes on in segment 3" in text
    assert "entry 14 term 2: voters [1, 2] and learners [9]" in text
    assert "entry 13 term 2: noop" in text
    shown = items(tmp_path)
    assert [one["segment"] for one in of("segment", shown)] == [1, 2, 3]
