"""Transactional producers over ranges with leaders on several nodes, in virtual time, and what their readers see."""

from __future__ import annotations

from support.sim_node import batch

from broker.replication.metadata_group import METADATA_GROUP
from tests.cluster.sim_ranges import WAIT_MS, SimRanges, headers_and_values
from txn import keys
from wire import group_transactions as messages
from wire import private_api
from wire.apis import ApiKey
from wire.batch import CONTROL_BIT
from wire.errors import ErrorCode

PARTITIONS = [0, 1, 2, 3, 4, 5]
GO_ON = (
    ErrorCode.transaction_abortable,
    ErrorCode.invalid_txn_state,
    ErrorCode.producer_fenced,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.invalid_producer_id_mapping,
    ErrorCode.out_of_order_sequence_number,
)
"""After these a client aborts, or begins anew by InitProducerId."""
ABORT_AFTER = (ErrorCode.transaction_abortable, ErrorCode.invalid_producer_id_mapping)
"""What stands for the first in versions without it is the second (`broker.handlers.produce`)."""
AGAIN = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.not_enough_replicas,
    ErrorCode.kafka_storage_error,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.concurrent_transactions,
    ErrorCode.not_coordinator,
)


class GivenUp(Exception):
    """This transaction is not gone on with: its producer begins anew."""


class Transactor:
    """One transactional id. `protocol` 1: partitions are added before they are written to; 2: the write adds (KIP-890).

    `committed`, `aborted`: the values of transactions of which the end was answered; `unknown`: it never was.
    """

    pack = staticmethod(batch)

    def __init__(self, cluster, name, topic, partitions, protocol, timeout_ms=60_000, replaced=0.0):
        self.cluster = cluster
        self.name = name
        self.topic = topic
        self.partitions = partitions
        self.protocol = protocol
        self.timeout_ms = timeout_ms
        self.replaced = replaced
        """How often another instance takes its place before the end."""
        self.producer_id = self.epoch = -1
        self.sequences: dict[int, int] = {}
        self.count = 0
        self.at_the_end = lambda: None
        """Called when an end is about to be asked for."""
        self.committed: list[dict[int, list[bytes]]] = []
        self.aborted: list[dict[int, list[bytes]]] = []
        self.unknown: list[dict[int, list[bytes]]] = []
        self.ends: dict[ErrorCode, int] = {}

    def any_node(self):
        return self.cluster.rng.choice(list(self.cluster.members))

    def ask(self, key, version, /, node=None, **fields):
        return self.cluster.ask(self.any_node() if node is None else node, key, version, **fields)

    def _until(self, attempt, tries=600):
        """`attempt` gives an error code or None where no answer came; NONE ends it."""
        for _ in range(tries):
            yield
            code = attempt()
            if code is ErrorCode.none:
                return
            if code in GO_ON:
                self.ends[code] = self.ends.get(code, 0) + 1
                raise GivenUp(code)
            assert code is None or code in AGAIN, code
            self.cluster.advance(20)
        raise AssertionError(f"{self.name}: no end")

    def begin(self):
        def attempt():
            answer = self.ask(
                ApiKey.INIT_PRODUCER_ID,
                4,
                transactional_id=self.name,
                transaction_timeout=self.timeout_ms,
                producer_id=-1,
                producer_epoch=-1,
            )
            if answer is not None and answer.error_code is ErrorCode.none:
                self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
                self.sequences = {}
            return answer.error_code if answer is not None else None

        yield from self._until(attempt)

    def add(self, partitions):
        def attempt():
            answer = self.ask(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                3,
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=({"name": self.topic, "partitions": tuple(partitions)},),
            )
            if answer is None:
                return None
            codes = {
                one.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for one in topic.results_by_partition
            }
            return next(iter(codes - {ErrorCode.none}), ErrorCode.none)

        yield from self._until(attempt)

    def produce(self, partition, values, *, node=None, sequence=None):
        """One attempt; its error code, None where no answer came."""
        if node is None:
            node, _ = self.cluster.leader(self.topic, partition)
            if node not in self.cluster.members:
                return None
        if sequence is None:
            sequence = self.take(partition, values)
        data = self.pack(
            *values, producer_id=self.producer_id, epoch=self.epoch, sequence=sequence, transactional=True
        )
        answer = self.ask(
            ApiKey.PRODUCE,
            12 if self.protocol == 2 else 9,
            node=node,
            transactional_id=self.name,
            acks=-1,
            timeout=1000,
            topic_data=({"name": self.topic, "partition_data": ({"index": partition, "records": data},)},),
        )
        return answer.responses[0].partition_responses[0].error_code if answer is not None else None

    def take(self, partition, values):
        """The sequence of the first of them. It is used up, whatever becomes of the batch."""
        sequence = self.sequences.get(partition, 0)
        self.sequences[partition] = sequence + len(values)
        return sequence

    def write(self, partition, values):
        sequence = self.take(partition, values)
        yield from self._until(lambda: self.produce(partition, values, sequence=sequence))

    def ask_group(self, request):
        """The controller's answer about group transactions."""
        cluster = self.cluster
        for _ in range(400):
            client = cluster.client(self.any_node())
            client._asked.append((ApiKey.SEALOG_GROUP_TRANSACTION, 0, 1))
            client.session.received(
                private_api.encode_request(ApiKey.SEALOG_GROUP_TRANSACTION, 1, "sim", request)
            )
            ended = []
            cluster.scheduler.call_later(WAIT_MS, ended.append, None)
            cluster.run_until(lambda client=client, ended=ended: client.answers or client.closed or ended)
            if client.answers:
                return client.answers[1]
            client.session.lost()
            # One that is closed at once is not to be followed by 400 others in the same moment.
            cluster.run_until(lambda ended=ended: ended)
        raise AssertionError("no answer")

    def vote(self, sink, batch, attempt, wrote):
        """Enlist, write, and vote; as a member of the attempt."""
        if self.producer_id < 0:
            list(self.begin())
        me = messages.Member(self.name, self.producer_id, self.epoch)
        enlisted = self.ask_group(
            messages.Enlist(
                sink=sink, batch=batch, attempt=attempt, generation=1, timeout_ms=60_000, member=me
            )
        )
        assert enlisted.error == 0, enlisted
        if self.protocol == 1:
            list(self.add(wrote))
        for partition, values in wrote.items():
            list(self.write(partition, values))
        list(self.end(True))
        return me

    def end(self, commit):
        def attempt():
            self.at_the_end()
            answer = self.ask(
                ApiKey.END_TXN,
                5 if self.protocol == 2 else 3,
                transactional_id=self.name,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                committed=commit,
            )
            if answer is None:
                return None
            if answer.error_code is ErrorCode.none and self.protocol == 2:
                self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
                self.sequences = {}
            return answer.error_code

        yield from self._until(attempt)

    def leave(self, why):
        """It is aborted: by its end where the protocol lets a client go on after that, or by a new begin."""
        if self.protocol == 1 and why in ABORT_AFTER and self.cluster.rng.random() < 0.7:
            try:
                yield from self.end(False)
            except GivenUp:
                pass
            else:
                return
        yield from self.begin()

    def steps(self, commit=None):
        """One transaction over some of the partitions; others may do something between any two requests."""
        rng = self.cluster.rng
        if commit is None:
            commit = rng.random() < 0.7
        if self.producer_id < 0:
            yield from self.begin()
        wrote: dict[int, list[bytes]] = {}
        places = rng.sample(self.partitions, rng.randint(1, len(self.partitions)))
        try:
            if self.protocol == 1:
                yield from self.add(places)
            for partition in places * rng.randint(1, 2):
                values = [f"{self.name}-{self.count}-{n}".encode() for n in range(rng.randint(1, 3))]
                self.count += 1
                wrote.setdefault(partition, []).extend(values)
                yield from self.write(partition, values)
            if rng.random() < self.replaced:
                raise GivenUp("another instance takes its place")
        except GivenUp as error:
            self.aborted.append(wrote)
            yield from self.leave(error.args[0])
            return
        try:
            yield from self.end(commit)
        except GivenUp as error:
            # Refused: it did not commit. Unless the answer to an earlier try was lost, which nobody can tell.
            yield from self.begin()
            refused = error.args[0] is ErrorCode.transaction_abortable
            (self.aborted if refused or not commit else self.unknown).append(wrote)
            return
        (self.committed if commit else self.aborted).append(wrote)

    def run(self, commit=None):
        for _ in self.steps(commit):
            pass


def read_committed(cluster, node, topic, partition):
    """(values, last stable offset, high watermark) of one partition at one node."""
    values, offset = [], 0
    while True:
        one = cluster.fetch(node, topic, partition, offset, committed=True)
        if one is None or one.error_code is not ErrorCode.none:
            return None
        found = headers_and_values(one.records or b"")
        if not found:
            return values, one.last_stable_offset, one.high_watermark
        for header, records in found:
            if not header.attributes & CONTROL_BIT:
                values += [value for at, value in records if at >= offset]
        offset = found[-1][0].last_offset + 1


def check(transactors, seen):
    """`seen`: per partition, what a reader of committed records got."""
    for transactor in transactors:
        for wrote in transactor.committed:
            for partition, values in wrote.items():
                places = [seen[partition].index(value) for value in values]
                assert places == sorted(places), (transactor.name, values)
        for wrote in transactor.aborted:
            for partition, values in wrote.items():
                assert not set(values) & set(seen[partition]), (transactor.name, partition, values)
        for wrote in transactor.unknown:
            there = [value in seen[partition] for partition, values in wrote.items() for value in values]
            assert all(there) or not any(there), (transactor.name, wrote)
    for values in seen.values():
        assert len(values) == len(set(values)), "something is there twice"


def all_seen(cluster, topic="t", partitions=PARTITIONS):
    """What a reader at each node gets, which must be the same and reach the end; per partition."""
    cluster.controller()
    cluster.whole()
    seen = {}

    def reached(node, partition):
        found = read_committed(cluster, node, topic, partition)
        if found is None:
            return False
        values, stable, high_watermark = found
        if stable != high_watermark:
            return False
        assert seen.setdefault(partition, values) == values, f"node {node} shows something else"
        return True

    for partition in partitions:
        for _ in range(400):
            leader = cluster.leader(topic, partition)[0]
            if leader in cluster.members and reached(leader, partition):
                break
            cluster.advance(50)
        else:
            raise AssertionError(f"{topic}-{partition}: readers of what is committed do not reach the end")
    return seen


def check_replicas(cluster, seen, topic="t"):
    """Every replica, leader or not, shows the same as soon as it has heard of everything."""

    def shown(member, partition):
        place = member.topics.get(topic).partitions[partition]
        if place.last_stable_offset != place.high_watermark:
            return None
        values, offset = [], 0
        while offset < place.high_watermark:
            found = place.fetch(offset, read_committed=True, max_bytes=1 << 20, at_least_one=True)
            for data in found.records:
                for header, records in headers_and_values(data):
                    if not header.attributes & CONTROL_BIT:
                        values += [value for at, value in records if at >= offset]
            offset = found.next_offset
        return values

    for member in cluster.members.values():
        for partition, values in seen.items():
            cluster.run_until(lambda m=member, p=partition: shown(m, p) is not None)
            assert shown(member, partition) == values, f"node {member.node_id}, {topic}-{partition}"


def headers(cluster):
    view = cluster.controller().metadata.view
    return [key for key, _ in view.scan(keys.TXNS)]


def take_turns(rng, transactors, transactions):
    """A step of one after the other, until so many have ended; what each has under way then."""
    under_way = {transactor: transactor.steps() for transactor in transactors}
    done = 0
    while done < transactions:
        transactor = rng.choice(transactors)
        if next(under_way[transactor], "over") == "over":
            under_way[transactor] = transactor.steps()
            done += 1
    return under_way


def live_through_faults(seed, transactions=40, beside=lambda cluster: lambda: None):
    """A cluster, four producers, faults at whatever moment; then all that they were told is held against what is there.
    How each transaction ended, as counts. `beside(cluster)` begins something more, and gives what ends it."""
    cluster = SimRanges(seed)
    rng = cluster.rng
    cluster.create_topic("t", 6)
    end_beside = beside(cluster)
    transactors = [
        Transactor(cluster, f"x{n}", "t", PARTITIONS, 1 + n % 2, rng.choice((2000, 60_000)), 0.1)
        for n in range(4)
    ]
    pace = rng.uniform(2.5, 3.7)
    faults_go_on = True

    def fault():
        if not faults_go_on:
            return
        what = rng.random()
        if what < 0.4 and len(cluster.members) == 3:
            cluster.cut_power(rng.choice(cluster.names))
        elif what < 0.6:
            cluster.isolate(rng.choice(cluster.names))
        elif what < 0.7:
            cluster.loss = 0.1
        elif what < 0.8:
            # Leaders are to hand over, perhaps to nodes that are not there: then they go on.
            groups = [METADATA_GROUP]
            if rng.random() < 0.7:
                groups += next(iter(cluster.members.values())).topics.ranges
            for group in groups:
                for member in cluster.members.values():
                    member.leaderships.hand_over(group, rng.choice(cluster.names))
        else:
            cluster.heal()
        cluster.scheduler.call_later(int(10 ** rng.uniform(1, pace)), fault)

    def cut_power():
        if faults_go_on and len(cluster.members) == 3:
            cluster.cut_power(rng.choice(cluster.names))

    def at_the_end():
        if rng.random() < 0.15:
            cluster.scheduler.call_later(rng.choice((1, 2, 3, 4, 6)), cut_power)

    for transactor in transactors:
        transactor.at_the_end = at_the_end
    cluster.scheduler.call_later(200, fault)
    under_way = take_turns(rng, transactors, transactions)
    faults_go_on = False
    cluster.heal()
    end_beside()
    for steps in under_way.values():
        for _ in steps:
            pass
    for transactor in transactors:
        transactor.run(True)
    judge(cluster, transactors)
    return counted(transactors)


def counted(transactors):
    return {
        what: sum(len(getattr(one, what)) for one in transactors)
        for what in ("committed", "aborted", "unknown")
    }


def judge(cluster, transactors):
    """What readers see, now and after a power cut of all nodes."""
    seen = all_seen(cluster)
    check(transactors, seen)
    check_replicas(cluster, seen)
    cluster.run_until(lambda: not headers(cluster))
    assert all_seen(cluster) == seen
    for node in cluster.names:
        cluster.cut_power(node)
    cluster.heal()
    assert all_seen(cluster) == seen
    check_replicas(cluster, seen)


def live_through_handovers(seed, transactions=40):
    """The same where leaders change by hand-overs alone, of ranges and of the metadata, and where nodes stop cleanly
    and come back. No transaction may end otherwise than its producer wants it to. How many leaderships were seen,
    beside the counts. (To a node that is not there nothing is handed over: should it come back in the very moment in
    which that is given up, there may be an election, which costs what is open.)"""
    cluster = SimRanges(seed)
    rng = cluster.rng
    cluster.create_topic("t", 6)
    transactors = [Transactor(cluster, f"x{n}", "t", PARTITIONS, 1 + n % 2) for n in range(4)]
    pace = rng.uniform(2.0, 3.2)
    goes_on = True
    groups = list(next(iter(cluster.members.values())).topics.ranges)
    terms = {}

    def leaderships():
        return {
            (number, group.raft.term): member.node_id
            for member in cluster.members.values()
            for number, group in member.host.groups.items()
            if group.raft.is_leader
        }

    def event():
        if not goes_on:
            return
        terms.update(leaderships())
        what = rng.random()
        if what < 0.5:
            ask_for_handover(rng.choice(groups))
        elif what < 0.75:
            ask_for_handover(METADATA_GROUP)
        elif what < 0.85:
            for group in (*groups, METADATA_GROUP):
                ask_for_handover(group)
        elif len(cluster.members) == 3 and not cluster.stopping:
            cluster.stop(rng.choice(cluster.names))
        elif rng.random() < 0.5:
            cluster.start_stopped()
        cluster.scheduler.call_later(int(10 ** rng.uniform(0.3, pace)), event)

    def ask_for_handover(group):
        for member in list(cluster.members.values()):
            member.leaderships.hand_over(group, rng.choice(list(cluster.members)))

    cluster.scheduler.call_later(200, event)
    under_way = take_turns(rng, transactors, transactions)
    goes_on = False
    cluster.run_until(lambda: not cluster.stopping)
    cluster.start_stopped()
    for steps in under_way.values():
        for _ in steps:
            pass
    for transactor in transactors:
        assert not transactor.ends, (transactor.name, transactor.ends)
    judge(cluster, transactors)
    return counted(transactors) | {"leaderships": len(terms)}
