"""A load on replicated logs without a broker: a few writers per log, and the history of what they were told."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
import traceback
from typing import Any

from tests.cluster.lanes import Lanes
from tests.cluster.links import Address
from tests.cluster.machines import RaftishCluster
from tests.history import Event, FinalEnds, FinalRead, PlainAcked, Sent, Violation, check

ASK_TIMEOUT_S = 0.7
WRITERS_PER_GROUP = 2


class LineClient:
    """One connection to one node, made anew when it broke."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._stream: Any = None
        self._socket: socket.socket | None = None

    def ask(self, timeout_s: float = ASK_TIMEOUT_S, **request: object) -> dict[str, Any] | None:
        """The answer, or None where none came in time: what was asked may have happened."""
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self._address, timeout_s)
                self._stream = self._socket.makefile("rwb")
            self._socket.settimeout(timeout_s)
            self._stream.write(json.dumps(request).encode() + b"\n")
            self._stream.flush()
            line = self._stream.readline()
            if line:
                answer: dict[str, Any] = json.loads(line)
                return answer
        except (OSError, ValueError):
            pass
        self.close()
        return None

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._stream.close()
            self._socket.close()
        self._socket = None


class _Writer(threading.Thread):
    """Appends texts to one log; one that was not acknowledged is never sent again."""

    def __init__(self, load: LineLoad, group: int, number: int) -> None:
        super().__init__(name=f"w{group}-{number}", daemon=True)
        self.load = load
        self.group = group
        self.rng = random.Random(f"{load.seed} {self.name}")
        self.clients = {node: LineClient(address) for node, address in load.cluster.clients.items()}

    def run(self) -> None:
        try:
            self._write()
        except Exception:  # noqa: BLE001 - the run fails with it
            self.load.failures.append(traceback.format_exc())
        for client in self.clients.values():
            client.close()

    def _write(self) -> None:
        nodes = list(self.clients)
        node = self.rng.choice(nodes)
        number = 0
        while not self.load.stopping:
            text, number = f"{self.name}/{number}", number + 1
            self.load.events.append(Sent(self.name, None, f"log-{self.group}", 0, text))
            began = time.monotonic()
            answer = self.clients[node].ask(op="append", group=self.group, text=text)
            if answer is not None and answer["error"] is None:
                self.load.events.append(PlainAcked(text))
                self.load.lanes.succeeded(f"log-{self.group}", began)
                time.sleep(0.004)
                continue
            leader = answer.get("leader") if answer is not None else None
            node = leader if leader in self.clients and leader != node else self.rng.choice(nodes)
            time.sleep(0.02)


class LineLoad:
    """All writers."""

    def __init__(self, cluster: RaftishCluster, seed: int) -> None:
        self.cluster = cluster
        self.seed = seed
        self.lanes = Lanes([f"log-{group}" for group in range(cluster.groups)])
        self.commit_lanes: tuple[str, ...] = ()
        self.events: list[Event] = []
        self.failures: list[str] = []
        self.stopping = False
        self._writers = [
            _Writer(self, group, number)
            for group in range(cluster.groups)
            for number in range(WRITERS_PER_GROUP)
        ]

    def start(self) -> None:
        for writer in self._writers:
            writer.start()

    def troubled(self) -> None:
        """Nothing to do: these writers ride on by themselves."""

    def stop(self) -> None:
        self.stopping = True
        for writer in self._writers:
            writer.join(10)
        assert not self.failures, "the load itself failed:\n" + "\n".join(self.failures)

    def judge(self) -> list[Violation]:
        """Stops, reads every log, and judges the history."""
        self.stop()
        events = list(self.events)
        for group in range(self.cluster.groups):
            texts = self._read(group)
            name, records = f"log-{group}", tuple(enumerate(texts))
            events += [FinalRead(name, 0, committed, records, len(texts)) for committed in (True, False)]
            events.append(FinalEnds(name, 0, 0, len(texts), len(texts)))
        return check(events, markerless=True)

    def _read(self, group: int, timeout_s: float = 30) -> list[str]:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for address in self.cluster.clients.values():
                with contextlib.closing(LineClient(address)) as client:
                    answer = client.ask(5, op="read", group=group)
                if answer is not None and answer["error"] is None:
                    return list(answer["texts"])
            time.sleep(0.05)
        raise AssertionError(f"log {group} cannot be read:\n{self.cluster.logs()}")

    def report(self) -> str:
        return "\n".join(f"  {lane}: {count} acknowledged" for lane, count in sorted(self.lanes.done.items()))
