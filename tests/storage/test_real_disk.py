"""The real file system, and a range log on it."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from range_model import make_batch, open_range

from storage.clock import Timer
from storage.disk import Disk
from storage.layout import LogConfig, RollEvent, SegmentInfo
from storage.range_log import RangeLog
from storage.real_disk import IOV_MAX, LockHeld, RealDisk, RealFile
from storage.recovery import create_range


class Loop:
    """Stands for an event loop: callbacks from other threads run in `run`."""

    def __init__(self) -> None:
        self._ready: list[Callable[[], None]] = []
        self._wake = threading.Event()

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any) -> None:
        self._ready.append(lambda: callback(*args))
        self._wake.set()

    def run(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not until():
            assert time.monotonic() < deadline
            self._wake.wait(0.1)
            self._wake.clear()
            while self._ready:
                self._ready.pop(0)()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def disk(tmp_path: Path, loop: Loop) -> Any:
    disk = RealDisk(tmp_path, loop.call_soon_threadsafe)
    yield disk
    disk.close()


def test_is_a_disk(disk: RealDisk) -> None:
    checked: Disk = disk
    assert checked.list("") == []


def test_files(disk: RealDisk) -> None:
    disk.make_dir("a/b")
    disk.make_dir("a/b")
    file = disk.open("a/b/f", create=True)
    with pytest.raises(FileExistsError):
        disk.open("a/b/f", create=True)
    assert file.pwritev([b"abc", memoryview(b"def"), bytearray(b"ghi")], 2) == 9
    assert file.pread(100, 0) == b"\0\0abcdefghi"
    assert file.pread(3, 5) == b"def"
    assert file.pread(3, 50) == b""
    file.flush()
    file.truncate(4)
    assert file.size() == 4
    file.allocate(4, 1000)
    assert file.size() == 1004
    assert file.pread(2000, 0) == b"\0\0ab" + bytes(1000)
    file.close()
    file.close()
    disk.rename("a/b/f", "a/b/g")
    disk.flush_dir("a/b")
    assert (disk.list("a/b"), disk.exists("a/b/f"), disk.exists("a/b/g")) == (["g"], False, True)
    readonly = disk.open_readonly("a/b/g")
    with pytest.raises(OSError, match="Bad file"):
        readonly.pwritev([b"x"], 0)
    readonly.close()
    with pytest.raises(FileNotFoundError):
        disk.open("a/b/f")
    disk.remove("a/b/g")
    disk.remove_dir("a/b")
    assert disk.list("a/b") == []
    disk.open("plain", create=True).close()
    with pytest.raises(NotADirectoryError):
        disk.list("plain")


def test_more_buffers_than_the_kernel_takes_at_once(disk: RealDisk) -> None:
    file = disk.open("f", create=True)
    buffers = [bytes([number % 251]) * (number % 3) for number in range(IOV_MAX * 2 + 77)]
    assert file.pwritev(buffers, 10) == sum(map(len, buffers))
    assert file.pread(1 << 20, 10) == b"".join(buffers)
    assert file.pwritev([], 0) == 0
    file.close()


def test_short_writes_are_finished(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def short(fd: int, buffers: Any, position: int) -> int:
        return real(fd, [b"".join(buffers)[:7]], position)

    file = disk.open("f", create=True)
    monkeypatch.setattr(os, "pwritev", short)
    assert file.pwritev([b"0123", memoryview(b"4567"), b"89ab"], 3) == 12
    assert file.pread(100, 3) == b"0123456789ab"
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(OSError, match="no progress"):
        file.pwritev([b"0123456789"], 0)
    file.close()


def test_the_kernel_is_told_what_will_be_read(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int, int]] = []
    real = os.posix_fadvise
    monkeypatch.setattr(
        os,
        "posix_fadvise",
        lambda fd, *rest: (real(fd, *rest), told.append(rest)),  # type: ignore[arg-type]
    )
    file = disk.open("f", create=True)
    file.pwritev([b"0123456789"], 0)
    file.will_read(1 << 20, 5)
    assert told == [(5, 1 << 20, os.POSIX_FADV_WILLNEED)]
    assert file.pread(20, 5) == b"56789"
    file.close()


def test_short_reads_are_finished(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pread
    file = disk.open("f", create=True)
    file.pwritev([b"0123456789"], 0)
    monkeypatch.setattr(os, "pread", lambda fd, size, position: real(fd, min(size, 3), position))
    assert file.pread(10, 0) == b"0123456789"
    assert file.pread(20, 5) == b"56789"
    file.close()


def test_file_systems_without_reservation(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "no")

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    file = disk.open("f", create=True)
    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    file.allocate(0, 100)
    file.allocate(0, 50)
    assert (file.size(), file.pread(100, 0)) == (100, bytes(100))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="full"):
        file.allocate(0, 200)
    file.close()


def test_flush_answers_on_the_loop(disk: RealDisk, loop: Loop) -> None:
    file = disk.open("f", create=True)
    threads: list[str] = []
    outcomes: list[OSError | None] = []

    def done(error: OSError | None) -> None:
        threads.append(threading.current_thread().name)
        outcomes.append(error)

    disk.start_flush(file, done)
    disk.start_flush_dir("", done)
    disk.start_flush_dir("absent", done)
    loop.run(lambda: len(outcomes) == 3)
    assert set(threads) == {threading.current_thread().name}
    assert sorted(type(outcome).__name__ for outcome in outcomes) == [
        "FileNotFoundError",
        "NoneType",
        "NoneType",
    ]
    file.close()


def test_flushes_of_different_files_run_in_parallel(
    disk: RealDisk, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(4, timeout=5)
    monkeypatch.setattr(os, "fdatasync", lambda fd: together.wait())
    outcomes: list[OSError | None] = []
    files = [disk.open(f"f{number}", create=True) for number in range(4)]
    for file in files:
        disk.start_flush(file, outcomes.append)
    loop.run(lambda: len(outcomes) == 4)
    assert outcomes == [None] * 4


def test_failed_flush_is_reported_once(disk: RealDisk, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def fail(fd: int) -> None:
        calls.append(fd)
        raise OSError(errno.EIO, "device")

    monkeypatch.setattr(os, "fdatasync", fail)
    outcomes: list[OSError | None] = []
    file = disk.open("f", create=True)
    disk.start_flush(file, outcomes.append)
    loop.run(lambda: bool(outcomes))
    assert isinstance(outcomes[0], OSError)
    assert len(calls) == 1


def test_closing_during_a_flush_keeps_the_descriptor(
    disk: RealDisk, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, go_on = threading.Event(), threading.Event()
    real = os.fdatasync

    def slow(fd: int) -> None:
        begin.set()
        assert go_on.wait(5)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    outcomes: list[OSError | None] = []
    file = disk.open("f", create=True)
    disk.start_flush(file, outcomes.append)
    assert begin.wait(5)
    file.close()
    # The descriptor is still taken, so a new file cannot get it.
    other = disk.open("g", create=True)
    assert other._fd != file._fd
    go_on.set()
    loop.run(lambda: bool(outcomes))
    assert outcomes == [None]
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(file._fd)
    with pytest.raises(OSError, match="closed"):
        disk.start_flush(file, outcomes.append)
    other.close()


def test_close_ends_the_flushes_asked_for(tmp_path: Path, loop: Loop) -> None:
    disk = RealDisk(tmp_path, loop.call_soon_threadsafe, flush_threads=2)
    outcomes: list[OSError | None] = []
    for number in range(10):
        disk.start_flush(disk.open(f"f{number}", create=True), outcomes.append)
    disk.close()
    disk.close()
    loop.run(lambda: len(outcomes) == 10)
    with pytest.raises(OSError, match="closed"):
        disk.start_flush_dir("", outcomes.append)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("flush-")]


def test_closed_loop_is_nobody_to_tell(tmp_path: Path) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("Event loop is closed")

    disk = RealDisk(tmp_path, refuse)
    disk.start_flush_dir("", lambda error: None)
    disk.close()


def test_foreign_file_is_a_mistake(disk: RealDisk) -> None:
    from support.sim_disk import SimDisk

    other = SimDisk().open("f", create=True)
    with pytest.raises(TypeError):
        disk.start_flush(other, lambda error: None)


def test_lock_names_its_holder(disk: RealDisk, tmp_path: Path, loop: Loop) -> None:
    lock = disk.lock("LOCK")
    with pytest.raises(LockHeld, match=f"locked by process {os.getpid()}"):
        RealDisk(tmp_path, loop.call_soon_threadsafe).lock("LOCK")
    lock.release()
    lock.release()
    disk.lock("LOCK").release()


def test_lock_goes_with_its_process(disk: RealDisk, tmp_path: Path) -> None:
    code = (
        "import sys, time; from storage.real_disk import RealDisk\n"
        "lock = RealDisk(sys.argv[1], print).lock('LOCK'); print('held', flush=True); time.sleep(60)"
    )
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(LockHeld, match=f"process {process.pid}"):
            disk.lock("LOCK")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    disk.lock("LOCK").release()


# A range log on it.


class LoopScheduler:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return int(time.time() * 1000)

    def monotonic_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        self._loop.call_soon(callback, *args)

    def call_later(self, delay_ms: float, callback: Callable[..., Any], *args: Any) -> Timer:
        return self._loop.call_later(delay_ms / 1000, callback, *args)


def test_range_log_on_a_real_disk(tmp_path: Path) -> None:
    layout = [SegmentInfo(1, 0, 1, "ACTIVE")]
    sealed: list[int] = []

    def publish(event: RollEvent, done: Callable[[OSError | None], None]) -> None:
        layout.append(SegmentInfo(event.child_id, 0, 1, "ACTIVE", (event.parent_id,)))
        asyncio.get_running_loop().call_soon(done, None)

    arguments: dict[str, Any] = {
        "directory": "topics/a",
        "topic_id": uuid.UUID(int=1),
        "first": 0,
        "last": 1,
        "allocate_segment_id": lambda: layout[-1].segment_id + 1,
        "publish": publish,
        "on_sealed": lambda segment_id, ends: sealed.append(segment_id),
        "config": LogConfig(segment_bytes=50_000, checkpoint_bytes=20_000, close_checkpoint_bytes=1_000),
    }

    async def write() -> dict[int, int]:
        loop = asyncio.get_running_loop()
        disk = RealDisk(tmp_path, loop.call_soon_threadsafe)
        made: asyncio.Future[RangeLog | None] = loop.create_future()
        create_range(
            disk, LoopScheduler(loop), lambda log, _: made.set_result(log), segment_id=1, term=1, **arguments
        )
        log = await made
        assert log is not None
        header, batch = make_batch(b"x" * 1000, b"y")
        for number in range(300):
            durable: asyncio.Future[Exception | None] = loop.create_future()
            log.when_durable(log.append(number % 2, header, batch).lsn, durable.set_result)
            assert await durable is None
            assert log.partition(number % 2).high_watermark == (number // 2 + 1) * 2
        while len(sealed) < len(layout) - 1:
            await asyncio.sleep(0.01)
        log.close()
        disk.close()
        return log.end_offsets()

    async def read() -> dict[int, int]:
        loop = asyncio.get_running_loop()
        disk = RealDisk(tmp_path, loop.call_soon_threadsafe)
        log, report = open_range(disk, LoopScheduler(loop), segments=layout, term=2, **arguments)
        assert not report.cuts
        for partition in range(2):
            offset = 0
            while offset < log.partition(partition).high_watermark:
                found = log.read(partition, offset, limit_offset=300, max_bytes=30_000)
                assert found.batches[0].base_offset == offset
                offset = found.batches[-1].last_offset + 1
        log.delete()
        assert disk.list("topics") == []
        disk.close()
        return log.end_offsets()

    assert asyncio.run(write()) == {0: 300, 1: 300}
    assert len(layout) > 4
    assert asyncio.run(read()) == {0: 300, 1: 300}


def test_there_are_as_many_flush_threads_as_flushes_at_once(
    tmp_path: Path, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit over many ranges takes one flush delay, so all of its files must be flushed side by side."""
    disk = RealDisk(tmp_path, loop.call_soon_threadsafe, flush_threads=6)
    files = [disk.open(f"f{number}", create=True) for number in range(6)]
    outcomes: list[OSError | None] = []
    for done in range(1, 4):
        disk.start_flush(files[0], outcomes.append)
        loop.run(lambda done=done: len(outcomes) == done)  # type: ignore[misc]
    assert len(disk._threads) == 1

    together = threading.Barrier(6)
    monkeypatch.setattr(RealFile, "flush", lambda self: together.wait(10))
    outcomes.clear()
    for file in files:
        disk.start_flush(file, outcomes.append)
    loop.run(lambda: len(outcomes) == 6)
    assert outcomes == [None] * 6
    assert len(disk._threads) == 6
    monkeypatch.undo()
    disk.close()


def test_a_link_is_another_name_of_the_same_file(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path, lambda *_: None)
    disk.make_dir("d")
    file = disk.open("a", create=True)
    file.pwritev([b"x"], 0)
    file.close()
    disk.link("a", "d/b")
    with pytest.raises(FileExistsError):
        disk.link("a", "d/b")
    disk.remove("a")
    again = disk.open_readonly("d/b")
    assert again.pread(10, 0) == b"x"
    again.close()
    disk.close()
