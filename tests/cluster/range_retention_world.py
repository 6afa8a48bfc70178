"""`range_world.World` with log starts that move: replicas drop the begin of their logs, and who was away for too long
fetches the leader's segments. The log starts stand for the committed metadata; each node hears of them when it does.
"""

from __future__ import annotations

from functools import partial

import msgpack

from broker.replication.range_fetch import SegmentSource
from broker.replication.range_group import RangeGroup
from broker.replication.range_restore import RangeRestore, Step
from raftish.entries import Entry
from raftish.messages import Note
from storage.check import check_directory
from storage.numbering import NORMAL
from storage.payloads import Batch, decode
from storage.producers import ProducerBudget, ProducerStates
from storage.replica_front import ReplicaFront
from storage.replica_takeover import is_taking_over
from tests.cluster.range_world import FOLDER, GROUP, PARTITIONS, World, states
from tests.raftish.checker import require

PIECE_BYTES = 900
AWAY_MS = 450


class RetentionWorld(World):
    def __init__(self, seed, voters=3, **more):
        self.starts = [0] * PARTITIONS
        super().__init__(seed, voters, **more)
        self.counts |= {"restores": 0, "begun": 0, "dropped": 0, "taken over by a start": 0}
        self._retain()

    # Retention.

    def _retain(self):
        """As a leader decides it: all that some sealed segment holds is old."""
        self.later(20 + self.rng.random() * 40, self._retain)
        leaders = self.leaders()
        if leaders and self.faulty:
            sealed = [one for one in leaders[0].replica.segments if one.state == "SEALED"]
            if len(sealed) > 1:
                for partition, end in self.rng.choice(sealed[-3:]).end_offsets().items():
                    self.starts[partition] = max(self.starts[partition], end)
        for node in self.nodes.values():
            self.later(self.rng.random() * 60, self._told, node)

    def _told(self, node):
        if not node.awake or node.clock.paused_until > self.now:
            return
        replica = node.replica
        for partition, start in enumerate(self.starts):
            log = replica.partition(partition)
            log.advance_log_start(min(start, log.high_watermark))
        self.counts["dropped"] += len(node.front.drop())
        base = replica.first_index - 1
        if base > node.device.base:
            node.device.compact(base)

    # Nodes.

    def range_group(self, node, replica):
        node.front = ReplicaFront(node.disk, node.clock, replica)
        node.restore = None
        send = partial(self._say, node.name)
        node.source = SegmentSource(
            lambda group: node.replica, send, node.clock.monotonic_ms, piece_bytes=PIECE_BYTES
        )
        return RangeGroup(node.name, replica, partial(self._restore, node, send))

    def _restore(self, node, send, request, done):
        self.counts["begun"] += 1
        if self.faulty and self.rng.random() < 0.5:
            victim = self.nodes[request.source] if self.rng.random() < 0.2 else node
            self.later(self.rng.random() * 80, self._cut_shortly, victim)

        def replaced(replica):
            self.counts["restores"] += 1
            if self.faulty and self.rng.random() < 0.4:
                self.later(self.rng.random() * 20, self._cut_shortly, node)
            replica._drop_child = self._counted(replica._drop_child)
            node.front = ReplicaFront(node.disk, node.clock, replica)
            for output in node.device.pending:
                # Hard states are on their way still; of the log all was durable.
                output.truncate_from, output.entries = None, ()
            self._as_found(node, replica)
            node.range.replaced(replica)
            self.checker.restored(node.name)
            self.checker.commit(node.name, replica.commit_index, node.raft.term, leads=False)

        def failed(error):
            raise AssertionError(f"{node.name} cannot restore: {error}")

        node.restore = RangeRestore(
            GROUP,
            node.replica,
            node.front,
            node.disk,
            node.clock,
            send,
            request,
            reopen=lambda: self.open(node, node.clock)[0],
            replaced=replaced,
            done=done,
            failed=failed,
        )
        self._look_on(node, node.restore)

    def _look_on(self, node, restore):
        """The moments in which the files change hands are short."""
        if self.faulty and restore.step is not Step.OVER and node.restore is restore:
            if restore.step is Step.NAMING and self.rng.random() < 0.2:
                self._cut_shortly(node, "all")
            self.later(1, self._look_on, node, restore)

    def _cut_shortly(self, node, keep="random"):
        self.power_cut(node, keep)
        self.later(self.rng.random() * 100, self.restart, node)

    def open(self, node, scheduler):
        node.was_named = is_taking_over(node.disk, FOLDER)
        for finding in check_directory(node.disk, FOLDER):
            require(not finding.damaged, "a crash is taken for damage:", finding)
        return super().open(node, scheduler)

    def _as_found(self, node, replica):
        device = node.device
        found = []
        while (index := replica.first_index + len(found)) <= replica.last_index:
            found += [
                Entry(stored.term, stored.index, stored.kind, stored.payload)
                for stored in replica.entries(index, replica.last_index, 500)
            ]
        device.base = replica.first_index - 1
        device.base_term = replica.term_at(device.base)
        device.base_membership = dict(RangeGroup(node.name, replica).known_members())[device.base]
        device.entries = found
        return found

    def _recovered(self, node, replica, hard_state):
        device = node.device
        base = device.base
        states_ = [list(device.entries)]
        sure = len(device.entries)
        for output in device.pending:
            state = states_[-1]
            if output.truncate_from is not None:
                state = state[: output.truncate_from - base - 1]
                sure = min(sure, len(state))
            states_.append(state + list(output.entries))
        found = self._as_found(node, replica)
        device.pending.clear()
        device.hard_state = hard_state
        self.counts["recoveries"] += 1
        committed = self.checker.committed
        if node.was_named:
            self.counts["taken over by a start"] += 1
            require(replica.commit_index == replica.last_index, node.name, "took over what is not committed")
        else:
            require(device.base <= base, node.name, "has lost its begin, up to", device.base, "not", base)
            require(replica.last_index >= base + sure, node.name, "has lost entries", replica.last_index)
            kept = found[base - device.base :]
            require(
                any(kept == state[: len(kept)] for state in states_),
                node.name,
                "has a log that never was:",
                [(entry.term, entry.index) for entry in kept][-8:],
            )
        sure_of = found if node.was_named else found[: base - device.base]
        for entry in sure_of:
            require(committed[entry.index][0] == entry, node.name, "has another entry at", entry.index)

    # Links.

    def _say(self, source, target, words):
        self.send(source, target, Note(source, target, 0, msgpack.packb(words)))

    def _deliver(self, node, message):
        if not isinstance(message, Note):
            super()._deliver(node, message)
            return
        words = msgpack.unpackb(message.payload)
        if words[0].endswith("?"):
            node.source.heard(message.source, words)
        elif node.restore is not None:
            node.restore.heard(message.source, words)

    def check_against_files(self, node):
        is_moving = node.restore is not None and node.restore.step is Step.NAMING
        if node.front.is_idle and not is_moving:
            super().check_against_files(node)

    def _fault(self):
        if self.faulty and self.rng.random() < 0.4:
            node = self.rng.choice(list(self.nodes.values()))
            self.power_cut(node)
            self.later(AWAY_MS * (0.3 + self.rng.random()), self.restart, node)
        super()._fault()

    # At rest.

    def check_at_rest(self):
        self.checker.all_kept(list(self.nodes))
        committed = [known[0] for known in self.checker.committed[1:]]
        for node in self.nodes.values():
            device, replica = node.device, node.replica
            require(device.entries == committed[device.base :], node.name, "has another log")
            require(replica.last_index == len(committed), node.name, "ends at", replica.last_index)
            self.check_against_files(node)
            for partition in range(PARTITIONS):
                log = replica.partition(partition)
                ends, epochs, producers = rebuilt(committed, partition, replica.first_index)
                require(log.high_watermark == log.end_offset == ends, node.name, "ends at", log.end_offset)
                require(states(log.producers) == states(producers), node.name, "has other producers")
                require(log.epochs == epochs, node.name, "has leader epochs", log.epochs, "not", epochs)
                require(log.log_start_offset <= self.starts[partition], node.name, "hides too much")
                self.read(node, partition, whole=True)
        for client in self.clients:
            check_client(client, committed)
        require(
            len({node.replica.active.segment_id for node in self.nodes.values()}) == 1,
            "rolls differ",
        )
        for node in self.nodes.values():
            # What was fetched is on the device, like all else.
            self.power_cut(node, self.rng.choice(("none", "sectors")))
            self.restart(node)


def batches_of(committed, partition):
    for entry in committed:
        content = decode(entry.payload, entry.term) if entry.kind == NORMAL else None
        if isinstance(content, Batch) and content.partition == partition:
            yield entry, content.header


def rebuilt(committed, partition, first_index):
    """What all that was ever committed makes of a partition: its end, the leader epochs of what a log from
    `first_index` on holds, and its producers."""
    end = 0
    epochs = []
    producers = ProducerStates(ProducerBudget(1000, 1000))
    for entry, header in batches_of(committed, partition):
        require(header.base_offset == end, "a gap in what was committed")
        end = header.last_offset + 1
        if entry.index >= first_index and (not epochs or epochs[-1][0] != entry.term):
            epochs.append((entry.term, header.base_offset))
        if header.producer_id >= 0:
            producers.update(header, header.base_offset, 0)
    return end, epochs, producers


def check_client(client, committed):
    for partition in range(PARTITIONS):
        mine = {}
        expected = 0
        for _, header in batches_of(committed, partition):
            if header.producer_id == client.producer_id:
                require(header.base_sequence == expected, "doubled or lost:", header, "not", expected)
                expected += header.record_count
                mine[header.base_sequence] = (header.base_offset, header.last_offset)
        for at, sequence, base, last in client.acknowledged:
            if at == partition:
                require(mine.get(sequence) == (base, last), "acknowledged and lost:", sequence, base)
