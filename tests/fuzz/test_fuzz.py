"""Each target for a moment, always with the same seeds; and every input that is kept. On demand: ./run fuzz."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from fuzz.target import KEPT, Seeded
from fuzz.targets import TARGETS

SEEDS = {
    "frames": 400,
    "requests": 8_000,
    "batch": 8_000,
    "sealed-batch": 8_000,
    "records": 3_000,
    "compaction-records": 3_000,
    "segment": 600,
    "metadata": 1_500,
    "sessions": 60,
    "folder": 0,  # test_damaged_folder.py
    "raft-messages": 3_000,
    "raft-datagrams": 1_500,
    "raft-handshake": 1_500,
    "raft-changes": 4_000,
    "raft-checkpoint": 1_500,
    "raft-log": 500,
    "raft-hard-state": 4_000,
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", [name for name in TARGETS if SEEDS[name]])
def test_nothing_is_found(name: str) -> None:
    for seed in range(SEEDS[name]):
        TARGETS[name].run(seed)


@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if not isinstance(target, Seeded)])
def test_the_corpus_itself(name: str) -> None:
    inputs = TARGETS[name].inputs()
    assert inputs
    for data in inputs:
        TARGETS[name].check(data)


def test_all_that_is_kept_belongs_to_a_target() -> None:
    assert {path.name for path in KEPT.iterdir()} <= TARGETS.keys()
