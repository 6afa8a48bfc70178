"""Judges a history of what clients did and saw: which promises of a transactional log did it break?

Pure: events in, violations out. It knows nothing of the broker, of sockets or of clocks, so it can judge any
log that speaks of transactions, partitions and offsets.

The history's rules: values are unique; a producer's transactions have increasing numbers and do not overlap;
the offsets that transactions commit for one (group, topic, partition) increase in the order of the
transactions. The events of one producer are in its own order; the final events come at the end, when no
transaction is open any more and every producer is closed.

What a transaction must have come to:

    commit acknowledged                     committed
    abort acknowledged                      aborted
    commit never called, or always refused  aborted
    else                                    either, but as a whole

What retention, DeleteRecords, compaction or the deletion of a topic may have taken is not missed.
"""

from collections import defaultdict
from collections.abc import Iterable

from tests.history.cycles import ListTransaction, check_lists
from tests.history.history import History, at_or_after
from tests.history.history_events import Event, Partition, Sent
from tests.history.timely import check_timely
from tests.history.violations import (
    ABORTED_VISIBLE,
    BLOCKED,
    CONTRADICTION,
    DISORDER,
    DUPLICATE,
    FENCED_COMMIT,
    FENCED_WRITE,
    GAP,
    LOST_COMMIT,
    LOST_PLAIN,
    MARKERS,
    MISPLACED,
    MOVED,
    OFFSETS_BACK,
    RETRACTED,
    STRANGER,
    TORN,
    TWICE,
    UNPROCESSED,
    UNREADABLE,
    UNUSABLE,
    WRONG_OFFSET,
    Violation,
)


def check(events: Iterable[Event], *, markerless: bool = False) -> list[Violation]:
    """The violations in a history. `markerless`: ends of transactions take no offsets in the log."""
    history = History(events)
    found: list[Violation] = []
    _check_transactions(history, found)
    _check_fences(history, found)
    _check_reads(history, found)
    _check_seen(history, found)
    _check_ends(history, found, markerless)
    _check_group_offsets(history, found)
    check_timely(history, found)
    check_keys(history, found)
    return found


def _check_transactions(history: History, found: list[Violation]) -> None:
    visible = history.visible
    for (producer, number), txn in history.txns.items():
        name = f"transaction {number} of {producer}"
        there = [s for s in txn.sent if s.value in visible]
        missing = [s for s in txn.sent if s.value not in visible and not history.may_be_gone(s)]
        if txn.commit_acked and txn.abort_acked:
            found.append(Violation(CONTRADICTION, name))
        elif txn.fate == "committed" and missing:
            found.append(Violation(LOST_COMMIT, f"{name}: {_values(missing)} of {len(txn.sent)} missing"))
        elif txn.fate == "aborted" and there:
            found.append(Violation(ABORTED_VISIBLE, f"{name}: {_values(there)} of {len(txn.sent)}"))
        elif txn.fate == "either" and there and missing:
            found.append(Violation(TORN, f"{name}: {_values(there)} there, {_values(missing)} missing"))
    found.extend(Violation(UNUSABLE, f"{u.producer}: {u.error}") for u in history.unusable)
    lost = (value for value in history.plain_acked if value not in visible)
    found.extend(
        Violation(LOST_PLAIN, value) for value in lost if not history.may_be_gone(history.sent[value][1])
    )


def _check_fences(history: History, found: list[Violation]) -> None:
    for (producer, number), txn in history.txns.items():
        fenced_at = history.fenced_at(producer, txn.instance)
        if fenced_at is None:
            continue
        name = f"transaction {number} of {producer}"
        if txn.commit_acked and txn.commit_called_at is not None and txn.commit_called_at > fenced_at:
            found.append(Violation(FENCED_COMMIT, name))
        found.extend(
            Violation(FENCED_WRITE, f"{sent.value} of {name}")
            for sent in txn.sent
            if sent.value in history.visible and history.sent[sent.value][0] > fenced_at
        )


def _values(records: list[Sent]) -> str:
    shown = ", ".join(f"{s.value} ({s.topic}-{s.partition})" for s in records[:5])
    return shown + (f" and {len(records) - 5} more" if len(records) > 5 else "")


def _check_reads(history: History, found: list[Violation]) -> None:
    for committed in (True, False):
        places: dict[str, tuple[Partition, int]] = {}
        for (partition, isolation), read in history.reads.items():
            if isolation != committed:
                continue
            last_offset = -1
            last_sent: dict[str, tuple[int, str]] = {}
            for offset, value in read.records:
                where = f"{value} at offset {offset} of {partition}"
                if offset <= last_offset:
                    found.append(Violation(OFFSETS_BACK, f"{where} after offset {last_offset}"))
                last_offset = offset
                if value in places:
                    found.append(Violation(DUPLICATE, f"{where} and {places[value]}"))
                places[value] = (partition, offset)
                if value not in history.sent:
                    found.append(Violation(STRANGER, where))
                    continue
                number, sent = history.sent[value]
                if (sent.topic, sent.partition) != partition:
                    found.append(Violation(MISPLACED, f"{where}, sent to {sent.topic}-{sent.partition}"))
                told = history.offsets.get(value)
                if told is not None and told != offset:
                    found.append(Violation(MOVED, f"{where}, its producer was told {told}"))
                before = last_sent.get(sent.producer)
                if before and before[0] > number:
                    found.append(Violation(DISORDER, f"{where} after {before[1]}"))
                last_sent[sent.producer] = (number, value)


def _check_seen(history: History, found: list[Violation]) -> None:
    now = {key: dict(read.records) for key, read in history.reads.items()}
    for seen in history.seen:
        key = (seen.topic, seen.partition), seen.committed
        if key not in now or seen.offset < history.log_start(key[0]) or seen.topic in history.compacted:
            continue
        value = now[key].get(seen.offset)
        if value != seen.value:
            isolation = "read_committed" if seen.committed else "read_uncommitted"
            detail = f"{seen.value} at offset {seen.offset} of {key[0]} ({isolation}), now {value}"
            found.append(Violation(RETRACTED, detail))


def _check_ends(history: History, found: list[Violation], markerless: bool) -> None:
    for partition, ends in history.ends.items():
        if ends.last_stable != ends.high_watermark:
            detail = f"{partition}: {ends.last_stable} of {ends.high_watermark}"
            found.append(Violation(BLOCKED, detail))
        offsets = ends.high_watermark - ends.log_start
        if markerless and offsets > history.sent_count[partition]:
            detail = f"{partition}: {offsets} offsets, {history.sent_count[partition]} records sent"
            found.append(Violation(MARKERS, detail))
        for committed in (True, False):
            read = history.reads.get((partition, committed))
            end = ends.last_stable if committed else ends.high_watermark
            if read is not None and read.position < end:
                detail = f"{partition}: position {read.position}, end {end}, committed={committed}"
                found.append(Violation(UNREADABLE, detail))


def _check_group_offsets(history: History, found: list[Violation]) -> None:
    certain: dict[tuple[str, str, int], int] = {}
    possible: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for txn in history.txns.values():
        for sent in txn.offsets:
            key = (sent.group, sent.topic, sent.partition)
            # The records of a transaction without an answer tell its outcome; without any it may be either.
            fate = txn.fate
            if fate == "either" and txn.sent:
                fate = "committed" if any(s.value in history.visible for s in txn.sent) else "aborted"
            if fate == "committed":
                certain[key] = max(certain.get(key, -1), sent.offset)
            elif fate == "either":
                possible[key].add(sent.offset)
    _check_chains(history, found)
    _check_loops(history, found)
    for final in history.group_offsets:
        key = (final.group, final.topic, final.partition)
        least = certain.get(key)
        allowed = {least} | {offset for offset in possible[key] if least is None or offset > least}
        if final.error is not None or final.offset not in allowed:
            wanted = ", ".join(str(offset) for offset in allowed)
            found.append(Violation(WRONG_OFFSET, f"{key}: {final.error or final.offset}, allowed: {wanted}"))


def check_keys(history: History, found: list[Violation]) -> None:
    """The keys that transactions read before they wrote to them, as lists."""
    keys = {one.key for txn in history.txns.values() for one in txn.lists}
    if not keys:
        return
    lists: dict[str, list[str]] = {key: [] for key in keys}
    for (_, committed), read in history.reads.items():
        for _, value in read.records if committed else ():
            key = history.sent[value][1].key if value in history.sent else None
            if key in keys:
                lists[key].append(value)
    transactions = []
    aborted = {}
    for name, txn in history.txns.items():
        written = [sent for sent in txn.sent if sent.key in keys]
        if not txn.lists and not written:
            continue
        if not written or any(sent.value in history.visible for sent in written):
            one = ListTransaction(name, {read.key: read.values for read in txn.lists})
            for sent in written:
                one.appends.setdefault(sent.key or "", []).append(sent.value)
            transactions.append(one)
        else:
            aborted.update((sent.value, name) for sent in written)
    found += check_lists(lists, transactions, aborted)


def _check_loops(history: History, found: list[Violation]) -> None:
    """What exactly-once loops made of what they read: once of each record below their group's offset."""
    made: dict[tuple[str, str], str] = {}
    groups: set[str] = set()
    for txn in history.txns.values():
        for group in sorted({sent.group for sent in txn.offsets}):
            for sent in txn.sent:
                if sent.source is None or sent.value not in history.visible:
                    continue
                groups.add(group)
                key = group, sent.source
                if key in made:
                    found.append(Violation(TWICE, f"{sent.source}: {made[key]} and {sent.value}"))
                made[key] = sent.value
    for final in history.group_offsets:
        read = history.reads.get(((final.topic, final.partition), True))
        if final.offset is None or final.group not in groups or read is None:
            continue
        for offset, value in read.records[: at_or_after(read.records, final.offset)]:
            if (final.group, value) not in made:
                where = f"{value} at {offset} of {final.topic}-{final.partition}, {final.group} is at {final.offset}"
                found.append(Violation(UNPROCESSED, where))


def _check_chains(history: History, found: list[Violation]) -> None:
    """Each committed transaction that says from where it went on went on from the one before."""
    chains: dict[tuple[str, str, int], list[tuple[int, int, str]]] = defaultdict(list)
    perhaps: dict[tuple[str, str, int], dict[int, int]] = defaultdict(dict)
    for (producer, number), txn in history.txns.items():
        fate = txn.fate
        if txn.sent:
            fate = "committed" if any(s.value in history.visible for s in txn.sent) else "aborted"
        for sent in txn.offsets:
            key = (sent.group, sent.topic, sent.partition)
            if sent.start is None or fate == "aborted":
                continue
            if fate == "committed":
                chains[key].append((sent.start, sent.offset, f"transaction {number} of {producer}"))
            else:
                perhaps[key][sent.start] = sent.offset
    for key, parts in chains.items():
        end = 0
        for start, stop, name in sorted(parts):
            while end < start and perhaps[key].get(end, end) > end:
                end = perhaps[key][end]
            if start != end:
                found.append(
                    Violation(GAP, f"{key}: {name} covers {start}..{stop}, the one before ended at {end}")
                )
            end = max(end, stop)
