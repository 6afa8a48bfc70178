"""Power cuts and kills at every point: nothing promised is lost, nothing torn comes back.

The auditor in range_model.py holds the truth; these tests drive it through many lives.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable

import pytest
from range_model import DIRECTORY, SMALL, Crashes, Owner
from support.sim_disk import PowerCut

from storage.format import segment_name

LIVES = 5


@pytest.mark.parametrize("block", range(8))
def test_many_lives_of_one_log(block: int) -> None:
    met = Crashes()
    for seed in range(block * 10, block * 10 + 10):
        rng = random.Random(seed)
        # Slow flushes and slow layouts keep a roll open for long, fast ones let much become durable.
        owner = Owner(
            seed=seed, max_flush_ms=rng.choice((0.0, 4.0, 40.0)), max_publish_ms=rng.choice((0.0, 6.0, 40.0))
        )
        owner.create()
        for _ in range(LIVES):
            owner.disk.stop_after(rng.choice((rng.randint(1, 60), rng.randint(1, 250))))
            with contextlib.suppress(PowerCut):
                for _ in range(70):
                    owner.random_step()
            killed = rng.random() < 0.3
            if killed:
                owner.kill()
            else:
                owner.power_cut(rng.randrange(1 << 30))
            interruptions = 0 if killed else rng.choice((0, 0, 1, 2))
            owner.recover(killed=killed, interruptions=interruptions, seed=rng.randrange(1 << 30))
            met.count(owner.report)
        assert not owner.failures
    assert met.entries
    assert met.cuts or block == 7  # whose ten seeds meet no torn tail
    assert met.checkpoints
    assert met.orphans


def test_clean_lives_lose_nothing_and_scan_little() -> None:
    owner = Owner(seed=5)
    owner.create()
    for _ in range(6):
        for _ in range(60):
            owner.random_step()
        owner.scheduler.advance(300)
        appended = owner.log.end_offsets()
        owner.log.close()
        owner.power_cut(1, keep="all")
        owner.recover()
        assert owner.log.end_offsets() == appended
        assert not owner.report.cuts
        # A close leaves at most this much to scan, here in entries of 100 bytes or more.
        assert owner.report.bytes_scanned <= SMALL.close_checkpoint_bytes


# A short life with everything in it: several partitions and producers, a roll with its seal, a checkpoint.


def scripted_life(owner: Owner) -> None:
    owner.create()
    for number in range(30):
        appended = owner.append(number % 3, b"x" * 60, b"%d" % number, producer_id=7)
        if number % 4 == 0:
            owner.wait_durable(number % 3, appended)
        if number % 3 == 0:
            owner.scheduler.advance(2)
    owner.scheduler.advance(100)


SCRIPT = dataclasses.replace(SMALL, checkpoint_bytes=1200, segment_bytes=3500)


def changes_of(script: Callable[[Owner], None], owner: Owner) -> int:
    script(owner)
    return owner.disk.changes


def test_scripted_life_meets_everything() -> None:
    owner = Owner(seed=1, config=SCRIPT)
    scripted_life(owner)
    assert len(owner.layout) == 2
    assert owner.sealed
    assert owner.disk.flushes[f"{DIRECTORY}/{segment_name(1)[:-4]}.ckpt.tmp"] == 2
    assert owner.promised == [log.end_offset for log in map(owner.log.partition, range(3))]


@pytest.mark.parametrize("part", range(4))
def test_power_cut_at_every_change(part: int) -> None:
    """Cut at each write, flush start, flush end, rename and so on; for each, several fates of what was unflushed."""
    total = changes_of(scripted_life, Owner(seed=1, config=SCRIPT))
    assert total > 60
    for cut in range(1 + part, total + 1, 4):
        stopped = Owner(seed=1, config=SCRIPT)
        stopped.disk.stop_after(cut)
        with pytest.raises(PowerCut):
            scripted_life(stopped)
        if not stopped.layout:
            continue  # the range did not exist yet
        for seed, keep in enumerate(("none", "all", "random", "random", "sectors", "sectors", "sectors")):
            owner = stopped.fork(seed)
            owner.power_cut(cut * 31 + seed, keep=keep)
            owner.recover()
            # And it goes on from there.
            appended = owner.append(1, b"next", producer_id=7)
            owner.wait_durable(1, appended)
            owner.scheduler.advance(100)
            assert owner.promised[1] == appended.last_offset + 1


@pytest.mark.parametrize("part", range(2))
def test_kill_at_every_change(part: int) -> None:
    total = changes_of(scripted_life, Owner(seed=1, config=SCRIPT))
    for cut in range(1 + part, total + 1, 2):
        owner = Owner(seed=1, config=SCRIPT)
        owner.disk.stop_after(cut)
        with pytest.raises(PowerCut):
            scripted_life(owner)
        if not owner.layout:
            continue
        owner.kill()
        owner.recover(killed=True)
        # Had the power gone right after the recovery, nothing more would be lost: all of it was flushed.
        ends = owner.log.end_offsets()
        owner.power_cut(cut, keep="none")
        owner.recover()
        assert owner.log.end_offsets() == ends


# A roll, with a parent whose footer is larger than a sector and a child whose entries are acknowledged meanwhile.


def drained_roll(owner: Owner) -> None:
    owner.create()
    for number in range(60):
        owner.append(number % 3, b"x" * 40, producer_id=number)
    owner.scheduler.run_until(lambda: owner.log.active.segment_id == 2)
    owner.scheduler.run_until(lambda: owner.log.segments[0].durable_end == owner.log.segments[0].end)


def append_durably(owner: Owner, number: int) -> None:
    appended = owner.append(number % 3, b"x" * 40, producer_id=number)
    owner.wait_durable(number % 3, appended)
    owner.scheduler.run_ready()


def seal_beside_appends(owner: Owner) -> None:
    drained_roll(owner)
    parent = f"{DIRECTORY}/{segment_name(1)}"
    owner.disk.flush_delay_ms = lambda path: 3.0 if path == parent else 0.0
    number = 0
    while not owner.sealed:
        append_durably(owner, number)
        owner.scheduler.advance(1)
        number += 1


def test_power_cut_at_every_change_of_a_seal() -> None:
    """An unfinished footer is never taken for damage, nor for a finished one."""
    owner = Owner(seed=3, max_flush_ms=0.0)
    drained_roll(owner)
    first = owner.disk.changes
    total = changes_of(seal_beside_appends, Owner(seed=3, max_flush_ms=0.0))
    assert total > first + 20
    for cut in range(first + 1, total + 1):
        stopped = Owner(seed=3, max_flush_ms=0.0)
        stopped.disk.stop_after(cut)
        with pytest.raises(PowerCut):
            seal_beside_appends(stopped)
        for seed in range(24):
            owner = stopped.fork(seed)
            owner.power_cut(seed, keep="sectors" if seed else "all")
            owner.recover()
            assert not [found for found in owner.report.cuts if found.path.endswith(segment_name(1))]


# A crash at which the parent's last entries are lost and the child's are not.


def torn_roll(owner: Owner, *, lose_parent: bool) -> None:
    owner.create()
    parent = f"{DIRECTORY}/{segment_name(1)}"
    for number in range(20):
        owner.append(number % 3, b"x" * 100)
        owner.scheduler.run_ready()
    owner.scheduler.run_until(lambda: bool(owner.publishing))
    owner.log.request_flush()
    owner.scheduler.run_ready()
    # From here on the parent's flush never comes back.
    owner.disk.flush_delay_ms = lambda path: 1e6 if path == parent else 0.0
    owner.append(0, b"the parent's last")
    owner.scheduler.run_until(lambda: owner.log.active.segment_id == 2)
    owner.append(1, b"fine in the child")
    owner.append(0, b"continues what is lost")
    owner.scheduler.run_ready()
    owner.append(1, b"behind the gap")
    owner.scheduler.run_ready()

    def keep(path: str) -> str:
        return "none" if lose_parent and path == parent else "all"

    owner.disk = owner.disk.crash(0, keep=keep)
    owner._end_of_life(owner.disk)


def test_child_is_cut_where_the_parent_lost_its_tail() -> None:
    owner = Owner(seed=3, max_flush_ms=0.0)
    torn_roll(owner, lose_parent=True)
    appended = [list(batches) for batches in owner.batches]
    owner.recover()
    assert [cut.path for cut in owner.report.cuts] == [f"{DIRECTORY}/{segment_name(2)}"]
    assert "partition 0 continues at" in owner.report.cuts[0].reason
    assert owner.report.sealed == [1]
    # Lost: the parent's last entry of partition 0 and, from the gap on, what was written after it.
    assert [len(before) - len(after) for before, after in zip(appended, owner.batches, strict=True)] == [
        2,
        1,
        0,
    ]


def test_child_stays_where_the_parent_kept_its_tail() -> None:
    owner = Owner(seed=3, max_flush_ms=0.0)
    torn_roll(owner, lose_parent=False)
    appended = [len(batches) for batches in owner.batches]
    owner.recover()
    assert not owner.report.cuts
    assert [len(batches) for batches in owner.batches] == appended


def lost_tail(owner: Owner) -> None:
    torn_roll(owner, lose_parent=True)


def kept_tail(owner: Owner) -> None:
    torn_roll(owner, lose_parent=False)


def unsealed_parent(owner: Owner) -> None:
    """Cut while the parent's end mark is on its way: the parent and entries of the child are durable."""
    drained_roll(owner)
    parent = f"{DIRECTORY}/{segment_name(1)}"
    owner.disk.flush_delay_ms = lambda path: 1e6 if path == parent else 0.0
    for number in range(4):
        append_durably(owner, number)
    assert owner.log.active.durable_end == owner.log.active.end
    owner._end_of_life(owner.disk.crash(0, keep="none"))


def unfinished_footer(owner: Owner) -> None:
    """Cut while the footer's body is on its way: it is there, and its trailer is not."""
    drained_roll(owner)
    parent = f"{DIRECTORY}/{segment_name(1)}"
    owner.scheduler.run_until(lambda: owner.log._roller.state == "WRITING")
    owner.disk.flush_delay_ms = lambda path: 1e6 if path == parent else 0.0
    for number in range(4):
        append_durably(owner, number)
    assert owner.log._roller.state == "SEALING"
    owner._end_of_life(owner.disk.crash(0, keep="all"))


@pytest.mark.parametrize("script", [lost_tail, kept_tail, unsealed_parent, unfinished_footer])
def test_power_cut_at_every_change_of_a_recovery(script: Callable[[Owner], None]) -> None:
    """Recovery cuts the child, flushes, and seals the parent; interrupted anywhere, the next one ends the same."""
    owner = Owner(seed=3, max_flush_ms=0.0)
    script(owner)
    owner.recover()
    ends, total = owner.log.end_offsets(), owner.disk.changes
    assert owner.report.sealed == [1]
    for cut in range(1, total + 1):
        stopped = Owner(seed=3, max_flush_ms=0.0)
        script(stopped)
        stopped.disk.stop_after(cut)
        with pytest.raises(PowerCut):
            stopped.open()
        for seed in range(64):
            owner = stopped.fork(seed)
            owner.power_cut(seed, keep=("none", "all")[seed] if seed < 2 else "sectors")
            owner.recover()
            assert owner.log.end_offsets() == ends
            if seed % 8 == 0:
                # A second cut at once: everything kept is on the device.
                owner.power_cut(seed, keep="none")
                owner.recover()
                assert owner.log.end_offsets() == ends
