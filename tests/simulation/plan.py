"""What a seed means: settings, actors and faults, drawn before anything runs, so that parts can be taken out again."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Fault:
    """`at_ms` of virtual time; what `arguments` mean depends on the kind (`tests.simulation.faults`)."""

    at_ms: int
    kind: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ActorSpec:
    kind: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    duration_ms: int
    settings: dict[str, Any]
    """Of the broker (`broker.config`)."""
    knobs: dict[str, Any]
    """Of what no setting reaches: sizes in the storage, made small so that their edges are met often."""
    flush_ms: float
    latency_ms: float
    actors: tuple[ActorSpec, ...]
    faults: tuple[Fault, ...]
    damage: bool = False
    """Bits are flipped at the end in what was flushed long ago."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        values = json.loads(text)
        values["actors"] = tuple(ActorSpec(**one) for one in values["actors"])
        values["faults"] = tuple(Fault(**one) for one in values["faults"])
        return cls(**values)

    def without(self, *, actors: frozenset[int] = frozenset(), faults: frozenset[int] = frozenset()) -> Plan:
        return replace(
            self,
            actors=tuple(one for at, one in enumerate(self.actors) if at not in actors),
            faults=tuple(one for at, one in enumerate(self.faults) if at not in faults),
        )


def draw_plan(seed: int) -> Plan:
    rng = random.Random(f"{seed}/plan")
    duration_ms = rng.choice((1_500, 3_000, 6_000))
    return Plan(
        seed=seed,
        duration_ms=duration_ms,
        settings=draw_settings(rng),
        knobs=draw_knobs(rng),
        flush_ms=rng.choice((0.5, 2.0, 2.0, 10.0)),
        latency_ms=rng.choice((0.2, 1.0, 5.0)),
        actors=draw_actors(rng),
        faults=draw_faults(rng, duration_ms),
        damage=rng.random() < 0.15,
    )


def draw_settings(rng: random.Random) -> dict[str, Any]:
    return {
        "flush_linger_ms": rng.choice((1, 5, 20, 100)),
        "segment_bytes": rng.choice((2_048, 8_192, 1 << 20)),
        "snapshot_log_bytes": rng.choice((4_096, 32_768, 1 << 26)),
        "auto_create_topics": False,
        "transaction_remove_expired_transaction_cleanup_interval_ms": 60_000,
        "retention_check_interval_ms": rng.choice((300, 1_000)),
        "compaction_interval_ms": rng.choice((200, 1_000)),
        "layout_check_interval_ms": 1_000,
    }


def draw_knobs(rng: random.Random) -> dict[str, Any]:
    small = rng.random() < 0.7
    return {
        "preallocate_first_bytes": rng.choice((4_096, 16_384)),
        "preallocate_max_bytes": 16_384,
        "run_bytes": rng.choice((256, 1_024)) if small else 16_384,
        "checkpoint_bytes": rng.choice((2_048, 8_192)) if small else 1 << 26,
        "close_checkpoint_bytes": rng.choice((0, 1_024)) if small else 1 << 20,
        "max_index_entries": rng.choice((20, 1_000_000)),
        "footer_step_bytes": rng.choice((128, 1 << 20)),
        "skip_scan_bytes": rng.choice((512, 8 << 20)),
        "allocate_bytes": rng.choice((4_096, 65_536)),
        "snapshot_turn_records": rng.choice((3, 100)),
    }


def draw_actors(rng: random.Random) -> tuple[ActorSpec, ...]:
    actors = [
        ActorSpec("idempotent", "i0", {"topic": "shared"}),
        ActorSpec("reader", "r0", {"topic": "shared"}),
    ]
    return tuple(actors)


def draw_faults(rng: random.Random, duration_ms: int) -> tuple[Fault, ...]:
    faults = []
    for _ in range(rng.choice((0, 1, 2, 3, 5))):
        faults.append(
            Fault(rng.randrange(duration_ms), "power", {"fuse": rng.choice((0, rng.randrange(200)))})
        )
    return tuple(sorted(faults, key=lambda fault: fault.at_ms))
