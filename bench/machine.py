"""Where a figure was taken: machine, disk, versions. Part of every report."""

from __future__ import annotations

import datetime
import os
import platform
import shutil
import subprocess
import time
from pathlib import Path

from bench.report import percentile
from bench.systems.kafka import VERSION as KAFKA_VERSION
from bench.systems.server_process import CHECKOUT


def describe(folder: Path) -> dict[str, str]:
    """By name, in the order of a report. `folder` is where the brokers keep their data."""
    found = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "CPU": f"{_cpu_model()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.0f} GiB",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "kernel": f"{platform.system()} {platform.release()}",
        "disk": f"{_file_system(folder)}, fdatasync of an appended 4 KiB: p50 {flush_us(folder):.0f} us",
        "Python": platform.python_version(),
        "sealog": _commit(),
        "Apache Kafka": f"{KAFKA_VERSION}, one KRaft node",
    }
    if shutil.which("java"):
        first = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
        found["Java"] = first.splitlines()[0] if first else "?"
    return found


def flush_us(folder: Path, count: int = 100) -> float:
    """The median time of an fdatasync after 4 KiB were appended."""
    file = folder / f"flush-{os.getpid()}"
    fd = os.open(file, os.O_CREAT | os.O_WRONLY, 0o600)
    times = []
    try:
        for _ in range(count):
            os.write(fd, b"x" * 4096)
            began = time.perf_counter()
            os.fdatasync(fd)
            times.append((time.perf_counter() - began) * 1e6)
    finally:
        os.close(fd)
        file.unlink()
    return percentile(times, 50)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    best = ("", "?")
    for line in Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
        _, where, kind, *_ = line.split()
        if str(folder.resolve()).startswith(where) and len(where) > len(best[0]):
            best = (where, kind)
    return best[1]


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "?"
