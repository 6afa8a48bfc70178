"""Transactions v2 in a cluster begin without waiting for a flush, and no change of leaders tears one in two."""

from __future__ import annotations

import itertools
import os

import pytest
from support.sim_node import SimClient, batch
from support.sim_producer import Producer, create_topic

from tests.cluster.sim_cluster import SimCluster, Writer
from tests.cluster.test_cluster_simulation import failover, trouble
from txn.identities import Identities
from txn.untraced import IDLE_MS, INTERVAL_MS
from wire.apis import ApiKey
from wire.batch import parse_header
from wire.errors import ErrorCode
from wire.records import iterate_records

SEEDS = int(os.environ.get("SEALOG_CLUSTER_SEEDS", "12"))
WIDE, WIDTH = "wide", 3
AGAIN = {
    ErrorCode.not_leader_or_follower,
    ErrorCode.not_enough_replicas,
    ErrorCode.kafka_storage_error,
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
}


class Chain(Writer):
    """One transactional producer that goes from transaction to transaction, each of a value to every partition."""

    def __init__(self, cluster, name):
        super().__init__(cluster, name, True)
        self.identity = None
        self.group = []
        self.abortable = 0
        self.groups = {}
        """{values: True (committed), False (aborted), None (not known)}."""
        self.aborting = False

    def step(self):
        serving = self.cluster.serving()
        if not serving:
            self.cluster.scheduler.advance(150)
            return
        client = SimClient(self.cluster.rng.choice(serving).node, self.cluster.scheduler)
        if self.identity is None:
            self._init(client)
        elif self.aborting:
            self._end(client, commit=False)
        elif len(self.group) < WIDTH:
            self._write(client)
        else:
            self._end(client, commit=True)

    def _init(self, client):
        found = self._ask(
            client,
            ApiKey.INIT_PRODUCER_ID,
            4,
            transactional_id=self.name,
            transaction_timeout=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        if found is not None and found.error_code is ErrorCode.none:
            self._over(None, (found.producer_id, found.producer_epoch))

    def _write(self, client):
        value = b"%s-%d-%d" % (self.name.encode(), self.count, len(self.group))
        producer_id, epoch = self.identity
        data = batch(value, producer_id=producer_id, epoch=epoch, sequence=0, transactional=True)
        answer = self._ask(
            client,
            ApiKey.PRODUCE,
            12,
            transactional_id=self.name,
            acks=-1,
            timeout=1000,
            topic_data=({"name": WIDE, "partition_data": ({"index": len(self.group), "records": data},)},),
        )
        if answer is None:
            return
        code = answer.responses[0].partition_responses[0].error_code
        if code is ErrorCode.none:
            self.group.append(value)
        elif code not in AGAIN:
            self.abortable += 1
            self.aborting = True

    def _end(self, client, *, commit):
        answer = self._ask(
            client,
            ApiKey.END_TXN,
            5,
            transactional_id=self.name,
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            committed=commit,
        )
        if answer is None or answer.error_code in AGAIN:
            return
        if answer.error_code is ErrorCode.none:
            self._over(commit, (answer.producer_id, answer.producer_epoch))
        elif answer.error_code is ErrorCode.transaction_abortable:
            self.abortable += 1
            self.aborting = True
        else:
            raise AssertionError(f"{self.name}: {answer}")

    def _over(self, outcome, identity):
        self.groups[tuple(self.group)] = outcome
        self.group, self.aborting, self.identity = [], False, identity
        self.count += 1


def visible(member):
    found = []
    for partition in member.node.topics.get(WIDE).partitions:
        position = 0
        while position < partition.readable_end(read_committed=True):
            slice_ = partition.fetch(position, read_committed=True, max_bytes=1 << 20, at_least_one=True)
            data = b"".join(slice_.records)
            while data:
                header = parse_header(data)
                if not header.is_control:
                    found += [record.value for record in iterate_records(data[: header.size_bytes])]
                position = header.last_offset + 1
                data = data[header.size_bytes :]
    return found


def run(seed):
    """The chains, after all is judged."""
    cluster = SimCluster(seed)
    member = cluster.wait_for_leader()
    create_topic(SimClient(member.node, cluster.scheduler), WIDE, WIDTH)
    chains = [Chain(cluster, f"c{number}") for number in range(2)]
    for _ in range(120):
        if cluster.rng.random() < 0.12:
            trouble(cluster)
        cluster.rng.choice(chains).step()
    cluster.heal()
    cluster.settle()
    for chain in chains:
        done = chain.count
        for _ in range(30):
            chain.step()
            if chain.count > done + 1 and not chain.group:
                break
        else:
            raise AssertionError(f"seed {seed}: {chain.name} does not go on")
    found = visible(cluster.serving()[-1])
    assert len(found) == len(set(found)), f"seed {seed}: twice"
    for chain in chains:
        for values, outcome in chain.groups.items():
            there = [value for value in values if value in found]
            if outcome is True:
                assert len(there) == len(values) == WIDTH, (
                    f"seed {seed}: {values} were committed, {there} are there"
                )
            else:
                assert there in ([], list(values)), f"seed {seed}: of {values} only {there}"
                assert outcome is None or not there, f"seed {seed}: {values} were aborted"
    return chains


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_transaction_is_whole_or_not_at_all_whoever_leads(seed):
    run(seed)


def test_the_load_meets_what_it_is_for():
    chains = [chain for seed in range(100, 104) for chain in run(seed)]
    committed = sum(outcome is True for chain in chains for outcome in chain.groups.values())
    assert committed > 20
    assert sum(chain.abortable for chain in chains) > 1, "no transaction was cut off by a failover"


def test_a_leader_that_does_not_fence_them_is_found(monkeypatch):
    monkeypatch.setattr(
        Identities, "may_have_lost", lambda self, held: held.lost or held.term < self._fence_term
    )
    for seed in range(40):
        try:
            run(seed)
        except AssertionError as error:
            found = str(error)
            break
    else:
        raise AssertionError("a part of a transaction was committed, and nobody noticed")
    assert "are there" in found or "only" in found, found


def started(seed):
    cluster = SimCluster(seed)
    member = cluster.wait_for_leader()
    create_topic(SimClient(member.node, cluster.scheduler), WIDE, WIDTH)
    producer = Producer(SimClient(member.node, cluster.scheduler), "p")
    assert producer.init() is ErrorCode.none
    return cluster, member, producer


def cut_off(cluster, member):
    leader = member.node_id
    cluster.cut = {way for way in itertools.permutations(cluster.names, 2) if leader in way}


def test_only_the_first_write_after_a_pause_waits_for_a_majority():
    cluster = SimCluster(1)
    member = cluster.wait_for_leader()
    create_topic(SimClient(member.node, cluster.scheduler), WIDE, WIDTH)
    chain = Chain(cluster, "c")
    while chain.count < 2:
        chain.step()
    cut_off(cluster, member)
    chain.step()
    assert len(chain.group) == 1, "answered by the leader alone"
    cluster.heal()
    while chain.count < 3:
        chain.step()
    cluster.scheduler.advance(IDLE_MS + 2 * INTERVAL_MS)
    leader = cluster.serving()[-1]
    cut_off(cluster, leader)
    chain.step()
    assert not chain.group, "its trace is not durable, so it must not be answered"


def test_who_was_idle_does_not_notice_a_failover_and_who_was_not_aborts_once():
    for idle in (True, False):
        cluster, member, producer = started(2)
        assert producer.send(WIDE, {0: [b"one"]}) == {0: ErrorCode.none}
        assert producer.end() is ErrorCode.none
        cluster.scheduler.advance(IDLE_MS + 2 * INTERVAL_MS if idle else 100)
        member = failover(cluster, member)
        producer.client = SimClient(member.node, cluster.scheduler)
        if not idle:
            assert producer.send(WIDE, {0: [b"refused"]}) == {0: ErrorCode.invalid_producer_epoch}
            assert producer.end(commit=False) is ErrorCode.none
        assert producer.send(WIDE, {0: [b"two"], 1: [b"three"]}) == {0: ErrorCode.none, 1: ErrorCode.none}
        assert producer.end() is ErrorCode.none
        assert sorted(visible(member)) == [b"one", b"three", b"two"]
