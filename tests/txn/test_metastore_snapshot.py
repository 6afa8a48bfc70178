"""Snapshots are written beside the service, and one that fails costs nothing but a longer log."""

from __future__ import annotations

import errno

import pytest
from support.sim_disk import SimDisk
from support.sim_loop import SimScheduler

from txn.metastore import Delete, MetaStore, Options, Put, PutSequential, Record, Schema, StoreFailed
from txn.metastore.snapshot import Phase

OPTIONS = Options(
    allocate_bytes=4096,
    snapshot_log_bytes=4000,
    snapshot_turn_records=4,
    snapshot_turn_bytes=1000,
    snapshot_pause_ms=1,
)


class World:
    def __init__(self, options: Options = OPTIONS) -> None:
        self.scheduler = SimScheduler()
        self.disk = SimDisk(self.scheduler)
        self.options = options
        self.open()

    def open(self) -> None:
        self.store, self.report = MetaStore.open(self.disk, "m", Schema(), self.scheduler, self.options)

    def reopen(self) -> None:
        """Lose everything that is not durable."""
        self.scheduler = SimScheduler()
        self.disk = self.disk.crash(0, keep="none", scheduler=self.scheduler)
        self.open()

    def fill(self, keys: int, size: int = 100) -> None:
        for number in range(keys):
            self.store.apply([Put(f"/{number:03d}", "x" * size)])

    def contents(self) -> dict[str, Record]:
        return dict(self.store.scan(""))

    def settle(self) -> None:
        self.scheduler.run_until_idle()


def test_the_log_before_a_snapshot_goes() -> None:
    world = World()
    world.fill(30)
    expected = world.contents()
    assert world.disk.list("m") == ["log-0000000001"]
    world.settle()
    assert world.disk.list("m") == ["log-0000000002", "snapshot-0000000002"]
    assert world.store.stats().snapshots == 1
    assert world.store.stats().log_bytes < 100
    world.reopen()
    assert world.contents() == expected
    assert (world.report.snapshot_lsn, world.report.batches) == (30, 0)


def test_a_snapshot_and_the_log_after_it_are_the_state() -> None:
    world = World()
    world.fill(30)
    world.settle()
    world.store.apply([Put("/000", "new"), Delete("/001"), PutSequential("/q/", 1)])
    expected = world.contents()
    world.settle()
    world.reopen()
    assert world.contents() == expected
    assert (world.report.snapshot_lsn, world.report.batches) == (30, 1)
    assert world.store.apply([PutSequential("/q/", 2)]).keys == ("/q/0000000000000002",)


def test_the_counters_survive_in_a_snapshot_of_nothing() -> None:
    world = World()
    for _ in range(30):
        (key,) = world.store.apply([PutSequential("/q/", "x" * 100)]).keys
        world.store.apply([Delete(key)])
    world.settle()
    assert world.store.stats().snapshots == 1
    world.reopen()
    assert (len(world.store), world.store.lsn) == (0, 60)
    assert world.store.apply([PutSequential("/q/", 1)]) == (61, ("/q/0000000000000031",))


def test_a_turn_writes_a_bounded_number_of_records() -> None:
    world = World()
    world.fill(40)
    counts = []
    before = 0
    while not world.store.stats().snapshots:
        world.scheduler.run_turn() or world.scheduler.advance(1)
        work = world.store._snapshots._work
        if work is not None and work.records != before:
            counts.append(work.records - before)
            before = work.records
    assert sum(counts) == 40
    assert set(counts) == {4}


def test_a_turn_writes_a_bounded_number_of_bytes() -> None:
    world = World(Options(allocate_bytes=4096, snapshot_log_bytes=4000, snapshot_turn_bytes=250))
    world.fill(40)
    world.settle()
    snapshot = "m/snapshot-0000000002"
    assert world.store.stats().snapshots == 1
    # A header, 14 stretches of 3 records (the third passes 250 bytes), and the end.
    assert world.disk.writes[snapshot + ".new"] == 1 + 14 + 1


def test_service_goes_on_and_what_changes_meanwhile_is_not_in_the_snapshot() -> None:
    world = World()
    world.fill(40)
    expected = None
    for number in range(60):
        world.scheduler.run_turn()
        world.scheduler.advance(0.5)
        work = world.store._snapshots._work
        if work is not None:
            expected = expected or (work.lsn, world.contents())
            world.store.apply(
                [Put(f"/{number % 40:03d}", number), Delete(f"/{number * 7 % 40:03d}"), Put("/!", 1)]
            )
    assert expected is not None
    final = world.contents()
    world.settle()
    world.reopen()
    assert world.contents() == final
    disk = world.disk.kill()
    for name in disk.list("m"):
        if name.startswith("log"):
            disk.replace("m/" + name, disk.content("m/" + name)[:4096])
    alone, report = MetaStore.open(disk, "m", Schema(), SimScheduler())
    assert (report.snapshot_lsn, dict(alone.scan(""))) == expected


def test_it_is_published_only_when_the_log_before_it_is_durable() -> None:
    world = World()
    world.disk.flush_delay_ms = lambda path: 500 if path == "m/log-0000000001" else 1
    world.fill(40)
    world.scheduler.advance(400)
    assert "snapshot-0000000002.new" in world.disk.list("m")
    assert "log-0000000001" in world.disk.list("m")
    world.settle()
    assert world.disk.list("m") == ["log-0000000002", "snapshot-0000000002"]


def test_batches_in_two_files_become_durable_in_order() -> None:
    world = World()
    world.disk.flush_delay_ms = lambda path: 100 if path == "m/log-0000000001" else 1
    told: list[int] = []

    def wait() -> None:
        lsn = world.store.lsn
        world.store.when_durable(lsn, lambda error: told.append(lsn))

    world.fill(40)
    wait()
    world.scheduler.advance(50)
    assert world.store._journal.file_number == 2
    world.fill(1)
    wait()
    world.scheduler.advance(40)
    assert told == []
    world.scheduler.advance(20)
    assert told == [40, 41]
    assert world.disk.most_flushes_in_flight <= 2


def test_the_next_one_is_due_when_the_log_outgrew_both_the_limit_and_the_last_snapshot() -> None:
    world = World()
    world.fill(200)
    world.settle()
    assert world.store.stats().snapshots == 1
    size = len(world.disk.content("m/snapshot-0000000002"))
    assert size > 3 * OPTIONS.snapshot_log_bytes
    while world.store.stats().snapshots == 1:
        world.fill(1)
        world.scheduler.advance(50)
    assert world.disk.list("m") == ["log-0000000003", "snapshot-0000000003"]
    grown = 150 * (world.store.lsn - 200)
    assert 0.7 * size < grown < 1.3 * size


class TestGivenUp:
    """The reasons for which a snapshot isn't made; the log goes on in every case."""

    @pytest.mark.parametrize(
        ("kind", "path"),
        [
            ("create", "log-0000000002"),
            ("write", "log-0000000002"),
            ("allocate", "log-0000000002"),
            ("flush", "log-0000000002"),
            ("rename", "log-0000000002"),
            ("create", "snapshot-0000000002"),
            ("write", "snapshot-0000000002"),
            ("flush", "snapshot-0000000002"),
            ("rename", "snapshot-0000000002"),
        ],
    )
    def test_it_is_tried_again_when_the_log_has_grown(self, kind: str, path: str) -> None:
        world = World()
        world.disk.fail(kind, path, error=errno.ENOSPC)
        world.fill(40)
        world.settle()
        assert world.store.stats().snapshots == 0
        assert isinstance(world.store.stats().snapshot_error, OSError)
        assert not any(name.endswith(".new") for name in world.disk.list("m"))
        assert len(world.disk.open_files) == 1
        world.fill(10)
        world.settle()
        assert world.store.stats().snapshots == 0
        world.fill(40)
        expected = world.contents()
        world.settle()
        assert world.store.stats().snapshots == 1
        assert world.store.stats().snapshot_error is None
        assert len(world.disk.list("m")) == 2
        assert len(world.disk.open_files) == 1
        world.reopen()
        assert world.contents() == expected

    @pytest.mark.parametrize("frame", [1, 2, 10, 11])
    def test_at_any_frame(self, frame: int) -> None:
        """Ten stretches of records and the end."""
        world = World()
        world.disk.flush_delay_ms = 1
        world.fill(40)
        while world.store._snapshots._work is None:
            world.scheduler.run_turn() or world.scheduler.advance(0.5)
        while world.disk.writes["m/snapshot-0000000002.new"] < frame:
            world.scheduler.run_turn() or world.scheduler.advance(0.5)
        world.disk.fail("write", "snapshot", error=errno.ENOSPC)
        world.settle()
        assert world.store.stats().snapshot_error is not None
        assert world.disk.list("m") == ["log-0000000001", "log-0000000002"]
        world.store.apply([Put("/more", 1)])
        assert world.store._state._view is None

    def test_a_disk_that_takes_no_more_flushes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As a disk that was closed: it is an end like any other, not a crash."""

        def refuse(*args: object) -> None:
            raise OSError(errno.EBADF, "the disk is closed")

        for name in ("start_flush", "start_flush_dir"):
            world = World()
            world.fill(40)
            monkeypatch.setattr(world.disk, name, refuse)
            world.settle()
            assert isinstance(world.store.failure, StoreFailed), name
            world.store.close()
            assert not world.disk.open_files

    def test_a_write_that_fails_when_the_next_file_is_taken_up(self) -> None:
        world = World()
        world.disk.flush_delay_ms = 1
        world.fill(40)
        world.store.when_durable(40, lambda error: None)
        while "log-0000000002" not in world.disk.list("m"):
            world.scheduler.run_turn() or world.scheduler.advance(0.5)
        assert world.store.durable_lsn == 40
        world.disk.flush_delay_ms = 0
        world.disk.fail("write", "log")
        world.scheduler.call_soon(world.fill, 1)
        world.scheduler.call_soon(world.store._snapshots._switch)
        world.settle()
        assert isinstance(world.store.failure, StoreFailed)
        world.store.close()
        assert not world.disk.open_files
        world.reopen()
        assert world.store.lsn == 40

    def test_until_then_several_log_files_are_the_log(self) -> None:
        world = World()
        world.disk.fail("write", "snapshot", times=2)
        for _ in range(2):
            world.fill(45)
            world.settle()
        assert world.disk.list("m") == ["log-0000000001", "log-0000000002", "log-0000000003"]
        expected = world.contents()
        world.reopen()
        assert world.contents() == expected
        assert world.report.batches == 90
        world.fill(1)
        world.settle()
        assert world.disk.list("m") == ["log-0000000004", "snapshot-0000000004"]

    def test_old_files_that_cannot_be_removed_go_later(self) -> None:
        world = World()
        world.disk.fail("remove")
        world.fill(40)
        world.settle()
        assert world.store.stats().snapshots == 1
        assert world.store.stats().snapshot_error is not None
        assert world.disk.list("m") == ["log-0000000001", "log-0000000002", "snapshot-0000000002"]
        world.disk = world.disk.kill(world.scheduler)
        world.open()
        assert world.report.removed == ("m/log-0000000001",)
        assert world.disk.list("m") == ["log-0000000002", "snapshot-0000000002"]

    def test_a_folder_that_cannot_be_flushed_is_the_end(self) -> None:
        world = World()
        world.disk.fail("flush_dir")
        world.fill(40)
        world.settle()
        assert isinstance(world.store.failure, StoreFailed)
        assert world.disk.list("m") == ["log-0000000001", "log-0000000002"]
        world.store.close()
        assert not world.disk.open_files

    def test_a_log_that_fails_ends_it(self) -> None:
        world = World()
        world.disk.flush_delay_ms = 1
        world.fill(40)
        while world.store._snapshots._work is None:
            world.scheduler.run_turn() or world.scheduler.advance(0.5)
        world.fill(1)
        world.disk.fail("flush", "log")
        world.settle()
        assert world.store.failure is not None
        assert world.store.stats().snapshots == 0
        world.store.close()
        assert not world.disk.open_files


def test_an_impossible_transition_raises() -> None:
    world = World()
    with pytest.raises(AssertionError):
        world.store._snapshots._move(Phase.PUBLISHING)
    world.store.close()
    for phase in Phase:
        with pytest.raises(AssertionError):
            world.store._snapshots._move(phase)


@pytest.mark.parametrize("turns", range(0, 60, 2))
def test_closing_at_any_moment_leaves_nothing_unfinished(turns: int) -> None:
    world = World()
    world.disk.flush_delay_ms = 0
    world.fill(30)
    expected = world.contents()
    for _ in range(turns):
        world.scheduler.run_turn() or world.scheduler.advance(1)
    closed: list[object] = []
    world.store.close(closed.append)
    world.settle()
    assert closed == [None]
    assert not world.disk.open_files
    world.reopen()
    assert world.contents() == expected
    assert world.report.torn is None
    assert not any(name.endswith(".new") for name in world.disk.list("m"))
