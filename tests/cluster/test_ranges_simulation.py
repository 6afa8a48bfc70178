"""Nodes whose ranges have groups of their own, in virtual time: leaders on all nodes, restarts, faults.

SEALOG_RANGES_SEEDS: how many seeds of faults, 6 by default.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from unittest.mock import patch

import pytest
from support.sim_disk import SimDisk

from broker.ranges.records import directory
from broker.replication.store import Fatal
from tests.cluster.sim_ranges import SimRanges, Writer
from wire.apis import ApiKey
from wire.errors import ErrorCode

SEEDS = range(int(os.environ.get("SEALOG_RANGES_SEEDS", "6")))


def written(cluster, topic, partitions, count=3):
    writers = [Writer(cluster, topic, partition) for partition in range(partitions)]
    for writer in writers:
        while len(writer.acked) < count:
            writer.step()
    return writers


def test_a_new_topic_has_a_range_for_each_node_and_each_leads_one():
    cluster = SimRanges(1)
    assert cluster.create_topic("t", 6).error_code is ErrorCode.none
    for node in cluster.names:
        cluster.run_until(lambda: all(cluster.leader("t", n, asking=node)[0] >= 0 for n in range(6)))  # noqa: B023
    leaders = [cluster.leader("t", partition) for partition in range(6)]
    assert sorted({node for node, _ in leaders}) == [0, 1, 2]
    assert len({leaders[0], leaders[2], leaders[4]}) == 3
    assert leaders[0] == leaders[1]
    writers = written(cluster, "t", 6)
    for writer, (leader, epoch) in zip(writers, leaders, strict=True):
        error, values, high_watermark = cluster.read(leader, "t", writer.partition)
        assert error is ErrorCode.none
        assert values == sorted(writer.acked, key=writer.acked.get)
        assert high_watermark == len(values)
        partition = cluster.members[leader].topics.get("t").partitions[writer.partition]
        assert partition.epochs == [(epoch, 0)]
        assert partition.log.term == cluster.members[leader].view.leadership(partition).epoch == epoch


def test_a_node_that_does_not_lead_says_who_does():
    cluster = SimRanges(2)
    cluster.create_topic("t", 1)
    written(cluster, "t", 1)
    leader, epoch = cluster.leader("t", 0)
    other = next(node for node in cluster.names if node != leader)
    assert cluster.read(other, "t", 0)[0] is ErrorCode.not_leader_or_follower
    fields = {"replica_id": -1, "isolation_level": 0}
    wanted = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    for node, code in ((other, ErrorCode.not_leader_or_follower), (leader, ErrorCode.none)):
        answer = cluster.ask(
            node, ApiKey.LIST_OFFSETS, 5, **fields, topics=({"name": "t", "partitions": (wanted,)},)
        )
        assert answer.topics[0].partitions[0].error_code is code
    assert answer.topics[0].partitions[0].offset >= 3
    assert answer.topics[0].partitions[0].leader_epoch == epoch
    asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
    for node, code in ((other, ErrorCode.not_leader_or_follower), (leader, ErrorCode.none)):
        answer = cluster.ask(
            node,
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            3,
            replica_id=-1,
            topics=({"topic": "t", "partitions": (asked,)},),
        )
        assert answer.topics[0].partitions[0].error_code is code


def test_all_is_there_after_a_power_cut_of_all_nodes():
    cluster = SimRanges(3)
    cluster.create_topic("t", 4)
    writers = written(cluster, "t", 4, count=30)
    before = [cluster.leader("t", partition)[1] for partition in range(4)]
    for node in cluster.names:
        cluster.cut_power(node)
    cluster.heal()
    cluster.controller()
    cluster.whole()
    for writer in writers:
        leader, epoch = cluster.leader("t", writer.partition)
        assert epoch > before[writer.partition]
        values = cluster.read(leader, "t", writer.partition)[1]
        assert {value: values.index(value) for value in writer.acked} == writer.acked
        while not writer.step():
            pass
    assert any(len(one.hosting.hosted) == 3 for one in cluster.members.values())


def test_a_node_that_was_away_makes_what_is_new_and_removes_what_is_gone():
    cluster = SimRanges(4)
    cluster.create_topic("old", 3)
    written(cluster, "old", 3)
    away = next(node for node in cluster.names if cluster.members[node].node.controller is None)
    groups = list(cluster.members[away].topics.ranges)
    cluster.cut_power(away)
    answer = None
    while answer is None:
        answer = cluster.ask(
            cluster.controller().node_id,
            ApiKey.DELETE_TOPICS,
            4,
            topic_names=("old",),
            timeout=1000,
        )
    assert answer.responses[0].error_code is ErrorCode.none
    assert cluster.create_topic("new", 3).error_code is ErrorCode.none
    writers = written(cluster, "new", 3)
    cluster.heal()
    cluster.whole()
    cluster.run_until(lambda: not any(cluster.disks[away].list(directory(group)) for group in groups))
    member = cluster.members[away]
    assert set(member.hosting.hosted) == set(member.topics.ranges)
    assert not set(groups) & set(member._hard_states.groups)
    for writer in writers:
        partition = member.topics.get("new").partitions[writer.partition]
        assert partition.high_watermark == len(writer.acked)


def test_a_range_whose_record_is_applied_and_not_told_yet_is_not_taken_for_gone():
    cluster = SimRanges(9)
    cluster.create_topic("t", 3)
    writers = written(cluster, "t", 3)
    cluster.cut_power(0)
    cluster.start(0)
    member = cluster.members[0]
    committed = member.metadata.committed

    def and_look(entries):
        committed(entries)
        member._neighbours.turn()

    member.metadata.committed = and_look
    cluster.whole()
    assert len(member.hosting.hosted) == 3
    for writer in writers:
        partition = member.topics.get("t").partitions[writer.partition]
        assert partition.high_watermark == len(writer.acked)


def test_leaders_leave_a_node_that_drains_and_come_back_for_balance():
    cluster = SimRanges(10)
    cluster.create_topic("t", 6)
    writers = written(cluster, "t", 6)
    node = next(one for one in cluster.names if cluster.members[one].node.controller is None)

    def led():
        """Ranges and the metadata."""
        return {name: len(one.hosting.led()) + one._leads_metadata() for name, one in cluster.members.items()}

    assert sorted(led().values()) == [1, 1, 2]
    cluster.drain(node)
    cluster.run_until(lambda: led()[node] == 0 and sorted(led().values()) == [0, 2, 2])
    cluster.whole()
    cluster.drain(node, undo=True)
    # A leader that is young stays for half a minute.
    cluster.run_until(lambda: sorted(led().values()) == [1, 1, 2], max_ms=120_000)
    cluster.whole()
    for writer in writers:
        while not writer.step():
            pass
        assert list(writer.acked.values()) == list(range(len(writer.acked)))


def test_a_consumer_is_sent_to_a_replica_in_its_rack_and_reads_there():
    cluster = SimRanges(11, racks={0: "a", 1: "b", 2: "c"})
    cluster.create_topic("t", 1)
    writer = written(cluster, "t", 1)[0]
    leader, epoch = cluster.leader("t", 0)
    near = next(node for node in cluster.names if node != leader)
    cluster.whole()
    rack = cluster.racks[near]
    assert cluster.read(leader, "t", 0, rack_id=cluster.racks[leader])[1] == list(writer.acked)
    assert cluster.preferred(leader, "t", 0, rack) == near
    error, values, high_watermark = cluster.read(near, "t", 0, rack_id=rack)
    assert error is ErrorCode.none
    assert values == list(writer.acked)
    assert high_watermark == len(values)
    # It knows the leader's epoch, and says so where a consumer goes by an older or a newer one.
    for asked, code in (
        (epoch, ErrorCode.none),
        (epoch - 1, ErrorCode.fenced_leader_epoch),
        (epoch + 1, ErrorCode.unknown_leader_epoch),
    ):
        assert cluster.fetch(near, "t", 0, 0, rack_id=rack, epoch=asked).error_code is code
    # Beyond what it has the consumer is right, perhaps: the leader is asked.
    beyond = cluster.fetch(near, "t", 0, len(values) + 1, rack_id=rack)
    assert beyond.error_code is ErrorCode.offset_not_available
    cluster.isolate(near)
    cluster.advance(5000)
    assert cluster.preferred(leader, "t", 0, rack) == -1, "it is away"


def test_a_node_that_lost_its_folder_is_refused():
    cluster = SimRanges(5)
    cluster.create_topic("t", 1)
    cluster.cut_power(2)
    cluster.disks[2] = SimDisk(cluster.scheduler, flush_delay_ms=1.0)
    cluster.start(2)
    cluster.scheduler.run_until(lambda: bool(cluster.fatal))
    assert isinstance(cluster.fatal[0], Fatal)
    assert "another folder" in str(cluster.fatal[0])
    assert cluster.members[2]._metadata_group is None


def test_a_range_whose_files_are_gone_is_refused():
    cluster = SimRanges(6)
    cluster.create_topic("t", 1)
    written(cluster, "t", 1)
    group = next(iter(cluster.members[0].topics.ranges))
    cluster.cut_power(0)
    cluster.disks[0] = cluster.disks[0].crash(1, keep="all")
    for name in cluster.disks[0].list(directory(group)):
        cluster.disks[0].remove(f"{directory(group)}/{name}")
    cluster.disks[0].flush_dir(directory(group))
    cluster.start(0)
    cluster.scheduler.run_until(lambda: bool(cluster.fatal))
    assert "are gone" in str(cluster.fatal[0])


def test_who_waits_for_a_controller_that_is_cut_off_hears_of_it():
    cluster = SimRanges(7)
    controller = cluster.controller()
    client = cluster.client(controller.node_id)
    cluster.isolate(controller.node_id)
    fields = {"transactional_id": None, "transaction_timeout": -1, "producer_id": -1, "producer_epoch": -1}
    client.send(ApiKey.INIT_PRODUCER_ID, 4, **fields)
    cluster.run_until(lambda: client.closed)
    assert not client.answers
    assert controller.node.controller is None
    cluster.heal()
    cluster.controller()


def test_a_node_that_hears_nobody_sends_its_clients_elsewhere():
    cluster = SimRanges(12)
    cluster.create_topic("t", 3)
    written(cluster, "t", 3)
    deaf = cluster.leader("t", 0)[0]
    cluster.cut |= {(other, deaf) for other in cluster.names}
    others = [node for node in cluster.names if node != deaf]
    cluster.run_until(
        lambda: (
            all(cluster.members[node].view.controller() in others for node in others)
            and cluster.members[deaf].view.controller() == -1
        )
    )
    cluster.run_until(
        lambda: all(sum(cluster.leader("t", n, asking=m)[0] in others for m in others) == 2 for n in range(3))
    )
    client = cluster.client(deaf)
    client.send(
        ApiKey.METADATA,
        9,
        topics=({"name": "t"},),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    assert client.closed, "it does not know who leads"
    client = cluster.client(deaf)
    client.send(ApiKey.API_VERSIONS, 0)
    assert client.closed, "a client that has this connection alone would ask again and again"
    # Nobody hands a range to a node that answers nothing, though it is heard.
    cluster.advance(60_000)
    assert not cluster.members[deaf].hosting.led()
    cluster.heal()
    cluster.whole()


def test_two_nodes_that_do_not_hear_each_other_hear_of_what_the_other_leads():
    cluster = SimRanges(13)
    cluster.create_topic("t", 3)
    written(cluster, "t", 3)
    controller = cluster.controller().node_id
    one, two = [node for node in cluster.names if node != controller]
    cluster.cut |= {(one, two), (two, one)}
    cluster.advance(8000)
    told = [[cluster.leader("t", n, asking=node) for n in range(3)] for node in (one, two, controller)]
    assert told[0] == told[1] == told[2]
    assert {one, two} & {node for node, _ in told[0]}
    cluster.heal()
    cluster.whole()


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_acknowledged_is_lost_under_faults(seed):
    cluster = SimRanges(seed)
    rng = cluster.rng
    cluster.create_topic("t", 4)
    writers = [Writer(cluster, "t", partition) for partition in range(4)]
    changes = 0
    for _ in range(120):
        rng.choice(writers).step()
        if rng.random() < 0.12:
            changes += 1
            what = rng.random()
            if what < 0.4 and len(cluster.members) == 3:
                cluster.cut_power(rng.choice(cluster.names))
            elif what < 0.6:
                cluster.isolate(rng.choice(cluster.names))
            elif what < 0.7:
                cluster.loss = 0.1
            else:
                cluster.heal()
    cluster.heal()
    cluster.controller()
    cluster.whole()
    for writer in writers:
        while writer.waiting is not None or not writer.acked:
            writer.step()
    cluster.whole()
    for writer in writers:
        # One that was just started is named when it has said where its clients reach it.
        while (leader := cluster.leader("t", writer.partition)[0]) not in cluster.members:
            cluster.advance(20)
        values = cluster.read(leader, "t", writer.partition)[1]
        assert values == sorted(writer.acked, key=writer.acked.get), f"seed {seed}"
        assert list(range(len(values))) == sorted(writer.acked.values())
        for node in cluster.names:
            partition = cluster.members[node].topics.get("t").partitions[writer.partition]
            assert partition.high_watermark == len(values)
    assert changes


def test_who_comes_to_lead_many_ranges_at_once_tells_of_them_together():
    cluster = SimRanges(5)
    cluster.create_topic("first", 1)
    with ExitStack() as stack:
        says = [
            stack.enter_context(patch.object(member.leaderships, "_say", wraps=member.leaderships._say))
            for member in cluster.members.values()
        ]
        topics = tuple(
            {"name": f"t{n}", "num_partitions": 3, "replication_factor": 3, "assignments": (), "configs": ()}
            for n in range(60)
        )
        answer = cluster.ask(
            cluster.controller().node_id,
            ApiKey.CREATE_TOPICS,
            7,
            topics=topics,
            timeout=30_000,
            validate_only=False,
        )
        assert {one.error_code for one in answer.topics} == {ErrorCode.none}
        told = [call.args[1][1] for say in says for call in say.call_args_list if call.args[1][0] == "led"]
    assert sum(len(words) for words in told) >= 2 * 3 * 60
    assert len(told) < 60


def test_a_node_that_has_just_started_names_members_that_it_did_not_hear_yet():
    """librdkafka throws away whom metadata do not name, and all that is under way to it."""
    cluster = SimRanges(7)
    cluster.create_topic("t", 3)
    away = next(node for node in cluster.names if node != cluster.controller().node_id)
    other = next(node for node in cluster.names if node not in (away, cluster.controller().node_id))
    cluster.cut_power(away)
    cluster.cut |= {(other, away), (away, other)}
    cluster.start(away)
    while (
        answer := cluster.ask(away, ApiKey.METADATA, 12, topics=(), allow_auto_topic_creation=False)
    ) is None:
        cluster.advance(10)
    assert [broker.node_id for broker in answer.brokers] == list(cluster.names)
    assert {(broker.host, broker.port) for broker in answer.brokers} == {
        (f"sim-{node}", 9092) for node in cluster.names
    }
