"""Nodes come and go and replicas move under load and faults, in virtual time, with a watch over what must hold.

`run(seed)` raises AssertionError where something does not. The watch reads the nodes' own state and changes nothing.
"""

from __future__ import annotations

import contextlib
from unittest import mock

from broker.ranges import replica_moves
from broker.ranges.hosting import Hosting
from tests.cluster.sim_ranges import Operator, SimRanges, Writer

STEPS = 130
TOPICS = (("t", 4, 3), ("one", 2, 1))


class Watch:
    """Over one cluster: who leads, who drops what, and what is taken for done."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.led: dict[tuple[int, int], int] = {}
        self.departed = self.settled = 0
        self.rafts = {}
        """By node and group, as it was last: a group of one voter that is down has its change on that node alone."""

    def membership(self, group):
        """The last one that is in any log."""
        self.note()
        known = [
            ((raft.log.term_at(raft.memberships.index) or 0, raft.memberships.index), raft.membership)
            for (_, number), raft in self.rafts.items()
            if number == group
        ]
        return max(known, key=lambda one: one[0])[1]

    def note(self):
        for member in self.cluster.members.values():
            for group, found in member.host.groups.items():
                self.rafts[member.node_id, group] = found.raft

    def look(self):
        self.note()
        for member in self.cluster.members.values():
            for group, found in member.host.groups.items():
                if found.raft.is_leader:
                    known = self.led.setdefault((group, found.raft.term), member.node_id)
                    assert known == member.node_id, f"two leaders of group {group} in term {found.raft.term}"
        for node in self.cluster.removed:
            for member in self.cluster.members.values():
                for group, record in member.topics.ranges.items():
                    newest = member.metadata.replicated.applied_lsn >= self.newest_lsn()
                    assert not newest or node not in record.holders, (
                        f"{group}: node {node} was removed too early"
                    )

    def newest_lsn(self):
        return max(one.metadata.replicated.applied_lsn for one in self.cluster.members.values())

    @contextlib.contextmanager
    def on(self):
        depart, settled = Hosting.depart, replica_moves.settled

        def departs(hosting, group):
            term = hosting.hosted[group].range.group.raft.term
            if term:
                members = self.membership(group)
                assert hosting._node_id not in members, f"node {hosting._node_id} drops {group} of {members}"
            self.departed += 1
            depart(hosting, group)

        def settles(record, step, voters):
            changed = settled(record, step, voters)
            if changed is not None:
                groups = [
                    g
                    for m in self.cluster.members.values()
                    for g, r in m.topics.ranges.items()
                    if (r.topic, r.first, r.created_ms) == (record.topic, record.first, record.created_ms)
                ]
                members = self.membership(groups[0])
                assert members.voters == set(changed.replicas), (
                    f"{changed} is not what the group has: {members}"
                )
                self.settled += 1
            return changed

        with (
            mock.patch.object(Hosting, "depart", departs),
            mock.patch.object(replica_moves, "settled", settles),
        ):
            yield self


def trouble(cluster, rng):
    what = rng.random()
    alive = [node for node in cluster.names if node not in cluster.removed]
    if what < 0.4 and all(node in cluster.members for node in alive):
        cluster.cut_power(rng.choice(alive))
    elif what < 0.6:
        cluster.isolate(rng.choice(alive))
    elif what < 0.7:
        cluster.loss = 0.05
    else:
        cluster.heal()


def at_rest(cluster):
    """Nothing is on the move, and each node has what the records say and nothing else."""
    for member in cluster.members.values():
        for record in member.topics.ranges.values():
            if record.target or record.becomes or len(record.replicas) != record.factor:
                return False
        named = {group for group, one in member.topics.ranges.items() if member.node_id in one.replicas}
        if set(member.hosting.hosted) != named:
            return False
        if any(one.range is None for one in member.hosting.hosted.values()):
            return False
    return True


def judge(cluster, writers):
    """Every writer has written once more; what was acknowledged is there, once and in order."""
    for writer in writers:
        assert any(writer.step() for _ in range(500)), "no write is taken"
    cluster.whole()
    for writer in writers:
        leader = -1
        for _ in range(500):
            if leader not in cluster.members:
                cluster.advance(20)
                leader = cluster.leader(writer.topic, writer.partition)[0]
        values = cluster.read(leader, writer.topic, writer.partition)[1]
        assert values == sorted(writer.acked, key=writer.acked.get)
        assert list(range(len(values))) == sorted(writer.acked.values())


def run(seed, beside=lambda cluster: lambda: None):
    """`beside(cluster)` begins something more, when there are topics, and gives what ends it."""
    cluster = SimRanges(seed)
    rng = cluster.rng
    with Watch(cluster).on() as watch:
        for name, partitions, factor in TOPICS:
            cluster.create_topic(name, partitions, factor)
        writers = [Writer(cluster, name, n) for name, partitions, _ in TOPICS for n in range(partitions)]
        end_beside = beside(cluster)
        operator = Operator(cluster)
        goes, drains = rng.sample((0, 1, 2), 2)
        for step in range(STEPS):
            if step in (10, 30):
                node = 3 if step == 10 else 4
                cluster.come(node, rng.sample(cluster.names, rng.randrange(1, len(cluster.names))))
                operator.wants("add", node)
            elif step == 55:
                operator.wants("remove", goes)
            elif step == 80:
                operator.wants("drain", drains)
            elif step == 105:
                operator.wants("undrain", drains)
            if rng.random() < 0.12:
                trouble(cluster, rng)
            operator.step()
            rng.choice(writers).step()
            cluster.advance(rng.choice((0, 100, 400)))
            watch.look()
        cluster.heal()
        end_beside()
        operator.finish(max_ms=90_000)
        cluster.run_until(lambda: at_rest(cluster), max_ms=90_000)
        watch.look()
        judge(cluster, writers)
        for node in tuple(cluster.members):
            cluster.cut_power(node)
        cluster.heal()
        judge(cluster, writers)
        watch.look()
    assert watch.settled
    assert watch.departed
    return watch
