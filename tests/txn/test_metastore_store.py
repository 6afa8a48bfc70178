"""The whole: values as they come back from disk, limits, what a batch that fails leaves, the real disk."""

from __future__ import annotations

import asyncio
import gc
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sim_disk import SimDisk
from support.sim_loop import SimScheduler

from storage.real_disk import RealDisk
from txn.metastore import (
    ABSENT,
    Check,
    Conflict,
    Delete,
    IndexSpec,
    InvalidOperation,
    LimitExceeded,
    MetaStore,
    Op,
    Options,
    Put,
    PutSequential,
    Schema,
)

SCHEMA = Schema(
    indexes={"n": IndexSpec("/i/", lambda key, value: (value,) if type(value) is int else None)},
    partition_of=lambda key: key.split("/")[1],
)
OPTIONS = Options(max_key_bytes=64, max_value_bytes=1000, max_batch_bytes=3000)


def open_store(disk: SimDisk, options: Options = OPTIONS) -> MetaStore:
    return MetaStore.open(disk, "meta", SCHEMA, disk.scheduler, options)[0]


def fresh() -> MetaStore:
    return open_store(SimDisk(SimScheduler()))


def test_get_scan_count_and_index() -> None:
    store = fresh()
    applied = store.apply([Put("/i/b", 2), Put("/i/a", 9), PutSequential("/q/", "s")])
    assert applied == (1, ("/q/0000000000000001",))
    assert store.get("/i/a") == (9, 1)
    assert store.get("/none") is None
    assert list(store.scan("/i/", after="/i/a", limit=5)) == [("/i/b", (2, 1))]
    assert list(store.scan_index("n", low=(3,))) == [((9,), "/i/a")]
    assert store.count("/i/") == 2
    assert len(store) == 3


def test_partition_of_is_the_schemas_and_binds_nobody() -> None:
    store = fresh()
    assert store.partition_of("/i/a") == "i"
    store.apply([Put("/i/a", 1), Put("/other/a", 1)])
    assert MetaStore.open(SimDisk(SimScheduler()), "m", Schema(), SimScheduler())[0].partition_of("/x") == ""


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.integers(-5, 2**40),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=60)
@given(values=st.lists(plain, min_size=1, max_size=6), snapshot=st.booleans())
def test_values_come_back_as_they_were(values: list[Any], snapshot: bool) -> None:
    scheduler = SimScheduler()
    disk = SimDisk(scheduler)
    options = Options(allocate_bytes=4096, snapshot_log_bytes=1 if snapshot else 10**9)
    store, _ = MetaStore.open(disk, "meta", Schema(), scheduler, options)
    store.apply([Put(f"/{number}", value) for number, value in enumerate(values)])
    scheduler.run_until_idle()
    assert store.stats().snapshots == snapshot
    expected = dict(store.scan(""))
    store.close()
    scheduler.run_until_idle()
    again, _ = MetaStore.open(disk, "meta", Schema(), scheduler, options)
    found = dict(again.scan(""))
    assert found == expected
    assert repr(found) == repr(expected)  # 1, 1.0 and True are equal and not the same


class Colour(Enum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Pair(NamedTuple):
    left: int
    right: int


@pytest.mark.parametrize(
    "value",
    [(1, 2), Pair(1, 2), Colour.RED, Number.ONE, {1, 2}, 2**64, -(2**63) - 1, object(), "\ud800", {(1,): 2}],
    # Not the repr: the address in that of an object differs from one process of a run to the next.
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_would_come_back_as_another_is_refused(value: Any) -> None:
    store = fresh()
    for wrapped in (value, [value], {"k": [{"deep": value}]}):
        with pytest.raises(InvalidOperation):
            store.apply([Put("/a", 1), Put("/b", wrapped)])
    assert len(store) == 0
    assert store.lsn == 0


def test_a_value_nested_without_end_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidOperation):
        fresh().apply([Put("/a", value)])


def test_a_key_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidOperation):
        fresh().apply([Put("/\ud800", 1)])


class TestLimits:
    @pytest.mark.parametrize(
        ("ops", "what"),
        [
            ([Put("/" + "k" * 64, 1)], "64 bytes"),
            ([PutSequential("/" + "k" * 50, 1)], "64 bytes"),
            ([Put("/v", "x" * 1000)], "/v: a value of 1003 bytes, the limit is 1000"),
            ([PutSequential("/q/", b"x" * 1000)], "/q/0000000000000001: a value of 1003 bytes"),
            ([Put(f"/{n}", "x" * 900) for n in range(4)], "the limit is 3000"),
        ],
    )
    def test_nothing_is_applied(self, ops: list[Op], what: str) -> None:
        store = fresh()
        with pytest.raises(LimitExceeded, match=what):
            store.apply([Put("/i/first", 1), *ops])
        assert (store.lsn, len(store), list(store.scan_index("n"))) == (0, 0, [])
        assert store.apply([PutSequential("/q/", 1)]) == (1, ("/q/0000000000000001",))

    def test_up_to_the_limit(self) -> None:
        store = fresh()
        store.apply(
            [Put("/" + "k" * 63, 1), Put("/v", "x" * 997), Put("/w", "x" * 997), Put("/u", "x" * 700)]
        )
        assert len(store) == 4

    @pytest.mark.parametrize(
        "options",
        [
            {"max_batch_bytes": 0},
            {"max_key_bytes": -1},
            {"max_value_bytes": 0},
            {"snapshot_turn_records": 0},
            {"max_batch_bytes": 128 * 1024 * 1024},
        ],
    )
    def test_limits_that_make_no_sense(self, options: dict[str, int]) -> None:
        with pytest.raises(ValueError):
            Options(**options)  # type: ignore[arg-type]


def test_a_batch_that_fails_leaves_no_trace_anywhere() -> None:
    disk = SimDisk(SimScheduler())
    store = open_store(disk)
    store.apply([Put("/i/a", 1)])
    disk.scheduler.run_until_idle()
    events: list[Any] = []
    store.watch(events.extend, prefix="")
    changes = disk.changes
    batches: list[list[Op]] = [
        [Put("/i/b", 2), Check("/i/a", ABSENT)],
        [Delete("/i/a"), Put("/i/c", object())],
        [Put("/i/a", 5), Put("", 1)],
    ]
    for ops in batches:
        with pytest.raises((Conflict, InvalidOperation)):
            store.apply(ops)
    disk.scheduler.run_until_idle()
    assert len(events) == 1
    assert disk.changes == changes
    assert list(store.scan_index("n")) == [((1,), "/i/a")]


def test_a_batch_without_effect_writes_nothing_and_has_the_last_lsn() -> None:
    disk = SimDisk(SimScheduler())
    store = open_store(disk)
    store.apply([Put("/a", 1)])
    disk.scheduler.run_until_idle()
    changes = disk.changes
    for ops in ([], [Check("/a", 1)], [Delete("/none")], [Put("/b", 1), Delete("/b")]):
        assert store.apply(ops) == (1, ())
    disk.scheduler.run_until_idle()
    assert disk.changes == changes


def test_a_number_given_is_spent_even_if_the_batch_deletes_its_key() -> None:
    disk = SimDisk(SimScheduler())
    store = open_store(disk)
    applied = store.apply([PutSequential("/q/", 1), Delete("/q/0000000000000001")])
    assert applied == (1, ("/q/0000000000000001",))
    assert len(store) == 0
    store.close()
    store = open_store(disk)
    assert store.apply([PutSequential("/q/", 1)]).keys == ("/q/0000000000000002",)


def test_versions_and_numbers_go_on_after_a_restart() -> None:
    disk = SimDisk(SimScheduler())
    store = open_store(disk)
    store.apply([Put("/a", 1), PutSequential("/q/", 1)])
    store.apply([Delete("/a"), Delete("/q/0000000000000001")])
    store.close()
    store = open_store(disk)
    assert store.lsn == 2
    assert store.apply([Put("/a", 1, ABSENT), PutSequential("/q/", 1)]) == (3, ("/q/0000000000000002",))
    assert store.get("/a") == (1, 3)


def test_opening_leaves_the_garbage_collector_as_it_was() -> None:
    assert gc.isenabled()
    fresh()
    assert gc.isenabled()
    gc.disable()
    try:
        fresh()
        assert not gc.isenabled()
    finally:
        gc.enable()


class AsyncioScheduler:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.call_soon = loop.call_soon

    def now_ms(self) -> int:
        return 0

    def call_later(self, delay_ms: float, callback: Any, *args: Any) -> Any:
        return self._loop.call_later(delay_ms / 1000, callback, *args)


def test_on_a_real_disk_and_loop(tmp_path: Path) -> None:
    options = Options(
        allocate_bytes=65536, snapshot_log_bytes=20_000, snapshot_turn_records=20, mark_idle_ms=20
    )

    async def serve() -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        disk = RealDisk(tmp_path, loop.call_soon_threadsafe)
        store, _ = MetaStore.open(disk, "meta", SCHEMA, AsyncioScheduler(loop), options)

        async def commit(number: int) -> None:
            for turn in range(20):
                done = loop.create_future()
                key = f"/i/{number}" if turn % 2 else f"/k/{number}/{turn}"
                store.when_durable(store.apply([Put(key, number + turn)]).lsn, done.set_result)
                assert await done is None

        await asyncio.gather(*(commit(number) for number in range(30)))
        deadline = loop.time() + 10
        while not store.stats().snapshots and loop.time() < deadline:
            await asyncio.sleep(0.01)
        assert store.stats().snapshots >= 1
        assert store.stats().flushes < 600
        contents = dict(store.scan(""))
        closed = loop.create_future()
        store.close(closed.set_result)
        assert await closed is None
        disk.close()
        return contents

    expected = asyncio.run(serve())

    async def look() -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        disk = RealDisk(tmp_path, loop.call_soon_threadsafe)
        store, report = MetaStore.open(disk, "meta", SCHEMA, AsyncioScheduler(loop), options)
        assert report.torn is None
        store.close()
        disk.close()
        return dict(store.scan(""))

    assert asyncio.run(look()) == expected
