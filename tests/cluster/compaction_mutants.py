"""Compactions of replicas that are wrong on purpose; `python -m tests.cluster.compaction_mutants 20` says in which of
so many seeds each is found.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from unittest import mock

from broker.ranges.compaction import RangeCompactor
from storage import compaction_rewrite, replica_compaction, replica_takeover
from storage.numbered_chain import NumberedChain
from storage.replica_compaction import ReplicaCompaction
from tests.cluster.planted import Planted, survey
from tests.cluster.sim_compaction import run

candidate = RangeCompactor._candidate


@contextlib.contextmanager
def before_it_is_stable() -> Iterator[None]:
    """Segments with records of open transactions take part."""

    def ready(topic, segment, known, needed):  # type: ignore[no-untyped-def]
        return dataclasses.replace(candidate(topic, segment, known, needed), ready=True)

    with mock.patch.object(RangeCompactor, "_candidate", staticmethod(ready)):
        yield


@contextlib.contextmanager
def without_what_follows() -> Iterator[None]:
    """The group is given entries of segments that were written anew."""

    def all_of_them(chain: NumberedChain) -> None:
        chain._numbered[:] = [one for one in chain._segments if one.numbering is not None]

    with mock.patch.object(NumberedChain, "_find_numbered", all_of_them):
        yield


@contextlib.contextmanager
def list_comes_later() -> Iterator[None]:
    """Old files go before the list that names the new ones is there."""

    def unnamed(disk, directory, name, done):  # type: ignore[no-untyped-def]
        disk.start_flush_dir(directory, done)

    with mock.patch.object(replica_compaction, "name_durably", unnamed):
        yield


@contextlib.contextmanager
def offsets_move_up() -> Iterator[None]:
    """What is left of a batch gets offsets without gaps."""
    build = compaction_rewrite.build_batch

    def closer(records, **more):  # type: ignore[no-untyped-def]
        return build(records, **{**more, "keep_offsets": False})

    with mock.patch.object(compaction_rewrite, "build_batch", closer):
        yield


@contextlib.contextmanager
def aborted_counts() -> Iterator[None]:
    """A key's last value is taken from an aborted transaction, too."""
    with mock.patch.object(compaction_rewrite, "_is_aborted", return_value=lambda entry: False):
        yield


@contextlib.contextmanager
def one_by_one() -> Iterator[None]:
    """Of what a job wrote only the last file is named."""
    named_by = ReplicaCompaction._named_by

    def last_one(self, rewritten):  # type: ignore[no-untyped-def]
        names = named_by(self, rewritten)
        for one in rewritten[:-1]:
            names.pop(one.segment_id)
        return names

    with mock.patch.object(ReplicaCompaction, "_named_by", last_one):
        yield


@contextlib.contextmanager
def taken_over_unnamed() -> Iterator[None]:
    """Copies of what compaction wrote are not named where they are taken over."""
    with mock.patch.object(replica_takeover, "write_names_now"):
        yield


WITHIN = 60
PLANTED = [
    Planted(before_it_is_stable, 4),
    Planted(without_what_follows, 0),
    Planted(list_comes_later, 0),
    Planted(offsets_move_up, 0),
    Planted(aborted_counts, 0),
    Planted(one_by_one, 0),
    Planted(taken_over_unnamed, 0),
]


if __name__ == "__main__":
    survey(run, PLANTED, int(sys.argv[1]))
