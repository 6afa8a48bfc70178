"""One seed from its plan to the verdict on its history."""

from __future__ import annotations

import gc
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.history import Compacted, FinalEnds, FinalOffset, FinalRead, check
from tests.simulation import sealed_files
from tests.simulation.actor import Actor, create_topic
from tests.simulation.admins import LayoutAdmin, TopicAdmin, Truncator
from tests.simulation.consumer_group import NewMember
from tests.simulation.damage import compare, flip_bits
from tests.simulation.faults import Nemesis
from tests.simulation.final import Auditor
from tests.simulation.group_sink import GroupSink
from tests.simulation.groups import ExactlyOnce, GroupMember
from tests.simulation.knobs import turned
from tests.simulation.ledger import Ledger
from tests.simulation.plan import Plan
from tests.simulation.producers import Idempotent, Plain
from tests.simulation.readers import Reader
from tests.simulation.transactions import Writer
from tests.simulation.watch import Watcher
from tests.simulation.world import World, quiet_logging

ACTORS: dict[str, type[Actor]] = {
    "plain": Plain,
    "idempotent": Idempotent,
    "reader": Reader,
    "writer": Writer,
    "ledger": Ledger,
    "loop": ExactlyOnce,
    "member": GroupMember,
    "new member": NewMember,
    "sink": GroupSink,
    "layout": LayoutAdmin,
    "truncator": Truncator,
    "topics": TopicAdmin,
}
SETTLE_MS = 5_000
CHANGING = ("keys", "cut")
"""Topics that compaction and retention work on while nobody writes."""


@dataclass(slots=True)
class Result:
    seed: int
    violations: list[str]
    trace: str
    virtual_ms: float
    stats: Counter[str] = field(default_factory=Counter)
    log: list[tuple[float, str]] | None = None

    @property
    def failed(self) -> bool:
        return bool(self.violations)


class Setup(Actor):
    """Makes the topics, before faults begin."""

    done = False

    async def run(self) -> None:
        for name, (partitions, configs) in self.world.plan.topics.items():
            await create_topic(self, name, partitions, configs)
            if "compact" in configs.get("cleanup.policy", ""):
                self.note(Compacted(name))
            self.world.partitions[name] = partitions
        self.done = True


def simulate(plan: Plan, *, keep_log: bool = False) -> Result:
    """Run a plan. Whatever is wrong is in the result; nothing is raised but by mistakes of the simulation itself."""
    quiet_logging()
    collecting = gc.isenabled()
    gc.disable()
    try:
        with turned(plan.knobs):
            return _Run(plan, keep_log=keep_log).run()
    finally:
        # All that this run made is in the youngest generation still: a world of cycles, which would stay for long.
        gc.collect(0)
        if collecting:
            gc.enable()


class _Run:
    def __init__(self, plan: Plan, *, keep_log: bool) -> None:
        self.plan = plan
        self.world = World(plan)
        if keep_log:
            self.world.trace.log = []
        self.nemesis = Nemesis(self.world)

    def run(self) -> Result:
        world = self.world
        violations: list[str] = []
        if self._setup() and self._play():
            violations = self._audit()
        return Result(
            self.plan.seed,
            world.faults_found + violations,
            world.trace.digest(),
            world.loop.now_ms,
            world.stats,
            world.trace.log,
        )

    def _setup(self) -> bool:
        self.nemesis.start(self.world.machine)
        setup = Setup(self.world, "setup", {})
        setup.process.spawn(setup.run())
        return self.world.run_until(lambda: setup.done, max_ms=10_000, what="the topics are not there")

    def _play(self) -> bool:
        world = self.world
        tasks = []
        for spec in self.plan.actors:
            actor = ACTORS[spec.kind](world, spec.name, spec.options)
            tasks.append((spec.name, actor.process.spawn(actor.run())))
        self.nemesis.begin()
        end_ms = world.loop.now_ms + self.plan.duration_ms
        world.driver.call_later(self.plan.duration_ms, lambda: None)
        world.loop.run(lambda: world.ending or world.loop.now_ms >= end_ms, max_steps=3_000_000)
        refused = world.ending
        world.ending = True
        if refused:
            return False
        self.nemesis.heal()
        done = world.run_until(
            lambda: all(task.done for _, task in tasks),
            max_ms=120_000,
            what="clients that never came to an end",
        )
        if not done:
            world.faults_found.append(str([name for name, task in tasks if not task.done]))
        return done

    def _audit(self) -> list[str]:
        """Everything is over and settled: read it, cut the power, and read it again."""
        world = self.world
        world.advance(SETTLE_MS)
        self._watch()
        first = self._read_all("auditor")
        if first is None:
            return []
        violations = [str(violation) for violation in check(world.events, markerless=True)]
        if sealed_files.available():
            count, wrong = sealed_files.check_sealed(world.machine.disk, first, CHANGING)
            world.count("sealed segments read as files", count)
            violations += wrong
        world.machine.die("power")
        second = self._read_all("auditor-2")
        for before, after in zip(first, second or (), strict=False):
            if before != after and getattr(before, "topic", None) not in CHANGING:
                violations.append(f"after a last power cut: {before} became {after}")
        if self.plan.damage and not violations and not world.faults_found:
            violations += self._damage(first)
        return violations

    def _watch(self) -> None:
        topics = [name for name in sorted(self.plan.topics) if name not in CHANGING]
        if topics:
            watcher = Watcher(self.world, "watcher", {"topic": topics[0]})
            watcher.process.spawn(watcher.run())
            self.world.run_until(
                lambda: watcher.done, max_ms=60_000, what="a watcher that never came to an end"
            )

    def _damage(self, before: list[Any]) -> list[str]:
        """Flip bits, perhaps start again, and read everything: what is not noticed must be as it was."""
        world = self.world
        rng = random.Random(f"{self.plan.seed}/damage")
        world.count("fault: damage")
        where = flip_bits(world.machine, rng)
        world.trace.say(f"damage: {where}")
        world.damaged = True
        how = rng.choice(("", "kill", "power"))
        if how:
            world.machine.die(how)
        after = self._read_all("auditor-3", damaged=True)
        if world.machine.refusal is not None:
            world.count("damage that a start refused")
        return [f"{where} ({how}): {what}" for what in compare(before, after or [], CHANGING)]

    def _read_all(self, name: str, *, damaged: bool = False) -> list[Any] | None:
        world = self.world
        begun = len(world.events)
        auditor = Auditor(world, name, {"damaged": damaged})
        auditor.process.spawn(auditor.run())
        if not world.run_until(
            lambda: auditor.done or world.machine.refusal is not None,
            max_ms=60_000,
            what="the end cannot be read",
        ):
            return None
        final = (FinalRead, FinalEnds, FinalOffset)
        return [event for event in world.events[begun:] if isinstance(event, final)]
