"""The leader's disk against a plain one, and its followers' files against it, also when they apply entries twice."""

from __future__ import annotations

import errno
import random

import pytest
from support.sim_disk import SimDisk
from support.sim_loop import SimScheduler

from broker.replication.disk import ReplicatedDisk
from broker.replication.life import Life
from broker.replication.ops import BadChange, decode, encode
from broker.replication.store import Store
from raftish.core import NotLeader


class Group:
    """In place of the raft group: commits when the test says so."""

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.proposed = []
        self.payloads = []
        self.refuses = False

    def propose(self, payloads, done):
        if self.refuses:
            return False
        self.proposed.append((payloads, done))
        return True


class Rig:
    def __init__(self):
        self.scheduler = SimScheduler()
        self.group = Group(self.scheduler)
        self.store = Store(SimDisk(self.scheduler, flush_delay_ms=1.0))
        self.disk = ReplicatedDisk(self.store, self.scheduler, self.group.propose)

    def commit(self, count=1000):
        for payloads, done in self.group.proposed[:count]:
            for payload in payloads:
                self.group.payloads.append(payload)
                changes = decode(payload)
                self.store.apply(len(self.group.payloads), 1, changes)
                self.disk.committed(changes)
            done(None)
        del self.group.proposed[:count]


def content(disk, folder=""):
    found = {}
    for name in disk.list(folder):
        path = f"{folder}/{name}" if folder else name
        try:
            file = disk.open_readonly(path)
        except IsADirectoryError:
            found[path] = None
            found |= content(disk, path)
            continue
        found[path] = file.pread(file.size() + 10, 0)
        assert len(found[path]) == file.size()
        file.close()
    return found


def files_of(store):
    _, names, folders = store.tree.dump()
    found = {path: None for path in folders if path}
    for path, number in names.items():
        file = store.disk.open_readonly(Store.path(number))
        found[path] = file.pread(file.size() + 10, 0)
        file.close()
    return found


PATHS = ["a", "b", "d/a", "d/b", "d/e/a"]


def change(rng, disks, open_files):
    """The same change on every disk; errors must be the same, too."""
    path, other = rng.choice(PATHS), rng.choice(PATHS)
    position, size, data = rng.randrange(3000), rng.randrange(1, 2000), rng.randbytes(rng.randrange(1, 900))
    action = rng.choice(
        ["open", "write", "write", "write", "read", "size", "cut", "more", "close", "move", "remove"]
    )
    outcomes = []
    for disk, files in zip(disks, open_files, strict=True):
        file = files.get(path)
        try:
            if action == "open" and file is None:
                files[path] = disk.open(path, create=not disk.exists(path))
                outcome = "open"
            elif action == "move":
                outcome = disk.rename(path, other) if path not in files and other not in files else None
            elif action == "remove":
                outcome = disk.remove(path) if path not in files else None
            elif file is None:
                outcome = disk.exists(path)
            elif action == "write":
                outcome = file.pwritev([data[:5], memoryview(data[5:])], position)
            elif action == "read":
                outcome = file.pread(size, position)
            elif action == "size":
                outcome = file.size()
            elif action == "cut":
                outcome = file.truncate(position)
            elif action == "more":
                outcome = file.allocate(position, size)
            else:
                outcome = files.pop(path).close()
        except OSError as error:
            outcome = type(error)
        outcomes.append(outcome)
    assert outcomes[0] == outcomes[1], (action, path, other, outcomes)


@pytest.mark.parametrize("seed", range(25))
def test_it_reads_as_a_plain_disk_and_followers_end_up_the_same(seed):
    rng = random.Random(seed)
    rig = Rig()
    plain = SimDisk(rig.scheduler, flush_delay_ms=1.0)
    for disk in (rig.disk, plain):
        disk.make_dir("d/e")
    open_files = ({}, {})
    for _ in range(150):
        change(rng, (rig.disk, plain), open_files)
        if rng.random() < 0.2:
            rig.scheduler.advance(25)
        if rng.random() < 0.2:
            rig.commit(rng.randrange(1, 3))
    assert content(rig.disk) == content(plain)
    rig.scheduler.advance(25)
    rig.commit()
    assert content(rig.disk) == content(plain) == files_of(rig.store)

    # A node that crashed after any entry, on a disk that lost whatever, goes on from its checkpoint.
    payloads = rig.group.payloads
    disk = SimDisk(rig.scheduler, flush_delay_ms=1.0)
    follower = Store(disk)
    index = 0
    for _ in range(4):
        stop = rng.randrange(index, len(payloads) + 1)
        for at in range(index, stop):
            follower.apply(at + 1, 1, decode(payloads[at]))
        if rng.random() < 0.7:
            told = []
            follower.checkpoint(follower.capture(), told.append)
            rig.scheduler.run_until(lambda told=told: bool(told))
            assert told == [None]
        for at in range(stop, rng.randrange(stop, len(payloads) + 1)):
            follower.apply(at + 1, 1, decode(payloads[at]))
        disk = disk.crash(rng.random(), scheduler=rig.scheduler)
        follower = Store(disk)
        index = follower.index
    for at in range(index, len(payloads)):
        follower.apply(at + 1, 1, decode(payloads[at]))
    assert files_of(follower) == content(plain)


def test_a_flush_is_done_when_all_before_it_is_committed():
    rig = Rig()
    told = []
    file = rig.disk.open("a", create=True)
    file.pwritev([b"one"], 0)
    rig.disk.start_flush(file, told.append)
    rig.scheduler.run_ready()
    assert not told
    assert len(rig.group.proposed) == 1
    rig.disk.start_flush(file, lambda error: told.append(("again", error)))
    rig.scheduler.run_ready()
    assert not told, "nothing new, but what it waits for is not committed"
    assert not rig.store.tree.exists("a"), "this node's own files wait for that, too"
    rig.commit()
    rig.scheduler.run_ready()
    assert told == [None, ("again", None)]
    rig.disk.start_flush_dir("", told.append)
    rig.scheduler.run_ready()
    assert told[2:] == [None]


def test_a_log_that_takes_nothing_now_is_asked_again():
    rig = Rig()
    told = []
    rig.group.refuses = True
    file = rig.disk.open("a", create=True)
    rig.disk.start_flush(file, told.append)
    rig.scheduler.advance(20)
    rig.group.refuses = False
    rig.scheduler.advance(20)
    rig.commit()
    rig.scheduler.run_ready()
    assert told == [None]
    assert rig.store.tree.exists("a")


def test_after_the_leadership_every_change_and_flush_fails_and_reads_go_on():
    rig = Rig()
    told = []
    file = rig.disk.open("a", create=True)
    file.pwritev([b"one"], 0)
    rig.disk.start_flush(file, told.append)
    rig.scheduler.run_ready()
    rig.disk.fail(OSError(errno.EIO, "over"))
    rig.disk.start_flush(file, told.append)
    rig.scheduler.run_ready()
    assert [error.errno for error in told] == [errno.EIO, errno.EIO]
    for attempt in (
        lambda: file.pwritev([b"two"], 0),
        lambda: file.truncate(0),
        lambda: file.allocate(0, 10),
        file.flush,
        lambda: rig.disk.open("b", create=True),
        lambda: rig.disk.remove("a"),
        lambda: rig.disk.rename("a", "c"),
        lambda: rig.disk.make_dir("d"),
    ):
        with pytest.raises(OSError, match="over"):
            attempt()
    assert file.pread(10, 0) == b"one"
    assert not rig.store.tree.exists("a")


def test_who_cannot_propose_any_more_is_over_before_anybody_hears_of_a_failure():
    """What was proposed before may yet be committed, by the next leader: it has not failed."""
    rig = Rig()
    life = Life(rig.scheduler)
    life.release()
    led = True

    def propose(payloads, done):
        if not led:
            raise NotLeader(None)
        return rig.group.propose(payloads, done)

    told = []
    disk = ReplicatedDisk(rig.store, life, propose, on_lost=life.end)
    file = disk.open("a", create=True)
    disk.start_flush(file, told.append)
    rig.scheduler.run_ready()
    assert rig.group.proposed
    led = False
    file.pwritev([b"more"], 0)
    disk.start_flush(file, told.append)
    rig.scheduler.run_ready()
    assert life.is_over
    assert told == []
    with pytest.raises(OSError, match="does not lead any more"):
        file.pwritev([b"still more"], 0)


def test_a_removed_file_is_read_as_long_as_it_is_open():
    rig = Rig()
    file = rig.disk.open("a", create=True)
    file.pwritev([b"one"], 0)
    rig.scheduler.advance(25)
    rig.commit()
    rig.disk.remove("a")
    rig.scheduler.advance(25)
    rig.commit()
    assert file.pread(10, 0) == b"one"
    assert not rig.disk.exists("a")
    assert rig.store.disk.list("files") == []
    file.close()


def test_what_is_no_payload_is_refused():
    assert decode(encode([(2, 1, 0, b"x")])) == [(2, 1, 0, b"x")]
    falsely = [
        [(2, 1, 0)],
        [(2, 1, 0, "x")],
        [(2, 1, -1, b"x")],
        [(1, 7, 7)],
        [(5, "a", "b")],
        [(2, True, 0, b"x")],
        [{}],
    ]
    for payload in (b"", b"\xc1", b"\x93", encode([(99, 1)]), b"\x01", *map(encode, falsely)):
        with pytest.raises(BadChange):
            decode(payload)
