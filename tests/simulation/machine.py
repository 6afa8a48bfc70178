"""A machine with a disk, a kernel and one broker that can be stopped, killed, or cut from power, at any callback."""

from __future__ import annotations

import random
import traceback
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from broker.config import BrokerConfig
from broker.data_folder import ForeignFolder
from broker.node import Node
from broker.session import Session
from storage.compaction_rewrite import rewrite
from storage.format import CorruptLog
from tests.simulation.loop import Loop, Process
from tests.simulation.network import Network
from tests.support.sim_disk import PowerCut, SimDisk
from txn.metastore import MetaStoreError
from txn.recovery import LostCommit
from wire.errors import KafkaError


class Refused(Exception):
    """The broker will not serve this folder: it found out that something in it is gone or damaged."""


class Worker:
    """Compaction as another process does it: over its files while the broker goes on, done some time later."""

    def __init__(self, disk: SimDisk, process: Process, rng: random.Random) -> None:
        self._disk = disk
        self._process = process
        self._random = rng

    def run(self, job: Any, done: Callable[[Any], None]) -> None:
        self._process.call_later(1 + 50 * self._random.random(), self._finish, job, done)

    def _finish(self, job: Any, done: Callable[[Any], None]) -> None:
        try:
            outcome = rewrite(self._disk, job)
        except (OSError, CorruptLog):
            outcome = None  # the worker's process ended with an error
        self._process.call_later(50 * self._random.random(), done, outcome)


class FaultyDisk(SimDisk):
    """`needs_power_cut`: an error of it has left a broker unable to go on, or the page cache unlike the device."""

    needs_power_cut = False

    def heal(self) -> bool:
        """No fault waits any more. Whether the machine must be cut from power to be whole again."""
        self._failures.clear()
        self._stop_at = None
        needed, self.needs_power_cut = self.needs_power_cut, False
        return needed


class Machine:
    """`serving` while clients can connect. `on_fault` is told of what must never happen inside the broker."""

    def __init__(
        self,
        loop: Loop,
        network: Network,
        name: str,
        seed: str,
        settings: Mapping[str, Any],
        *,
        flush_ms: float,
        on_fault: Callable[[str], None],
        count: Callable[[str], None],
    ) -> None:
        self.loop = loop
        self.network = network
        self.name = name
        self.random = random.Random(seed)
        self.settings = dict(settings)
        self.flush_ms = flush_ms
        self.on_fault = on_fault
        self.count = count
        self.boots = 0
        self.wall_offset_ms = 0
        self.serving = False
        self.refusal: str | None = None
        """Why the last start was refused, for good."""
        self.dies_by: str = ""
        self.process = Process(loop, name)
        self.process.alive = False
        self.disk = FaultyDisk(None, flush_delay_ms=self._flush_delay)
        self.when_down: Callable[[Machine], None] = lambda _: None
        self.node: Node | None = None

    def _flush_delay(self, path: str) -> float:
        draw = self.random.random
        if draw() < 0.02:
            return self.flush_ms * (10 + 100 * draw())
        return self.flush_ms * (0.2 + 1.6 * draw())

    def _new_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    def _no_session(self, transport: Any) -> Session:
        raise AssertionError("the broker is down")

    def new_session(self, transport: Any) -> Session:
        assert self.node is not None
        return Session(self.node, transport, "sim", on_fault=self._session_fault)

    def _callback_failed(self, error: Exception) -> None:
        trace = "".join(traceback.format_exception(error)[-4:])
        self.on_fault(f"a callback of the broker failed: {trace}")

    def _session_fault(self) -> None:
        self.on_fault("a request failed inside the broker")

    # -- life

    def start(self) -> None:
        """Start a broker on what the disk holds; it serves when it is ready. Raises Refused."""
        assert not self.process.alive, "one at a time"
        process = Process(self.loop, f"{self.name}.{self.boots}")
        process.wall_offset_ms = self.wall_offset_ms
        process.burnt = process.cut = self._died
        process.failed = self._callback_failed
        self.process = process
        self.disk.scheduler = process
        node = Node(
            self.disk,
            process,
            BrokerConfig(**self.settings),
            boot_id=f"boot-{self.boots}",
            new_uuid=self._new_uuid,
            advertised=(self.name, 9092),
            compaction_worker=Worker(self.disk, process, self.random),
        )
        try:
            report = node.start(lambda error: self._ready(process, node, error))
        except PowerCut:
            self._died()
            return
        except (CorruptLog, MetaStoreError, LostCommit, ForeignFolder, KafkaError) as refusal:
            # A KafkaError: damage that a reader of the start met; `sealog serve` says so.
            process.alive = False
            self.refusal = f"{type(refusal).__name__}: {refusal}"
            raise Refused(self.refusal) from refusal
        except OSError:
            # A fault of the disk: the process ends with it, and somebody starts it again.
            self._failed_start(process)
            return
        except Exception as error:
            process.alive = False
            self.refusal = "".join(traceback.format_exception(error)[-4:])
            self.on_fault(f"a start failed without a word: {self.refusal}")
            raise Refused(self.refusal) from error
        found = report.transactions
        if found.resumed:
            self.count("transactions that went on after a start")

    def _ready(self, process: Process, node: Node, error: Exception | None) -> None:
        if error is not None:
            self._failed_start(process)
            return
        self.node = node
        self.serving = True

    def _failed_start(self, process: Process) -> None:
        self.count("starts that met a fault of the disk")
        self.die("kill")

    @property
    def up(self) -> bool:
        return self.process.alive

    def _died(self) -> None:
        """A fuse burnt, or the disk's power went in the middle of something."""
        self.die(self.dies_by or "power")

    def die(self, how: str, keep: str = "random") -> None:
        """ "kill": the kernel lives on, and all that was written; "power": only what was flushed is sure."""
        if how == "power" or self.disk.needs_power_cut:
            # A kernel that failed to write a page shows it as written to whoever asks next: nobody could build on that.
            self.boots += 1
            self.disk = self._same_kind(self.disk.crash(self.random.getrandbits(48), keep=keep))
            self.wall_offset_ms = 0
        else:
            self.disk = self._same_kind(self.disk.kill())
        self._gone()

    @staticmethod
    def _same_kind(disk: SimDisk) -> FaultyDisk:
        disk.__class__ = FaultyDisk
        assert isinstance(disk, FaultyDisk)
        return disk

    def stop(self, stopped: Callable[[Exception | None], None]) -> None:
        """A clean stop. `stopped` is called when the last file is closed."""
        assert self.node is not None
        self.serving = False
        self.network.machine_died(self.process)
        try:
            self.node.stop(stopped)
        except PowerCut:
            self._died()

    def stopped(self, *, reboot: bool) -> None:
        """After a clean stop: the process ends; with `reboot` the machine, too, and what was not flushed is gone."""
        if reboot:
            self.die("power", keep="none")
        else:
            self.die("kill")

    def _gone(self) -> None:
        old, self.process.alive = self.process, False
        self.serving = False
        self.node = None
        self.dies_by = ""
        self.network.machine_died(old)
        self.when_down(self)

    def jump_clock(self, by_ms: int) -> None:
        self.wall_offset_ms += by_ms
        self.process.wall_offset_ms = self.wall_offset_ms
