"""The shims themselves, around small programs: what they let through, what they hold back."""

import os
import random
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.support import shim

PRELUDE = """
import errno, os, shutil, sys, threading
data = sys.argv[1]
def at(name): return os.path.join(data, name)
def flush_names(path=data):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY); os.fsync(fd); os.close(fd)
def create(name, content=b"", flags=0):
    fd = os.open(at(name), os.O_RDWR | os.O_CREAT | flags, 0o644)
    if content: assert os.pwrite(fd, content, 0) == len(content)
    return fd
"""


def run(program: str, data: Path, env: dict[str, str]) -> str:
    """Runs a program to its own `os.kill` or end; its output."""
    code = PRELUDE + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", code, str(data)], env=os.environ | env, capture_output=True, timeout=60
    )
    assert done.returncode in (0, -9), done.stderr.decode()
    return done.stdout.decode()


class Machine:
    """A data directory, programs that use it, and power cuts."""

    def __init__(self, data: Path) -> None:
        self.library = shim.require("powerloss")
        data.mkdir()
        self.data = data
        self.power = shim.PowerCut(data)
        self.power.switch_on()

    def run(self, program: str) -> str:
        return run(program, self.data, shim.preload(self.library) | self.power.env)

    def cut(self, seed: int | None = None) -> dict[str, bytes]:
        self.power.cut(None if seed is None else random.Random(seed))
        found = {
            str(path.relative_to(self.data)): path.read_bytes()
            for path in sorted(self.data.rglob("*"))
            if path.is_file()
        }
        self.power.switch_on()
        return found


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path / "data")
    yield machine
    machine.power.switch_off()


def test_only_flushed_bytes_under_flushed_names_survive(machine):
    machine.run("""
        fd = create("kept", b"one"); os.fdatasync(fd); os.pwrite(fd, b"TWO", 3)
        nameless = create("nameless", b"flushed"); flush_names(); os.fsync(nameless)
        late = create("late", b"flushed"); os.fsync(late)
        empty = create("empty")
        os.kill(os.getpid(), 9)
    """)
    assert machine.cut() == {"kept": b"one", "nameless": b"flushed"}


def test_a_name_that_was_flushed_before_its_bytes_is_an_empty_file(machine):
    machine.run("""create("f", b"never flushed"); flush_names()""")
    assert machine.cut() == {"f": b""}


@pytest.mark.parametrize(
    "write",
    [
        "os.write(fd, b'abcdef')",
        "os.writev(fd, [b'abc', b'def'])",
        "os.pwrite(fd, b'abcdef', 0)",
        "os.pwritev(fd, [b'abc', b'def'], 0)",
        "os.pwritev(fd, [b'abc', b'def'], 0, os.RWF_HIPRI)",
        "open(fd, 'wb', closefd=False).write(b'abcdef')",
        "os.write(os.dup(fd), b'abcdef')",
        "os.write(fd, b'abc'); fd2 = os.open(at('f'), os.O_WRONLY | os.O_APPEND); os.write(fd2, b'def')",
        "s = os.memfd_create('s'); os.write(s, b'abcdef'); os.sendfile(fd, s, 0, 6)",
        "s = create('s', b'abcdef'); os.copy_file_range(s, fd, 6, 0, 0)",
        "s = create('s', b'abcdef'); s and shutil.copyfile(at('s'), at('f'))",
    ],
)
def test_every_way_to_write_is_seen(machine, write):
    machine.run(f"""
        fd = create("f"); flush_names()
        {write}
        os.kill(os.getpid(), 9)
    """)
    assert machine.cut()["f"] == b""
    machine.run(f"""
        fd = create("f")
        {write}
        os.fdatasync(fd)
        os.pwrite(fd, b"XYZ", 0)
        os.kill(os.getpid(), 9)
    """)
    assert machine.cut()["f"] == b"abcdef"


@pytest.mark.parametrize("flag", ["os.O_DSYNC", "os.O_SYNC"])
def test_synchronous_writes_need_no_flush(machine, flag):
    machine.run(f"""
        fd = create("f", b"abc", {flag}); flush_names()
        fd = os.open(at("f"), os.O_WRONLY)
        os.pwritev(fd, [b"def"], 3, os.RWF_DSYNC); os.pwrite(fd, b"ghi", 6)
    """)
    assert machine.cut() == {"f": b"abcdef"}


def test_sync_file_range_makes_nothing_durable(machine):
    machine.run("""
        import ctypes
        fd = create("f", b"abc"); flush_names()
        assert ctypes.CDLL(None).sync_file_range(fd, ctypes.c_int64(0), ctypes.c_int64(3), 7) == 0
    """)
    assert machine.cut() == {"f": b""}


def test_sizes_are_durable_with_the_next_flush(machine):
    machine.run("""
        a = create("truncated", b"abcdef"); b = create("grown", b"abc"); c = create("allocated", b"abc")
        d = create("reopened", b"abcdef"); e = create("unflushed", b"abcdef")
        f = create("rewritten", b"abcdef")
        for fd in (a, b, c, d, e, f): os.fsync(fd)
        flush_names()
        os.ftruncate(a, 2); os.ftruncate(b, 8); os.posix_fallocate(c, 0, 8)
        d = os.open(at("reopened"), os.O_RDWR | os.O_TRUNC); os.truncate(at("unflushed"), 1)
        os.ftruncate(f, 0); os.pwrite(f, b"X", 4)
        for fd in (a, b, c, d, f): os.fdatasync(fd)
        os.kill(os.getpid(), 9)
    """)
    assert machine.cut() == {
        "truncated": b"ab",
        "grown": b"abc" + bytes(5),
        "allocated": b"abc" + bytes(5),
        "reopened": b"",
        "unflushed": b"abcdef",
        "rewritten": bytes(4) + b"X",
    }


def test_files_of_before_are_durable_and_changes_to_them_are_not(machine):
    machine.run("""
        os.mkdir(at("d")); os.fsync(create("d/old", b"old")); os.fsync(create("big", bytes(70000) + b"end"))
        flush_names(at("d")); flush_names()
    """)
    before = machine.cut()
    assert before == {"d/old": b"old", "big": bytes(70000) + b"end"}
    machine.run("""
        fd = os.open(at("d/old"), os.O_RDWR); os.pwrite(fd, b"new", 0)
        fd = os.open(at("big"), os.O_RDWR | os.O_TRUNC); os.pwrite(fd, b"new", 0)
    """)
    assert machine.cut() == before


def test_renames_unlinks_and_folders_wait_for_their_folder(machine):
    machine.run("""
        for name in ("a", "b", "gone"): os.fsync(create(name, name.encode()))
        os.mkdir(at("d")); os.fsync(create("d/x", b"x")); flush_names(at("d")); flush_names()
        os.fsync(create("tmp", b"replaced")); os.rename(at("tmp"), at("a")); os.unlink(at("gone"))
        os.fsync(create("gone2", b"taking the inode of gone, if it could"))
        os.rename(at("d"), at("e")); os.mkdir(at("f")); os.fsync(create("f/y", b"y")); flush_names(at("f"))
        os.kill(os.getpid(), 9)
    """)
    assert machine.cut() == {"a": b"a", "b": b"b", "gone": b"gone", "d/x": b"x"}
    machine.run("""
        os.fsync(create("tmp", b"replaced")); os.rename(at("tmp"), at("a")); os.unlink(at("gone"))
        os.rename(at("d"), at("e")); os.mkdir(at("f")); os.fsync(create("f/y", b"y")); flush_names(at("f"))
        flush_names(); os.unlink(at("b"))
        os.kill(os.getpid(), 9)
    """)
    assert machine.cut() == {"a": b"replaced", "b": b"b", "e/x": b"x", "f/y": b"y"}


def test_a_removed_folder_that_comes_back_has_its_own_files(machine):
    machine.run("""
        os.mkdir(at("d")); os.fsync(create("d/x", b"x")); flush_names(at("d")); flush_names()
        os.unlink(at("d/x")); os.rmdir(at("d"))
        for name in ("e", "f", "g"): os.mkdir(at(name)); flush_names(at(name))
        os.kill(os.getpid(), 9)
    """)
    assert machine.cut() == {"d/x": b"x"}


def test_a_flush_covers_the_writes_of_a_killed_process(machine):
    machine.run("""
        fd = create("f", b"abc"); flush_names(); os.fsync(fd); os.pwrite(fd, b"xyz", 1)
        os.kill(os.getpid(), 9)
    """)
    assert machine.power.unflushed_bytes() == 3
    machine.run("""fd = os.open(at("f"), os.O_RDONLY); os.fsync(fd)""")
    assert machine.power.unflushed_bytes() == 0
    assert machine.cut() == {"f": b"axyz"}


def test_flushes_of_several_threads_lose_nothing_and_add_nothing(machine):
    """What a thread reports after its flush is there; what it reports before one is not all of it."""
    out = machine.run("""
        fd = create("f"); flush_names()
        durable = [0] * 4
        def work(n):
            for i in range(1, 200):
                os.pwrite(fd, i.to_bytes(8, "big"), n * 8)
                os.fdatasync(fd)
                durable[n] = i
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for t in threads: t.start()
        while max(durable) < 100: pass
        print(*durable, flush=True)
        os.kill(os.getpid(), 9)
    """)
    reported = [int(word) for word in out.split()]
    kept = machine.cut()["f"]
    for n, at_least in enumerate(reported):
        assert at_least <= int.from_bytes(kept[n * 8 : n * 8 + 8], "big") < 200


def test_a_failed_flush_never_becomes_durable(machine, tmp_path):
    faults = shim.Faults(tmp_path / "faults")
    faults.set(("flush", 5, 1, "/f"))
    env = shim.preload(machine.library, shim.require("faults")) | machine.power.env | faults.env
    program = """
        fd = create("f"); flush_names(); os.pwrite(fd, b"abc", 0)
        try: os.fdatasync(fd)
        except OSError as error: print(error.errno)
        os.fdatasync(fd); os.pwrite(fd, b"def", 3); os.fdatasync(fd)
    """
    assert run(program, machine.data, env) == "5\n"
    assert machine.cut() == {"f": bytes(3) + b"def"}


def test_a_seeded_cut_keeps_all_that_was_flushed_and_some_of_the_rest(machine):
    outcomes = set()
    for seed in range(30):
        machine.run("""
            for name in list(os.listdir(data)): os.unlink(at(name))
            os.fsync(create("tmp", b"first")); os.rename(at("tmp"), at("current"))
            fd = create("f", b"F" * 5000); os.fsync(fd); flush_names()
            os.pwrite(fd, b"x" * 20000, 5000); os.pwrite(fd, b"y" * 100, 25000)
            os.fsync(create("tmp", b"second")); os.rename(at("tmp"), at("current")); create("new", b"n")
        """) if seed % 10 == 0 else machine.run("""
            fd = os.open(at("f"), os.O_RDWR); os.ftruncate(fd, 5000); os.fsync(fd)
            os.pwrite(fd, b"x" * 20000, 5000); os.pwrite(fd, b"y" * 100, 25000)
            os.fsync(create("tmp", b"second")); os.rename(at("tmp"), at("current")); create("new", b"n")
        """)
        found = machine.cut(seed)
        rest = found["f"][5000:]
        assert found["f"][:5000] == b"F" * 5000
        assert set(rest[:20000]) <= {0, ord("x")}
        assert set(rest[20000:]) <= {ord("y")} or len(rest) > 20000
        assert found["current"] in (b"first", b"second")
        outcomes.add((len(rest), rest.count(b"x"), found["current"], "new" in found))
    assert (0, 0, b"first", False) in outcomes
    assert len(outcomes) > 8


def test_the_boot_id_is_the_given_one_and_new_after_each_cut(machine):
    program = """
        from pathlib import Path
        path = "/proc/sys/kernel/random/boot_id"
        print(open(path).read() + Path(path).read_text(), end="")
    """
    first = machine.run(program)
    assert first == f"{machine.power.boot_id}\n" * 2
    assert machine.run(program) == first
    machine.cut()
    assert machine.run(program) != first


def test_programs_outside_the_root_are_left_alone(machine, tmp_path):
    (tmp_path / "other").mkdir()
    env = shim.preload(machine.library) | machine.power.env
    run("""fd = create("f", b"abc"); os.fsync(fd); flush_names()""", tmp_path / "other", env)
    assert (tmp_path / "other" / "f").read_bytes() == b"abc"
    assert machine.cut() == {}
    assert not (machine.power.shadow / "log").exists() or machine.power.unflushed_bytes() == 0


def test_slow_flushes_take_longer_and_are_counted(tmp_path):
    log = tmp_path / "flushes"
    library = shim.require("slowflush")
    (tmp_path / "data").mkdir()
    env = shim.preload(library) | shim.slow_flushes(20_000, log)
    program = """
        fd = create("f", b"abc")
        for _ in range(5): os.fdatasync(fd)
        os.fsync(fd); flush_names()
    """
    start = time.monotonic()
    run(program, tmp_path / "data", env)
    assert time.monotonic() - start >= 7 * 0.020
    data = str(tmp_path / "data")
    assert shim.flush_counts(log) == {f"{data}/f": 6, data: 1}


def test_faults_come_and_go_with_the_control_file(tmp_path):
    library = shim.require("faults")
    (tmp_path / "data").mkdir()
    faults = shim.Faults(tmp_path / "control")
    program = """
        def attempt(action):
            try: return action()
            except OSError as error: return errno.errorcode[error.errno]
        control = sys.argv[1] + "/../control"
        def rules(text): open(control + ".new", "w").write(text); os.replace(control + ".new", control)
        f = create("f"); g = create("g")
        print(attempt(lambda: os.pwrite(f, b"ab", 0)), attempt(lambda: os.fsync(f)))
        rules("write 28 2 /f\\nflush 5 -1 /g\\n")
        print(attempt(lambda: os.pwrite(f, b"ab", 0)), attempt(lambda: os.pwritev(f, [b"ab"], 0)))
        print(attempt(lambda: os.pwrite(f, b"ab", 0)), attempt(lambda: os.pwrite(g, b"ab", 0)))
        print(attempt(lambda: os.fsync(f)), attempt(lambda: os.fsync(g)), attempt(lambda: os.fdatasync(g)))
        rules("short 0 -1 /f\\n")
        print(attempt(lambda: os.pwritev(f, [b"abc", b"def", b"gh"], 0)), os.pread(f, 9, 0), os.fsync(g))
        os.unlink(control)
        print(attempt(lambda: os.pwrite(f, b"abcd", 0)))
    """
    out = run(program, tmp_path / "data", shim.preload(library) | faults.env)
    assert out.splitlines() == [
        "2 None",
        "ENOSPC ENOSPC",
        "2 2",
        "None EIO EIO",
        "4 b'abcd' None",
        "4",
    ]
