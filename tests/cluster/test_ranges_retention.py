"""Nodes whose ranges have groups of their own and lose their begin: log starts, segments that go, nodes that were away.

SEALOG_RANGES_SEEDS: how many seeds of faults, 6 by default.
"""

from __future__ import annotations

import os

import pytest

from broker.ranges import restores
from broker.ranges.hosting import Stage
from broker.ranges.log_starts import record
from broker.ranges.records import directory
from tests.cluster.sim_ranges import SimRanges, Writer
from wire.apis import ApiKey
from wire.errors import ErrorCode

SEEDS = range(int(os.environ.get("SEALOG_RANGES_SEEDS", "6")))
SMALL = {"segment_bytes": 1 << 13}
"""Two or three batches of a `Writer`."""


def write(writer, count):
    """So many more values are acknowledged."""
    wanted = len(writer.acked) + count
    while len(writer.acked) < wanted:
        writer.step()


def delete_records(cluster, node, topic, partition, offset):
    """(error, low watermark), or None."""
    answer = cluster.ask(
        node,
        ApiKey.DELETE_RECORDS,
        2,
        topics=({"name": topic, "partitions": ({"partition_index": partition, "offset": offset},)},),
        timeout=1000,
    )
    if answer is None:
        return None
    one = answer.topics[0].partitions[0]
    return one.error_code, one.low_watermark


def delete_at_leader(cluster, topic, partition, offset):
    """The low watermark, when it is done."""
    for _ in range(200):
        leader = cluster.leader(topic, partition)[0]
        answer = (
            delete_records(cluster, leader, topic, partition, offset) if leader in cluster.members else None
        )
        if answer is not None and answer[0] is ErrorCode.none:
            return answer[1]
        cluster.advance(20)
    raise AssertionError(f"the records are not deleted: {answer}")


def starts(cluster, topic, partition):
    """Where each node begins; None where the topic is not known there yet."""
    topics = [one.topics.get(topic) for one in cluster.members.values()]
    return [one.partitions[partition].log_start_offset if one is not None else None for one in topics]


def replicas(cluster, topic="t"):
    group = next(g for g, one in cluster.members[0].topics.ranges.items() if one.topic == topic)
    return group, [one.hosting.hosted[group].replica for one in cluster.members.values()]


def files(cluster, node, group):
    return [name for name in cluster.disks[node].list(directory(group)) if name.endswith(".seg")]


def check_content(cluster, writer, start):
    """What is acknowledged from the log start on is there, at its place, and no more."""
    while (leader := cluster.leader(writer.topic, writer.partition)[0]) not in cluster.members:
        cluster.advance(20)
    error, values, high_watermark = cluster.read(leader, writer.topic, writer.partition, start)
    assert error is ErrorCode.none
    assert high_watermark == start + len(values)
    places = {offset: value for value, offset in writer.acked.items()}
    assert values == [places[offset] for offset in range(start, high_watermark)]
    if start:
        below = cluster.read(leader, writer.topic, writer.partition, start - 1)[0]
        assert below is ErrorCode.offset_out_of_range
    return high_watermark


def test_records_are_deleted_at_the_leader_and_begin_there_on_every_node():
    cluster = SimRanges(1, racks={0: "a", 1: "b", 2: "c"}, **SMALL)
    assert cluster.create_topic("t", 1).error_code is ErrorCode.none
    writer = Writer(cluster, "t", 0)
    write(writer, 60)
    cluster.whole()
    leader = cluster.leader("t", 0)[0]
    other = next(node for node in cluster.names if node != leader)
    assert delete_records(cluster, other, "t", 0, 5) == (ErrorCode.not_leader_or_follower, -1)
    assert delete_records(cluster, leader, "t", 0, 10_000) == (ErrorCode.offset_out_of_range, -1)
    group, logs = replicas(cluster)
    count = len(logs[0].segments)
    assert count > 6
    assert delete_records(cluster, leader, "t", 0, 20) == (ErrorCode.none, 20)
    cluster.run_until(lambda: starts(cluster, "t", 0) == [20] * 3)
    check_content(cluster, writer, 20)
    # A follower says the same to consumers of its rack.
    rack = cluster.racks[other]
    assert cluster.read(other, "t", 0, 19, rack_id=rack)[0] is ErrorCode.offset_out_of_range
    assert cluster.read(other, "t", 0, 20, rack_id=rack)[0] is ErrorCode.none
    # Whole segments below it go, on every node.
    cluster.advance(200)
    for node, log in zip(cluster.names, logs, strict=True):
        assert log.first_index > 1
        assert len(files(cluster, node, group)) == len(log.segments) < count
    # Lower than now changes nothing.
    assert delete_records(cluster, leader, "t", 0, 7) == (ErrorCode.none, 20)
    # To the high watermark.
    assert delete_records(cluster, leader, "t", 0, -1) == (ErrorCode.none, len(writer.acked))
    for node in cluster.names:
        cluster.cut_power(node)
    cluster.heal()
    cluster.whole()
    end = len(writer.acked)
    cluster.run_until(lambda: starts(cluster, "t", 0) == [end] * 3)
    write(writer, 3)
    assert check_content(cluster, writer, end) == len(writer.acked)


def test_what_is_old_is_rolled_and_goes():
    cluster = SimRanges(2, retention_check_interval_ms=1000)
    assert cluster.create_topic("t", 1, segment_ms=30_000, retention_ms=120_000).error_code is ErrorCode.none
    writer = Writer(cluster, "t", 0)
    write(writer, 5)
    group, logs = replicas(cluster)
    cluster.advance(35_000)
    assert [len(log.segments) for log in logs] == [2] * 3, "by its age"
    assert starts(cluster, "t", 0) == [0] * 3
    first = len(writer.acked)
    write(writer, 1)
    cluster.advance(100_000)
    assert starts(cluster, "t", 0) == [first] * 3
    check_content(cluster, writer, first)
    cluster.advance(200_000)
    assert starts(cluster, "t", 0) == [len(writer.acked)] * 3
    cluster.advance(5000)
    # The newest sealed one and the active one stay.
    assert [len(files(cluster, node, group)) for node in cluster.names] == [2] * 3
    count = len(logs[0].segments)
    cluster.advance(300_000)
    assert len(logs[0].segments) == count, "nothing is rolled where nothing is written"
    write(writer, 1)
    cluster.whole()


def test_what_is_too_much_goes():
    cluster = SimRanges(3, retention_check_interval_ms=500, **SMALL)
    assert cluster.create_topic("t", 2, retention_bytes=20_000).error_code is ErrorCode.none
    writers = [Writer(cluster, "t", partition) for partition in range(2)]
    for writer in writers:
        write(writer, 40)
    cluster.advance(3000)
    cluster.whole()
    for writer in writers:
        begins = starts(cluster, "t", writer.partition)
        assert len(set(begins)) == 1
        assert begins[0] > 0
        check_content(cluster, writer, begins[0])
    for one in cluster.members.values():
        for hosted in one.hosting.hosted.values():
            sealed = [segment for segment in hosted.replica.segments if segment.state == "SEALED"]
            partitions = hosted.record.last - hosted.record.first + 1
            assert sum(segment.file_size for segment in sealed[1:]) <= 20_000 * partitions


def gone_for(cluster, away, writer, topic="t"):
    """What the node that is away has is no part of the others' logs any more."""
    _, logs = replicas(cluster, topic)
    last = max(log.last_index for log in logs)
    cluster.cut_power(away)
    while True:
        write(writer, 5)
        at = delete_at_leader(cluster, topic, writer.partition, -1)
        leader = cluster.members[cluster.leader(topic, writer.partition)[0]]
        group = leader.topics.group_of(leader.topics.get(topic).partitions[writer.partition])
        if leader.hosting.hosted[group].replica.first_index > last + 1:
            return at


def test_a_node_that_was_away_for_too_long_fetches_segments():
    cluster = SimRanges(4, **SMALL)
    assert cluster.create_topic("t", 1).error_code is ErrorCode.none
    writer = Writer(cluster, "t", 0)
    write(writer, 10)
    cluster.whole()
    away = next(node for node in cluster.names if node != cluster.leader("t", 0)[0])
    start = gone_for(cluster, away, writer)
    write(writer, 20)
    cluster.heal()
    cluster.whole()
    cluster.run_until(lambda: starts(cluster, "t", 0) == [start] * 3)
    group, logs = replicas(cluster)
    assert len({log.partition(0).high_watermark for log in logs}) == 1
    mine = cluster.members[away].hosting.hosted[group]
    assert mine.replica.first_index > 1
    assert cluster.members[away].topics.get("t").partitions[0].log is mine.replica
    assert not cluster.members[away].hosting.restores._running
    # It can lead with what it has.
    write(writer, 3)
    while cluster.leader("t", 0)[0] != away:
        leader = cluster.leader("t", 0)[0]
        if leader in cluster.members:
            cluster.members[leader].leaderships.ask_to_hand_over(leader, group, away)
        cluster.advance(200)
    write(writer, 3)
    check_content(cluster, writer, start)
    cluster.cut_power(away)
    cluster.start(away)
    cluster.whole()
    check_content(cluster, writer, start)


def test_no_more_than_so_many_logs_are_replaced_at_once(monkeypatch):
    monkeypatch.setattr(restores, "AT_ONCE", 1)
    cluster = SimRanges(5, **SMALL)
    assert cluster.create_topic("t", 3).error_code is ErrorCode.none
    writers = [Writer(cluster, "t", partition) for partition in range(3)]
    for writer in writers:
        write(writer, 3)
    cluster.whole()
    away = next(node for node in cluster.names if cluster.members[node].node.controller is None)
    cluster.cut_power(away)
    begins = []
    for writer in writers:
        write(writer, 60)
        begins.append(delete_at_leader(cluster, "t", writer.partition, -1))
        write(writer, 5)
    cluster.advance(300)
    cluster.heal()
    member = cluster.members[away]
    most = []

    def count():
        most.append((len(member.hosting.restores._running), len(member.hosting.restores._waiting)))
        return False

    with pytest.raises(AssertionError):
        cluster.scheduler.run_until(count, max_ms=1500)
    assert max(running for running, _ in most) == 1
    assert max(waiting for _, waiting in most) >= 1
    cluster.whole()
    for writer, start in zip(writers, begins, strict=True):
        cluster.run_until(lambda n=writer.partition, at=start: starts(cluster, "t", n) == [at] * 3)
        check_content(cluster, writer, start)


def test_a_disk_that_fails_while_a_log_is_replaced_ends_the_replica_and_nothing_else():
    cluster = SimRanges(6, **SMALL)
    assert cluster.create_topic("t", 1).error_code is ErrorCode.none
    writer = Writer(cluster, "t", 0)
    write(writer, 10)
    cluster.whole()
    away = next(node for node in cluster.names if node != cluster.leader("t", 0)[0])
    gone_for(cluster, away, writer)
    cluster.start(away)
    cluster.disks[away].fail("write", ".seg.tmp")
    group = next(iter(cluster.members[away].topics.ranges), None)
    cluster.run_until(lambda: cluster.members[away].hosting.hosted)
    group, hosted = next(iter(cluster.members[away].hosting.hosted.items()))
    cluster.run_until(lambda: hosted.stage is Stage.FAILED)
    write(writer, 3)
    cluster.cut_power(away)
    cluster.heal()
    cluster.whole()
    assert replicas(cluster)[0] == group


def test_log_starts_go_with_their_topic():
    cluster = SimRanges(7, **SMALL)
    assert cluster.create_topic("t", 1).error_code is ErrorCode.none
    writer = Writer(cluster, "t", 0)
    write(writer, 30)
    delete_at_leader(cluster, "t", 0, 15)
    old = cluster.members[0].topics.get("t").id
    while cluster.members[0].topics.get("t") is not None:
        cluster.ask(cluster.controller().node_id, ApiKey.DELETE_TOPICS, 4, topic_names=("t",), timeout=1000)
        cluster.advance(50)
    assert cluster.create_topic("t", 1).error_code is ErrorCode.none
    # A wish for the one of before may come late.
    store = cluster.controller().node.controller.store
    record(store, "t", old.bytes, {0: 1})
    new = Writer(cluster, "t", 0)
    write(new, 3)
    cluster.whole()
    assert starts(cluster, "t", 0) == [0] * 3
    check_content(cluster, new, 0)
    topic = cluster.members[0].topics.get("t")
    record(store, "t", topic.id.bytes, {0: 2, 7: 1})
    record(store, "t", topic.id.bytes, {0: 1})
    assert store.get("/log-start/t").value == {0: 2}
    cluster.run_until(lambda: starts(cluster, "t", 0) == [2] * 3)


def test_who_deletes_records_while_nobody_leads_the_metadata_hears_that_it_took_too_long():
    cluster = SimRanges(8, **SMALL)
    assert cluster.create_topic("t", 3).error_code is ErrorCode.none
    writers = [Writer(cluster, "t", partition) for partition in range(3)]
    for writer in writers:
        write(writer, 5)
    controller = cluster.controller()
    leader = next(node for node in cluster.names if node != controller.node_id)
    partition = next(n for n in range(3) if cluster.leader("t", n)[0] == leader)
    member = cluster.members[leader]
    topic = member.topics.get("t")
    told = []
    member.log_starts._ask = lambda *wish: None
    member.log_starts.move_log_starts(topic, {partition: 2}, told.append)
    cluster.advance(11_000)
    assert [error.code for error in told] == [ErrorCode.request_timed_out]
    assert starts(cluster, "t", partition) == [0] * 3
    assert not member.log_starts._wishes


def live_with_retention(seed, beside=lambda cluster: lambda: None):
    """A cluster whose logs lose their begin, faults at whatever moment; then what is there is held against what was
    acknowledged and deleted. `beside(cluster)` begins something more, and gives what ends it."""
    cluster = SimRanges(100 + seed, retention_check_interval_ms=1500, **SMALL)
    rng = cluster.rng
    assert cluster.create_topic("t", 3, retention_bytes=15_000).error_code is ErrorCode.none
    end_beside = beside(cluster)
    writers = [Writer(cluster, "t", partition) for partition in range(3)]
    asked = [0, 0, 0]
    deleted = [0, 0, 0]
    for _ in range(260):
        writer = rng.choice(writers)
        writer.step()
        if rng.random() < 0.08 and writer.acked:
            at = rng.randrange(len(writer.acked))
            leader = cluster.leader("t", writer.partition)[0]
            asked[writer.partition] = max(at, asked[writer.partition])
            if leader in cluster.members:
                answer = delete_records(cluster, leader, "t", writer.partition, at)
                if answer is not None and answer[0] is ErrorCode.none:
                    assert answer[1] >= at
                    deleted[writer.partition] = max(answer[1], deleted[writer.partition])
        if rng.random() < 0.1:
            what = rng.random()
            if what < 0.45 and len(cluster.members) == 3:
                cluster.cut_power(rng.choice(cluster.names))
            elif what < 0.6:
                cluster.isolate(rng.choice(cluster.names))
            elif what < 0.7:
                cluster.loss = 0.1
            else:
                cluster.heal()
    cluster.heal()
    cluster.controller()
    end_beside()
    cluster.whole()
    for writer in writers:
        while writer.waiting is not None or not writer.acked:
            writer.step()
    cluster.advance(4000)
    cluster.whole()
    for writer in writers:
        cluster.run_until(lambda n=writer.partition: len(set(starts(cluster, "t", n))) == 1)
        start = starts(cluster, "t", writer.partition)[0]
        assert start >= deleted[writer.partition], f"seed {seed}: what was deleted is back"
        end = check_content(cluster, writer, start)
        assert end == len(writer.acked), f"seed {seed}"
        for node in cluster.names:
            partition = cluster.members[node].topics.get("t").partitions[writer.partition]
            assert partition.high_watermark == end
    return cluster


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_above_the_log_starts_is_lost_under_faults(seed):
    cluster = live_with_retention(seed)
    first = [
        replica.first_index for replica in (h.replica for h in cluster.members[0].hosting.hosted.values())
    ]
    assert any(index > 1 for index in first)
