"""Faults planted in the real classes, each a changed line: the model must find every one of them."""

from __future__ import annotations

import contextlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from storage.flush_round import FlushRound
from storage.range_log import RangeLog
from storage.recovery import Recovery
from txn import ending, ends, group_transactions, recovery, settlement
from txn.metastore import recovery as store_recovery


@dataclass(frozen=True, slots=True)
class Planted:
    """In `owner.name`, `old` becomes `new`. `scenario` is where it is to be found."""

    what: str
    scenario: str
    owner: Any
    name: str
    old: str
    new: str

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        real = inspect.getattr_static(self.owner, self.name)
        function = real.__func__ if isinstance(real, staticmethod) else real
        source = textwrap.dedent(inspect.getsource(function))
        source = source.removeprefix("@staticmethod\n")
        assert source.count(self.old) == 1, f"{self.what}: the line is not there any more, or more than once"
        made: dict[str, Any] = {}
        code = "from __future__ import annotations\n" + source.replace(self.old, self.new)
        exec(compile(code, f"<{self.what}>", "exec"), vars(sys.modules[function.__module__]), made)
        changed = made[function.__name__]
        setattr(self.owner, self.name, staticmethod(changed) if isinstance(real, staticmethod) else changed)
        try:
            yield
        finally:
            setattr(self.owner, self.name, real)


PREPARE = "parallel-prepare"
PLANTED = [
    Planted(
        "a commit does not wait for its data",
        PREPARE,
        ending.LocalRanges,
        "when_standing",
        "    waiting = len(transaction.lsns)\n",
        "    transaction.lsns.clear()\n    waiting = 0\n",
    ),
    Planted(
        "a commit does not wait for its header",
        PREPARE,
        ending.Ending,
        "_prepare_closed",
        "self._store.when_durable(lsn, store_durable)",
        "self._store.when_written(store_durable)",
    ),
    Planted(
        "a failed flush of data is passed over",
        PREPARE,
        ending.LocalRanges,
        "when_standing",
        "failure = failure or error",
        "failure = None",
    ),
    Planted(
        "an abort against the client's wish leaves the id's record as it was",
        PREPARE,
        ending.Ending,
        "_refused",
        "self._record_abort(transaction, refused_ops(), recorded)",
        "self._record_abort(transaction, (), recorded)",
    ),
    Planted(
        "a repeated end is answered though its record's flush has failed",
        PREPARE,
        ends.Ends,
        "end",
        "self._ids.answer_again(held, reply)",
        "reply(Identity(held.producer_id, held.epoch))",
    ),
    Planted(
        "a start takes every prepared transaction for whole",
        PREPARE,
        recovery.TransactionRecovery,
        "_is_whole",
        "return False",
        "return True",
    ),
    Planted(
        "a start does not tell the id of its verdict",
        PREPARE,
        recovery.TransactionRecovery,
        "_record_abort",
        "held.commit_refused()",
        "pass",
    ),
    Planted(
        "the high watermark moves with the write",
        PREPARE,
        RangeLog,
        "_write_out",
        "self._written_ends.update(framed.ends)",
        "self._written_ends.update(framed.ends); "
        "[setattr(log, 'high_watermark', end) for log, end in framed.ends.items()]",
    ),
    Planted(
        "a start flushes a log whose flush had failed as if it could succeed",
        PREPARE,
        Recovery,
        "_rewrite",
        "for at in range(start, end, REWRITE_BYTES):",
        "for at in ():",
    ),
    Planted(
        "a start does the same with the metadata log",
        PREPARE,
        store_recovery,
        "_rewrite",
        "for at in range(start, end, READ_BYTES):",
        "for at in ():",
    ),
    Planted(
        "aborted records are not left out",
        "two-at-once",
        ending.LocalRanges,
        "decided",
        "partition.transactions.add_aborted(transaction.producer_id, first, last)",
        "pass",
    ),
    Planted(
        "a start forgets what it aborted",
        "two-at-once",
        recovery.TransactionRecovery,
        "_finish",
        "partition.transactions.add_aborted(transaction.producer_id, first, last)",
        "pass",
    ),
    Planted(
        "settlement speaks of what is not durable",
        "settlement-passes",
        settlement.Settlement,
        "run",
        "partition.last_stable_offset",
        "partition.end_offset",
    ),
    Planted(
        "settlement forgets the aborted ranges",
        "settlement",
        settlement.Settlement,
        "run",
        "ops = aborted + moved + collected",
        "ops = moved + collected",
    ),
    Planted(
        "a group's commit does not wait for its write",
        "group",
        group_transactions.GroupTransactions,
        "_finish_commit",
        "self._store.when_durable(lsn, durable)",
        "self._store.when_written(durable)",
    ),
    Planted(
        "a group's losers are left as they are",
        "group",
        group_transactions.GroupTransactions,
        "_finish_commit",
        "self._losers.discard(group, list(group.members.values()))",
        "self._free(group)",
    ),
    Planted(
        "a start commits whoever voted in a committed group",
        "group",
        recovery.TransactionRecovery,
        "_decide_member",
        " and group.is_winner(transaction)",
        "",
    ),
    Planted(
        "a child's flush does not wait for its parent's",
        "retired-parent",
        FlushRound,
        "start",
        "for predecessor in predecessors:",
        "for predecessor in ():",
    ),
]
