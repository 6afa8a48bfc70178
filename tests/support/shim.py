"""The LD_PRELOAD shims of tests/shim and bench/shim: built when needed, put around a process, and their traces read.

`powerloss` shows what a power cut leaves of a data directory (PowerCut), `slowflush` delays and counts flushes
(slow_flushes, flush_counts), `faults` makes flushes and writes fail (Faults), `clock` sets the wall clock while the
process runs (SetClock). Several shims may stand around one process: preload(powerloss, faults) puts the first
outermost.

Without a C compiler `require` skips the test with a message; under CI (environment variable CI) it fails.
"""

import contextlib
import os
import random
import shutil
import struct
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.systems import shims
from bench.systems.shims import compiler, preload, slow_flushes

__all__ = ("Faults", "PowerCut", "build", "compiler", "flush_counts", "preload", "require", "slow_flushes")

SOURCES = Path(__file__).resolve().parent.parent / "shim"


def build(name: str) -> Path:
    """The shared library of a shim of tests/shim or bench/shim."""
    return shims.build(name, SOURCES if (SOURCES / f"{name}.c").exists() else shims.SOURCES)


def require(name: str) -> Path:
    """build(), for tests: where there is no C compiler they are skipped, but never in CI."""
    if compiler() is None:
        message = f"no C compiler: the shim {name} cannot be built"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return build(name)


# ---- slowflush ---------------------------------------------------------------------------------------------


def flush_counts(log: Path) -> Counter[str]:
    """The flushes per path in a log that `slowflush` wrote."""
    return Counter(log.read_text(errors="surrogateescape").splitlines()) if log.exists() else Counter()


# ---- faults ------------------------------------------------------------------------------------------------


class Faults:
    """Disk faults in a process under `faults`, switched on and off while it runs.

    Operations: flush, write, short (a write takes only its first half), allocate (no room can be reserved).
    `part`: of the path of the files meant. `count`: how many calls fail, -1 all.
    """

    def __init__(self, control: Path) -> None:
        self.control = control

    @property
    def env(self) -> dict[str, str]:
        """The environment, without LD_PRELOAD."""
        return {"FAULTS_CONTROL": str(self.control)}

    def set(self, *rules: tuple[str, int, int, str]) -> None:
        """Replaces the rules by these: (operation, errno, count, part of the path)."""
        made = self.control.with_suffix(".new")
        made.write_text("".join(f"{op} {errno} {count} {part}\n" for op, errno, count, part in rules))
        made.replace(self.control)

    def clear(self) -> None:
        self.control.unlink(missing_ok=True)


# ---- clock -------------------------------------------------------------------------------------------------


class SetClock:
    """The wall clock of a process under `clock`."""

    def __init__(self, control: Path) -> None:
        self.control = control

    @property
    def env(self) -> dict[str, str]:
        """The environment, without LD_PRELOAD."""
        return {"CLOCK_CONTROL": str(self.control)}

    def ahead(self, offset_ms: int) -> None:
        """So far ahead of the system's from now on; below 0: behind it."""
        made = self.control.with_suffix(".new")
        made.write_text(str(offset_ms))
        made.replace(self.control)


# ---- powerloss ---------------------------------------------------------------------------------------------

_RECORD = struct.Struct("=QQQQII")
_WRITTEN, _TRUNCATED, _EXTENDED, _FLUSHED = 1, 2, 3, 4
_PAGE_BYTES = 4096
_SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class _Change:
    """A write, truncation or extension that no flush has covered; `offset` of the latter two is the size."""

    kind: int
    pid: int
    sequence: int
    offset: int
    length: int


class PowerCut:
    """The shadow of one data directory, for processes under `powerloss`, and the cut itself.

        power = PowerCut(data)
        power.switch_on()                    # all that is on the disk now is durable
        ... start the process with power.env, use it, SIGKILL it ...
        power.cut(random.Random(seed))       # the data directory is what the power cut left

    Between switch_on and cut the process may be killed and started again any number of times: its kernel
    lived on, so the boot id stays. Each switch_on is another boot.
    """

    def __init__(self, data: Path) -> None:
        self.data = data.resolve()
        self.shadow = self.data.parent / f"{self.data.name}.shadow"
        self.boot_id = ""
        self._directories: list[int] = []

    @property
    def env(self) -> dict[str, str]:
        """The environment, without LD_PRELOAD."""
        return {
            "POWERLOSS_ROOT": str(self.data),
            "POWERLOSS_SHADOW": str(self.shadow),
            "POWERLOSS_BOOT_ID": self.boot_id,
        }

    def switch_on(self) -> None:
        """Lays out a new shadow: everything in the data directory is durable. No process may be running."""
        self.switch_off()
        self.boot_id = str(uuid.uuid4())
        self.data.mkdir(parents=True, exist_ok=True)
        for part in ("hold", "inodes", "dirs"):
            (self.shadow / part).mkdir(parents=True)
        for path, _, files in os.walk(self.data):
            # Held open, so that a directory removed later keeps its inode number to itself.
            self._directories.append(os.open(path, os.O_PATH | os.O_DIRECTORY))
            for name in files:
                held = self.shadow / "hold" / str(os.stat(f"{path}/{name}").st_ino)
                with contextlib.suppress(FileExistsError):
                    os.link(f"{path}/{name}", held)
            listing = b"".join(
                b"%c%d %s\0" % (b"d" if kind else b"f", inode, os.fsencode(name))
                for name, (kind, inode) in _listing(Path(path)).items()
            )
            (self.shadow / "dirs" / str(os.stat(path).st_ino)).write_bytes(listing)

    def switch_off(self) -> None:
        """Removes the shadow."""
        for fd in self._directories:
            os.close(fd)
        self._directories.clear()
        shutil.rmtree(self.shadow, ignore_errors=True)

    def cut(self, rng: random.Random | None = None) -> None:
        """Replaces the data directory by what a power cut leaves of it. No process may be running.

        Without `rng` nothing that was not flushed is left. With it each unflushed change may have reached
        the disk: a write whole, up to a torn end, or in some of its pages; a name change with those that
        it was one rename with.
        """
        result = self.data.parent / f"{self.data.name}.after"
        shutil.rmtree(result, ignore_errors=True)
        pending = self._pending() if rng else {}
        done: dict[int, Path] = {}
        self._lay_out(self.data.stat().st_ino, self.data, result, pending, rng, done)
        shutil.rmtree(self.data)
        self.switch_off()
        result.rename(self.data)

    def unflushed_bytes(self) -> int:
        """How many written bytes no flush has covered (an overwritten byte counts each time)."""
        pending = self._pending()
        return sum(c.length for changes in pending.values() for c in changes if c.kind == _WRITTEN)

    def _lay_out(
        self,
        inode: int,
        real: Path | None,
        target: Path,
        pending: dict[int, list[_Change]],
        rng: random.Random | None,
        done: dict[int, Path],
    ) -> None:
        """Makes the directory `target` with the durable content of the directory `inode`."""
        target.mkdir()
        names = self._durable_names(inode)
        now = _listing(real) if real is not None and real.is_dir() and real.stat().st_ino == inode else {}
        if rng and now:
            names = _some_name_changes(names, now, rng)
        for name, (is_directory, child) in sorted(names.items()):
            if is_directory:
                below = real / name if real is not None and now.get(name) == (True, child) else None
                self._lay_out(child, below, target / name, pending, rng, done)
            elif child in done:
                os.link(done[child], target / name)
            else:
                self._lay_out_file(child, target / name, pending.get(child, []), rng)
                done[child] = target / name

    def _lay_out_file(
        self, inode: int, target: Path, changes: list[_Change], rng: random.Random | None
    ) -> None:
        durable = self.shadow / "inodes" / str(inode)
        held = self.shadow / "hold" / str(inode)
        if not durable.exists():
            if held.exists():
                os.link(held, target)  # there at the start and never changed
            else:
                target.touch()  # came in a way that the shim doesn't see
            return
        os.link(durable, target)
        if rng is None or not changes or rng.random() < 0.3:
            return
        chance = rng.choice([0.1, 0.5, 0.9, 1.0])
        with open(held, "rb") as source, open(target, "r+b") as sink:
            for change in changes:
                if rng.random() >= chance:
                    continue
                if change.kind == _WRITTEN:
                    for start, size in _some_of(change, rng):
                        source.seek(start)
                        sink.seek(start)
                        sink.write(source.read(size))
                elif change.kind == _TRUNCATED or change.offset > os.fstat(sink.fileno()).st_size:
                    sink.truncate(change.offset)

    def _durable_names(self, inode: int) -> dict[str, tuple[bool, int]]:
        path = self.shadow / "dirs" / str(inode)
        names = {}
        for entry in path.read_bytes().split(b"\0")[:-1] if path.exists() else []:
            head, name = entry.split(b" ", 1)
            names[os.fsdecode(name)] = (head[:1] == b"d", int(head[1:]))
        return names

    def _pending(self) -> dict[int, list[_Change]]:
        pending: dict[int, list[_Change]] = {}
        log = self.shadow / "log"
        data = log.read_bytes() if log.exists() else b""
        for position in range(0, len(data) - _RECORD.size + 1, _RECORD.size):
            inode, sequence, offset, length, kind, pid = _RECORD.unpack_from(data, position)
            changes = pending.setdefault(inode, [])
            if kind == _FLUSHED:
                # A later process flushes all that an earlier one left behind.
                pending[inode] = [c for c in changes if c.pid == pid and c.sequence > sequence]
            else:
                changes.append(_Change(kind, pid, sequence, offset, length))
        return pending


def _listing(directory: Path) -> dict[str, tuple[bool, int]]:
    with os.scandir(directory) as entries:
        return {e.name: (e.is_dir(follow_symlinks=False), e.inode()) for e in entries}


def _some_of(change: _Change, rng: random.Random) -> Iterator[tuple[int, int]]:
    """The ranges of an unflushed write that reached the disk."""
    start, end = change.offset, change.offset + change.length
    how = rng.random()
    if how < 0.4:
        yield start, change.length
    elif how < 0.6:
        yield start, rng.randrange(change.length + 1)
    elif how < 0.8:
        torn = start + rng.randrange(change.length + 1)
        torn -= torn % _SECTOR_BYTES
        if torn > start:
            yield start, torn - start
    else:
        while start < end:
            stop = min(end, start - start % _PAGE_BYTES + _PAGE_BYTES)
            if rng.random() < 0.5:
                yield start, stop - start
            start = stop


def _some_name_changes(
    durable: dict[str, tuple[bool, int]], now: dict[str, tuple[bool, int]], rng: random.Random
) -> dict[str, tuple[bool, int]]:
    """Some of the unflushed name changes of a directory; those of one rename stay together."""
    changed = [name for name in durable.keys() | now.keys() if durable.get(name) != now.get(name)]
    groups: list[tuple[set[str], set[int]]] = []
    for name in sorted(changed):
        names = {name}
        inodes = {entry[name][1] for entry in (durable, now) if name in entry}
        apart = []
        for group in groups:
            if group[1] & inodes:
                names |= group[0]
                inodes |= group[1]
            else:
                apart.append(group)
        groups = [*apart, (names, inodes)]
    result = dict(durable)
    for names, _ in groups:
        if rng.random() < 0.5:
            for name in names:
                result.pop(name, None)
                if name in now:
                    result[name] = now[name]
    return result
