"""Compacted topics on ranges with groups of their own, under faults, in virtual time.

`run(seed)` raises AssertionError where something does not hold: every replica shows the last value of every key at its
offset, never one that another value or a mark of deletion has replaced, and nothing aborted; readers get to the end
from wherever they begin. Replicas compact at their own times, so of what was replaced each may show what it has still.
"""

from __future__ import annotations

from broker.replication.metadata_group import METADATA_GROUP
from broker.replication.range_restore import RangeRestore
from tests.cluster.sim_ranges import Operator, SimRanges, Writer
from tests.cluster.sim_transactors import Transactor
from txn import keys
from wire.batch import BATCH_HEADER_SIZE, CONTROL_BIT, TRANSACTIONAL_BIT, parse_header
from wire.errors import ErrorCode
from wire.records import Record, build_batch, iterate_records

KEYS = 4
STEPS = 170
PARTITIONS = 3
SETTINGS = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0.01",
    "delete_retention_ms": 3000,
}
SMALL = {"segment_bytes": 1 << 13, "compaction_interval_ms": 700, "retention_check_interval_ms": 1500}


def key_of(value):
    """Of `...-N` and dots: one of a few, so that later values replace it."""
    name, _, number = value.rstrip(b".").rpartition(b"-")
    return b"%s#%d" % (name, int(number) % KEYS)


def is_mark(value):
    """Every so many values a key is deleted; the writers' count says which."""
    return int(value.rstrip(b".").rpartition(b"-")[2]) % 7 == 6


def keyed(*values, producer_id=-1, epoch=-1, sequence=-1, transactional=False, timestamp=1_700_000_000_000):
    return build_batch(
        [Record(key_of(one), None if is_mark(one) else one, timestamp=timestamp) for one in values],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_BIT if transactional else 0,
    )


class KeyedWriter(Writer):
    largest = 1500
    pack = staticmethod(keyed)


def transacted(*values, **more):
    """`name-count-n` is of the key `name-count modulo KEYS`; nothing is deleted."""
    timestamp = more.pop("timestamp", 1_700_000_000_000)
    records = [Record(transacted_key(one), one.ljust(500, b"."), timestamp=timestamp) for one in values]
    return build_batch(
        records,
        producer_id=more["producer_id"],
        producer_epoch=more["epoch"],
        base_sequence=more["sequence"],
        attributes=TRANSACTIONAL_BIT,
    )


def transacted_key(value):
    name, count, _ = value.rstrip(b".").split(b"-")
    return b"%s#%d" % (name, int(count) % KEYS)


class KeyedTransactor(Transactor):
    pack = staticmethod(transacted)


def shown(partition, start=None):
    """(offset, key, value) of what readers of committed records get at one replica, and where they get to."""
    found, offset = [], partition.log_start_offset if start is None else start
    while offset < partition.last_stable_offset:
        part = partition.fetch(offset, read_committed=True, max_bytes=1 << 20, at_least_one=True)
        assert part.next_offset > offset, f"{partition}: nothing gets past {offset}"
        for data in part.records:
            view = memoryview(bytes(data))
            while len(view) >= BATCH_HEADER_SIZE:
                header = parse_header(view)
                if not header.attributes & CONTROL_BIT and header.record_count:
                    found += [
                        (one.offset, one.key, one.value)
                        for one in iterate_records(view[: header.size_bytes])
                        if one.offset >= offset
                    ]
                view = view[header.size_bytes :]
        offset = part.next_offset
    offsets = [one[0] for one in found]
    assert offsets == sorted(set(offsets))
    return found


def last_of(found):
    """By key (offset, value); of a deleted one nothing."""
    last = {key: (offset, value) for offset, key, value in found}
    return {key: one for key, one in last.items() if one[1] is not None}


def partitions_at(cluster, partition):
    for member in cluster.members.values():
        topic = member.topics.get("t")
        group = topic.group_of(partition)
        if group in member.hosting.hosted:
            yield member.node_id, topic.partitions[partition]


def judge(cluster, writers, transactors):
    """All that was asked for was answered, and nothing goes wrong any more."""
    cluster.whole()
    for index in range(PARTITIONS):
        expected = {}
        for writer in writers:
            if writer.partition == index:
                by_offset = sorted((offset, value) for value, offset in writer.acked.items())
                expected |= {key_of(value): (offset, value) for offset, value in by_offset}
        lasts = []
        for node, partition in partitions_at(cluster, index):
            cluster.run_until(lambda one=partition: one.last_stable_offset == one.high_watermark)
            found = shown(partition)
            where = f"node {node}, partition {index}"
            starts = cluster.members[node].metadata.view.get(keys.log_starts("t"))
            begin = starts.value.get(index, 0) if starts is not None else 0
            assert partition.log_start_offset == begin, f"{where} begins at {partition.log_start_offset}"
            last = last_of(found)
            for key, (offset, value) in expected.items():
                if is_mark(value) or offset < partition.log_start_offset:
                    assert key not in last or last[key][0] > offset, (
                        f"{where}: {key!r} was deleted and is back"
                    )
                else:
                    assert last.get(key) == (offset, value), f"{where}: the last value of {key!r} is gone"
            check_transactions(where, index, last, found, transactors, partition.log_start_offset)
            for _ in range(3):
                begin = cluster.rng.randint(partition.log_start_offset, partition.high_watermark)
                assert shown(partition, begin) == [one for one in found if one[0] >= begin]
            lasts.append((partition.log_start_offset, last))
        for start, last in lasts:
            # One may not have heard yet where the partition begins.
            begin = max(start, *(other for other, _ in lasts))
            want = {key: one for key, one in lasts[0][1].items() if one[0] >= begin}
            assert {key: one for key, one in last.items() if one[0] >= begin} == want, f"partition {index}"


def check_transactions(where, index, last, found, transactors, start):
    values = {value.rstrip(b".") for _, _, value in found if value is not None}
    for transactor in transactors:
        for wrote in transactor.aborted:
            assert not values.intersection(wrote.get(index, ())), f"{where}: something aborted is there"
        known = {}
        for wrote in transactor.committed:
            known |= {transacted_key(value): value for value in wrote.get(index, ())}
        unknown = {value for wrote in transactor.unknown for value in wrote.get(index, ())}
        for key, value in known.items():
            if key not in last:
                assert start, f"{where}: {value!r} is gone"
                continue
            there = last[key][1].rstrip(b".")
            assert there == value or there in unknown or start, f"{where}: {there!r} in place of {value!r}"


def trouble(cluster, rng):
    what = rng.random()
    alive = [node for node in cluster.names if node not in cluster.removed]
    if what < 0.45 and all(node in cluster.members for node in alive):
        cluster.cut_power(rng.choice(alive))
    elif what < 0.55:
        cluster.isolate(rng.choice(alive))
    elif what < 0.62:
        cluster.loss = 0.05
    elif what < 0.72:
        for member in cluster.members.values():
            for hosted in member.hosting.led():
                member.leaderships.hand_over(hosted.number, rng.choice(alive))
    elif what < 0.76:
        for member in cluster.members.values():
            member.leaderships.hand_over(METADATA_GROUP, rng.choice(alive))
    else:
        cluster.heal()


def at_rest(cluster):
    """Nothing is on the move. A range may be left with fewer replicas: by a node that is removed and never says that it
    has dropped its own, all that left it are barred from it (docs/raft.md, section 8)."""
    for member in cluster.members.values():
        ranges = member.topics.ranges
        if any(record.target for record in ranges.values()):
            return False
        named = {group for group, one in ranges.items() if member.node_id in one.replicas}
        hosted = member.hosting.hosted
        if set(hosted) != named or any(one.range is None for one in hosted.values()):
            return False
    return True


class Counts:
    """What happened in a run, so that a test can say that it was about something."""

    def __init__(self):
        self.restores = self.rewritten = self.records = self.gone = 0


def counted(cluster):
    counts = Counts()
    counts.restores = cluster.restores
    for member in cluster.members.values():
        for hosted in member.hosting.hosted.values():
            segments = hosted.replica.segments
            counts.rewritten += sum(one.header.generation > 0 for one in segments)
    for index in range(PARTITIONS):
        for _, partition in partitions_at(cluster, index):
            counts.records += len(shown(partition))
            counts.gone += partition.high_watermark - len(shown(partition))
    return counts


def run(seed, steps=STEPS):
    settings = dict(SETTINGS)
    if seed % 3 == 2:
        settings |= {"cleanup_policy": "compact,delete", "retention_bytes": 40_000}
    cluster = SimRanges(seed, **SMALL)
    cluster.restores = 0
    rng = cluster.rng
    assert cluster.create_topic("t", PARTITIONS, **settings).error_code is ErrorCode.none
    writers = [KeyedWriter(cluster, "t", n) for n in range(PARTITIONS)]
    transactors = [KeyedTransactor(cluster, f"x{n}", "t", [1, 2], 1 + n, 10_000, 0.1) for n in range(2)]
    under_way = {one: one.steps() for one in transactors}
    operator = Operator(cluster)
    comes = seed % 2 == 0
    begun = RangeRestore.__init__

    def counts_restores(*args, **more):
        cluster.restores += 1
        begun(*args, **more)

    RangeRestore.__init__ = counts_restores
    try:
        for step in range(steps):
            if step in (steps // 4, steps // 3) and comes:
                node = len(cluster.names)
                cluster.come(node, rng.sample(cluster.names, 2))
                operator.wants("add", node)
            elif step == steps // 2 and comes:
                operator.wants("remove", rng.choice((0, 1, 2)))
            if rng.random() < 0.08:
                trouble(cluster, rng)
            operator.step()
            rng.choice(writers).step()
            if rng.random() < 0.5:
                one = rng.choice(transactors)
                if next(under_way[one], "over") == "over":
                    under_way[one] = one.steps()
            cluster.advance(rng.choice((0, 50, 300)))
        cluster.heal()
        operator.finish(max_ms=180_000)
        cluster.run_until(lambda: at_rest(cluster), max_ms=180_000)
        for steps_left in under_way.values():
            for _ in steps_left:
                pass
        for one in transactors:
            one.run(True)
        for writer in writers:
            writer.step()
            assert any(writer.waiting is None or writer.step() for _ in range(500)), "no write is taken"
        cluster.advance(1500)
        judge(cluster, writers, transactors)
        # What is old enough by now goes for good.
        cluster.advance(8000)
        judge(cluster, writers, transactors)
        for node in tuple(cluster.members):
            cluster.cut_power(node)
        cluster.heal()
        cluster.controller()
        judge(cluster, writers, transactors)
        return counted(cluster)
    finally:
        RangeRestore.__init__ = begun
