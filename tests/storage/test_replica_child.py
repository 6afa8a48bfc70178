"""A range splits, and ranges merge: what came before is in the children's folders, whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from replica_chains import Chain, noop
from replica_model import FOLDER, PARTITIONS, SMALL, TOPIC, batch_entry, hooks, states
from support.sim_disk import PowerCut, SimDisk
from support.sim_loop import SimScheduler

from storage import ancestry
from storage.check import check_directory
from storage.files import delete_files
from storage.format import ANCESTORS_NAME, CorruptLog, segment_name
from storage.numbering import NOOP, NORMAL, Entry
from storage.payloads import Roll, encode_roll
from storage.replica import RangeReplica
from storage.replica_child import NewRange, make_child
from storage.replica_front import ReplicaFront
from storage.replica_recovery import open_replica

CHILD = "c"
FIRST_OF_CHILD = 1000


def retired(segments: int = 3) -> Chain:
    """A replica whose range has ended, behind `segments` sealed segments and some entries more."""
    chain = Chain(segments)
    retire(chain)
    chain.settle()
    return chain


def retire(chain: Chain) -> None:
    replica = chain.replica
    roll = Roll(replica.active.segment_id + 1, 999, retires=True)
    replica.write(None, [Entry(2, replica.last_index + 1, NORMAL, encode_roll(roll))])


def opened(
    disk: SimDisk, folder: str, first: int, last: int, scheduler: SimScheduler | None = None
) -> RangeReplica:
    scheduler = scheduler or SimScheduler()
    disk.scheduler = scheduler
    return open_replica(
        disk,
        scheduler,
        directory=folder,
        topic_id=TOPIC,
        first=first,
        last=last,
        hooks=hooks(),
        config=SMALL,
    )[0]


def made(
    disk: SimDisk,
    scheduler: SimScheduler,
    parents: Sequence[RangeReplica],
    folder: str,
    first: int,
    last: int,
    segment_id: int = FIRST_OF_CHILD,
) -> RangeReplica:
    told: list[Any] = []
    found = [parent.as_parent() for parent in parents]
    assert None not in found
    new = NewRange(folder, TOPIC, first, last, segment_id, 7, b"first")
    make_child(disk, new, [parent for parent in found if parent is not None], SMALL, told.append)
    scheduler.run_until(lambda: bool(told), max_ms=100)
    assert told == [None]
    return opened(disk, folder, first, last, scheduler)


def records(replica: RangeReplica, partition: int) -> list[bytes]:
    log = replica.partition(partition)
    found: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.high_watermark:
        result = replica.read(partition, offset, limit_offset=log.high_watermark, max_bytes=1000)
        found += [bytes(one.data) for one in result.batches]
        offset = result.batches[-1].last_offset + 1
    return found


def shape(replica: RangeReplica, partition: int) -> Any:
    log = replica.partition(partition)
    return (
        records(replica, partition),
        (log.log_start_offset, log.high_watermark, log.end_offset),
        log.epochs,
        states(log.producers),
    )


def goes_on(replica: RangeReplica, partition: int, term: int = 3) -> None:
    end = replica.partition(partition).end_offset
    replica.write(None, [batch_entry(term, replica.last_index + 1, partition, end, producer=-1)])
    replica.commit_to(replica.last_index)
    assert replica.partition(partition).high_watermark == end + 1


def test_a_range_that_is_retired_takes_no_data_and_rolls_no_more() -> None:
    chain = Chain(2)
    replica = chain.replica
    assert replica.as_parent() is None
    retire(chain)
    assert replica.is_retiring
    assert not replica.is_retired
    assert replica.as_parent() is None
    chain.settle()
    assert replica.is_retired
    assert replica.retired_in() == 2
    parent = replica.as_parent()
    assert parent is not None
    assert [one.segment_id for one in parent.segments] == [1, 2, 3]
    replica.begin_leading(5, lambda payloads: pytest.fail("it proposes nothing"))
    assert not replica.roll()
    assert not replica.retire()
    replica.write(None, [noop(replica, 5)])
    replica.close()
    again = opened(chain.disk, FOLDER, 0, PARTITIONS - 1)
    assert again.is_retiring
    assert again.retired_in() == 2
    again.commit_to(again.last_index)
    assert again.is_retired


def test_an_end_that_is_truncated_never_was() -> None:
    chain = Chain(2)
    retire(chain)
    index = chain.replica.last_index
    chain.replica.write(index, [Entry(3, index, NOOP, b"")])
    assert not chain.replica.is_retiring
    chain.settle()
    assert chain.replica.as_parent() is None
    chain.replica.close()
    assert not opened(chain.disk, FOLDER, 0, PARTITIONS - 1).is_retiring


def test_children_have_what_their_parent_had_and_go_on_from_there() -> None:
    chain = retired()
    parent = chain.replica
    wanted = [shape(parent, partition) for partition in range(PARTITIONS)]
    for partition in range(PARTITIONS):
        child = made(chain.disk, chain.scheduler, [parent], f"c{partition}", partition, partition)
        assert shape(child, partition) == wanted[partition]
        assert (child.first_index, child.last_index, child.commit_index) == (1, 0, 0)
        assert child.members_known() == [(0, b"first")]
        goes_on(child, partition)
        child.close()
        again = opened(chain.disk, f"c{partition}", partition, partition, chain.scheduler)
        again.commit_to(again.last_index)
        assert records(again, partition)[:-1] == wanted[partition][0]
        assert again.last_index == 1
        assert {finding.status for finding in check_directory(chain.disk, f"c{partition}")} == {"ok"}
    delete_files(chain.disk, FOLDER)
    assert records(opened(chain.disk, "c0", 0, 0), 0) == wanted[0][0]


def test_ranges_that_were_split_merge_and_what_they_share_is_there_once() -> None:
    chain = retired()
    wanted = [records(chain.replica, partition) for partition in range(PARTITIONS)]
    children = [
        made(chain.disk, chain.scheduler, [chain.replica], f"c{n}", n, n, FIRST_OF_CHILD * (n + 1))
        for n in range(PARTITIONS)
    ]
    for n, child in enumerate(children):
        goes_on(child, n)
        wanted[n] = records(child, n)
        roll = Roll(child.active.segment_id + 1, 5, retires=True)
        child.write(None, [Entry(4, child.last_index + 1, NORMAL, encode_roll(roll))])
        child.commit_to(child.last_index)
    chain.scheduler.advance(500)
    merged = made(chain.disk, chain.scheduler, children, "m", 0, PARTITIONS - 1, 9000)
    for n in range(PARTITIONS):
        assert records(merged, n) == wanted[n]
        goes_on(merged, n, 5)
        assert states(merged.partition(n).producers) == states(children[n].partition(n).producers)
    ids = [one.segment_id for one in merged.segments]
    assert len(ids) == len(set(ids))
    assert merged.ancestry.lasts == (1000, 2000)


def test_only_the_part_that_a_parent_had_comes_from_it() -> None:
    """One of two has dropped its begin: the other one's files hold records of it that are gone."""
    chain = retired()
    children = [
        made(chain.disk, chain.scheduler, [chain.replica], f"c{n}", n, n, FIRST_OF_CHILD * (n + 1))
        for n in range(PARTITIONS)
    ]
    start = children[0].segments[1].indexes[0].start_offset
    children[0].partition(0).advance_log_start(start)
    assert ReplicaFront(chain.disk, chain.scheduler, children[0]).drop() == [1]
    for child in children:
        roll = Roll(child.active.segment_id + 1, 5, retires=True)
        child.write(None, [Entry(4, child.last_index + 1, NORMAL, encode_roll(roll))])
        child.commit_to(child.last_index)
    chain.scheduler.advance(500)
    merged = made(chain.disk, chain.scheduler, children, "m", 0, PARTITIONS - 1, 9000)
    assert merged.partition(0).log_start_offset == start
    assert records(merged, 1) == records(children[1], 1)
    assert records(merged, 0) == records(children[0], 0)


@pytest.mark.parametrize("keep", ["none", "all", "random"])
def test_a_power_cut_while_a_child_is_made_leaves_none_or_a_whole_one(keep: str) -> None:
    whole = retired(2)
    wanted = shape(whole.replica, 0)
    seen = {"none": 0, "whole": 0}
    at = 0
    while True:
        at += 1
        chain = retired(2)
        chain.disk.stop_after(at)
        try:
            made(chain.disk, chain.scheduler, [chain.replica], CHILD, 0, 0)
        except PowerCut:
            pass
        else:
            break
        disk = chain.disk.crash(at, keep=keep)
        assert not any(finding.damaged for finding in check_directory(disk, FOLDER))
        scheduler = SimScheduler()
        parent = opened(disk, FOLDER, 0, PARTITIONS - 1, scheduler)
        assert shape(parent, 0)[0] == wanted[0]
        parent.commit_to(parent.last_index)
        scheduler.advance(500)
        if ancestry.is_whole(disk, CHILD):
            seen["whole"] += 1
            child = opened(disk, CHILD, 0, 0, scheduler)
        else:
            seen["none"] += 1
            child = made(disk, scheduler, [parent], CHILD, 0, 0)
        assert shape(child, 0) == wanted
        assert not any(finding.damaged for finding in check_directory(disk, CHILD))
        goes_on(child, 0)
    assert seen["none"] > 10, seen
    assert keep != "all" or seen["whole"], seen


def test_a_start_sees_an_ancestor_that_is_gone_and_one_that_is_damaged() -> None:
    chain = retired()
    child = made(chain.disk, chain.scheduler, [chain.replica], CHILD, 0, 0)
    names = [one.name for one in child.ancestry.segments]
    assert len(names) == 4
    child.close()
    chain.disk.remove(f"{CHILD}/{names[1]}")
    with pytest.raises(CorruptLog, match="absent"):
        opened(chain.disk, CHILD, 0, 0)
    chain.disk.remove(f"{CHILD}/{names[0]}")
    assert opened(chain.disk, CHILD, 0, 0).partition(0).log_start_offset > 0
    chain.disk.overwrite(f"{CHILD}/{ANCESTORS_NAME}", 6, b"\x07")
    with pytest.raises(CorruptLog, match="damaged"):
        opened(chain.disk, CHILD, 0, 0)


def test_a_list_that_does_not_end_where_the_files_do_is_refused() -> None:
    chain = retired()
    child = made(chain.disk, chain.scheduler, [chain.replica], CHILD, 0, 0)
    child.close()
    wrong = ancestry.Ancestry(child.ancestry.segments, {0: 4}, child.ancestry.lasts)
    chain.disk.replace(f"{CHILD}/{ANCESTORS_NAME}", wrong.packed())
    with pytest.raises(CorruptLog, match="ends at offset"):
        opened(chain.disk, CHILD, 0, 0)


def test_ancestors_go_from_the_oldest_on_and_the_last_of_a_parent_with_the_first_own_seal() -> None:
    chain = retired()
    child = made(chain.disk, chain.scheduler, [chain.replica], CHILD, 0, 0)
    log = child.partition(0)
    producers = states(log.producers)
    log.advance_log_start(log.high_watermark)
    front = ReplicaFront(chain.disk, chain.scheduler, child)
    assert front.drop() == [1, 2, 3]
    chain.scheduler.advance(100)
    child.close()
    child = opened(chain.disk, CHILD, 0, 0, chain.scheduler)
    log = child.partition(0)
    assert states(log.producers) == producers
    goes_on(child, 0)
    child.write(None, [Entry(3, 2, NORMAL, encode_roll(Roll(FIRST_OF_CHILD + 1, 5)))])
    child.commit_to(2)
    chain.scheduler.advance(500)
    log.advance_log_start(log.high_watermark)
    assert ReplicaFront(chain.disk, chain.scheduler, child).drop() == [4]
    chain.scheduler.advance(100)
    assert not chain.disk.exists(f"{CHILD}/{segment_name(4)}")
    child.close()
    again = opened(chain.disk, CHILD, 0, 0)
    assert again.partition(0).end_offset == log.end_offset
    assert states(again.partition(0).producers) == producers
