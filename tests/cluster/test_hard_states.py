"""The promises of many groups in one file: what a power cut leaves, what damage is refused."""

from __future__ import annotations

import random

import pytest
from support.sim_disk import SimDisk
from support.sim_loop import SimScheduler

from broker.replication.folder import make_dir_durable
from broker.replication.hard_states import PLACE_BYTES, SECTOR_BYTES, HardStateTable
from broker.replication.store import Fatal
from raftish.entries import HardState

PATH = "raft/hard-states"


def opened(disk):
    make_dir_durable(disk, "raft")
    return HardStateTable(disk, disk.scheduler, PATH)


def durable(disk, table):
    told = []
    table.when_all_durable(told.append)
    disk.scheduler.run_until(lambda: told)
    assert told == [None]


def test_promises_of_all_groups_are_found_again():
    disk = SimDisk(SimScheduler(), flush_delay_ms=1.0)
    table = opened(disk)
    assert table.is_new
    for group in (2, 16, 17):
        table.add(group, group * 10)
    table.write(16, HardState(5, 1))
    table.write(17, HardState(6, None))
    table.write(16, HardState(7, 2))
    table.remove(17)
    table.add(18, 1)
    durable(disk, table)
    found = opened(disk.crash(0, keep="none"))
    assert not found.is_new
    assert found.groups == {2: 20, 16: 160, 18: 1}
    assert found.state(2) == found.state(18) == HardState(0, None)
    assert found.state(16) == HardState(7, 2)
    assert disk.content(PATH)[2 * PLACE_BYTES :], "the place of a group that is gone is used again"
    assert len(disk.content(PATH)) <= 3 * PLACE_BYTES


def test_writes_of_many_groups_share_a_flush():
    disk = SimDisk(SimScheduler(), flush_delay_ms=1.0)
    table = opened(disk)
    for group in range(16, 66):
        table.add(group, 0)
    durable(disk, table)
    before = disk.flushes[PATH]
    for group in range(16, 66):
        table.write(group, HardState(1, 0))
    durable(disk, table)
    # The first write begins one; the rest goes with the next.
    assert disk.flushes[PATH] <= before + 2


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_leaves_what_was_durable_or_something_later(seed):
    """Each group's state after it is one that was written at or after the last flush."""
    rng = random.Random(seed)
    disk = SimDisk(SimScheduler(), flush_delay_ms=1.0)
    table = opened(disk)
    since = {}
    for _ in range(60):
        group = rng.randrange(16, 20)
        states = since.setdefault(group, [None])
        if group not in table:
            table.add(group, group)
            states.append(HardState(0, None))
        elif rng.random() < 0.1:
            table.remove(group)
            states.append(None)
        else:
            now = table.state(group)
            table.write(group, HardState(now.term + 1, rng.randrange(3)))
            states.append(table.state(group))
        if rng.random() < 0.15:
            durable(disk, table)
            for kept in since.values():
                del kept[:-1]
    found = opened(disk.crash(rng.random()))
    for group, states in since.items():
        state = found.state(group) if group in found else None
        assert state in states, f"group {group} is {state}, not one of {states}"


def test_damage_is_refused():
    disk = SimDisk(SimScheduler(), flush_delay_ms=1.0)
    table = opened(disk)
    table.add(16, 0)
    for term in range(1, 4):
        table.write(16, HardState(term, 0))
    durable(disk, table)
    content = disk.content(PATH)
    for sector in (0, SECTOR_BYTES):
        for damage in (b"\1", b"\0" * 44):
            harmed = disk.crash(0, keep="none")
            position = sector + (12 if len(damage) == 1 else 0)
            assert content[position : position + len(damage)] != damage
            harmed.overwrite(PATH, position, damage)
            with pytest.raises(Fatal):
                opened(harmed)
