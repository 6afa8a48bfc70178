"""The simulator keeps the promises the tests build on."""

from __future__ import annotations

import errno

import pytest
from support.sim_disk import SECTOR_BYTES, PowerCut, SimDisk
from support.sim_loop import SimScheduler


def disk_with_file(content: bytes = b"") -> SimDisk:
    disk = SimDisk(SimScheduler(), flush_delay_ms=5)
    disk.make_dir("d")
    file = disk.open("d/f", create=True)
    file.pwritev([content], 0)
    file.flush()
    disk.flush_dir("")
    disk.flush_dir("d")
    return disk


def test_flush_covers_what_was_written_before_it_began() -> None:
    disk = disk_with_file(b"old")
    file = disk.open("d/f")
    file.pwritev([b"one", b"two"], 0)
    done: list[OSError | None] = []
    disk.start_flush(file, done.append)
    file.pwritev([b"three"], 6)
    disk.scheduler.advance(4)
    assert (done, disk.durable_content("d/f")) == ([], b"old")
    disk.scheduler.advance(2)
    assert (done, disk.durable_content("d/f")) == ([None], b"onetwo")
    assert disk.content("d/f") == b"onetwothree"
    assert disk.unflushed() == ["d/f"]


def test_crash_picks_per_sector() -> None:
    disk = disk_with_file(b"a" * 4 * SECTOR_BYTES)
    file = disk.open("d/f")
    file.pwritev([b"b" * 4 * SECTOR_BYTES], 0)
    file.pwritev([b"c" * 4 * SECTOR_BYTES], 0)
    seen = set()
    for seed in range(60):
        content = disk.crash(seed, keep="sectors").content("d/f")
        sectors = [content[at : at + SECTOR_BYTES] for at in range(0, len(content), SECTOR_BYTES)]
        assert all(len(set(sector)) == 1 for sector in sectors)
        seen.add(bytes(sector[0] for sector in sectors))
    assert len(seen) > 15
    assert {bytes([letter]) for found in seen for letter in found} == {b"a", b"b", b"c"}
    assert disk.crash(1, keep="none").content("d/f") == b"a" * 4 * SECTOR_BYTES
    assert disk.crash(1, keep="all").content("d/f") == b"c" * 4 * SECTOR_BYTES


def test_same_seed_same_crash() -> None:
    disk = disk_with_file(b"a" * 3000)
    for number in range(5):
        disk.open("d/f").pwritev([bytes([number]) * 700], number * 500)
    for seed in range(10):
        assert disk.crash(seed).content("d/f") == disk.crash(seed).content("d/f")


def test_allocated_space_reads_as_zeros_after_any_crash() -> None:
    disk = disk_with_file(b"x" * 100)
    file = disk.open("d/f")
    file.truncate(50)
    file.allocate(50, 5000)
    file.pwritev([b"y" * 600], 1000)
    for seed in range(40):
        content = disk.crash(seed, keep="sectors").content("d/f")
        assert not content[100:1000].strip(b"\0")
        assert not content[1600:].strip(b"\0")


def test_names_are_durable_after_flush_dir_only() -> None:
    def changed() -> SimDisk:
        disk = disk_with_file()
        disk.open("d/new", create=True).flush()
        disk.rename("d/new", "d/newer")
        return disk

    outcomes = {tuple(changed().crash(seed).list("d")) for seed in range(40)}
    # A rename is whole or not at all, the order of changes is not promised.
    assert outcomes == {("f",), ("f", "new"), ("f", "newer")}
    disk = changed()
    disk.flush_dir("d")
    disk.remove("d/f")
    assert disk.crash(0, keep="none").list("d") == ["f", "newer"]
    disk = disk_with_file()
    disk.make_dir("e/f")
    disk.flush_dir("e")
    assert disk.crash(0, keep="none").list("") == ["d"]


def test_kill_keeps_what_was_written() -> None:
    disk = disk_with_file(b"a")
    disk.open("d/f").pwritev([b"b"], 0)
    done: list[OSError | None] = []
    disk.start_flush(disk.open("d/f"), done.append)
    after = disk.kill(SimScheduler())
    disk.scheduler.run_until_idle()
    assert done == []
    assert (after.content("d/f"), after.durable_content("d/f")) == (b"b", b"a")
    with pytest.raises(PowerCut):
        disk.list("")


def test_power_cut_at_a_change() -> None:
    disk = disk_with_file(b"a")
    file = disk.open("d/f")
    disk.stop_after(2)
    file.pwritev([b"b"], 0)
    with pytest.raises(PowerCut):
        file.pwritev([b"c"], 0)
    with pytest.raises(PowerCut):
        file.pread(1, 0)
    assert disk.crash(0, keep="all").content("d/f") == b"b"


def test_failed_flush_never_becomes_a_good_one() -> None:
    disk = disk_with_file(b"a")
    file = disk.open("d/f")
    file.pwritev([b"b"], 0)
    disk.fail("flush", "d/f", error=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.flush()
    file.flush()
    assert disk.durable_content("d/f") == b"a"


def test_faults_are_met_by_kind_and_path() -> None:
    disk = disk_with_file()
    disk.fail("write", "other")
    disk.fail("write", "d/f", error=errno.ENOSPC, times=2)
    file = disk.open("d/f")
    for _ in range(2):
        with pytest.raises(OSError, match="space"):
            file.pwritev([b"x"], 0)
    assert file.pwritev([b"x"], 0) == 1


def test_two_flushes_of_one_file_at_once_are_a_mistake() -> None:
    disk = disk_with_file()
    file = disk.open("d/f")
    disk.start_flush(file, lambda error: None)
    with pytest.raises(AssertionError, match="two flushes"):
        disk.start_flush(file, lambda error: None)


def test_flushes_of_different_files_run_side_by_side() -> None:
    disk = disk_with_file()
    other = disk.open("d/g", create=True)
    disk.start_flush(disk.open("d/f"), lambda error: None)
    disk.start_flush(other, lambda error: None)
    disk.start_flush_dir("d", lambda error: None)
    disk.scheduler.advance(6)
    assert disk.most_flushes_in_flight == 3
    assert disk.flushes["d/g"] == 1


def test_virtual_time() -> None:
    scheduler = SimScheduler(start_ms=1000)
    order: list[str] = []
    scheduler.call_later(10, order.append, "later")
    timer = scheduler.call_later(5, order.append, "cancelled")
    scheduler.call_later(5, lambda: scheduler.call_soon(order.append, "soon after"))
    scheduler.call_soon(order.append, "soon")
    timer.cancel()
    scheduler.advance(9)
    assert (order, scheduler.now_ms()) == (["soon", "soon after"], 1009)
    scheduler.run_until_idle()
    assert (order[-1], scheduler.now_ms()) == ("later", 1010)
    with pytest.raises(AssertionError, match="never came true"):
        scheduler.run_until(lambda: False)


def test_a_link_is_another_name_of_the_same_file() -> None:
    disk = SimDisk()
    disk.make_dir("d")
    disk.replace("d/a", b"x")
    disk.flush_dir("")
    disk.link("d/a", "d/b")
    with pytest.raises(FileExistsError):
        disk.link("d/a", "d/b")
    with pytest.raises(FileNotFoundError):
        disk.link("d/none", "d/c")
    disk.open("d/b").pwritev([b"y"], 0)
    assert disk.content("d/a") == b"y"
    assert {disk.crash(seed).exists("d/b") for seed in range(20)} == {True, False}
    assert disk.crash(1, keep="none").exists("d/a")
