"""What the nodes of a metadata group may do, checked by code that knows nothing of theirs.

The truth is the sequence of committed entries, as the first node to apply each of them had it, and the operations that
clients asked for: every batch that is committed is done once more here, naively, with its conditions.
"""

from __future__ import annotations

from raftish.entries import Kind
from txn.metastore import ABSENT, ANY, WITHIN_BATCH, Delete, Put, PutSequential, Snapshot


class Violation(AssertionError):
    pass


def require(condition, *reason):
    if not condition:
        raise Violation(" ".join(str(part) for part in reason))


def index_key(key, value):
    return (value["n"],) if type(value) is dict and "n" in value else None


class Naive:
    """The contents after every entry: {key: (value, version)}."""

    def __init__(self):
        self.at = [{}]
        self.sequence = 1
        self.changes = [{}]
        """By index: {key: (old, new)}, each (value, version) or None."""

    def skip(self):
        self.at.append(self.at[-1])
        self.changes.append({})

    def apply(self, ops, keys):
        before = self.at[-1]
        after = dict(before)
        lsn = len(self.at)
        given = []
        touched = set()
        for op in ops:
            if isinstance(op, PutSequential):
                key = f"{op.prefix}{self.sequence:016d}"
                self.sequence += 1
                require(key not in after, "the sequence number of", key, "was given before")
                given.append(key)
            else:
                key = op.key
                actual = after[key][1] if key in after else ABSENT
                if key in touched and actual != ABSENT:
                    actual = WITHIN_BATCH
                require(op.expect in (ANY, actual), lsn, "holds", op, "where", key, "has version", actual)
            if isinstance(op, Put | PutSequential):
                after[key] = (op.value, lsn)
                touched.add(key)
            elif isinstance(op, Delete):
                after.pop(key, None)
                touched.add(key)
        require(tuple(given) == tuple(keys), "batch", lsn, "was given", keys, "and is committed with", given)
        self.at.append(after)
        self.changes.append(
            {key: (before.get(key), after.get(key)) for key in touched if before.get(key) != after.get(key)}
        )


class Batch:
    """What a client asked of a leader and was given."""

    def __init__(self, ops, applied, term, floor):
        self.ops = ops
        self.lsn, self.keys = applied
        self.term = term
        self.floor = floor
        """What was acknowledged before it was asked for."""
        self.outcome = None


class Checker:
    def __init__(self):
        self.entries = [None]
        self.naive = Naive()
        self.batches = {}
        """(term, lsn) -> Batch"""
        self.floor = 0
        """Everything up to here was told to somebody as committed."""
        self.counts = dict.fromkeys(
            (
                "committed",
                "durable",
                "unknown",
                "lost",
                "reads",
                "events",
                "restores",
                "snapshots",
                "taken back",
            ),
            0,
        )

    # Batches.

    def asked(self, ops, applied, term):
        batch = Batch(ops, applied, term, self.floor)
        known = self.batches.setdefault((term, batch.lsn), batch)
        require(known is batch, "two batches have lsn", batch.lsn, "of term", term)
        return batch

    def told(self, batch, outcome):
        """`outcome`: durable, unknown or lost."""
        require(batch.outcome is None, "batch", batch.lsn, "is told", outcome, "after", batch.outcome)
        batch.outcome = outcome
        self.counts[outcome] += 1
        if outcome == "durable":
            require(
                self._is_committed(batch),
                "batch",
                batch.lsn,
                "of term",
                batch.term,
                "is told before it is so",
            )
            require(
                batch.lsn > batch.floor, "batch", batch.lsn, "comes before", batch.floor, "told before it"
            )
            self.floor = max(self.floor, batch.lsn)

    def _is_committed(self, batch):
        return batch.lsn < len(self.entries) and self.entries[batch.lsn].term == batch.term

    def committed(self, node, entry):
        """A node is about to apply it."""
        if entry.index < len(self.entries):
            require(self.entries[entry.index] == entry, "node", node, "applies another entry at", entry.index)
            return
        require(entry.index == len(self.entries), "node", node, "skips to", entry.index)
        self.entries.append(entry)
        if entry.kind is not Kind.NORMAL:
            self.naive.skip()
            return
        batch = self.batches.get((entry.term, entry.index))
        require(batch is not None, "nobody asked for entry", entry.index, "of term", entry.term)
        require(batch.outcome != "lost", "batch", batch.lsn, "of term", batch.term, "was told to be lost")
        self.counts["committed"] += 1
        self.naive.apply(batch.ops, batch.keys)

    # States.

    def state(self, node, lsn, contents, indexed):
        """`contents` and index of a node that has applied all up to `lsn`."""
        require(lsn < len(self.entries), "node", node, "is at", lsn, "and nobody committed that")
        expected = self.naive.at[lsn]
        require(
            contents == expected,
            "node", node, "at", lsn, "has",
            {key: contents.get(key) for key in contents.keys() | expected.keys()
             if contents.get(key) != expected.get(key)},
            "that differs",
        )  # fmt: skip
        places = (
            (index_key(key, value), key) for key, (value, _) in expected.items() if key.startswith("/i/")
        )
        wanted = sorted(pair for pair in places if pair[0] is not None)
        require(indexed == wanted, "node", node, "at", lsn, "has the index", indexed, "not", wanted)

    def read(self, key, record, floor):
        """A read is confirmed that was asked for when all up to `floor` had been told."""
        self.counts["reads"] += 1
        found = None if record is None else tuple(record)
        window = self.naive.at[floor:]
        require(
            any(contents.get(key) == found for contents in window),
            "a read of", key, "gave", found, "which it never was since", floor,
        )  # fmt: skip
        if record is not None:
            self.floor = max(self.floor, record.version)

    # At the end.

    def finish(self):
        for (term, lsn), batch in self.batches.items():
            if batch.outcome == "durable":
                require(self._is_committed(batch), "batch", lsn, "of term", term, "was durable and is gone")
            elif batch.outcome == "lost":
                require(not self._is_committed(batch), "batch", lsn, "of term", term, "was lost and is there")


class Watcher:
    """One watch on one node, held to the truth."""

    def __init__(self, checker, node, group, **what):
        self.checker = checker
        self.node = node
        self.group = group
        self.what = what
        self.lsn = None
        """Everything up to here was told."""
        self._entries = {}
        self._restores = checker.node_restores(node)
        self.watch = group.store.watch(self._listen, **what)

    def _covers(self, key):
        if "key" in self.what:
            return key == self.what["key"]
        return key.startswith(self.what.get("prefix", "/i/"))

    def _place(self, key, record):
        """Where a record stands in the watched range of the index; None outside of it."""
        if record is None:
            return None
        place = index_key(key, record[0])
        _, low, high = self.what["index"]
        return place if place is not None and low <= place < high else None

    def _expected(self, lsn):
        """What batch `lsn` did to what is watched: {key: (old, new, old place, new place)}."""
        found = {}
        for key, (old, new) in self.checker.naive.changes[lsn].items():
            if self._covers(key):
                places = (None, None)
                if "index" in self.what:
                    places = (self._place(key, old), self._place(key, new))
                    if places == (None, None):
                        continue
                found[key] = (old, new, *places)
        return found

    def _listen(self, events):
        self.checker.counts["events"] += len(events)
        batch = {}
        for position, event in enumerate(events):
            if isinstance(event, Snapshot):
                self._begin(event)
                continue
            require(self.lsn is not None, "a change before the snapshot")
            old = None if event.old is None else tuple(event.old)
            new = None if event.new is None else tuple(event.new)
            require(event.key not in batch, "batch", event.lsn, "tells", event.key, "twice")
            batch[event.key] = (old, new, event.old_index_key, event.new_index_key)
            following = events[position + 1] if position + 1 < len(events) else None
            if following is None or isinstance(following, Snapshot) or following.lsn != event.lsn:
                self._check_gap(event.lsn)
                expected = self._expected(event.lsn)
                require(batch == expected, "node", self.node, "tells of", event.lsn, batch, "not", expected)
                self.lsn = event.lsn
                batch = {}

    def _begin(self, event):
        restores = self.checker.node_restores(self.node)
        if self.lsn is not None:
            require(
                restores > self._restores,
                "node",
                self.node,
                "tells another snapshot without having taken one",
            )
            require(event.lsn > self.lsn, "a snapshot as of", event.lsn, "after", self.lsn)
        self._restores = restores
        self.lsn = event.lsn
        contents = self.checker.naive.at[event.lsn]
        expected = [(key, record, None) for key, record in sorted(contents.items()) if self._covers(key)]
        if "index" in self.what:
            expected = [(key, record, self._place(key, record)) for key, record, _ in expected]
            expected = sorted((e for e in expected if e[2] is not None), key=lambda e: (e[2], e[0]))
        told = [(entry.key, tuple(entry.record), entry.index_key) for entry in event.entries]
        require(told == expected, "node", self.node, "tells as of", event.lsn, told, "not", expected)

    def _check_gap(self, lsn):
        for missed in range(self.lsn + 1, lsn):
            require(not self._expected(missed), "node", self.node, "tells of", lsn, "and not of", missed)
        require(lsn > self.lsn, "node", self.node, "tells of", lsn, "after", self.lsn)

    def finish(self):
        """All that its node has applied was told."""
        require(self.lsn is not None, "node", self.node, "never told the snapshot of a watch")
        self._check_gap(self.group.replicated.applied_lsn + 1)
