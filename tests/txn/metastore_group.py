"""A store and its model, as in `metastore_model`; the store is the leader's of a group of one node."""

from __future__ import annotations

import random
from collections.abc import Sequence

from metastore_model import OPTIONS, SCHEMA, Pair

from broker.replication.folder import make_dir_durable
from broker.replication.hard_state import HardStateFile
from broker.replication.metadata_group import MetadataGroup, Role
from broker.replication.replica import LogLimits
from raftish.config import Config
from raftish.host import Host
from raftish.membership import Membership
from txn.metastore import Conflict, Op

LIMITS = LogLimits(part_bytes=1500, keep_bytes=500)


class _NoNetwork:
    def send(self, peer: int, messages: object) -> None:
        raise AssertionError("a group of one speaks to nobody")

    send_beats = send


class GroupPair(Pair):
    """Entries that are no batches have places in the model, too, and change nothing there."""

    group: MetadataGroup

    def open(self) -> None:
        self.disk.flush_delay_ms = 0
        make_dir_durable(self.disk, "a")
        hard_states = HardStateFile(self.disk, self.scheduler, "a/hard-state")
        self.host = Host(1, Config(), self.scheduler, hard_states, _NoNetwork(), random.Random(1).random)
        failures: list[Exception] = []
        self.group = MetadataGroup(
            1,
            self.disk,
            self.scheduler,
            "a/meta",
            SCHEMA,
            send=_NoNetwork().send,
            on_lead=lambda store, term: None,
            on_follow=lambda: None,
            fatal=failures.append,
            options=OPTIONS,
            limits=LIMITS,
        )
        self.group.join(self.host, hard_states.current, Membership(frozenset({1})))
        self.scheduler.run_until(lambda: self.group.role is Role.LEADING or bool(failures))
        assert not failures
        self.disk.flush_delay_ms = 3
        self.store = self.group.store
        self.mirrors = []
        # The term's first entry stands behind what was found.
        found = self.group.replicated.applied_lsn - 1
        assert found >= self._floor, f"batch {self._floor} was promised, recovered up to {found}"
        assert found <= self.model.lsn
        self.model.roll_back(found)
        self._pass()
        self.durable_lsn = self.written_lsn = self._floor = self.model.lsn
        self.check()

    def _pass(self) -> None:
        self.model.history.append(self.model.history[-1])

    def apply(self, ops: Sequence[Op]) -> int:
        before, known = self.model.lsn, self.store.lsn
        expected = self.model.apply(ops)
        if expected == before:
            # It changes nothing: it has the lsn of the last batch, behind which other entries may stand.
            expected = known
        try:
            outcome: int | tuple[str, int] = self.store.apply(ops).lsn
        except Conflict as conflict:
            outcome = (conflict.key, conflict.actual)
        assert outcome == expected
        return self.store.lsn

    def crash(self, seed: int, keep: str = "random") -> None:
        self.host.close()
        super().crash(seed, keep)

    def kill(self) -> None:
        self.host.close()
        super().kill()

    def restart(self) -> None:
        closed: list[Exception | None] = []
        self.store.close(closed.append)
        self.scheduler.run_until(lambda: bool(closed))
        assert closed == [None]
        self._floor = self.model.lsn
        self.host.close()
        self.group.close()
        self.scheduler.run_until_idle()
        self.open()

    def wait_written(self) -> None:
        """What a kill may lose in a group is what is not committed."""
        self.wait_durable(self.store.lsn)

    def check(self) -> None:
        contents = self.model.contents
        assert {key: tuple(record) for key, record in self.store.scan("")} == contents
        assert self.model.lsn >= self.store.lsn
        assert len(self.store) == len(contents)

    def check_mirrors(self) -> None:
        if self.store.durable_lsn >= self.store.lsn:
            super().check_mirrors()
