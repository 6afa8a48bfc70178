"""What the store must do, done naively: a dict that remembers its state after every batch, and a store beside it
that is compared with it, crashed and opened again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from support.sim_disk import SimDisk
from support.sim_loop import SimScheduler

from txn.metastore import (
    ABSENT,
    ANY,
    WITHIN_BATCH,
    Change,
    Check,
    Conflict,
    Delete,
    Event,
    IndexSpec,
    MetaStore,
    Op,
    Options,
    Put,
    PutSequential,
    Record,
    RecoveryReport,
    Schema,
    Snapshot,
)

Contents = dict[str, tuple[Any, int]]


def index_key(key: str, value: Any) -> tuple[Any, ...] | None:
    return (value["n"], key) if type(value) is dict else None


SCHEMA = Schema(indexes={"n": IndexSpec("/i/", index_key)})

OPTIONS = Options(
    allocate_bytes=3000,
    snapshot_log_bytes=1000,
    snapshot_turn_records=3,
    snapshot_turn_bytes=120,
    flush_linger_ms=20,
    mark_idle_ms=50,
)
"""Small, so that a short run meets snapshots, several log files and growth."""


@dataclass
class Model:
    """The contents after every batch."""

    history: list[tuple[Contents, int]] = field(default_factory=lambda: [({}, 1)])
    """By lsn: the contents and the next sequence number."""

    @property
    def lsn(self) -> int:
        return len(self.history) - 1

    @property
    def contents(self) -> Contents:
        return self.history[-1][0]

    def apply(self, ops: Sequence[Op]) -> int | tuple[str, int]:
        """The lsn, or the key and the actual version of the conflict."""
        before, sequence = self.history[-1]
        after = dict(before)
        lsn = self.lsn + 1
        touched = set()
        for op in ops:
            if isinstance(op, PutSequential):
                key = f"{op.prefix}{sequence:016d}"
                sequence += 1
            else:
                key = op.key
                actual = after[key][1] if key in after else ABSENT
                if key in touched and actual != ABSENT:
                    actual = WITHIN_BATCH
                if op.expect not in (ANY, actual):
                    return key, actual
            if isinstance(op, Put | PutSequential):
                after[key] = (op.value, lsn)
                touched.add(key)
            elif isinstance(op, Delete):
                after.pop(key, None)
                touched.add(key)
        if after != before or sequence != self.history[-1][1]:
            self.history.append((after, sequence))
        return self.lsn

    def roll_back(self, lsn: int) -> None:
        """A crash took the later batches."""
        del self.history[lsn + 1 :]


class Mirror:
    """Follows a watch and complains when its events don't add up."""

    def __init__(self, store: MetaStore, **what: Any) -> None:
        self.records: dict[str, Record] = {}
        self.entries: dict[str, Any] = {}
        self._indexed = "index" in what
        self._lsn = -1
        self.watch = store.watch(self._listen, **what)

    def _listen(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Snapshot):
                assert self._lsn == -1, "a second snapshot"
                self.records = {entry.key: entry.record for entry in event.entries}
                self.entries = {entry.key: entry.index_key for entry in event.entries}
            else:
                assert self._lsn != -1, "no snapshot before the first change"
                self._follow(event)
            assert event.lsn >= self._lsn
            self._lsn = event.lsn

    def _follow(self, change: Change) -> None:
        before, after = change.old, change.new
        if self._indexed:
            assert self.entries.get(change.key) == change.old_index_key
            self.entries.pop(change.key, None)
            if change.new_index_key is not None:
                self.entries[change.key] = change.new_index_key
            before = before if change.old_index_key is not None else None
            after = after if change.new_index_key is not None else None
        assert self.records.get(change.key) == before
        self.records.pop(change.key, None)
        if after is not None:
            assert after.version == change.lsn
            self.records[change.key] = after


class Pair:
    """A store and its model. The store runs on a simulated disk and in virtual time."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.model = Model()
        self.durable_lsn = 0
        """Acknowledged by `when_durable`."""
        self.written_lsn = 0
        """Acknowledged by `when_written`."""
        self._floor = 0
        """What the next opening must find."""
        self.scheduler = SimScheduler(seed=seed)
        self.disk = SimDisk(self.scheduler)
        self.mirrors: list[tuple[Mirror, dict[str, Any]]] = []
        self.store: MetaStore
        self.report: RecoveryReport

    def open(self) -> None:
        self.disk.flush_delay_ms = 0
        self.store, self.report = MetaStore.open(self.disk, "a/meta", SCHEMA, self.scheduler, OPTIONS)
        self.disk.flush_delay_ms = 3
        self.mirrors = []
        lsn = self.report.lsn
        assert lsn >= self._floor, f"batch {self._floor} was promised, recovered up to {lsn}"
        assert lsn <= self.model.lsn
        self.model.roll_back(lsn)
        self.durable_lsn = self.written_lsn = self._floor = lsn
        self.check()

    def crash(self, seed: int, keep: str = "random") -> None:
        """Cut the power; `open` is next."""
        self._floor = self.written_lsn = self.durable_lsn
        self.scheduler = SimScheduler(seed=seed)
        self.disk = self.disk.crash(seed, keep=keep, scheduler=self.scheduler)

    def kill(self) -> None:
        """Kill the process: what was written stays, durable or not; `open` is next."""
        self.scheduler = SimScheduler(seed=self.seed)
        self.disk = self.disk.kill(self.scheduler)
        self._floor = max(self.durable_lsn, self.written_lsn)

    def restart(self) -> None:
        """Stop in good order and start again."""
        self.store.close()
        self.scheduler.run_until_idle()
        self._floor = self.model.lsn
        self.open()
        assert self.report.torn is None

    def apply(self, ops: Sequence[Op]) -> int:
        expected = self.model.apply(ops)
        try:
            outcome: int | tuple[str, int] = self.store.apply(ops).lsn
        except Conflict as conflict:
            outcome = (conflict.key, conflict.actual)
        assert outcome == expected
        return self.model.lsn

    def wait_durable(self, lsn: int) -> None:
        def durable(error: Exception | None) -> None:
            assert error is None
            assert self.store.durable_lsn >= lsn
            self.durable_lsn = max(self.durable_lsn, lsn)

        self.store.when_durable(lsn, durable)

    def wait_written(self) -> None:
        lsn = self.store.lsn

        def written(error: Exception | None) -> None:
            assert error is None
            self.written_lsn = max(self.written_lsn, lsn)

        self.store.when_written(written)

    def check(self) -> None:
        """The store is the model."""
        contents = self.model.contents
        assert {key: tuple(record) for key, record in self.store.scan("")} == contents
        assert [key for key, _ in self.store.scan("/i/")] == sorted(
            k for k in contents if k.startswith("/i/")
        )
        assert self.store.lsn == self.model.lsn
        assert len(self.store) == len(contents)
        expected = [(index_key(k, v), k) for k, (v, _) in contents.items() if k.startswith("/i/")]
        assert list(self.store.scan_index("n")) == sorted(pair for pair in expected if pair[0] is not None)

    def check_mirrors(self) -> None:
        """What the watches told adds up to the store; only when nothing is queued."""
        for mirror, what in self.mirrors:
            if "index" in what:
                expected = {k: i for i, k in self.store.scan_index(*what["index"])}
                assert mirror.entries == expected
            elif "key" in what:
                record = self.store.get(what["key"])
                assert mirror.records == ({} if record is None else {what["key"]: record})
            else:
                assert mirror.records == dict(self.store.scan(what["prefix"]))


KEYS = [f"/i/{n}" for n in range(6)] + [f"/k/{n}" for n in range(6)]


def random_ops(rng: random.Random, model: Model) -> list[Op]:
    """A batch on few keys, with conditions that mostly hold; sometimes on one that was given by sequence."""
    ops: list[Op] = []
    for _ in range(rng.choice([1, 1, 2, 3, 5])):
        key = rng.choice(KEYS)
        if rng.random() < 0.2:
            key = rng.choice([k for k in model.contents if k.startswith("/q/")] or KEYS)
        actual = model.contents[key][1] if key in model.contents else ABSENT
        expect = rng.choice([ANY, ANY, actual, actual, rng.choice([ABSENT, 1, model.lsn])])
        value = rng.choice(
            [{"n": rng.randrange(4)}, rng.randrange(9), None, "x" * rng.randrange(150), [b"", {}]]
        )
        ops.append(
            rng.choice(
                [
                    Put(key, value, expect),
                    Put(key, value, expect),
                    Delete(key, expect),
                    PutSequential("/q/", value),
                    Check(key, expect),
                ]
            )
        )
    return ops
