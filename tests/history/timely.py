"""What depends on when: reads that went on while the history did, judged by what was before and what after."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

from tests.history.history import History, Txn, at_or_after
from tests.history.history_events import FinalRead, Partition, Read
from tests.history.violations import (
    BEHIND,
    GHOST,
    HELD_BACK,
    SKIPPED,
    STALE_OFFSET,
    TORN_IN_TIME,
    UNDECIDED,
    WENT_BACK,
    Violation,
)


def check_timely(history: History, found: list[Violation]) -> None:
    if history.running_reads:
        by_partition: dict[Partition, list[tuple[int, Read]]] = defaultdict(list)
        for number, read in history.running_reads:
            by_partition[read.topic, read.partition].append((number, read))
        seen_at = _first_seen(history)
        for partition, reads in by_partition.items():
            if partition[0] in history.deleted:
                continue
            _check_complete(history, partition, reads, found)
            _check_growth(history, partition, reads, found)
            _check_undecided(history, partition, reads, found)
            _check_held_back(history, partition, reads, seen_at, found)
    _check_offsets_seen(history, found)


def _first_seen(history: History) -> dict[tuple[str, int], int]:
    """When a record of a transaction was first given to a reader of committed data."""
    seen_at: dict[tuple[str, int], int] = {}
    for number, read in history.running_reads:
        for _, value in read.records if read.committed else ():
            sent = history.sent.get(value)
            if sent is not None and sent[1].txn is not None:
                seen_at.setdefault((sent[1].producer, sent[1].txn), number)
    return seen_at


def _check_complete(
    history: History, partition: Partition, reads: list[tuple[int, Read]], found: list[Violation]
) -> None:
    """Between where it began and where it goes on, a reader gets all that is there, and nothing else."""
    if partition[0] in history.compacted:
        return
    start = history.log_start(partition)
    for _, read in reads:
        final = history.reads.get((partition, read.committed))
        if final is None:
            continue
        first, end = max(read.first, start), min(read.position, final.position)
        there = final.records[at_or_after(final.records, first) : at_or_after(final.records, end)]
        if start or end < read.position:
            got = tuple(record for record in read.records if start <= record[0] < end)
        else:
            got = read.records
        if got == there:
            continue
        where = f"{partition} from {read.first} to {read.position}, committed={read.committed}"
        for offset, value in sorted(set(there) - set(got))[:3]:
            found.append(Violation(SKIPPED, f"{value} at {offset}: {where}"))
        for offset, value in sorted(set(got) - set(there))[:3]:
            found.append(Violation(GHOST, f"{value} at {offset}: {where}"))


def _check_growth(
    history: History, partition: Partition, reads: list[tuple[int, Read]], found: list[Violation]
) -> None:
    """High watermark, last stable offset and log start never go back; the first covers what was acknowledged."""
    acked = sorted(
        (number, history.offsets[value])
        for value, number in history.acked_at.items()
        if value in history.offsets
        and (history.sent[value][1].topic, history.sent[value][1].partition) == partition
    )
    acked_numbers = [number for number, _ in acked]
    best_acked = _running_most([offset for _, offset in acked])
    numbers = [number for number, _ in reads]
    for name in ("high_watermark", "last_stable", "log_start"):
        most = _running_most([getattr(read, name) for _, read in reads])
        for _, read in reads:
            at = bisect_right(numbers, read.begun - 1) - 1
            value = getattr(read, name)
            if at >= 0 and value < most[at]:
                found.append(Violation(WENT_BACK, f"{name} of {partition}: {value} after {most[at]}"))
                break
    for _, read in reads:
        at = bisect_right(acked_numbers, read.begun - 1) - 1
        if at >= 0 and read.high_watermark <= best_acked[at]:
            detail = f"{partition}: {read.high_watermark}, {best_acked[at]} was acknowledged"
            found.append(Violation(BEHIND, detail))
            break


def _running_most(values: list[int]) -> list[int]:
    result: list[int] = []
    for value in values:
        result.append(value if not result else max(value, result[-1]))
    return result


def _check_undecided(
    history: History, partition: Partition, reads: list[tuple[int, Read]], found: list[Violation]
) -> None:
    """Nobody gets past a record of a transaction that commits before it was asked to."""
    final = history.reads.get((partition, True))
    if final is None:
        return
    numbers = [number for number, _ in reads]
    reached = _running_most(
        [max(read.last_stable, read.position if read.committed else 0) for _, read in reads]
    )
    for offset, value in final.records:
        txn = _transaction(history, value)
        if txn is None or txn.commit_called_at is None:
            continue
        at = bisect_right(numbers, txn.commit_called_at) - 1
        if at >= 0 and reached[at] > offset:
            found.append(Violation(UNDECIDED, f"{value} at {offset} of {partition}"))
            return


def _check_held_back(
    history: History,
    partition: Partition,
    reads: list[tuple[int, Read]],
    seen_at: dict[tuple[str, int], int],
    found: list[Violation],
) -> None:
    """Where the last stable offset stays behind, it stays at a record of a transaction that is not over yet."""
    final = history.reads.get((partition, False))
    if final is None or partition[0] in history.compacted:
        return
    known: dict[int, str | None] = {}
    for _, read in reads:
        stable = read.last_stable
        if stable >= read.high_watermark or 0 < read.log_start >= stable:
            # At a log start that moved, it may stay at a record that is gone.
            continue
        if stable not in known:
            known[stable] = _value_at(final, stable)
        value = known[stable]
        if value is None or value not in history.sent:
            continue
        _, sent = history.sent[value]
        where = f"{value} at {stable} of {partition}"
        if sent.txn is None:
            found.append(Violation(HELD_BACK, f"{where}, which is in no transaction"))
            return
        txn = history.txns[sent.producer, sent.txn]
        over_at = [txn.ended_at, history.fenced_at(sent.producer, txn.instance)]
        if any(number is not None and number < read.begun for number in over_at):
            found.append(Violation(HELD_BACK, where))
            return
        if seen_at.get((sent.producer, sent.txn), read.begun) < read.begun:
            found.append(Violation(TORN_IN_TIME, where))
            return


def _value_at(final: FinalRead, offset: int) -> str | None:
    at = at_or_after(final.records, offset)
    if at < len(final.records) and final.records[at][0] == offset:
        return final.records[at][1]
    return None


def _transaction(history: History, value: str) -> Txn | None:
    sent = history.sent.get(value)
    if sent is None or sent[1].txn is None:
        return None
    return history.txns[sent[1].producer, sent[1].txn]


def _check_offsets_seen(history: History, found: list[Violation]) -> None:
    """Who asks after a commit was acknowledged sees its offset, or a later one."""
    committed: dict[tuple[str, str, int], list[tuple[int, int]]] = defaultdict(list)
    for txn in history.txns.values():
        if txn.commit_acked and txn.ended_at is not None:
            for sent in txn.offsets:
                committed[sent.group, sent.topic, sent.partition].append((txn.ended_at, sent.offset))
    for seen in history.offsets_seen:
        key = (seen.group, seen.topic, seen.partition)
        least = max((offset for number, offset in committed[key] if number < seen.begun), default=None)
        if least is not None and (seen.offset is None or seen.offset < least):
            found.append(Violation(STALE_OFFSET, f"{key}: {seen.offset}, {least} was committed before"))
