"""Watches: a snapshot, then every change once and in order, whatever the callbacks do."""

from __future__ import annotations

from typing import Any

import pytest
from support.sim_disk import SimDisk
from support.sim_loop import SimScheduler

from txn.metastore import (
    Change,
    Delete,
    Entry,
    Event,
    IndexSpec,
    MetaStore,
    Op,
    Put,
    PutSequential,
    Record,
    Schema,
    Snapshot,
    Watch,
)

SCHEMA = Schema(indexes={"at": IndexSpec("/i/", lambda key, value: (value,) if type(value) is int else None)})


class World:
    def __init__(self) -> None:
        self.scheduler = SimScheduler()
        self.store, _ = MetaStore.open(SimDisk(self.scheduler), "meta", SCHEMA, self.scheduler)
        self.calls: list[list[Event]] = []

    def apply(self, *ops: Op) -> None:
        self.store.apply(ops)

    def watch(self, **what: Any) -> Watch:
        return self.store.watch(self.calls.append, **what)

    def told(self) -> list[list[Event]]:
        """The calls since last asked."""
        self.scheduler.run_ready()
        calls = self.calls.copy()
        self.calls.clear()
        return calls


@pytest.fixture
def world() -> World:
    return World()


def test_a_key(world: World) -> None:
    world.apply(Put("/a", 1), Put("/ab", 2))
    world.watch(key="/a")
    assert world.told() == [[Snapshot(1, (Entry("/a", Record(1, 1)),))]]
    world.apply(Put("/a", 2), Put("/ab", 3))
    world.apply(Put("/b", 1))
    world.apply(Delete("/a"))
    world.apply(Put("/a", 4))
    assert world.told() == [
        [
            Change(2, "/a", Record(1, 1), Record(2, 2)),
            Change(4, "/a", Record(2, 2), None),
            Change(5, "/a", None, Record(4, 5)),
        ]
    ]


def test_a_key_that_is_not_there(world: World) -> None:
    world.watch(key="/a")
    assert world.told() == [[Snapshot(0, ())]]


def test_a_prefix(world: World) -> None:
    world.apply(Put("/p/b", 2), Put("/p/a", 1), Put("/q", 9))
    world.watch(prefix="/p/")
    world.apply(Put("/p/c", 3), Put("/q", 8))
    world.apply(PutSequential("/p/n/", 4), Put("/p", 0), Delete("/p/a"), Delete("/p/none"))
    assert world.told() == [
        [
            Snapshot(1, (Entry("/p/a", Record(1, 1)), Entry("/p/b", Record(2, 1)))),
            Change(2, "/p/c", None, Record(3, 2)),
            Change(3, "/p/n/0000000000000001", None, Record(4, 3)),
            Change(3, "/p/a", Record(1, 1), None),
        ]
    ]


def test_prefixes_of_many_lengths_each_hear_of_their_own(world: World) -> None:
    heard: dict[str, list[str]] = {prefix: [] for prefix in ("", "/", "/a", "/a/b", "/a/b/c/d", "/x")}

    def listener(prefix: str) -> Any:
        return lambda events: heard[prefix].extend(e.key for e in events if isinstance(e, Change))

    for prefix in heard:
        world.store.watch(listener(prefix), prefix=prefix)
    world.apply(Put("/a", 1), Put("/a/b", 1), Put("/a/bc", 1), Put("no", 1))
    world.told()
    assert heard == {
        "": ["/a", "/a/b", "/a/bc", "no"],
        "/": ["/a", "/a/b", "/a/bc"],
        "/a": ["/a", "/a/b", "/a/bc"],
        "/a/b": ["/a/b", "/a/bc"],
        "/a/b/c/d": [],
        "/x": [],
    }


def test_one_change_per_key_and_batch(world: World) -> None:
    world.watch(prefix="/")
    world.apply(Put("/a", 1), Put("/a", 2))
    world.apply(Delete("/a"), Put("/a", 3), Put("/b", 1), Delete("/b"))
    (events,) = world.told()
    assert events[1:] == [Change(1, "/a", None, Record(2, 1)), Change(2, "/a", Record(2, 1), Record(3, 2))]


def test_an_index_range_hears_of_enter_leave_move_and_update(world: World) -> None:
    world.apply(Put("/i/in", 5), Put("/i/out", 15), Put("/i/not", None))
    world.watch(index=("at", (3,), (10,)))
    assert world.told() == [[Snapshot(1, (Entry("/i/in", Record(5, 1), (5,)),))]]
    world.apply(Put("/i/out", 9))
    world.apply(Put("/i/in", 6))
    world.apply(Put("/i/in", 6))
    world.apply(Put("/i/in", 10))
    world.apply(Put("/i/in", 11))
    world.apply(Put("/i/out", None))
    world.apply(Put("/i/not", 3))
    world.apply(Delete("/i/not"))
    world.apply(Delete("/i/in"))
    (events,) = world.told()
    assert events == [
        Change(2, "/i/out", Record(15, 1), Record(9, 2), None, (9,)),
        Change(3, "/i/in", Record(5, 1), Record(6, 3), (5,), (6,)),
        Change(4, "/i/in", Record(6, 3), Record(6, 4), (6,), (6,)),
        Change(5, "/i/in", Record(6, 4), Record(10, 5), (6,), None),
        Change(7, "/i/out", Record(9, 2), Record(None, 7), (9,), None),
        Change(8, "/i/not", Record(None, 1), Record(3, 8), None, (3,)),
        Change(9, "/i/not", Record(3, 8), None, (3,), None),
    ]


def test_an_index_range_without_bounds(world: World) -> None:
    world.watch(index=("at", None, None))
    world.apply(Put("/i/a", 1))
    assert [len(call) for call in world.told()] == [2]


def test_bounds_of_another_type_are_their_owners_mistake(world: World) -> None:
    watch = world.watch(index=("at", ("text",), None))
    good = world.watch(index=("at", (0,), None))
    world.apply(Put("/i/a", 1))
    with pytest.raises(TypeError):
        world.told()
    assert watch.cancelled
    assert not good.cancelled
    world.apply(Put("/i/a", 2))
    assert len([e for call in world.told() for e in call if isinstance(e, Change)]) == 2


def test_callbacks_never_run_inside_a_call_of_the_store(world: World) -> None:
    world.watch(key="/a")
    world.apply(Put("/a", 1))
    assert world.calls == []


def test_the_snapshot_is_of_the_moment_of_the_call(world: World) -> None:
    world.apply(Put("/a", 1))
    world.watch(key="/a")
    world.apply(Put("/a", 2))
    assert world.told() == [
        [Snapshot(1, (Entry("/a", Record(1, 1)),)), Change(2, "/a", Record(1, 1), Record(2, 2))]
    ]


def test_changes_made_by_callbacks_come_in_order_and_once(world: World) -> None:
    """Two watches that answer each other: each sees one row of changes without a gap."""
    seen: dict[str, list[int]] = {"left": [], "right": []}

    def listener(name: str, other: str) -> Any:
        def listen(events: list[Event]) -> None:
            for event in events:
                if isinstance(event, Change):
                    assert event.new is not None
                    seen[name].append(event.lsn)
                    if event.key == f"/w/{name}" and event.new.value < 20:
                        world.apply(Put(f"/w/{other}", event.new.value + 1))

        return listen

    world.store.watch(listener("left", "right"), prefix="/w/")
    world.store.watch(listener("right", "left"), prefix="/w/")
    world.apply(Put("/w/left", 0))
    world.told()
    assert seen["left"] == seen["right"] == list(range(1, 22))


def test_a_watch_started_by_a_callback(world: World) -> None:
    def start(events: list[Event]) -> None:
        if isinstance(events[0], Snapshot):
            world.apply(Put("/a", 1))
            world.watch(key="/a")
            world.apply(Put("/a", 2))

    world.store.watch(start, key="/a")
    assert world.told() == [
        [Snapshot(1, (Entry("/a", Record(1, 1)),)), Change(2, "/a", Record(1, 1), Record(2, 2))]
    ]


def test_cancelled_from_inside_its_own_callback(world: World) -> None:
    calls = []

    def once(events: list[Event]) -> None:
        calls.append(events)
        world.apply(Put("/a", 2))
        watch.cancel()
        world.apply(Put("/a", 3))

    watch = world.store.watch(once, key="/a")
    other = world.watch(prefix="/")
    world.apply(Put("/a", 1))
    assert [[event.lsn for event in call] for call in world.told()] == [[0, 1, 2, 3]]
    assert [[event.lsn for event in call] for call in calls] == [[0, 1]]
    assert watch.cancelled
    assert not other.cancelled


def test_cancelled_from_inside_anothers_callback_with_events_queued(world: World) -> None:
    victims: list[Watch] = []
    world.store.watch(lambda events: victims[0].cancel(), key="/a")
    victims.append(world.watch(key="/a"))
    world.apply(Put("/a", 1))
    assert world.told() == []


def test_cancelling_is_harmless_when_repeated_and_leaves_the_others(world: World) -> None:
    watches = [world.watch(key="/i/a"), world.watch(prefix="/i/"), world.watch(index=("at", None, None))]
    twins = [world.watch(key="/i/a"), world.watch(prefix="/i/"), world.watch(index=("at", None, None))]
    world.told()
    for watch in watches:
        watch.cancel()
        watch.cancel()
    world.apply(Put("/i/a", 1))
    assert len(world.told()) == 3
    for watch in twins:
        watch.cancel()
    world.apply(Put("/i/a", 2))
    assert world.told() == []
    assert not world.store._watches


def test_a_callback_that_raises_takes_nothing_from_the_others(world: World) -> None:
    def fails(events: list[Event]) -> None:
        raise RuntimeError("mine")

    world.store.watch(fails, key="/a")
    world.watch(key="/a")
    with pytest.raises(RuntimeError, match="mine"):
        world.told()
    assert world.told() == [[Snapshot(0, ())]]


@pytest.mark.parametrize("what", [{}, {"key": "/a", "prefix": "/"}])
def test_a_watch_is_on_one_thing(world: World, what: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        world.watch(**what)


def test_a_watch_on_an_index_that_the_schema_lacks(world: World) -> None:
    with pytest.raises(KeyError):
        world.watch(index=("nowhere", None, None))
