"""What a process uses, by /proc: memory, CPU, threads, files."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one process at one moment. Sizes in MiB, CPU in seconds since its start."""

    resident_mib: float
    peak_mib: float
    cpu_s: float
    threads: int
    files: int


def usage(pid: int) -> Usage:
    """
    Raises:
        FileNotFoundError: there is no such process.
    """
    proc = Path("/proc") / str(pid)
    status = dict(
        line.split(":", 1)
        for line in (proc / "status").read_text(encoding="ascii").splitlines()
        if ":" in line
    )
    # The name, in brackets, may hold spaces.
    after_name = (proc / "stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()
    return Usage(
        int(status["VmRSS"].split()[0]) / 1024,
        int(status["VmHWM"].split()[0]) / 1024,
        (int(after_name[11]) + int(after_name[12])) / _TICKS,
        int(status["Threads"]),
        len(os.listdir(proc / "fd")),
    )


def idle_cpu_percent(pid: int, seconds: float) -> float:
    """Of one core, while nobody asks anything."""
    before, began = usage(pid).cpu_s, time.monotonic()
    time.sleep(seconds)
    return 100 * (usage(pid).cpu_s - before) / (time.monotonic() - began)


def disk_mib(folder: Path) -> tuple[float, float]:
    """(what the files below a folder take on the disk, what they would take at their full lengths), in MiB."""
    blocks = length = 0
    for path, _, names in os.walk(folder):
        for name in names:
            found = os.stat(os.path.join(path, name))
            blocks += found.st_blocks * 512
            length += found.st_size
    return blocks / (1 << 20), length / (1 << 20)


def drop_cached(folder: Path) -> None:
    """Put the files below a folder out of the page cache, so that the next read comes from the disk."""
    os.sync()
    for path, _, names in os.walk(folder):
        for name in names:
            fd = os.open(os.path.join(path, name), os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
