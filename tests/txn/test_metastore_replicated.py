"""One node's store in a group, under a test's hands: the group commits when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from support.sim_disk import SimDisk
from support.sim_loop import SimScheduler

from txn.metastore import (
    ABSENT,
    BatchLost,
    Change,
    Check,
    Conflict,
    Delete,
    Diverged,
    Entry,
    Event,
    IndexSpec,
    MetaStore,
    NotLeading,
    Options,
    OutcomeUnknown,
    Put,
    PutSequential,
    Record,
    Replicated,
    Schema,
    Snapshot,
    StoreFailed,
    TryAgain,
)
from txn.metastore.loading import Image

SCHEMA = Schema(indexes={"at": IndexSpec("/i/", lambda key, value: (value,) if type(value) is int else None)})
OPTIONS = Options(snapshot_turn_records=2, snapshot_pause_ms=1)


class Node:
    """A `Proposer` as well: what is proposed stands in `log` behind what other nodes put there."""

    def __init__(self, disk: SimDisk | None = None) -> None:
        self.scheduler = SimScheduler()
        self.disk = disk or SimDisk(self.scheduler)
        self.disk.scheduler = self.scheduler
        self.replicated = Replicated.open(self.disk, "m", SCHEMA, self.scheduler, OPTIONS)
        self.view = self.replicated.view
        self.log: dict[int, tuple[bytes, Callable[[], None]]] = {}
        self.last = self.replicated.applied_lsn
        self.refusal: Exception | None = None
        self.outcomes: list[Any] = []

    def next_lsn(self) -> int:
        return self.last + 1

    def propose(self, payload: bytes, lost: Callable[[], None]) -> int:
        if self.refusal is not None:
            raise self.refusal
        self.last += 1
        self.log[self.last] = (payload, lost)
        return self.last

    def lead(self) -> MetaStore:
        """After the first entry of its term."""
        self.last += 1
        self.replicated.passed(self.last, own=False)
        return self.replicated.lead(self)

    def commit(self, upto: int) -> None:
        for lsn in sorted(self.log):
            if self.replicated.applied_lsn < lsn <= upto:
                self.replicated.committed(lsn, self.log[lsn][0], own=True)

    def tell(self, name: str) -> Callable[[Exception | None], None]:
        return lambda error: self.outcomes.append((name, type(error)))

    def told(self) -> list[Any]:
        self.scheduler.run_ready()
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def contents(self) -> dict[str, tuple[Any, int]]:
        return {key: tuple(record) for key, record in self.view.scan("")}


OK = type(None)


def payload(sequence: int, puts: list[Any], deletes: list[str] | None = None) -> bytes:
    packed: bytes = msgpack.packb([sequence, puts, deletes or []])
    return packed


def test_a_leader_applies_at_once_and_what_is_committed_is_durable() -> None:
    node = Node()
    store = node.lead()
    first = store.apply([Put("/a", 1, ABSENT), PutSequential("/q/", 2)])
    second = store.apply([Put("/a", 2, first.lsn)])
    assert (first.lsn, second.lsn) == (2, 3)
    assert first.keys == ("/q/0000000000000001",)
    with pytest.raises(Conflict):
        store.apply([Check("/a", first.lsn)])
    for lsn in (second.lsn, first.lsn):
        store.when_durable(lsn, node.tell(str(lsn)))
    store.when_written(node.tell("written"))
    with pytest.raises(ValueError, match="has not been given"):
        store.when_durable(4, node.tell("never"))
    assert node.told() == []
    assert store.durable_lsn == 1
    node.commit(2)
    assert node.told() == [("2", OK)]
    node.commit(3)
    assert node.told() == [("3", OK), ("written", OK)]
    assert store.durable_lsn == 3


def test_a_refusal_of_the_group_leaves_no_trace() -> None:
    node = Node()
    store = node.lead()
    store.apply([Put("/a", 1)])
    before = node.contents()
    node.refusal = TryAgain("not at this moment")
    with pytest.raises(TryAgain):
        store.apply([Put("/a", 2), PutSequential("/q/", 1)])
    node.refusal = None
    assert node.contents() == before
    assert store.apply([PutSequential("/q/", 1)]).keys == ("/q/0000000000000001",)


def test_who_stops_leading_goes_back_to_what_is_committed() -> None:
    node = Node()
    store = node.lead()
    store.apply([Put("/i/a", 1), Put("/i/b", 2), PutSequential("/q/", 0)])
    node.commit(2)
    committed, index = node.contents(), list(node.view.scan_index("at"))
    store.apply([Delete("/i/a"), Put("/i/b", 3), Put("/i/c", 4), PutSequential("/q/", 1)])
    store.apply([Put("/i/a", 9), Delete("/i/b"), Delete("/q/0000000000000001")])
    assert node.contents() != committed
    node.replicated.follow(7)
    assert node.contents() == committed
    assert list(node.view.scan_index("at")) == index
    with pytest.raises(NotLeading, match="node 7 leads"):
        store.apply([Put("/a", 1)])
    again = node.lead()
    assert again.apply([PutSequential("/q/", 2)]).keys == ("/q/0000000000000002",)


def test_who_waits_at_the_end_hears_that_the_outcome_is_not_known() -> None:
    node = Node()
    store = node.lead()
    for value in range(4):
        lsn = store.apply([Put("/a", value)]).lsn
        store.when_durable(lsn, node.tell(str(lsn)))
    store.when_failed(node.tell("failed"))
    node.commit(2)
    node.replicated.follow(None)
    # In the same turn, the group cut off what stood from there on.
    for lsn in (5, 4):
        node.log[lsn][1]()
    assert node.outcomes == [], "whoever owns the store ends first"
    expected = [("2", OK), ("3", OutcomeUnknown), ("4", BatchLost), ("5", BatchLost), ("failed", NotLeading)]
    assert node.told() == expected
    assert isinstance(store.failure, NotLeading)
    assert issubclass(OutcomeUnknown, StoreFailed)


def test_an_lsn_of_an_old_leadership_is_never_taken_for_another_batchs() -> None:
    node = Node()
    old = node.lead()
    old.apply([Put("/a", 1)])
    lsn = old.apply([Put("/a", 2)]).lsn
    node.commit(2)
    node.replicated.follow(None)
    for entry in (3, 4):
        node.replicated.committed(entry, payload(1, ["/b", entry]), own=False)
    assert node.view.durable_lsn == 4
    old.when_durable(2, node.tell("committed"))
    old.when_durable(lsn, node.tell("unknown"))
    old.when_record_durable("/b", node.tell("record"))
    assert sorted(node.told()) == [("committed", OK), ("record", NotLeading), ("unknown", OutcomeUnknown)]
    assert old.durable_lsn == 2


def test_another_leaders_entry_takes_back_what_is_uncommitted_before_it_is_applied() -> None:
    node = Node()
    store = node.lead()
    store.apply([Put("/a", "mine")])
    node.replicated.committed(2, payload(5, ["/a", "theirs"]), own=False)
    assert node.contents() == {"/a": ("theirs", 2)}


def test_a_follower_applies_what_is_committed_and_lets_gaps_pass() -> None:
    node = Node()
    node.replicated.follow(3)
    node.view.when_durable(6, node.tell("at 6"))
    with pytest.raises(NotLeading) as refused:
        node.view.apply([Put("/a", 1)])
    assert refused.value.leader == 3
    node.replicated.passed(1, own=False)
    node.replicated.committed(2, payload(3, ["/a", 1, "/i/x", 5]), own=False)
    node.replicated.passed(5, own=False)
    assert node.told() == []
    node.replicated.committed(6, payload(3, ["/i/x", 6], ["/a"]), own=False)
    assert node.told() == [("at 6", OK)]
    assert node.contents() == {"/i/x": (6, 6)}
    assert list(node.view.scan_index("at")) == [((6,), "/i/x")]
    node.replicated.committed(6, payload(1, ["/no", 1]), own=False)
    assert node.contents() == {"/i/x": (6, 6)}, "what is applied is passed over"


@pytest.mark.parametrize(
    "bad",
    [payload(1, [], ["/absent"]), payload(1, ["/a"]), b"\xc1", b"\x01", payload(1, ["/", 1], ["/gone"])],
)
def test_a_batch_that_does_not_fit_is_refused_with_nothing_applied(bad: bytes) -> None:
    node = Node()
    node.replicated.committed(1, payload(1, ["/i/n", 1]), own=False)
    before = node.contents()
    with pytest.raises(Diverged):
        node.replicated.committed(2, bad, own=False)
    assert node.contents() == before
    assert node.replicated.applied_lsn == 1


def test_watches_hear_of_what_is_committed_on_the_leader_too() -> None:
    node = Node()
    store = node.lead()
    store.apply([Put("/i/a", 1), Put("/k", 1)])
    node.commit(2)
    store.apply([Put("/i/a", 5), Delete("/k"), Put("/i/b", 2)])
    calls: dict[str, list[Event]] = {}
    for name, what in {"p": {"prefix": ""}, "k": {"key": "/k"}, "i": {"index": ("at", (1,), (3,))}}.items():
        store.watch(calls.setdefault(name, []).extend, **what)  # type: ignore[arg-type]
    node.scheduler.run_ready()
    a, k = Record(1, 2), Record(1, 2)
    assert calls["p"] == [Snapshot(2, (Entry("/i/a", a), Entry("/k", k)))]
    assert calls["k"] == [Snapshot(2, (Entry("/k", k),))]
    assert calls["i"] == [Snapshot(2, (Entry("/i/a", a, (1,)),))]
    node.commit(3)
    store.apply([Put("/k", "never")])
    node.replicated.follow(None)
    node.scheduler.run_ready()
    assert calls["k"][1:] == [Change(3, "/k", k, None)]
    assert calls["i"][1:] == [
        Change(3, "/i/a", a, Record(5, 3), (1,), None),
        Change(3, "/i/b", None, Record(2, 3), None, (2,)),
    ]
    assert len(calls["p"]) == 4


def test_a_restored_state_is_told_as_a_new_snapshot() -> None:
    node = Node()
    calls: list[Event] = []
    index: list[Event] = []
    node.view.watch(calls.extend, prefix="/a")
    node.view.watch(index.extend, index=("at", None, None))
    node.replicated.committed(1, payload(1, ["/a", 1, "/i/x", 1]), own=False)
    node.view.when_durable(8, node.tell("8"))
    image = Image(records={"/a2": Record(7, 9), "/i/y": Record(3, 4)}, lsn=9, next_sequence=4, note=["n"])
    node.replicated.restore(image)
    node.replicated.committed(10, payload(4, ["/a3", 1], ["/a2"]), own=False)
    node.replicated.restore(Image(lsn=5))
    assert node.told() == [("8", OK)]
    assert calls[1:] == [
        Change(1, "/a", None, Record(1, 1)),
        Snapshot(9, (Entry("/a2", Record(7, 9)),)),
        Change(10, "/a3", None, Record(1, 10)),
        Change(10, "/a2", Record(7, 9), None),
    ]
    assert index[-1] == Snapshot(9, (Entry("/i/y", Record(3, 4), (3,)),))
    assert node.replicated.note == ["n"]
    assert node.replicated.applied_lsn == 10


def test_a_snapshot_is_of_what_was_committed_and_says_as_of_when() -> None:
    node = Node()
    store = node.lead()
    store.apply([Put(f"/{n}", n) for n in range(6)] + [PutSequential("/q/", 0)])
    node.commit(2)
    node.last += 1
    node.replicated.passed(3, own=True)
    expected = node.contents()
    store.apply([Delete("/0"), Put("/1", "x"), Put("/new", 1), PutSequential("/q/", 1)])
    published: list[int] = []
    node.replicated.snapshots.published = published.append
    node.replicated.snapshot(["a note"])
    node.replicated.snapshot(["another"])
    node.scheduler.run_turn()
    store.apply([Put("/2", "y"), Delete("/5")])
    node.replicated.follow(None)
    node.scheduler.run_until_idle()
    assert published == [3]
    again = Node(node.disk.crash(1, keep="none"))
    assert again.contents() == expected
    assert (again.replicated.applied_lsn, again.replicated.note) == (3, ["a note"])
    assert again.lead().apply([PutSequential("/q/", 1)]).keys == ("/q/0000000000000002",)


def test_a_snapshot_that_cannot_be_written_is_given_up_and_the_old_one_stays() -> None:
    node = Node()
    node.replicated.committed(1, payload(1, ["/a", 1]), own=False)
    node.replicated.snapshot([1])
    node.scheduler.run_until_idle()
    node.replicated.committed(2, payload(1, ["/a", 2]), own=False)
    for kind in ("create", "write", "flush", "rename"):
        node.disk.fail(kind, "snapshot")
        node.replicated.snapshot([2])
        node.scheduler.run_until_idle()
        assert node.view.stats().snapshot_error is not None, kind
        assert Node(node.disk.kill()).contents() == {"/a": (1, 1)}
        node = Node(node.disk.kill())
        node.replicated.committed(2, payload(1, ["/a", 2]), own=False)


def test_closing_a_leaders_store_waits_for_what_is_under_way() -> None:
    node = Node()
    store = node.lead()
    store.apply([Put("/a", 1)])
    store.close(node.tell("closed"))
    with pytest.raises(StoreFailed):
        store.apply([Put("/a", 2)])
    assert node.told() == []
    node.commit(2)
    assert node.told() == [("closed", OK)]
    assert store.closed
    assert not node.view.closed


def test_a_store_that_cannot_be_known_to_be_committed_closes_with_the_reason() -> None:
    node = Node()
    store = node.lead()
    store.apply([Put("/a", 1)])
    store.close(node.tell("closed"))
    node.replicated.follow(2)
    assert node.told() == [("closed", NotLeading)]


def test_a_node_that_fails_ends_its_stores() -> None:
    node = Node()
    store = node.lead()
    lsn = store.apply([Put("/a", 1)]).lsn
    store.when_durable(lsn, node.tell("durable"))
    node.view.when_failed(node.tell("view"))
    node.view.when_durable(99, node.tell("99"))
    node.replicated.fail(StoreFailed("the disk is gone"))
    assert sorted(node.told()) == [("99", StoreFailed), ("durable", OutcomeUnknown), ("view", StoreFailed)]
    with pytest.raises(StoreFailed, match="the disk is gone"):
        node.view.apply([Put("/a", 1)])
    node.view.when_durable(99, node.tell("later"))
    assert node.told() == [("later", StoreFailed)]
    assert node.contents() == {}
