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
    machine: int = 0


@dataclass(frozen=True, slots=True)
class ActorSpec:
    kind: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)


Topic = tuple[int, dict[str, str]]
"""Partitions and settings."""


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
    topics: dict[str, Topic]
    actors: tuple[ActorSpec, ...]
    faults: tuple[Fault, ...]
    damage: bool = False
    """Bits are flipped at the end in what was flushed long ago."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        values = json.loads(text)
        values["topics"] = {name: tuple(topic) for name, topic in values["topics"].items()}
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
    duration_ms = rng.choice((300, 600, 1_200))
    actors, topics = draw_scenes(rng)
    plan = Plan(
        seed=seed,
        duration_ms=duration_ms,
        settings=draw_settings(rng),
        knobs=draw_knobs(rng),
        flush_ms=rng.choice((0.5, 2.0, 2.0, 10.0)),
        latency_ms=rng.choice((0.2, 1.0, 5.0)),
        topics=topics,
        actors=actors,
        faults=draw_faults(rng, duration_ms),
        damage=rng.random() < 0.15,
    )
    again = random.Random(f"{seed}/again")
    return _cuts_in_a_row(again, plan) if again.random() < 0.05 else plan


def _cuts_in_a_row(rng: random.Random, plan: Plan) -> Plan:
    """One power cut meets what the last one left, before it is settled: producers whose epoch stands still, a store
    that is flushed late, and somebody who has the logs flushed early."""
    options = {"topic": "shared", "v2": False, "timeout_ms": 60_000, "every_ms": 10, "zombies": 0.0}
    faults = []
    at_ms = 100
    while at_ms < plan.duration_ms:
        faults.append(Fault(at_ms, "power", {"fuse": rng.choice((0, rng.randrange(1, 60)))}))
        at_ms += rng.randrange(30, 200)
    return replace(
        plan,
        settings=plan.settings | {"flush_linger_ms": rng.choice((20, 100))},
        topics={"shared": (2, {})},
        actors=(
            *(ActorSpec("writer", f"w{number}", options) for number in range(3)),
            ActorSpec("idempotent", "i0", {"topic": "shared", "every_ms": 20}),
        ),
        faults=tuple(faults),
        damage=False,
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
        "group_consumer_session_timeout_ms": 1_000,
        "group_consumer_heartbeat_interval_ms": 200,
    }


def draw_knobs(rng: random.Random) -> dict[str, Any]:
    small = rng.random() < 0.7
    return {
        "preallocate_first_bytes": rng.choice((4_096, 16_384)),
        "preallocate_max_bytes": 16_384,
        "run_bytes": rng.choice((256, 1_024)) if small else 16_384,
        "checkpoint_bytes": rng.choice((2_048, 8_192)) if small else 1 << 26,
        "checkpoint_entries": 20 if small else 1 << 14,
        "close_checkpoint_bytes": rng.choice((0, 1_024)) if small else 1 << 20,
        "max_index_entries": rng.choice((20, 1_000_000)),
        "footer_step_bytes": rng.choice((128, 1 << 20)),
        "skip_scan_bytes": rng.choice((512, 8 << 20)),
        "allocate_bytes": rng.choice((4_096, 65_536)),
        "snapshot_turn_records": rng.choice((3, 100)),
    }


def draw_scenes(rng: random.Random) -> tuple[tuple[ActorSpec, ...], dict[str, Topic]]:
    """One to three scenes, each a few clients around topics of their own."""
    actors: list[ActorSpec] = []
    topics: dict[str, Topic] = {}
    for scene in dict.fromkeys(rng.sample(SCENES, rng.choice((1, 2, 2, 3)))):
        scene(rng, actors, topics)
    layout_topics = sorted(topics)
    if layout_topics and rng.random() < 0.6:
        options = {"topics": layout_topics, "every_ms": rng.choice((30, 100, 300))}
        actors.append(ActorSpec("layout", "layout", options))
    return tuple(actors), topics


def draw_producer(rng: random.Random) -> dict[str, Any]:
    return {
        "v2": rng.random() < 0.5,
        "timeout_ms": rng.choice((300, 60_000, 60_000)),
        "every_ms": rng.choice((10, 40, 80)),
        "zombies": rng.choice((0.0, 0.02, 0.1)),
    }


def _shared(rng: random.Random, actors: list[ActorSpec], topics: dict[str, Topic]) -> None:
    topics["shared"] = (rng.choice((2, 3)), {})
    actors += [
        ActorSpec("writer", f"w{number}", {"topic": "shared", **draw_producer(rng)})
        for number in range(rng.choice((1, 2, 3)))
    ]
    if rng.random() < 0.5:
        actors.append(ActorSpec("idempotent", "i0", {"topic": "shared", "every_ms": 40}))
    if rng.random() < 0.3:
        actors.append(ActorSpec("plain", "p0", {"topic": "shared", "every_ms": 40}))
    for committed in (True, False):
        if rng.random() < 0.7:
            options = {"topic": "shared", "committed": committed, "every_ms": 50}
            actors.append(ActorSpec("reader", f"r{committed:d}", options))


def _lists(rng: random.Random, actors: list[ActorSpec], topics: dict[str, Topic]) -> None:
    count = rng.choice((1, 2))
    topics["lists"] = (2 * count, {})
    for number in range(count):
        options = {"topic": "lists", "partitions": [number, number + count], **draw_producer(rng)}
        options["zombies"] = rng.choice((0.05, 0.2))
        actors.append(ActorSpec("ledger", f"l{number}", options))


def _source(rng: random.Random, actors: list[ActorSpec], topics: dict[str, Topic]) -> None:
    if "in" in topics:
        return
    topics["in"] = (2, {})
    topics["out"] = (2, {})
    if rng.random() < 0.6:
        actors.append(ActorSpec("writer", "source", {"topic": "in", **draw_producer(rng)}))
    else:
        actors.append(ActorSpec("idempotent", "source", {"topic": "in", "every_ms": 60, "in_flight": 2}))


def _loops(rng: random.Random, actors: list[ActorSpec], topics: dict[str, Topic]) -> None:
    _source(rng, actors, topics)
    for number in range(2):
        options = {"source": "in", "sink": "out", "group": "loops", "partition": number, **draw_producer(rng)}
        options["zombies"] = rng.choice((0.02, 0.1))
        actors.append(ActorSpec("loop", f"e{number}", options))


def _members(rng: random.Random, actors: list[ActorSpec], topics: dict[str, Topic]) -> None:
    _source(rng, actors, topics)
    kind = rng.choice(("member", "new member"))
    for number in range(rng.choice((2, 3))):
        options = {"source": "in", "sink": "out", "group": "members", **draw_producer(rng), "zombies": 0.0}
        options["pauses"] = rng.choice((0.0, 0.1))
        actors.append(ActorSpec(kind, f"g{number}", options))


def _sink(rng: random.Random, actors: list[ActorSpec], topics: dict[str, Topic]) -> None:
    topics.setdefault("shared", (3, {}))
    options = {"topic": "shared", "members": rng.choice((2, 3)), "v2": rng.random() < 0.5}
    actors.append(ActorSpec("sink", "sink", options))
    actors.append(ActorSpec("reader", "rs", {"topic": "shared", "every_ms": 50}))


def _truncated(rng: random.Random, actors: list[ActorSpec], topics: dict[str, Topic]) -> None:
    configs = rng.choice(({}, {"retention.bytes": "2000"}, {"retention.ms": "200", "segment.ms": "100"}))
    topics["cut"] = (2, configs)
    if rng.random() < 0.6:
        actors.append(ActorSpec("writer", "wc", {"topic": "cut", **draw_producer(rng)}))
    actors.append(ActorSpec("idempotent", "ic", {"topic": "cut", "every_ms": 40}))
    actors.append(ActorSpec("truncator", "truncator", {"topic": "cut"}))
    actors.append(
        ActorSpec("reader", "rc", {"topic": "cut", "every_ms": 50, "committed": rng.random() < 0.7})
    )


def _compacted(rng: random.Random, actors: list[ActorSpec], topics: dict[str, Topic]) -> None:
    topics["keys"] = (2, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
    actors += [
        ActorSpec("writer", f"wk{number}", {"topic": "keys", "keyed": True, **draw_producer(rng)})
        for number in range(2)
    ]
    actors.append(ActorSpec("plain", "pk", {"topic": "keys", "keyed": True, "every_ms": 50}))
    actors.append(ActorSpec("reader", "rk", {"topic": "keys", "every_ms": 50}))
    actors.append(ActorSpec("layout", "seals", {"topics": ["keys"], "every_ms": 60}))


def _topics(rng: random.Random, actors: list[ActorSpec], topics: dict[str, Topic]) -> None:
    actors.append(ActorSpec("topics", "temp", {}))


SCENES = (_shared, _shared, _lists, _loops, _members, _sink, _truncated, _compacted, _topics)


def draw_faults(rng: random.Random, duration_ms: int) -> tuple[Fault, ...]:
    kinds = [rng.choice(FAULT_KINDS) for _ in range(rng.choice((0, 1, 2, 3, 5)))]
    faults = [Fault(rng.randrange(duration_ms), kind, _fault_arguments(rng, kind)) for kind in kinds]
    return tuple(sorted(faults, key=lambda fault: fault.at_ms))


FAULT_KINDS = (
    *("power",) * 5,
    *("kill",) * 4,
    *("cut_within",) * 4,
    *("restart",) * 2,
    *("reset",) * 3,
    *("block",) * 3,
    "clock",
    "clock",
    *("io_error",) * 2,
    *("disk_full",) * 2,
)


def _fault_arguments(rng: random.Random, kind: str) -> dict[str, Any]:
    if kind in ("power", "kill"):
        return {"fuse": rng.choice((0, rng.randrange(1, 60), rng.randrange(1, 300)))}
    if kind == "cut_within":
        return {"changes": rng.randrange(1, 40)}
    if kind == "restart":
        return {"reboot": rng.random() < 0.5}
    if kind == "block":
        return {"direction": rng.choice(("up", "down")), "for_ms": rng.choice((50, 400, 6_000))}
    if kind == "clock":
        return {"by_ms": rng.choice((-3_600_000, -1_000, -1, 1_000, 60_000, 3_600_000))}
    if kind == "io_error":
        return {
            "operation": rng.choice(("flush", "flush", "write", "read", "flush_dir")),
            "metadata": rng.random() < 0.4,
            "power_ms": rng.choice((5, 20, 50, 300)),
        }
    if kind == "disk_full":
        return {
            "operation": rng.choice(("allocate", "allocate", "create", "write")),
            "times": rng.choice((1, 3)),
        }
    return {}
