"""A segment may have more aborted transactions than one batch of the metadata store holds: its end is no trouble."""

from __future__ import annotations

from functools import partial

import pytest
from support.sim_admin import SET, TOPIC, change, delete_records, delete_topic, run_turns
from support.sim_layout import files_on_disk, seal
from support.sim_node import SimNode
from support.sim_producer import Producer, create_topic, list_offset, read_all

from txn import keys
from txn.metastore import Options
from wire.errors import ErrorCode

ABORTS = 260
BATCH_BYTES = 12_000


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> SimNode:
    """A sealed segment whose aborted ranges take more bytes to name than a batch may have; "other" is not touched."""
    monkeypatch.setattr("broker.node.Options", partial(Options, max_batch_bytes=BATCH_BYTES))
    for module in ("settlement", "outcomes"):
        monkeypatch.setattr(f"txn.{module}.BATCH_OPS", 50)
    world = SimNode(retention_check_interval_ms=1_000, producer_id_expiration_ms=60_000)
    create_topic(world.client(), "t")
    create_topic(world.client(), "other")
    producer = Producer(world.client(), "p")
    producer.init()
    for number in range(ABORTS):
        producer.send("t", {0: [b"%d" % number]})
        if number < 3:
            producer.send("other", {0: [b"%d" % number]})
        producer.end(commit=number % 100 == 2)
    world.scheduler.advance(5_000)
    assert len("".join(path for path, _ in world.node.store.scan(keys.ABORTED))) > BATCH_BYTES
    seal(world)
    return world


def aborted(world: SimNode) -> int:
    return world.node.store.count(keys.ABORTED)


def assert_only_others_are_left(world: SimNode) -> None:
    assert aborted(world) == 2
    assert world.node.store.count(keys.RESOLVED) == 1
    assert read_all(world.client(), "other")[0] == [b"2"]


def test_deleting_the_topic(world: SimNode) -> None:
    assert delete_topic(world.client(), "t") is ErrorCode.none
    world.scheduler.advance(1_000)
    assert_only_others_are_left(world)


def test_deleting_the_records(world: SimNode) -> None:
    assert delete_records(world.client(), "t", {0: ABORTS - 10}) == {0: (ErrorCode.none, ABORTS - 10)}
    run_turns(world, 20)
    assert aborted(world) == 2 + 10
    world.scheduler.advance(5_000)
    assert read_all(world.client(), "t") == ([], ABORTS)


def test_retention(world: SimNode) -> None:
    assert change(world.client(), TOPIC, "t", [("retention.bytes", SET, "1")])[0] is ErrorCode.none
    world.scheduler.advance(3_000)
    assert list_offset(world.client(), "t", at=-2) == ABORTS
    # The producers are forgotten at last, and with them goes the segment that remembers them for a start.
    world.scheduler.advance(120_000)
    assert len(files_on_disk(world)) == 2
    assert_only_others_are_left(world)


@pytest.mark.parametrize("turn", [1, 7, 10])
def test_a_stop_in_the_middle_leaves_nothing_for_long(world: SimNode, turn: int) -> None:
    assert delete_topic(world.client(), "t") is ErrorCode.none
    run_turns(world, turn)
    between = aborted(world)
    world.cut_power(keep="none") if turn == 7 else world.kill()
    world.scheduler.advance(5_000)
    assert_only_others_are_left(world)
    assert between <= ABORTS
