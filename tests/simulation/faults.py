"""What happens to machines and networks, and when: one coroutine per fault of the plan."""

from __future__ import annotations

import random

from tests.simulation.loop import Process
from tests.simulation.machine import Machine, Refused
from tests.simulation.plan import Fault
from tests.simulation.world import World


class Nemesis:
    """Brings the faults of a plan about, and starts again what they stopped."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.process = Process(world.loop, "nemesis")
        self.random = random.Random(f"{world.plan.seed}/nemesis")
        self.starting: set[str] = set()

    def begin(self) -> None:
        for fault in self.world.plan.faults:
            self.process.spawn(self._bring(fault))
        self.process.spawn(self._watch())

    async def _watch(self) -> None:
        """Somebody who starts what is down, after a while; until everything is over."""
        while True:
            for machine in self.world.machines:
                if not machine.up:
                    await self.process.sleep(self.random.choice((1, 10, 200)))
                    if not machine.up:
                        self.start(machine)
            await self.process.sleep(5)

    def start(self, machine: Machine) -> None:
        self.world.count("starts")
        try:
            machine.start()
        except Refused as refused:
            self.world.faults_found.append(f"a start was refused: {refused}")
            self.world.ending = True

    async def _bring(self, fault: Fault) -> None:
        await self.process.sleep(fault.at_ms)
        if self.world.ending:
            return
        self.world.count(f"fault: {fault.kind}")
        if self.world.trace.log is not None:
            self.world.trace.say(f"fault: {fault}")
        machine = self.world.machine
        await getattr(self, f"_{fault.kind}")(machine, **fault.arguments)

    async def _power(self, machine: Machine, fuse: int = 0, **_: int) -> None:
        self._die(machine, "power", fuse)

    async def _kill(self, machine: Machine, fuse: int = 0, **_: int) -> None:
        self._die(machine, "kill", fuse)

    def _die(self, machine: Machine, how: str, fuse: int) -> None:
        """Now, or so many callbacks of its process later."""
        if not machine.up:
            if how == "power":
                machine.die("power")
            return
        if fuse:
            machine.dies_by = how
            machine.process.fuse = fuse
        else:
            machine.die(how)
