"""What opening makes of damage: an unfinished end is cut and reported, anything else refused by name."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from support.sim_disk import PowerCut, SimDisk
from support.sim_loop import SimScheduler

from txn.metastore import (
    CorruptStore,
    IndexSpec,
    MetaStore,
    Options,
    Put,
    Record,
    RecoveryReport,
    Schema,
    UnknownFormat,
)
from txn.metastore.frames import (
    BATCH,
    END,
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    MARK,
    RECORDS,
    SNAPSHOT,
    encode_file_header,
    encode_frame_header,
)
from txn.metastore.frames import LOG as LOG_KIND

OPTIONS = Options(allocate_bytes=4096, snapshot_log_bytes=10**9)
LOG = "m/log-0000000001"
Contents = dict[str, Record]


def open_store(disk: SimDisk, options: Options = OPTIONS) -> tuple[MetaStore, RecoveryReport]:
    return MetaStore.open(disk, "m", Schema(), disk.scheduler, options)


def make(batches: int, *, durable: int = 0, closed: bool = False, options: Options = OPTIONS) -> SimDisk:
    """A disk with that many batches written, each in a turn of its own, and the first of them flushed."""
    scheduler = SimScheduler()
    disk = SimDisk(scheduler)
    store, _ = open_store(disk, options)
    for number in range(1, batches + 1):
        store.apply([Put(f"/{number:03d}", "x" * 50)])
        scheduler.run_ready()
        if number == durable:
            store.when_durable(number, lambda error: None)
            scheduler.run_ready()
    if closed:
        store.close()
        scheduler.run_until_idle()
    return disk.kill(SimScheduler())


def frame_start(disk: SimDisk, lsn: int, path: str = LOG) -> int:
    """Where the frame of a batch starts, given that all have the same size."""
    first = disk.content(path).index(b"\xa5Mf\x1e", HEADER_BYTES)
    second = disk.content(path).index(b"\xa5Mf\x1e", first + 1)
    return first + (lsn - 1) * (second - first)


def test_a_fresh_folder() -> None:
    disk = SimDisk(SimScheduler())
    store, report = open_store(disk)
    assert report == RecoveryReport(True, 0, 0, 0, 0, None, ())
    assert disk.unflushed() == []
    store.close()
    _, report = open_store(disk)
    assert not report.created


def test_files_of_others_are_left_alone() -> None:
    disk = SimDisk(SimScheduler())
    disk.make_dir("m")
    for name in ("LOCK", "log-1", "log-0000000001.bak", "snapshot-00000000001", "other.new"):
        disk.open(f"m/{name}", create=True).close()
    _, report = open_store(disk)
    assert report.created
    assert report.removed == ()
    assert len(disk.list("m")) == 6


def test_unfinished_files_are_removed() -> None:
    disk = make(3, durable=3)
    for name in ("log-0000000002.new", "snapshot-0000000002.new"):
        disk.replace(f"m/{name}", b"half")
    _, report = open_store(disk)
    assert report.removed == ("m/log-0000000002.new", "m/snapshot-0000000002.new")
    assert disk.list("m") == ["log-0000000001"]


def test_everything_kept_is_durable_when_it_is_open() -> None:
    disk = make(5)
    assert disk.unflushed() == [LOG]
    store, report = open_store(disk)
    assert disk.unflushed() == []
    assert store.durable_lsn == report.lsn == 5


class TestUnfinishedEnd:
    def cut_at(
        self, position: Callable[[SimDisk], int], size: int
    ) -> tuple[MetaStore, RecoveryReport, SimDisk]:
        disk = make(5, durable=3)
        disk.overwrite(LOG, position(disk), bytes(size))
        store, report = open_store(disk)
        return store, report, disk

    def test_it_is_cut_and_reported(self) -> None:
        store, report, disk = self.cut_at(lambda disk: frame_start(disk, 4) + FRAME_HEADER_BYTES, 5)
        assert store.lsn == report.lsn == 3
        assert report.torn is not None
        assert report.torn.file == LOG
        assert report.torn.position == frame_start(disk, 4)
        assert report.torn.dropped_bytes == 2 * (frame_start(disk, 2) - frame_start(disk, 1))
        assert "checksum" in report.torn.reason
        assert len(disk.content(LOG)) == report.torn.position

    def test_nothing_of_it_ever_comes_back(self) -> None:
        store, _, disk = self.cut_at(lambda disk: frame_start(disk, 4), 4)
        store.apply([Put("/new", 1)])
        disk.scheduler.run_ready()
        again, report = open_store(disk.kill(SimScheduler()))
        assert report.torn is None
        assert (again.lsn, [key for key, _ in again.scan("")]) == (4, ["/001", "/002", "/003", "/new"])

    def test_zeros_are_a_clean_end(self) -> None:
        disk = make(5, durable=3)
        disk.overwrite(LOG, frame_start(disk, 4), bytes(frame_start(disk, 6) - frame_start(disk, 4)))
        store, report = open_store(disk)
        assert report.torn is None
        assert store.lsn == 3

    def test_a_file_cut_short(self) -> None:
        disk = make(5, durable=3)
        disk.replace(LOG, disk.content(LOG)[: frame_start(disk, 5) + 60])
        _, report = open_store(disk)
        assert report.lsn == 4
        assert report.torn is not None
        assert (report.torn.dropped_bytes, report.torn.reason) == (60, "the frame is cut short")


class TestDurableDamage:
    def refused(self, disk: SimDisk, file: str = LOG) -> CorruptStore:
        before = {name: disk.content(f"m/{name}") for name in disk.list("m")}
        with pytest.raises(CorruptStore) as caught:
            open_store(disk)
        assert caught.value.file == file
        assert str(caught.value).startswith(f"{file} at byte {caught.value.position}: ")
        assert {name: disk.content(f"m/{name}") for name in disk.list("m")} == before
        assert not disk.open_files
        return caught.value

    @pytest.mark.parametrize("lsn", [1, 2, 3])
    def test_a_later_frame_knows_that_it_was_durable(self, lsn: int) -> None:
        disk = make(5, durable=3)
        disk.overwrite(LOG, frame_start(disk, lsn) + 30, b"\xff\xff")
        error = self.refused(disk)
        assert error.position == frame_start(disk, lsn)
        assert "durable" in error.reason

    def test_damage_in_the_last_batch_of_a_closed_store(self) -> None:
        disk = make(5, closed=True)
        disk.overwrite(LOG, frame_start(disk, 5) + 60, b"\xff")
        assert self.refused(disk).position == frame_start(disk, 5)

    def test_damage_in_the_last_batch_of_a_store_that_was_idle(self) -> None:
        disk = make(5)
        store, _ = open_store(disk)
        disk.scheduler.run_until_idle()
        disk = disk.kill(SimScheduler())
        disk.overwrite(LOG, frame_start(disk, 5) + 60, b"\xff")
        assert self.refused(disk).position == frame_start(disk, 5)
        assert store.lsn == 5

    def test_a_damaged_header(self) -> None:
        disk = make(1)
        disk.overwrite(LOG, 20, b"\xff")
        self.refused(disk)

    def test_an_empty_file(self) -> None:
        disk = make(1)
        disk.replace(LOG, b"")
        self.refused(disk)

    def test_another_format_version(self) -> None:
        disk = make(1)
        disk.overwrite(LOG, 8, b"\x09")
        with pytest.raises(UnknownFormat, match="version 9"):
            open_store(disk)

    def test_any_flipped_byte_of_a_closed_store_is_harmless_or_refused(self) -> None:
        """Never is a batch lost without a word."""
        options = Options(allocate_bytes=512, snapshot_log_bytes=2000, snapshot_turn_records=4)
        scheduler = SimScheduler()
        disk = SimDisk(scheduler)
        store, _ = open_store(disk, options)
        for number in range(34):
            store.apply([Put(f"/{number % 20:03d}", "x" * 50)])
            scheduler.run_until_idle()
        store.close()
        scheduler.run_until_idle()
        assert len(disk.list("m")) == 2
        expected = dict(store.scan(""))
        rng = random.Random(1)
        outcomes = {"refused": 0, "harmless": 0}
        for name in disk.list("m"):
            path = f"m/{name}"
            content = disk.content(path)
            frames = range(HEADER_BYTES, len(content.rstrip(b"\0")))
            for at in [*range(40), *rng.sample(range(40, HEADER_BYTES), 20), *frames, len(content) - 1]:
                disk.overwrite(path, at, bytes([content[at] ^ (1 << rng.randrange(8))]))
                try:
                    damaged, _ = open_store(disk)
                except (CorruptStore, UnknownFormat):
                    outcomes["refused"] += 1
                else:
                    outcomes["harmless"] += 1
                    assert dict(damaged.scan("")) == expected
                    assert damaged.lsn == 34
                disk.replace(path, content)
        assert outcomes["refused"] > 2000
        # The padding of the headers, the mark that closing left, and the zeros after it.
        assert outcomes["harmless"] < 200


class TestSeveralFiles:
    """Log files 1 to 3: the first two have no snapshot to replace them."""

    def make(self, *, durable: bool) -> SimDisk:
        scheduler = SimScheduler()
        disk = SimDisk(scheduler)
        options = Options(
            allocate_bytes=4096,
            snapshot_log_bytes=300,
            flush_linger_ms=1 if durable else 10**6,
            mark_idle_ms=10**6,
        )
        store, _ = open_store(disk, options)
        disk.fail("write", "snapshot", times=9)
        while store._journal.file_number < 3 or store.lsn < 12:
            store.apply([Put(f"/{store.lsn + 1:03d}", "x" * 50)])
            scheduler.advance(5)
        if durable:
            store.when_durable(store.lsn, lambda error: None)
            scheduler.advance(5)
            store.apply([Put("/last", 1)])
            scheduler.run_ready()
        assert len(disk.list("m")) >= 3
        return disk.kill(SimScheduler())

    def last_frame(self, disk: SimDisk, path: str) -> int:
        return disk.content(path).rindex(b"\xa5Mf\x1e")

    @pytest.mark.parametrize("number", [1, 2])
    def test_damage_before_the_last_file_is_refused_if_it_was_durable(self, number: int) -> None:
        disk = self.make(durable=True)
        path = f"m/log-{number:010d}"
        at = self.last_frame(disk, path)
        disk.overwrite(path, at + 50, b"\xff")
        with pytest.raises(CorruptStore) as caught:
            open_store(disk)
        assert (caught.value.file, caught.value.position) == (path, at)

    @pytest.mark.parametrize("number", [1, 2])
    def test_zeros_before_the_last_file_too(self, number: int) -> None:
        disk = self.make(durable=True)
        path = f"m/log-{number:010d}"
        at = self.last_frame(disk, path)
        disk.overwrite(path, at, bytes(200))
        with pytest.raises(CorruptStore, match="is missing, and it was durable") as caught:
            open_store(disk)
        assert (caught.value.file, caught.value.position) == (path, at)

    @pytest.mark.parametrize("number", [1, 2])
    @pytest.mark.parametrize("damage", [b"\xff", bytes(200)], ids=["damaged", "zeros"])
    def test_an_end_that_was_never_durable_takes_the_files_after_it_along(
        self, number: int, damage: bytes
    ) -> None:
        disk = self.make(durable=False)
        files = [name for name in disk.list("m") if not name.endswith(".new")]
        path = f"m/log-{number:010d}"
        at = self.last_frame(disk, path)
        disk.overwrite(path, at + (50 if len(damage) == 1 else 0), damage)
        store, report = open_store(disk)
        assert report.torn is not None
        assert (report.torn.file, report.torn.position) == (path, at)
        removed = [name for name in report.removed if not name.endswith(".new")]
        assert removed == [f"m/{name}" for name in reversed(files[number:])]
        assert disk.list("m") == files[:number]
        assert [key for key, _ in store.scan("")] == [f"/{n:03d}" for n in range(1, store.lsn + 1)]
        store.apply([Put("/more", 1)])
        store.close()
        again, report = open_store(disk)
        assert report.torn is None
        assert again.lsn == store.lsn

    def test_a_power_cut_while_the_files_after_a_torn_end_are_removed(self) -> None:
        """Whatever part of the removals survives, the next start comes to the same end."""
        for stop in range(1, 20):
            for seed in range(25):
                disk = self.make(durable=False)
                path = "m/log-0000000001"
                at = self.last_frame(disk, path)
                disk.overwrite(path, at + 50, b"\xff")
                for name in disk.list("m"):
                    disk.replace(f"m/{name}", disk.content(f"m/{name}"))
                disk.stop_after(stop)
                with contextlib.suppress(PowerCut):
                    open_store(disk)
                disk = disk.crash(seed, scheduler=SimScheduler())
                store, _ = open_store(disk)
                assert store.lsn == len(store) > 0
                assert disk.list("m") == ["log-0000000001"]

    def test_a_damaged_mark_at_the_end_of_a_file_hides_nothing(self) -> None:
        disk = SimDisk(SimScheduler())
        store, _ = open_store(disk, Options(allocate_bytes=4096, snapshot_log_bytes=1230))
        disk.fail("write", "snapshot", times=9)
        for number in range(12):  # each 102 bytes long: the mark is what makes the log long enough
            store.apply([Put(f"/{number:03d}", "x" * 50)])
            disk.scheduler.advance(50)
        disk.scheduler.run_until_idle()
        assert disk.list("m") == ["log-0000000001", "log-0000000002"]
        store.apply([Put("/more", 1)])
        disk.scheduler.run_until_idle()
        disk = disk.kill(SimScheduler())
        disk.overwrite(LOG, self.last_frame(disk, LOG) + 20, b"\xff")
        again, report = open_store(disk)
        assert report.torn is None
        assert again.lsn == len(again) == 13

    @pytest.mark.parametrize("number", [1, 2])
    def test_a_missing_file_is_refused(self, number: int) -> None:
        disk = self.make(durable=False)
        path = f"m/log-{number:010d}"
        disk.remove(path)
        with pytest.raises(CorruptStore, match="missing") as caught:
            open_store(disk)
        assert caught.value.file == path

    def test_files_that_changed_places_are_refused(self) -> None:
        disk = self.make(durable=False)
        one, two = disk.content("m/log-0000000001"), disk.content("m/log-0000000002")
        disk.replace("m/log-0000000001", two)
        disk.replace("m/log-0000000002", one)
        with pytest.raises(CorruptStore, match="renamed"):
            open_store(disk)


class TestWholeFramesThatMakeNoSense:
    """Their checksums are right, so this is no damage of the disk; they are refused all the same."""

    def refused(self, path: str, frames: list[tuple[int, int, Any]], reason: str) -> None:
        scheduler = SimScheduler()
        disk = SimDisk(scheduler)
        disk.make_dir("m")
        kind = SNAPSHOT if "snapshot" in path else LOG_KIND
        number = int(path[-10:])
        data = encode_file_header(kind, number)
        for frame_kind, lsn, content in frames:
            payload = content if type(content) is bytes else msgpack.packb(content)
            data += encode_frame_header(number, len(data), frame_kind, lsn, 0, payload) + payload
        disk.replace(path, data)
        if kind == SNAPSHOT:
            disk.replace(f"m/log-{number:010d}", encode_file_header(LOG_KIND, number))
        with pytest.raises(CorruptStore, match=reason) as caught:
            open_store(disk)
        assert caught.value.file == path
        assert caught.value.position >= HEADER_BYTES

    @pytest.mark.parametrize(
        ("frames", "reason"),
        [
            ([(BATCH, 2, [1, [], []])], "batch 2 follows batch 0"),
            ([(BATCH, 1, [1, [], []]), (BATCH, 3, [1, [], []])], "batch 3 follows batch 1"),
            ([(BATCH, 1, [1, [], []]), (BATCH, 1, [1, [], []])], "batch 1 follows batch 1"),
            ([(BATCH, 1, [1, [], []]), (MARK, 2, b"")], "batch 2 follows batch 1"),
            ([(BATCH, 1, [1, [], ["/none"]])], "batch 1 deletes /none, which is not there"),
            ([(RECORDS, 0, [])], "a frame of kind 3 in a log"),
            ([(BATCH, 1, b"\xc1")], "cannot be decoded"),
            ([(BATCH, 1, [1, []])], "cannot be decoded"),
            ([(BATCH, 1, [1, ["/a"], []])], "cannot be decoded"),
            ([(BATCH, 1, 5)], "cannot be decoded"),
        ],
    )
    def test_in_a_log(self, frames: list[tuple[int, int, Any]], reason: str) -> None:
        self.refused("m/log-0000000001", frames, reason)

    @pytest.mark.parametrize(
        ("frames", "reason"),
        [
            ([(RECORDS, 5, ["/a", 1, 1])], "the snapshot's end is missing"),
            ([(END, 5, [0, 1]), (RECORDS, 5, ["/a", 1, 1])], "something follows the snapshot's end"),
            ([(RECORDS, 5, ["/a", 1, 1]), (END, 5, [2, 1])], "has 1 records instead of 2"),
            ([(BATCH, 5, [1, [], []])], "a frame of kind 1 in a snapshot"),
            ([(RECORDS, 5, ["/a", 1])], "cannot be decoded"),
            ([(RECORDS, 5, 7)], "cannot be decoded"),
            ([(END, 5, [1])], "cannot be decoded"),
        ],
    )
    def test_in_a_snapshot(self, frames: list[tuple[int, int, Any]], reason: str) -> None:
        self.refused("m/snapshot-0000000003", frames, reason)


class TestSnapshotDamage:
    def make(self) -> SimDisk:
        options = Options(allocate_bytes=4096, snapshot_log_bytes=2000, snapshot_turn_records=4)
        return make(40, closed=False, options=options)

    def snapshot(self, disk: SimDisk) -> str:
        scheduler = disk.scheduler
        store, _ = open_store(disk, Options(allocate_bytes=4096, snapshot_log_bytes=2000))
        store.apply([Put("/more", 1)])
        scheduler.run_until_idle()
        store.close()
        scheduler.run_until_idle()
        (name,) = [name for name in disk.list("m") if name.startswith("snapshot")]
        return f"m/{name}"

    def test_it_is_refused_whatever_else_there_is(self) -> None:
        disk = self.make()
        path = self.snapshot(disk)
        content = disk.content(path)
        for at in (HEADER_BYTES, HEADER_BYTES + 100, len(content) - 1):
            disk.replace(path, content)
            disk.overwrite(path, at, bytes([content[at] ^ 1]))
            with pytest.raises(CorruptStore) as caught:
                open_store(disk)
            assert caught.value.file == path

    def test_a_snapshot_cut_short_at_any_frame(self) -> None:
        disk = self.make()
        path = self.snapshot(disk)
        content = disk.content(path)
        at = content.find(b"\xa5Mf\x1e")
        cuts = 0
        while at >= 0:
            disk.replace(path, content[:at])
            with pytest.raises(CorruptStore, match="end is missing"):
                open_store(disk)
            at = content.find(b"\xa5Mf\x1e", at + 1)
            cuts += 1
        assert cuts > 1

    def test_the_log_after_a_snapshot_must_be_there(self) -> None:
        disk = self.make()
        path = self.snapshot(disk)
        log = path.replace("snapshot", "log")
        disk.remove(log)
        with pytest.raises(CorruptStore, match="missing") as caught:
            open_store(disk)
        assert caught.value.file == log

    def test_an_older_snapshot_is_no_substitute(self) -> None:
        disk = self.make()
        path = self.snapshot(disk)
        disk.replace("m/snapshot-0000000001", disk.content(path))
        disk.overwrite(path, HEADER_BYTES + 50, b"\xff")
        with pytest.raises(CorruptStore):
            open_store(disk)

    def test_another_format_version(self) -> None:
        disk = self.make()
        path = self.snapshot(disk)
        disk.overwrite(path, 8, b"\x02")
        with pytest.raises(UnknownFormat) as caught:
            open_store(disk)
        assert (caught.value.file, caught.value.found, caught.value.known) == (path, 2, 1)


def test_an_index_that_its_records_do_not_fit_is_refused() -> None:
    schema = Schema(indexes={"bad": IndexSpec("/", lambda key, value: (value["no"],))})
    disk = make(2)
    with pytest.raises(TypeError):
        MetaStore.open(disk, "m", schema, disk.scheduler)
