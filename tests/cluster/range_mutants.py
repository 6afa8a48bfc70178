"""Replicated ranges that are wrong on purpose; `python -m tests.cluster.range_mutants 50` says in which of so many
seeds they are found.

Each is the real code with some words replaced, for as long as it is planted.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import textwrap
from dataclasses import dataclass, replace
from typing import Any

from broker.replication.range_fetch import SegmentFetch
from broker.replication.range_restore import RangeRestore
from raftish.log import RaftLog
from storage import replica_front, replica_takeover
from storage.numbered_chain import NumberedChain
from storage.numbering import Numbering
from storage.replica import RangeReplica
from storage.replica_front import ReplicaFront
from storage.segment import Segment
from storage.uncommitted import Uncommitted
from tests.cluster.range_retention_world import RetentionWorld
from tests.cluster.range_world import World
from tests.storage.replica_model import ReplicaWorld

FAULTS_MS = 700
RETAINS_MS = 900


@dataclass(frozen=True)
class Mutant:
    name: str
    edits: tuple[tuple[Any, str, str, str], ...]
    """(class or module, method or function, words, the words in their place)"""
    first_seed: int
    """The first in which it was found: there it must be found again, or in one of the `WITHIN` from there on."""
    on_a_disk: bool = False
    """It is looked for in `ReplicaWorld`: one replica, entries all of a size. Otherwise in a group."""
    retains: bool = False
    """In a group whose log starts move, so that replicas drop the begin of their logs, and fetch segments."""


WITHIN = 20

MUTANTS = [
    Mutant(
        "no flush after a truncation",
        ((Segment, "cut", "file.flush()", "pass"),),
        420,
        on_a_disk=True,
    ),
    Mutant(
        "the high watermark moves with the own flush",
        (
            (
                NumberedChain,
                "_flushed",
                "super()._flushed(error)",
                "super()._flushed(error)\n"
                "    for log in self._partitions:\n"
                "        log.high_watermark = log.end_offset",
            ),
        ),
        1,
    ),
    Mutant(
        "a truncation does not put producers back",
        ((Uncommitted, "take_back", "revocable(log).revoke()", "revocable(log).replaced.pop()"),),
        5,
    ),
    Mutant(
        "a truncation does not put offsets back",
        ((Uncommitted, "take_back", "log.end_offset = self.base_offset", "pass"),),
        5,
    ),
    Mutant(
        "a truncation does not put the index back",
        (
            (
                Uncommitted,
                "take_back",
                "index.take_back(self.base_offset, self.size, self.undo)",
                "index.end_offset = self.base_offset",
            ),
        ),
        5,
    ),
    Mutant(
        "followers go on in the segment that was rolled",
        (
            (
                NumberedChain,
                "_write_entries",
                "if isinstance(content, Roll):",
                "if isinstance(content, Roll) and self.leads:",
            ),
        ),
        0,
    ),
    Mutant(
        "the first entry of a segment is looked for in the one before",
        ((NumberedChain, "_segment_of", "self._numbered, index,", "self._numbered, index - 1,"),),
        0,
    ),
    Mutant(
        "who waits is answered though the entry was truncated",
        (
            (RangeReplica, "stop_leading", "self._refuse_waiting(self._not_leading())", "pass"),
            (RangeReplica, "_taken_back", "self._lost.add(record.after, self._appended_lsn)", "pass"),
        ),
        15,
    ),
    Mutant(
        "an entry claims what is durable and not committed",
        (
            (
                NumberedChain,
                "_write_entries",
                "min(segment.durable_end, segment.committed_end)",
                "segment.durable_end",
            ),
        ),
        255,
        on_a_disk=True,
    ),
    Mutant(
        "the name of a child is not flushed",
        ((NumberedChain, "_roll_into", "self._folder_is_new = True", "pass"),),
        1,
    ),
    Mutant(
        "a child outlives the truncation of its roll",
        ((NumberedChain, "_drop_child", "self._disk.remove(child.path)", "pass"),),
        5,
    ),
    Mutant(
        "a segment gets its footer before its roll is committed",
        (
            (NumberedChain, "_seal_next", "or not self._rolled[0].committed", ""),
            (
                NumberedChain,
                "_flushed",
                "super()._flushed(error)",
                "super()._flushed(error)\n    self._seal_next()",
            ),
        ),
        3,
    ),
    Mutant(
        "a flush under way counts for what was written after a cut",
        ((NumberedChain, "_truncate", "self._round.cut(segment, cut_at)", "pass"),),
        30,
        on_a_disk=True,
    ),
    Mutant(
        "a checkpoint speaks of what is not committed",
        (
            (
                NumberedChain,
                "_write_checkpoint",
                "self._captured_index <= self._commit_index and ",
                "",
            ),
        ),
        0,
    ),
    Mutant(
        "a segment's terms do not go back with a truncation",
        ((Numbering, "truncate", "self.terms[-1][0] >= index", "False"),),
        108,
    ),
    Mutant(
        "fetched segments are taken over before they are durable",
        (
            (
                SegmentFetch,
                "_heard_piece",
                "self._disk.start_flush(self._file, self._flushed)",
                "self._scheduler.call_soon(self._flushed, None)",
            ),
        ),
        60,
        retains=True,
    ),
    Mutant(
        "the old log is closed before it is durable that another one takes its place",
        (
            (
                RangeRestore,
                "_quiet",
                "self._aside.name(self._named)",
                "self._aside.name(lambda _: 0); self._named(None)",
            ),
        ),
        4,
        retains=True,
    ),
    Mutant(
        "a log that was replaced is taken to end where it begins",
        ((RaftLog, "restart", "index = self._view.last_index", "index = self._view.first_index - 1"),),
        4,
        retains=True,
    ),
    Mutant(
        "a replaced log goes on in a segment that begins with another entry",
        (
            (
                replica_takeover,
                "_make_child",
                "child = make_child(disk, identity, segment, roll, entry, config, cache)",
                "child = make_child(disk, identity, segment, roll, replace(entry, index=last + 1), config, cache)",
            ),
        ),
        4,
        retains=True,
    ),
    Mutant(
        "the removals of the begin are not made durable one after the other",
        (
            (
                ReplicaFront,
                "_removed",
                "self._disk.start_flush_dir(self._replica.directory, self._flushed)",
                "self._scheduler.call_soon(self._flushed, None)",
            ),
        ),
        60,
        retains=True,
    ),
    Mutant(
        "a segment goes when it is committed, though readers may still have it",
        ((replica_front, "is_hidden", ").log_start_offset", ").high_watermark"),),
        10,
        retains=True,
    ),
    Mutant(
        "the newest sealed segment goes as well",
        ((replica_front, "droppable", "sealed[:-1]", "sealed"),),
        4,
        retains=True,
    ),
]


@contextlib.contextmanager
def planted(mutant):
    kept = []
    try:
        for owner, method, old, new in mutant.edits:
            original = getattr(owner, method)
            source = textwrap.dedent(inspect.getsource(original))
            assert source.count(old) == 1, f"{owner.__name__}.{method} does not say {old!r} once"
            if "super()" in source:
                source = source.replace("super()", f"super({owner.__name__}, self)")
                new = new.replace("super()", f"super({owner.__name__}, self)")
                old = old.replace("super()", f"super({owner.__name__}, self)")
            scope = dict(sys.modules[getattr(owner, "__module__", owner.__name__)].__dict__)
            scope.setdefault("replace", replace)
            exec(
                compile("from __future__ import annotations\n" + source.replace(old, new), method, "exec"),
                scope,
            )
            kept.append((owner, method, original))
            setattr(owner, method, scope[method])
        yield
    finally:
        for owner, method, original in reversed(kept):
            setattr(owner, method, original)


def run(seed, *, on_a_disk=False, retains=False):
    if on_a_disk:
        ReplicaWorld(seed).run(60)
    elif retains:
        RetentionWorld(seed, voters=5 if seed % 5 == 4 else 3).live_through(RETAINS_MS)
    else:
        World(seed, voters=5 if seed % 5 == 4 else 3).live_through(FAULTS_MS)


def found_in(mutant, seeds):
    """The first of these seeds in which something goes wrong; None."""
    with planted(mutant):
        for seed in seeds:
            try:
                run(seed, on_a_disk=mutant.on_a_disk, retains=mutant.retains)
            except Exception as error:  # noqa: BLE001 - whatever it is, it was found
                return seed, error
    return None


if __name__ == "__main__":
    for one in MUTANTS:
        if len(sys.argv) < 3 or sys.argv[2] in one.name:
            print(one.name, "->", str(found_in(one, range(int(sys.argv[1]))))[:160], flush=True)
