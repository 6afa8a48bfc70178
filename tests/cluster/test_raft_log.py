"""A group's log in files: what is written comes back, what is cut off does not, and damage is told from a torn tail."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c
from support.sim_disk import SimDisk
from support.sim_loop import SimScheduler

from broker.replication.folder import make_dir_durable
from broker.replication.hard_state import HardStateFile
from broker.replication.ops import Code, encode
from broker.replication.raft_log import MARK, CorruptRaftLog, FileLog
from broker.replication.replica import places_in_log
from broker.replication.store import CHECKPOINT, Fatal, Store
from raftish import membership
from raftish.entries import Entry, HardState, Kind
from raftish.membership import Membership


def entry(term, index, size=100):
    return Entry(term, index, Kind.NORMAL, bytes([index % 251]) * size)


class Rig:
    def __init__(self, part_bytes=4096):
        self.scheduler = SimScheduler()
        self.disk = SimDisk(self.scheduler, flush_delay_ms=1.0)
        self.part_bytes = part_bytes
        self.log = self.open()

    def open(self):
        return FileLog(self.disk, self.scheduler, "log", part_bytes=self.part_bytes)

    def flush(self):
        told = []
        self.log.when_all_durable(told.append)
        self.scheduler.run_until(lambda: bool(told))
        assert told == [None]

    def power_cut(self, seed, keep="random"):
        self.scheduler = SimScheduler()
        self.disk = self.disk.crash(seed, keep=keep, scheduler=self.scheduler)
        self.log = self.open()

    def all(self, max_bytes=1000):
        found = []
        while len(found) < self.log.last_index - self.log.first_index + 1:
            first = self.log.first_index + len(found)
            found += self.log.entries(first, self.log.last_index, max_bytes)
        return found


def test_entries_come_back_in_parts_and_within_the_bytes_asked_for():
    rig = Rig()
    wanted = [entry(1 + index // 30, index) for index in range(1, 101)]
    for entry_ in wanted:
        rig.log.write(None, [entry_])
    assert len(rig.disk.list("log")) > 2
    assert rig.all() == wanted
    assert len(rig.log.entries(1, 100, 1)) == 1, "one, however little was asked for"
    assert 2 <= len(rig.log.entries(1, 100, 500)) <= 5
    assert rig.log.entries(3, 4, 1 << 20) == wanted[2:4]
    assert [rig.log.term_at(index) for index in (0, 1, 30, 100, 101)] == [0, 1, 2, 4, None]
    rig.flush()
    rig.power_cut(1, keep="none")
    assert rig.all() == wanted


@pytest.mark.parametrize("seed", range(30))
def test_power_cuts_keep_what_was_flushed_and_nothing_that_was_cut_off(seed):
    rng = random.Random(seed)
    rig = Rig()
    expected: list[Entry] = []
    durable = 0
    term = 1
    for _ in range(40):
        action = rng.random()
        if action < 0.5:
            new = [entry(term, len(expected) + 1 + n, rng.randrange(600)) for n in range(rng.randrange(1, 5))]
            rig.log.write(None, new)
            expected += new
        elif action < 0.65 and expected:
            term += 1
            first = rng.randrange(max(1, len(expected) - 10), len(expected) + 1)
            new = [entry(term, first, rng.randrange(600))]
            rig.log.write(first, new)
            expected[first - 1 :] = new
            durable = min(durable, first - 1)
        elif action < 0.9:
            rig.flush()
            durable = len(expected)
        else:
            rig.power_cut(rng.random())
            found = rig.all()
            assert durable <= len(found) <= len(expected)
            assert found == expected[: len(found)]
            expected, durable = found, len(found)
    assert rig.all() == expected


def test_what_a_checkpoint_covers_is_dropped_by_whole_files():
    rig = Rig()
    rig.log.write(None, [entry(1, 1)])
    for index in range(2, 101):
        rig.log.write(None, [entry(2, index)])
    rig.log.trim(60, keep_bytes=1 << 20)
    assert rig.log.first_index == 1, "so much is kept for nodes that come back"
    rig.log.trim(60, keep_bytes=0)
    first = rig.log.first_index
    assert 30 < first <= 61
    assert rig.log.term_at(first - 1) == 2
    assert rig.log.term_at(first - 2) is None
    rig.flush()
    rig.power_cut(1, keep="none")
    assert (rig.log.first_index, rig.log.last_index) == (first, 100)
    rig.log.restart_at(500, 7)
    assert (rig.log.first_index, rig.log.last_index, rig.log.term_at(500)) == (501, 500, 7)
    rig.log.write(None, [entry(8, 501)])
    assert rig.all() == [entry(8, 501)]


def test_damage_that_is_no_torn_tail_is_refused():
    rig = Rig()
    for index in range(1, 101):
        rig.log.write(None, [entry(1, index)])
    rig.flush()
    names = rig.disk.list("log")
    rig.disk.overwrite(f"log/{names[0]}", 500, b"damage")
    with pytest.raises(CorruptRaftLog):
        rig.open()


def test_a_promise_outlives_torn_writes_of_the_next_one():
    scheduler = SimScheduler()
    disk = SimDisk(scheduler, flush_delay_ms=1.0)
    make_dir_durable(disk, "raft")
    for seed in range(20):
        states = HardStateFile(disk, scheduler, "raft/hard-state")
        kept = HardState(3 * seed + 1, 2)
        states.write(1, kept)
        told = []
        states.when_all_durable(told.append)
        scheduler.run_until(lambda told=told: bool(told))
        states.write(1, HardState(3 * seed + 2, None))
        scheduler = SimScheduler()
        disk = disk.crash(seed, scheduler=scheduler)
        found = HardStateFile(disk, scheduler, "raft/hard-state").current
        assert found in (kept, HardState(3 * seed + 2, None))


def test_changes_of_members_are_known_after_a_start_and_where_nodes_are_stands_before_them():
    rig = Rig()
    members = [Membership(frozenset({1, 2})), Membership(frozenset({1, 2}), frozenset({3}))]
    place = encode([(Code.PEER, 3, "h:1"), (Code.MAKE_DIR, "d")])
    rig.log.write(None, [Entry(1, 1, Kind.MEMBERSHIP, membership.encode(members[0]))])
    rig.log.write(None, [Entry(1, 2, Kind.NORMAL, place)])
    rig.log.write(None, [Entry(1, 3, Kind.MEMBERSHIP, membership.encode(members[1]))])
    rig.flush()
    for _ in range(2):
        assert rig.log.members_after(0) == [(1, members[0]), (3, members[1])]
        assert rig.log.members_after(1) == [(3, members[1])]
        assert places_in_log(rig.log, 0) == {3: "h:1"}
        assert places_in_log(rig.log, 3) == {}
        rig.power_cut(1)
    rig.log.write(3, [entry(2, 3)])
    assert rig.log.members_after(0) == [(1, members[0])], "what is cut off is forgotten"
    rig.log.restart_at(9, 2)
    assert rig.log.members_after(0) == []


def damaged(rig, name, position, data):
    rig.flush()
    rig.log.close()
    rig.disk.overwrite(f"log/{name}", position, data)
    with pytest.raises(CorruptRaftLog, match=r"damaged|gone"):
        rig.open()


def files(rig):
    return [name for name in rig.disk.list("log") if name != MARK]


@pytest.mark.parametrize("count", [5, 100])
def test_a_file_whose_head_was_damaged_is_not_taken_for_one_that_was_being_made(count):
    rig = Rig()
    for index in range(1, count + 1):
        rig.log.write(None, [entry(1, index)])
    damaged(rig, files(rig)[-1], 3, b"x")


def test_a_file_under_another_name_is_refused():
    rig = Rig()
    rig.log.write(None, [entry(1, 1)])
    rig.flush()
    rig.log.close()
    rig.disk.rename(f"log/{files(rig)[0]}", f"log/{7:020d}.raft")
    with pytest.raises(CorruptRaftLog, match="file of entries from 1 on"):
        rig.open()


def test_damage_in_the_last_file_is_no_torn_tail_where_it_was_noted_as_durable():
    rig = Rig(part_bytes=1 << 20)
    for index in range(1, 10):
        rig.log.write(None, [entry(1, index)])
    rig.scheduler.advance(2000)
    rig.log.write(None, [entry(1, 10)])
    rig.flush()
    rig.log.write(None, [entry(1, 11)])
    rig.flush()
    rig.log.close()
    rig.disk.overwrite(f"log/{files(rig)[0]}", 20 + 10 * 125 + 30, b"x")
    rig.log = rig.open()
    assert rig.log.last_index == 10, "of the last one nothing was noted"
    damaged(rig, files(rig)[0], 20 + 5 * 125 + 30, b"x")


def test_what_is_cut_off_was_never_noted():
    """Whatever of the notes a power cut keeps, a log that was cut off is whole."""
    for seed in range(12):
        rig = Rig(part_bytes=1 << 20)
        for index in range(1, 10):
            rig.log.write(None, [entry(1, index)])
        rig.scheduler.advance(2000)
        rig.log.write(None, [entry(1, 10)])
        rig.flush()
        rig.log.write(5, [entry(2, 5)])
        if seed % 2:
            rig.flush()
        rig.power_cut(seed)
        assert 4 <= rig.log.last_index <= 5
        rig.log.restart_at(2, 1)
        rig.power_cut(seed)
        assert rig.log.last_index == 2


@pytest.mark.parametrize("position", [0, 12, 27, 4096, 4096 + 20])
@pytest.mark.parametrize("promises", [0, 1, 2, 5])
def test_a_damaged_promise_is_refused_not_the_one_before_it_taken(position, promises):
    disk = SimDisk()
    make_dir_durable(disk, "raft")
    states = HardStateFile(disk, SimScheduler(), "raft/hard-state")
    assert states.is_new
    for term in range(1, promises + 1):
        states.write_now(HardState(term, 2))
    assert HardStateFile(disk, SimScheduler(), "raft/hard-state").current == (
        promises,
        2 if promises else None,
    )
    before = disk.content("raft/hard-state")[position]
    disk.overwrite("raft/hard-state", position, bytes([before ^ 1]))
    with pytest.raises(Fatal, match="raft/hard-state is damaged"):
        HardStateFile(disk, SimScheduler(), "raft/hard-state")
    disk.overwrite("raft/hard-state", position // 4096 * 4096, bytes(28))
    with pytest.raises(Fatal, match="raft/hard-state lacks"):
        HardStateFile(disk, SimScheduler(), "raft/hard-state")


def test_a_promise_file_of_an_earlier_version_goes_on():
    """It had one place until the second promise."""
    disk = SimDisk()
    make_dir_durable(disk, "raft")
    states = HardStateFile(disk, SimScheduler(), "raft/hard-state")
    states.write_now(HardState(1, 3))  # number 2
    second = disk.content("raft/hard-state")[:28]
    head = (1).to_bytes(8, "big") + second[8:24]
    disk.replace("raft/hard-state", bytes(4096) + head + crc32c(head).to_bytes(4, "big"))
    found = HardStateFile(disk, SimScheduler(), "raft/hard-state")
    assert found.current == HardState(1, 3)
    found.write_now(HardState(2, None))
    assert HardStateFile(disk, SimScheduler(), "raft/hard-state").current == HardState(2, None)


def test_a_checkpoint_that_was_emptied_is_refused_by_name():
    for content in (b"", bytes(4), bytes(3)):
        disk = SimDisk()
        Store(disk).write_now()
        disk.replace(CHECKPOINT, content)
        with pytest.raises(Fatal, match="checkpoint is damaged"):
            Store(disk)
