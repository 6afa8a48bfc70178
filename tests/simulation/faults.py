"""What happens to machines and networks, and when: one coroutine per fault of the plan."""

from __future__ import annotations

import errno
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
        for machine in world.machines:
            machine.when_down = self.machine_down

    def begin(self) -> None:
        for fault in self.world.plan.faults:
            self.process.spawn(self._bring(fault))

    def machine_down(self, machine: Machine) -> None:
        """Somebody starts what is down, after a while."""
        self.process.call_later(self.random.choice((1, 10, 200)), self._start_again, machine, machine.process)

    def _start_again(self, machine: Machine, died: Process) -> None:
        if machine.process is died:
            self.start(machine)

    def start(self, machine: Machine) -> None:
        self.world.count("starts")
        try:
            machine.start()
        except Refused as refused:
            if not self.world.damaged:
                self.world.faults_found.append(f"a start was refused: {refused}")
            self.world.ending = True

    async def _bring(self, fault: Fault) -> None:
        await self.process.sleep(fault.at_ms)
        if self.world.ending:
            return
        self.world.count(f"fault: {fault.kind}")
        if self.world.trace.log is not None:
            self.world.trace.say(f"fault: {fault}")
        machine = self.world.machines[fault.machine]
        await getattr(self, f"_{fault.kind}")(machine, **fault.arguments)

    def heal(self) -> None:
        """No more faults: clocks are right, disks work, and a broker that met an error of its own is started again."""
        for machine in self.world.machines:
            machine.process.fuse = 0
            machine.jump_clock(-machine.wall_offset_ms)
            if machine.disk.heal():
                machine.die("power")
        self.world.network.blocked_until.clear()

    # -- machines

    async def _power(self, machine: Machine, fuse: int) -> None:
        self._die(machine, "power", fuse)

    async def _kill(self, machine: Machine, fuse: int) -> None:
        self._die(machine, "kill", fuse)

    def _die(self, machine: Machine, how: str, fuse: int) -> None:
        """Now, or so many callbacks of its process later."""
        if not machine.up:
            if how == "power":
                machine.die("power")
        elif fuse:
            machine.dies_by = how
            machine.process.fuse = fuse
        else:
            machine.die(how)

    async def _cut_within(self, machine: Machine, changes: int) -> None:
        """The power goes in the middle of a callback: with the n-th change of the disk from now."""
        machine.dies_by = "power"
        machine.disk.stop_after(changes)

    async def _restart(self, machine: Machine, reboot: bool) -> None:
        if not machine.serving:
            return
        process = machine.process
        stopped: list[Exception | None] = []
        machine.stop(stopped.append)
        while machine.process is process and machine.up:
            if stopped:
                machine.stopped(reboot=reboot)
                return
            await self.process.sleep(1)

    # -- networks

    async def _reset(self, machine: Machine) -> None:
        connections = self.world.network.connections
        for number in sorted(connections):
            if self.random.random() < 0.5:
                connections[number].reset()

    async def _block(self, machine: Machine, direction: str, for_ms: float) -> None:
        self.world.network.block(direction, for_ms)

    # -- clocks and disks

    async def _clock(self, machine: Machine, by_ms: int) -> None:
        machine.jump_clock(by_ms)

    async def _io_error(self, machine: Machine, operation: str, metadata: bool, power_ms: int) -> None:
        """What the device says once; later the machine is cut from power, as what the device lost is lost."""
        machine.disk.fail(operation, "metadata" if metadata else "topics", error=errno.EIO)
        machine.disk.needs_power_cut = True
        await self.process.sleep(power_ms)
        if not self.world.ending:
            self._die(machine, "power", 0)

    async def _disk_full(self, machine: Machine, operation: str, times: int) -> None:
        machine.disk.fail(operation, error=errno.ENOSPC, times=times)
        if operation == "write":
            machine.disk.needs_power_cut = True
