"""What a sink did last expires (sink_expiration_ms), never under an undecided batch."""

from __future__ import annotations

import pytest
from support.sim_producer import read_all
from test_group_transactions import World

from txn import keys, sink_expiry
from txn.metastore import Put

EXPIRATION_MS = 100_000
INTERVAL_MS = 10_000


def make_world() -> World:
    return World(
        sink_expiration_ms=EXPIRATION_MS,
        transaction_remove_expired_transaction_cleanup_interval_ms=INTERVAL_MS,
    )


def is_known(world: World, sink: str = "s") -> bool:
    return world.node.store.get(keys.sink(sink)) is not None


@pytest.mark.parametrize("ending", ["", "kill", "restart", "cut_power"])
def test_a_sink_that_commits_nothing_for_long_is_forgotten(ending: str) -> None:
    world = make_world()
    for batch in (1, 2):
        _, member = world.writer("p", 0, b"%d" % batch, batch=batch)
        assert world.commit(member, batch=batch).error == 0
        world.scheduler.advance(EXPIRATION_MS - 2 * INTERVAL_MS)
        assert is_known(world), "each commit counts anew"
    if ending:
        getattr(world, ending)()
    world.scheduler.advance(INTERVAL_MS)
    assert is_known(world)
    world.scheduler.advance(3 * INTERVAL_MS)
    assert not is_known(world)
    world.kill()
    assert not is_known(world)
    assert read_all(world.client(), "t")[0] == [b"1", b"2"]
    _, member = world.writer("q", 0, b"anew", batch=1)
    assert world.commit(member, batch=1).error == 0


def test_one_with_an_undecided_batch_stays() -> None:
    world = make_world()
    _, first = world.writer("p", 0, b"1", batch=1)
    assert world.commit(first, batch=1).error == 0
    world.scheduler.advance(EXPIRATION_MS - INTERVAL_MS // 2)
    _, second = world.writer("p", 0, b"2", batch=2)
    world.scheduler.advance(2 * INTERVAL_MS)
    assert is_known(world)
    assert world.commit(second, batch=2).error == 0
    world.scheduler.advance(EXPIRATION_MS - INTERVAL_MS)
    assert is_known(world)


def test_many_are_forgotten_in_bounded_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_expiry, "SINKS_PER_TURN", 10)
    world = make_world()
    now_ms = world.scheduler.now_ms()
    done = {"batch": 1, "attempt": "a", "members": 1, "done_ms": now_ms}
    world.node.store.apply([Put(keys.sink(f"a/sink {n}"), done) for n in range(95)])
    world.node.store.apply([Put(keys.sink("young"), done | {"done_ms": now_ms + EXPIRATION_MS})])
    world.scheduler.advance(EXPIRATION_MS + 2 * INTERVAL_MS)
    assert [key for key, _ in world.node.store.scan(keys.SINKS)] == [keys.sink("young")]
