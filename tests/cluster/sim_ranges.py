"""Nodes whose ranges have groups of their own, in virtual time: simulated disks and links, clients that follow leaders.

A killed node is cut from power: of what was not flushed anything may be lost. Links lose, delay, and can be cut.
"""

from __future__ import annotations

import contextlib
import random
import uuid

import msgspec
from support.sim_disk import SimDisk
from support.sim_loop import SimScheduler
from support.sim_node import SimClient, batch

from broker.config import BrokerConfig
from broker.node_registry import Standing
from broker.ranges.member import RangesMember
from broker.replication.folder import OF_RANGES, claim
from broker.replication.life import Life
from broker.session import Session
from storage.compaction_rewrite import rewrite
from storage.format import CorruptLog
from tests.cluster.sim_cluster import RAFT, Link, nothing_is_lost
from txn.metastore import MetaStoreError
from wire.apis import ApiKey
from wire.batch import BATCH_HEADER_SIZE, parse_header
from wire.errors import ErrorCode, KafkaError
from wire.records import iterate_records

WAIT_MS = 400


class RelayedTo:
    """A session's transport that hands one answer back."""

    def __init__(self, node, frame, done):
        self.done = done
        self.session = Session(node, self, "relay")
        self.session.received(frame)

    def write(self, buffers):
        self._tell(b"".join(bytes(buffer) for buffer in buffers))

    def close(self):
        self._tell(None)

    def set_reading(self, reading):
        pass

    def _tell(self, answer):
        done, self.done = self.done, lambda _: None
        done(answer)


class Relay:
    """Hands requests on to the node that leads the metadata, a moment later."""

    def __init__(self, cluster, node):
        self.cluster = cluster
        self.node = node

    def ask(self, frame, done):
        self.cluster.scheduler.call_later(1, self._ask, frame, done)

    def _ask(self, frame, done):
        member = self.cluster.members.get(self.node)
        leader = member.view.controller() if member is not None else None
        there = self.cluster.members.get(leader)
        if there is None or there is member or (self.node, leader) in self.cluster.cut:
            done(None)
        else:
            RelayedTo(there.node, frame, done)


class SimCompaction:
    """A `broker.compactor.Worker` on the node's disk: it takes a while to write, and until that is known."""

    def __init__(self, cluster, node, life):
        self.cluster = cluster
        self.disk = cluster.disks[node]
        self.life = life

    def _later(self, call, *args):
        self.life.call_later(self.cluster.rng.choice((1, 10, 200)), call, *args)

    def run(self, job, done):
        self._later(self._work, job, done)

    def _work(self, job, done):
        try:
            outcome = rewrite(self.disk, job)
        except (OSError, CorruptLog):
            outcome = None  # the replica is gone from here meanwhile
        self.cluster.jobs[outcome is not None] += 1
        self._later(done, outcome)


class SimRanges:
    lost = staticmethod(nothing_is_lost)

    def __init__(self, seed, racks=None, **config):
        self.racks = racks or {}
        self.rng = random.Random(seed)
        self.scheduler = SimScheduler()
        self.config = BrokerConfig(**{"segment_bytes": 1 << 16, **config})
        self.names: tuple[int, ...] = (0, 1, 2)
        self.disks = {n: SimDisk(self.scheduler, flush_delay_ms=1.0) for n in self.names}
        self.members, self.lives = {}, {}
        self.cut: set[tuple[int, int]] = set()
        self.loss = 0.0
        self.fatal: list[Exception] = []
        self.told: dict[int, tuple[int, ...]] = {}
        """`--peers` of nodes that came later."""
        self.jobs = {True: 0, False: 0}
        """Compactions that were done, and that failed."""
        self.removed: set[int] = set()
        """Nodes that heard that they are out, and ended."""
        self.stopping: set[int] = set()
        """Nodes that stop cleanly, and are there still."""
        for node in self.names:
            self.start(node)

    def start(self, node):
        life = self.lives[node] = Life(self.scheduler)
        life.release()
        # Flushes of a machine without power never end.
        self.disks[node] = self.disks[node].crash(self.rng.random(), scheduler=life)
        claim(self.disks[node], node, OF_RANGES)
        member = self.members[node] = RangesMember(
            node,
            {name: (f"peer-{name}", 1) for name in self.told.get(node, self.names)},
            self.disks[node],
            life,
            msgspec.structs.replace(self.config, node_id=node, broker_rack=self.racks.get(node, "")),
            Link(self, node, life),
            self.rng.random,
            lambda: uuid.UUID(int=self.rng.getrandbits(128), version=4),
            Relay(self, node),
            SimCompaction(self, node, life),
            on_ready=lambda: None,
            on_controller=lambda term: None,
            fatal=lambda error: self._failed(node, error),
            raft_config=RAFT,
        )
        member.advertised = (f"sim-{node}", 9092)
        member.start()

    def _failed(self, node, error):
        if "was removed" not in str(error):
            self.fatal.append(error)
        elif node not in self.removed:
            self.removed.add(node)
            self.scheduler.call_soon(self.cut_power, node)

    def come(self, node, told):
        """A machine more, with an empty disk; `told` are the nodes in its `--peers`, itself besides."""
        self.names = (*self.names, node)
        self.disks[node] = SimDisk(self.scheduler, flush_delay_ms=1.0)
        self.told[node] = (*told, node)
        self.start(node)

    def cut_power(self, node):
        self.lives[node].end()
        del self.members[node]

    def stop(self, node):
        """Cleanly: gone as soon as it has handed over and written all."""
        member = self.members[node]
        self.stopping.add(node)

        def stopped():
            self.stopping.discard(node)
            if self.members.get(node) is member:
                self.cut_power(node)

        member.stop(lambda: self.scheduler.call_soon(stopped))

    def start_stopped(self):
        """All nodes that are not there."""
        for node in self.names:
            if node not in self.members and node not in self.removed:
                self.start(node)

    def isolate(self, node):
        self.cut |= {(node, other) for other in self.names} | {(other, node) for other in self.names}

    def heal(self):
        self.cut.clear()
        self.loss = 0.0
        self.start_stopped()

    def run_until(self, condition, max_ms=60_000):
        self.scheduler.run_until(lambda: bool(self.fatal) or condition(), max_ms=max_ms)
        assert not self.fatal, self.fatal

    def advance(self, ms):
        self.scheduler.advance(ms)
        assert not self.fatal, self.fatal

    def controller(self):
        """The node that serves as one, once there is exactly one."""
        self.run_until(lambda: sum(one.node.controller is not None for one in self.members.values()) == 1)
        return next(one for one in self.members.values() if one.node.controller is not None)

    def client(self, node):
        return SimClient(self.members[node].node, self.scheduler)

    def ask(self, node, key, version, /, **fields):
        """The answer; None where the connection was closed, or none came."""
        client = self.client(node)
        number = client.send(key, version, **fields)
        ended = []
        self.scheduler.call_later(WAIT_MS, ended.append, None)
        self.run_until(lambda: number in client.answers or client.closed or bool(ended))
        if number not in client.answers:
            client.session.lost()
        return client.answers.get(number)

    def create_topic(self, name, partitions, factor=3, **configs):
        """Settings with `_` for their dots."""
        while True:
            answer = self.ask(
                self.rng.choice(list(self.members)),
                ApiKey.CREATE_TOPICS,
                7,
                topics=(
                    {
                        "name": name,
                        "num_partitions": partitions,
                        "replication_factor": factor,
                        "assignments": (),
                        "configs": tuple(
                            {"name": key.replace("_", "."), "value": str(value)}
                            for key, value in configs.items()
                        ),
                    },
                ),
                timeout=30_000,
                validate_only=False,
            )
            if answer is None or answer.topics[0].error_code is ErrorCode.kafka_storage_error:
                continue
            return answer.topics[0]

    def leader(self, topic, partition, *, asking=None):
        """(node, epoch) as some node tells it."""
        node = self.rng.choice(list(self.members)) if asking is None else asking
        answer = self.ask(
            node,
            ApiKey.METADATA,
            9,
            topics=({"name": topic},),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        if answer is None or answer.topics[0].error_code is not ErrorCode.none:
            return -1, -1
        one = next(one for one in answer.topics[0].partitions if one.partition_index == partition)
        return one.leader_id, one.leader_epoch

    def drain(self, node, *, undo=False):
        """As the handler of SEALOG_CLUSTER does it."""
        registry = self.controller().node.controller.registry
        self.run_until(lambda: len(registry.all()) == len(self.names))
        assert registry.change(node, "undrain" if undo else "drain") is not None

    def fetch(self, node, topic, partition, offset, *, epoch=-1, rack_id="", committed=False):
        """A partition's part of the answer, or None."""
        place = {
            "partition": partition,
            "current_leader_epoch": epoch,
            "fetch_offset": offset,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 20,
        }
        answer = self.ask(
            node,
            ApiKey.FETCH,
            11,
            replica_id=-1,
            max_wait=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=int(committed),
            session_id=0,
            session_epoch=-1,
            topics=({"topic": topic, "partitions": (place,)},),
            forgotten_topics_data=(),
            rack_id=rack_id,
        )
        return answer.responses[0].partitions[0] if answer is not None else None

    def preferred(self, node, topic, partition, rack):
        """The replica that it sends a consumer of that rack to; -1: none."""
        return self.fetch(node, topic, partition, 0, rack_id=rack).preferred_read_replica

    def read(self, node, topic, partition, offset=0, **more):
        """(error, values from `offset` on, high watermark) of one partition at one node."""
        values = []
        while True:
            one = self.fetch(node, topic, partition, offset + len(values), **more)
            if one is None:
                return None, values, -1
            if one.error_code is not ErrorCode.none:
                return one.error_code, values, -1
            found = values_in(one.records or b"", offset + len(values))
            if not found:
                return ErrorCode.none, values, one.high_watermark
            values += found

    def whole(self):
        """Every range has a leader that knows its end, and all replicas have the same."""

        def same():
            members = list(self.members.values())
            if len({tuple(sorted(one.topics.ranges)) for one in members}) != 1:
                return False
            for group, record in members[0].topics.ranges.items():
                if record.target:
                    return False
                hosted = [one.hosting.hosted.get(group) for one in members if one.node_id in record.replicas]
                if any(one is None or one.replica is None for one in hosted):
                    return False
                if sum(one.range.leads and one.range.knows_its_end for one in hosted) != 1:
                    return False
                replicas = [one.replica for one in hosted]
                if len({(one.last_index, one.commit_index) for one in replicas}) != 1:
                    return False
                if replicas[0].last_index != replicas[0].commit_index:
                    return False
            return True

        self.run_until(same)


def headers_and_values(records):
    """Per batch: its header, and (offset, value) of each record."""
    found = []
    data = memoryview(bytes(records))
    while len(data) >= BATCH_HEADER_SIZE:
        header = parse_header(data)
        records = iterate_records(data[: header.size_bytes])
        found.append((header, [(record.offset, bytes(record.value)) for record in records]))
        data = data[header.size_bytes :]
    return found


def values_in(records, offset):
    """The values of a fetch's batches from an offset on."""
    return [value for _, batch in headers_and_values(records) for at, value in batch if at >= offset]


REACHED = {
    "add": Standing.UP,
    "remove": Standing.REMOVED,
    "drain": Standing.DRAINING,
    "undrain": Standing.UP,
}


class Operator:
    """Wants nodes in, out, drained or not, one after the other, and says so again until it is so. `peer-N:1` is where
    node N is reached."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.wanted = []

    def wants(self, event, node):
        self.wanted.append((event, node))

    def step(self):
        controllers = [one.node.controller for one in self.cluster.members.values() if one.node.controller]
        if not self.wanted or not controllers:
            return
        event, node = self.wanted[0]
        registry = max(controllers, key=lambda one: one.term).registry
        states = {number: one.standing for number, one in registry.all().items()}
        if states.get(node) is REACHED[event]:
            if event != "remove" or node in self.cluster.removed or node not in self.cluster.members:
                self.wanted.pop(0)
            return
        with contextlib.suppress(KafkaError, OSError, MetaStoreError):
            registry.change(node, event, **({"peer": f"peer-{node}:1"} if event == "add" else {}))

    def finish(self, max_ms=180_000):
        def done():
            self.step()
            return not self.wanted

        self.cluster.run_until(done, max_ms=max_ms)


class Writer:
    """An idempotent producer of one partition, one batch at a time, that goes where it is told the leader is."""

    largest = 4000
    """Bytes that a value is made longer by, at most."""
    pack = staticmethod(batch)

    def __init__(self, cluster, topic, partition):
        self.cluster = cluster
        self.topic = topic
        self.partition = partition
        self.producer_id = -1
        self.sequence = self.count = 0
        self.waiting: list[bytes] | None = None
        self.acked: dict[bytes, int] = {}
        self.repeats = 0

    def step(self):
        """One attempt. Whether it was acknowledged."""
        cluster = self.cluster
        if self.producer_id < 0:
            answer = cluster.ask(
                cluster.rng.choice(list(cluster.members)),
                ApiKey.INIT_PRODUCER_ID,
                4,
                transactional_id=None,
                transaction_timeout=-1,
                producer_id=-1,
                producer_epoch=-1,
            )
            if answer is not None and answer.error_code is ErrorCode.none:
                self.producer_id = answer.producer_id
            return False
        leader, _ = cluster.leader(self.topic, self.partition)
        if leader not in cluster.members:
            cluster.advance(20)
            return False
        if self.waiting is None:
            count = cluster.rng.randint(1, 3)
            self.waiting = [
                f"{self.topic}-{self.partition}-{self.count + n}".encode()
                + b"." * cluster.rng.randrange(self.largest)
                for n in range(count)
            ]
            self.count += count
        else:
            self.repeats += 1
        data = self.pack(
            *self.waiting,
            producer_id=self.producer_id,
            epoch=0,
            sequence=self.sequence,
            timestamp=int(cluster.scheduler.now_ms()),
        )
        answer = cluster.ask(
            leader,
            ApiKey.PRODUCE,
            9,
            transactional_id=None,
            acks=-1,
            timeout=1000,
            topic_data=(
                {
                    "name": self.topic,
                    "partition_data": ({"index": self.partition, "records": data},),
                },
            ),
        )
        if answer is None:
            return False
        result = answer.responses[0].partition_responses[0]
        if result.error_code is ErrorCode.none:
            self.acked |= {value: result.base_offset + n for n, value in enumerate(self.waiting)}
            self.sequence += len(self.waiting)
            self.waiting = None
            return True
        assert result.error_code in (
            ErrorCode.not_leader_or_follower,
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.kafka_storage_error,
            ErrorCode.not_enough_replicas,
        ), result
        return False
