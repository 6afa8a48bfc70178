"""What a target of the fuzzer is, and what a finding."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fuzz.mutations import mutated

KEPT = Path(__file__).parent / "corpus"
"""Inputs that once found something, and what else code cannot make: `<target>/<name>`."""


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    corpus: Callable[[], Sequence[bytes]]
    check: Callable[[bytes], None]

    def inputs(self) -> list[bytes]:
        """The corpus, made and kept."""
        kept = sorted((KEPT / self.name).glob("*")) if (KEPT / self.name).is_dir() else []
        return [*self.corpus(), *(path.read_bytes() for path in kept)]

    def from_seed(self, seed: int) -> bytes:
        chance = random.Random(f"{self.name} {seed}")
        inputs = _inputs(self)
        return mutated(chance.choice(inputs), chance, inputs)

    def run(self, seed: int) -> None:
        data = self.from_seed(seed)
        try:
            self.check(data)
        except Exception as error:
            raise Finding(self.name, seed, data) from error


class Finding(AssertionError):
    """A check failed. Its cause says how; `data` is the input."""

    def __init__(self, target: str, seed: int, data: bytes) -> None:
        super().__init__(f"{target}, seed {seed}: {data[:400].hex()}")
        self.data = data


@cache
def _inputs(target: Target) -> list[bytes]:
    return target.inputs()


def _takes_no_bytes(_: bytes) -> None:
    raise TypeError("this target makes its inputs from the seed")


@dataclass(frozen=True, slots=True)
class Seeded(Target):
    """A target whose inputs are no bytes: the seed makes them."""

    corpus: Callable[[], Sequence[bytes]] = field(default=list, init=False)
    check: Callable[[bytes], None] = field(default=_takes_no_bytes, init=False)
    seeded: Callable[[random.Random], None] = lambda _: None

    def run(self, seed: int) -> None:
        try:
            self.seeded(random.Random(seed))
        except Exception as error:
            raise Finding(self.name, seed, b"") from error
