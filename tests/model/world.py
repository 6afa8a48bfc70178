"""One state of the model: a real node on a held disk, clients with scripts, and all that was ever seen of it.

Nothing moves by itself: a client's next request, the end of each flush, its failure, the next timer and a crash are
actions. A state is what a sequence of actions from the beginning makes; the same sequence makes the same state.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.sim_loop import SimScheduler
from support.sim_node import InlineCompaction, SimClient, SimNode

from broker.config import BrokerConfig
from broker.node import Node, StartReport
from model.held_disk import HeldDisk
from txn.partition import Partition
from wire.batch import parse_header
from wire.errors import ErrorCode
from wire.records import iterate_records

Action = tuple[str, ...]
Keep = str | Callable[[str], str] | None

CRASHES: dict[str, tuple[Keep, bool]] = {
    "kill": (None, True),
    "lose all": ("none", False),
    "keep all": ("all", False),
    "keep metadata": (lambda path: "all" if path.startswith("metadata") else "none", False),
    "keep data": (lambda path: "none" if path.startswith("metadata") else "all", False),
}
"""What is left of the unflushed bytes; whether the kernel lived on."""


@dataclass(slots=True)
class Txn:
    """What the oracle knows of a transaction: what it wrote, what its client wished and heard."""

    name: str
    values: dict[int, list[bytes]] = field(default_factory=dict)
    """Per partition, what was sent."""
    commit_asked: bool = False
    committed: bool = False
    """Its client heard success of a commit."""
    aborted: bool = False


class Broken(AssertionError):
    """An invariant does not hold: its name, and why."""


class World(SimNode):
    """See the module. `allowed` counts the crashes, failed flushes and timers that are left."""

    def __init__(self, allowed: dict[str, int], crashes: Sequence[str]) -> None:
        self.scheduler = SimScheduler()
        self.disk: HeldDisk = HeldDisk(self.scheduler)
        self.config = BrokerConfig(flush_linger_ms=20, segment_bytes=1 << 16)
        self._random = random.Random(1)
        self._seed = 0
        self.boot_id = "boot-0"
        self.node: Node
        self.report: StartReport
        self.left = dict(allowed)
        self.crashes = crashes
        self.txns: dict[str, Txn] = {}
        self.scripts: list[Script] = []
        self.seen: dict[tuple[int, bool], list[tuple[int, bytes]]] = {}
        self.ends: dict[int, int] = {}
        self.start()

    def start(self) -> None:
        self.disk.holding = False
        ready: list[Exception | None] = []
        self.node = Node(
            self.disk,
            self.scheduler,
            self.config,
            boot_id=self.boot_id,
            new_uuid=self._new_uuid,
            advertised=("sim", 9092),
            compaction_worker=InlineCompaction(self.disk, self.scheduler),
        )
        self.report = self.node.start(ready.append)
        self.scheduler.run_ready()
        assert ready == [None], ready

    # -- actions

    def actions(self) -> list[Action]:
        found: list[Action] = [
            ("go", str(number)) for number, script in enumerate(self.scripts) if script.may_go
        ]
        held = sorted(self.disk.held)
        found += [("flush", *key) for key in held]
        if self.left.get("fail", 0):
            found += [("fail", *key) for key in held if key[0] == "flush"]
        if self.left.get("crash", 0):
            found += [("crash", name) for name in self.crashes]
        if self.left.get("tick", 0):
            found.append(("tick",))
        return found

    def act(self, action: Action) -> None:
        what, *rest = action
        if what == "go":
            self.scripts[int(rest[0])].go()
        elif what == "flush":
            self.disk.complete((rest[0], rest[1]))
        elif what == "fail":
            self.left["fail"] -= 1
            self.disk.complete((rest[0], rest[1]), OSError(errno.EIO, "Input/output error"))
        elif what == "tick":
            self.left["tick"] -= 1
            due = self.scheduler._next_due()
            assert due is not None
            self.scheduler.advance(due - self.scheduler._now_ms)
        else:
            self.left["crash"] -= 1
            self.crash(rest[0])
        self.scheduler.run_ready()
        for script in self.scripts:
            script.listen()

    def crash(self, how: str) -> None:
        keep, same_boot = CRASHES[how]
        now_ms = self.scheduler.now_ms()
        self.scheduler = SimScheduler(start_ms=now_ms + 10)
        self.disk = self.disk.after(self.scheduler, keep)
        if not same_boot:
            self._seed += 1
            self.boot_id = f"boot-{self._seed}"
        self.start()
        self.disk.holding = True
        for script in self.scripts:
            script.reconnect()

    # -- what there is

    def partitions(self) -> list[Partition]:
        topic = self.node.topics.get("t")
        assert topic is not None
        return topic.partitions

    def read(self, partition: Partition, *, committed: bool) -> list[tuple[int, bytes]]:
        """(offset, value) of all that a reader of this isolation sees."""
        found: list[tuple[int, bytes]] = []
        position = partition.log_start_offset
        end = partition.readable_end(read_committed=committed)
        while position < end:
            piece = partition.fetch(position, read_committed=committed, max_bytes=1 << 20, at_least_one=True)
            assert piece.records, f"a reader is stuck at {position} below {end}"
            for data in piece.records:
                header = parse_header(data)
                if not header.is_control:
                    found += [
                        (one.offset, one.value or b"")
                        for one in iterate_records(data)
                        if one.offset >= position
                    ]
                position = max(position, header.last_offset + 1)
        return found

    # -- invariants

    def check(self) -> None:
        """Raises Broken. The names are the design's."""
        visible: dict[int, list[bytes]] = {}
        for partition in self.partitions():
            index = partition.index
            if partition.last_stable_offset > partition.high_watermark:
                raise Broken(f"D4: {partition}: the last stable offset is above the high watermark")
            for committed in (True, False):
                now = self.read(partition, committed=committed)
                before = self.seen.get((index, committed), [])
                if now[: len(before)] != before:
                    # What a reader has seen stays, whatever crashes: nobody may be shown what can be taken back.
                    raise Broken(f"D3, T4: {partition}, committed {committed}: {before} became {now}")
                self.seen[index, committed] = now
                if committed:
                    visible[index] = [value for _, value in now]
            if self.ends.get(index, 0) > partition.high_watermark:
                raise Broken(f"D3: {partition}: the high watermark went back")
            self.ends[index] = partition.high_watermark
        for txn in self.txns.values():
            self._check_txn(txn, visible)

    def _check_txn(self, txn: Txn, visible: dict[int, list[bytes]]) -> None:
        wanted = {value for values in txn.values.values() for value in values}
        shown = {value for values in visible.values() for value in values if value in wanted}
        if shown and not txn.commit_asked:
            raise Broken(f"T1: {txn.name} shows, and nobody asked for its commit")
        if shown and txn.aborted:
            raise Broken(f"T2: {txn.name} shows, and its client heard that it was aborted")
        below = {
            value
            for partition, values in txn.values.items()
            for value in values
            if self._is_below_stable(partition, value)
        }
        if txn.committed and shown != below:
            raise Broken(f"T2: {txn.name} was answered as committed, and {below - shown} does not show")
        if txn.committed and any(
            value not in self._all_values(p) for p, vs in txn.values.items() for value in vs
        ):
            raise Broken(f"T1: {txn.name} was answered as committed, and data of it is gone")
        if shown and shown != below:
            raise Broken(f"T1: {txn.name} shows in part: {shown} of {below}")
        for partition, values in txn.values.items():
            order = [value for value in visible[partition] if value in values]
            if order != [value for value in values if value in order]:
                raise Broken(f"S2: {txn.name} in partition {partition}: {order}")

    def _all_values(self, index: int) -> list[bytes]:
        return [value for _, value in self.read(self.partitions()[index], committed=False)]

    def _is_below_stable(self, index: int, value: bytes) -> bool:
        partition = self.partitions()[index]
        stable = partition.last_stable_offset
        return any(offset < stable and one == value for offset, one in self.read(partition, committed=False))

    def finish(self) -> None:
        """Let all come to its end, and start again on what is durable alone: nothing hangs, and nothing changes."""
        self.disk.release()
        self.scheduler.run_ready()
        for script in self.scripts:
            script.listen()
        self.check()
        # Deadlines pass, outcomes are settled.
        self.scheduler.advance(120_000)
        self.check()
        failed = any(log.failure for topic in self.node.topics for log in topic.ranges)
        for partition in self.partitions():
            if (
                partition.last_stable_offset != partition.high_watermark
                and not failed
                and not self.node.store.failure
            ):
                raise Broken(f"T9: {partition}: an open transaction holds its readers for good")
        for how in ("lose all", "kill"):
            self.crash(how)
            self.disk.release()
            self.scheduler.advance(120_000)
            self.check()
            for partition in self.partitions():
                if partition.last_stable_offset != partition.high_watermark:
                    raise Broken(f"T3: {partition}: after a start a transaction is undecided")


Step = Callable[[World, SimClient], int]
"""Sends a request; its number."""
Heard = Callable[[World, Any], None]


class Script:
    """One client: requests one after the other, each when the one before is answered. A crash ends what it waits for;
    then it goes on with `after_crash`, or no more."""

    def __init__(
        self,
        world: World,
        steps: Sequence[tuple[Step, Heard]],
        after_crash: Sequence[tuple[Step, Heard]] = (),
    ) -> None:
        self.world = world
        self.steps = list(steps)
        self.after_crash = list(after_crash)
        self.client = world.client()
        self.position = 0
        self.waiting = 0
        self.heard: list[str] = []

    @property
    def may_go(self) -> bool:
        return not self.waiting and self.position < len(self.steps) and not self.client.closed

    def go(self) -> None:
        self.waiting = self.steps[self.position][0](self.world, self.client)

    def listen(self) -> None:
        if self.waiting and self.waiting in self.client.answers:
            answer = self.client.answers[self.waiting]
            self.waiting = 0
            self.position += 1
            step, heard = self.steps[self.position - 1]
            code = getattr(answer, "error_code", ErrorCode.none)
            self.heard.append(code.name)
            if code is ErrorCode.coordinator_not_available and self.heard.count(code.name) == 1:
                # Retriable: every client asks again.
                self.steps.insert(self.position, (step, heard))
            heard(self.world, answer)

    def reconnect(self) -> None:
        if self.position < len(self.steps) or self.waiting:
            self.steps = self.steps[: self.position] + self.after_crash
            self.after_crash = []
        self.waiting = 0
        self.client = self.world.client()
