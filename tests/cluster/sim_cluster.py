"""Three members of a cluster on simulated disks, links and one virtual clock; a load that asks the leader.

Killed members are cut from power: of what was not flushed anything may be lost. Links lose, delay, and can be cut.
"""

from __future__ import annotations

import random
import uuid

from support.sim_disk import SimDisk
from support.sim_loop import SimScheduler
from support.sim_node import SimClient, batch

from broker.config import BrokerConfig
from broker.replication.folder import claim
from broker.replication.life import Life
from broker.replication.member import Member
from broker.replication.replica import LogLimits
from broker.replication.store import Store
from raftish.codec import decode, encode
from raftish.config import Config
from wire.apis import ApiKey
from wire.errors import ErrorCode

RAFT = Config(election_timeout_ms=200, heartbeat_ms=30, retry_ms=100)
TOPIC = "t"


class Link:
    """One member's network."""

    def __init__(self, cluster, node, life):
        self.cluster = cluster
        self.node = node
        self.life = life
        self.peers: set[int] = set()

    def set_peers(self, peers):
        self.peers = set(peers)

    def send(self, peer, messages):
        for group, message in messages:
            if self.cluster.lost(self.node, group, message):
                continue
            self._pass(peer, "received", *decode(encode(group, message)[4:]))

    def send_beats(self, peer, beats):
        self._pass(peer, "received_beats", self.node, beats)

    def _pass(self, peer, what, *args):
        cluster = self.cluster
        if (
            self.life.is_over
            or peer not in self.peers
            or (self.node, peer) in cluster.cut
            or cluster.rng.random() < cluster.loss
        ):
            return
        cluster.scheduler.call_later(cluster.rng.uniform(0.2, 3), self._arrive, peer, what, args)

    def _arrive(self, peer, what, args):
        member = self.cluster.members.get(peer)
        if member is not None and (self.node, peer) not in self.cluster.cut:
            getattr(member, what)(*args)


def nothing_is_lost(node, group, message):
    """`lost` of a cluster: whether what a node sends for a group does not arrive."""
    return False


class SimCluster:
    lost = staticmethod(nothing_is_lost)

    def __init__(self, seed, limits=None, **config):
        self.rng = random.Random(seed)
        self.scheduler = SimScheduler()
        self.limits = limits or LogLimits(part_bytes=16 << 10, keep_bytes=64 << 10, checkpoint_bytes=16 << 10)
        self.config = BrokerConfig(**config)
        self.names = (0, 1, 2)
        self.disks = {n: SimDisk(self.scheduler, flush_delay_ms=1.0) for n in self.names}
        self.members, self.lives = {}, {}
        self.told: dict[int, tuple[int, ...]] = {}
        """`--peers` of nodes that were told of others than `names`."""
        self.cut: set[tuple[int, int]] = set()
        self.loss = 0.0
        self.fatal: list[Exception] = []
        self.removed: set[int] = set()
        """Nodes that heard that they are out, and ended."""
        for node in self.names:
            self.start(node)

    def start(self, node):
        life = self.lives[node] = Life(self.scheduler)
        life.release()
        # Flushes of a machine without power never end.
        self.disks[node] = self.disks[node].crash(self.rng.random(), scheduler=life)
        claim(self.disks[node], node)

        def run_apart(work, done):
            # In a later turn, as a thread's end is.
            work()
            life.call_later(5, done, None)

        member = self.members[node] = Member(
            node,
            {name: (f"peer-{name}", 1) for name in self.told.get(node, self.names)},
            self.disks[node],
            life,
            self.config,
            Link(self, node, life),
            self.rng.random,
            lambda: uuid.UUID(int=self.rng.getrandbits(128), version=4),
            run_apart,
            on_serve=lambda _: None,
            on_standby=lambda: None,
            fatal=lambda error: self._failed(node, error),
            raft_config=RAFT,
            limits=self.limits,
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

    def heal(self):
        self.cut.clear()
        self.loss = 0.0
        for node in self.names:
            if node not in self.members and node not in self.removed:
                self.start(node)

    def serving(self):
        """Members that would serve clients, the one that leads in the highest term last."""
        found = [member for member in self.members.values() if member.node is not None]
        return sorted(found, key=lambda member: member.node.term)

    def run_until(self, condition, max_ms=60_000):
        self.scheduler.run_until(lambda: bool(self.fatal) or condition(), max_ms=max_ms)
        assert not self.fatal, self.fatal

    def wait_for_leader(self):
        self.run_until(lambda: self.serving() and len(self.serving()) == 1)
        return self.serving()[-1]

    def settle(self):
        """Until all members have applied the same."""

        def same():
            indexes = {member.store.index for member in self.members.values()}
            last = {
                member.replica.group.raft.log.last_index for member in self.members.values() if member.replica
            }
            return len(indexes) == 1 and indexes == last

        self.wait_for_leader()
        self.run_until(same)

    def files(self, node):
        store = self.members[node].store
        number, names, folders = store.tree.dump()
        content = {path: self.disks[node].content(Store.path(number)) for path, number in names.items()}
        return number, content, folders


class Pipeline:
    """An idempotent producer with up to five batches under way, as librdkafka is one: what failed is sent again, and to
    a new leader the first batch may come last, for its failure and the new leader become known at once."""

    def __init__(self, cluster, name):
        self.cluster = cluster
        self.name = name
        self.count = 0
        self.ids: list[int] = []
        self.sequence = 0
        self.waiting: list[tuple[int, list[bytes]]] = []
        """(first sequence, values) of batches that are not acknowledged."""
        self.sent: list[bytes] = []
        self.acked: dict[bytes, int] = {}
        self.gaps = 0
        self.repeats = 0
        self._term = -1
        self._tried: set[int] = set()

    def step(self, *, more=True, meanwhile=lambda: None):
        """`meanwhile` is called when the batches have been sent, a moment later."""
        serving = self.cluster.serving()
        if not serving:
            self.cluster.scheduler.advance(150)
            return
        node = self.cluster.rng.choice(serving).node
        client = SimClient(node, self.cluster.scheduler)
        if not self.ids:
            self._begin(client)
            return
        while more and len(self.waiting) < 5 and self.cluster.rng.random() < 0.8:
            values = [f"{self.name}-{self.count + n}".encode() for n in range(self.cluster.rng.randint(1, 3))]
            self.waiting.append((self.sequence, values))
            self.sequence += len(values)
            self.count += len(values)
            self.sent += values
        batches = list(self.waiting)
        if node.term != self._term and self.cluster.rng.random() < 0.5:
            batches = batches[1:] + batches[:1]
        self._term = node.term
        numbers = [(one, client.send(ApiKey.PRODUCE, 9, **self._fields(*one))) for one in batches]
        self.cluster.scheduler.advance(self.cluster.rng.choice([0, 1, 2, 4, 8]))
        meanwhile()
        ends = self.cluster.scheduler.now_ms() + 1000
        self.cluster.scheduler.call_later(1001, lambda: None)
        self.cluster.run_until(
            lambda: len(client.answers) == len(numbers) or self.cluster.scheduler.now_ms() > ends
        )
        for one, number in numbers:
            self.repeats += one[0] in self._tried
            self._tried.add(one[0])
            if number in client.answers:
                self._told(one, client.answers[number].responses[0].partition_responses[0])

    def _begin(self, client):
        fields = {
            "transactional_id": None,
            "transaction_timeout": -1,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        number = client.send(ApiKey.INIT_PRODUCER_ID, 4, **fields)
        ends = self.cluster.scheduler.now_ms() + 1000
        self.cluster.scheduler.call_later(1001, lambda: None)
        self.cluster.run_until(lambda: number in client.answers or self.cluster.scheduler.now_ms() > ends)
        answer = client.answers.get(number)
        if answer is not None and answer.error_code is ErrorCode.none:
            self.ids.append(answer.producer_id)

    def _fields(self, sequence, values):
        data = batch(*values, producer_id=self.ids[-1], epoch=0, sequence=sequence)
        partition = {"index": 0, "records": data}
        return {
            "transactional_id": None,
            "acks": -1,
            "timeout": 1000,
            "topic_data": ({"name": TOPIC, "partition_data": (partition,)},),
        }

    def _told(self, one, result):
        if result.error_code is ErrorCode.none:
            self.waiting.remove(one)
            self.acked |= {value: result.base_offset + n for n, value in enumerate(one[1])}
        elif result.error_code is ErrorCode.not_enough_replicas:
            self.gaps += 1
        else:
            raise AssertionError(f"{self.name} is told {result.error_code!r} for sequence {one[0]}")


class Writer:
    """One value after the other into one partition, until it is acknowledged or given up; what was told of each."""

    def __init__(self, cluster, name, transactional):
        self.cluster = cluster
        self.name = name
        self.transactional = transactional
        self.acked: dict[bytes, int] = {}
        """Of plain values: their offsets."""
        self.committed: set[bytes] = set()
        self.aborted: set[bytes] = set()
        self.count = 0

    def step(self):
        """One value, in a way that never waits longer than a second of virtual time."""
        serving = self.cluster.serving()
        if not serving:
            self.cluster.scheduler.advance(150)
            return
        member = self.cluster.rng.choice(serving)
        client = SimClient(member.node, self.cluster.scheduler)
        self.count += 1
        value = b"%s-%d" % (self.name.encode(), self.count)
        if self.transactional:
            self._transaction(client, value)
        else:
            self._plain(client, value)

    def _ask(self, client, key, version, **fields):
        number = client.send(key, version, **fields)
        ends = self.cluster.scheduler.now_ms() + 1000
        self.cluster.scheduler.call_later(1001, lambda: None)
        self.cluster.run_until(
            lambda: number in client.answers or client.closed or self.cluster.scheduler.now_ms() > ends
        )
        return client.answers.get(number)

    def _produce(self, client, value, **producer):
        data = batch(value, **producer)
        answer = self._ask(
            client,
            ApiKey.PRODUCE,
            12,
            transactional_id=self.name if producer else None,
            acks=-1,
            timeout=1000,
            topic_data=({"name": TOPIC, "partition_data": ({"index": 0, "records": data},)},),
        )
        if answer is None:
            return None
        return answer.responses[0].partition_responses[0]

    def _plain(self, client, value):
        result = self._produce(client, value)
        if result is not None and result.error_code is ErrorCode.none:
            self.acked[value] = result.base_offset

    def _transaction(self, client, value):
        found = self._ask(
            client,
            ApiKey.INIT_PRODUCER_ID,
            4,
            transactional_id=self.name,
            transaction_timeout=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        if found is None or found.error_code is not ErrorCode.none:
            return
        identity = {"producer_id": found.producer_id, "epoch": found.producer_epoch}
        result = self._produce(client, value, **identity, sequence=0, transactional=True)
        if result is None or result.error_code is not ErrorCode.none:
            return
        commits = self.cluster.rng.random() < 0.7
        # The end may be asked of another leader than the write was.
        member = self.cluster.rng.choice(self.cluster.serving() or [None])
        if member is not None and self.cluster.rng.random() < 0.5:
            client = SimClient(member.node, self.cluster.scheduler)
        ended = self._ask(
            client,
            ApiKey.END_TXN,
            5,
            transactional_id=self.name,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            committed=commits,
        )
        if ended is not None and ended.error_code is ErrorCode.none:
            (self.committed if commits else self.aborted).add(value)
