"""The faults of a cluster's run: which, where and how long, by seed; pure.

    kill        SIGKILL; started again when the fault ends
    pause       SIGSTOP, then SIGCONT
    isolate     nothing gets to it nor from it
    deaf        nothing gets to it; what it says is heard
    mute        nothing gets from it; it hears all
    part        two nodes hear nothing of each other, a third one hears both
    one way     of two nodes one does not hear the other
    bad links   what a node sends and hears is late, and some is lost
    slow disk   its flushes take long

Some come two at a time: then there may be no majority, and service is expected when they end.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["kill", "pause", "isolate", "deaf", "mute", "part", "one way", "bad links", "slow disk"]
KINDS: tuple[Kind, ...] = (
    "kill",
    "pause",
    "isolate",
    "deaf",
    "mute",
    "part",
    "one way",
    "bad links",
    "slow disk",
)
DOUBLE_CHANCE = 0.12


@dataclass(frozen=True, slots=True)
class Fault:
    """`other` of a fault between two nodes. Delays in milliseconds; `loss` as `Links.set` has it."""

    kind: Kind
    node: int
    other: int | None = None
    delay_ms: float = 0
    loss: float = 0

    def ways(self, nodes: Sequence[int]) -> list[tuple[int, int]]:
        """The ways, (from, to), that it cuts or makes bad."""
        out = [(self.node, other) for other in nodes if other != self.node]
        into = [(other, self.node) for other in nodes if other != self.node]
        match self.kind:
            case "isolate" | "bad links":
                return out + into
            case "deaf":
                return into
            case "mute":
                return out
            case "part":
                assert self.other is not None
                return [(self.node, self.other), (self.other, self.node)]
            case "one way":
                assert self.other is not None
                return [(self.node, self.other)]
            case _:
                return []

    def __str__(self) -> str:
        where = f"{self.node}" if self.other is None else f"{self.node}>{self.other}"
        more = f" {self.delay_ms:.0f} ms" if self.delay_ms else ""
        return f"{self.kind} {where}{more}"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Faults that begin and end together. `hold_s`: how long they last once service is back, or in all.
    `reset`: streams in trouble are broken off at the end instead of going on."""

    faults: tuple[Fault, ...]
    hold_s: float
    reset: bool

    @property
    def serves_meanwhile(self) -> bool:
        """Whether a majority is there and whole, so that every single log can be written."""
        return len(self.faults) == 1

    @property
    def commits_meanwhile(self) -> bool:
        """Whether those nodes that lead can also reach each other, as a transaction over several needs it."""
        return self.serves_meanwhile and self.faults[0].kind not in ("part", "one way")

    @property
    def kind(self) -> str:
        return self.faults[0].kind if len(self.faults) == 1 else "two at a time"

    def __str__(self) -> str:
        return " and ".join(map(str, self.faults))


def troubles(seed: int, count: int, nodes: Sequence[int]) -> Iterator[Trouble]:
    """All kinds come up equally often: each round is one of every kind, in another order."""
    rng = random.Random(f"troubles {seed}")
    kinds: list[Kind] = []
    for _ in range(count):
        if not kinds:
            kinds = list(KINDS)
            rng.shuffle(kinds)
        first = _fault(rng, kinds.pop(), nodes)
        faults = [first]
        if rng.random() < DOUBLE_CHANCE:
            second = _fault(rng, rng.choice(KINDS), nodes)
            if second.node != first.node:
                faults.append(second)
        yield Trouble(tuple(faults), rng.uniform(0.05, 0.5), rng.random() < 0.5)


def _fault(rng: random.Random, kind: Kind, nodes: Sequence[int]) -> Fault:
    node = rng.choice(nodes)
    other = rng.choice([one for one in nodes if one != node]) if kind in ("part", "one way") else None
    delay_ms = loss = 0.0
    if kind == "slow disk":
        delay_ms = rng.choice([20, 80, 200])
    elif kind == "bad links":
        delay_ms, loss = rng.choice([0, 5, 30]), rng.choice([0.05, 0.3])
    return Fault(kind, node, other, delay_ms, loss)
