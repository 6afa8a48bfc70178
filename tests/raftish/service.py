"""A replicated log as a process: `python -m tests.raftish.service '{"node": 1, ...}'`.

A client sends lines of JSON: {"op": "append", "group": g, "text": ...}, {"op": "read", "group": g}, {"op": "status"};
each gets one line back, an append when it is committed. A hasty service is wrong on purpose: it does not wait.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import sys
import time

from broker.scheduler import LoopScheduler
from raftish.config import Config
from raftish.core import NotLeader, NotNow
from raftish.entries import HardState, Kind
from raftish.host import Host
from raftish.membership import Membership
from raftish.transport import Transport
from storage.real_disk import RealDisk
from tests.raftish.file_log import FileHardStates, FileLog

SECRET = b"the secret of a cluster in a test"
CONFIG = Config(election_timeout_ms=400, heartbeat_ms=60, retry_ms=200)


class Texts:
    """A group's state: what was appended, in order."""

    def __init__(self):
        self.texts = []

    def committed(self, entries):
        self.texts += [entry.payload.decode() for entry in entries if entry.kind is Kind.NORMAL]

    def led_by(self, leader, term):
        pass

    def restore(self, request, done):
        raise AssertionError("no log is ever cut in this service")


class Receiver:
    """The host and its transport need each other."""

    host: Host

    def received(self, number, message):
        self.host.received(number, message)

    def received_beats(self, peer, beats):
        self.host.received_beats(peer, beats)


class Service:
    def __init__(self, node, groups, peers, listen, folder, hasty=False):
        self.peers = {int(peer): tuple(address) for peer, address in peers.items()}
        self.node = node
        self.hasty = hasty
        self.listen = listen
        loop = asyncio.get_running_loop()
        scheduler = LoopScheduler(loop)
        disk = RealDisk(folder, loop.call_soon_threadsafe)
        receiver = Receiver()
        self.transport = Transport(node, SECRET, time.time_ns(), receiver, secrets.token_bytes, random.random)
        hard_states = FileHardStates(disk, scheduler, "hard-states")
        receiver.host = self.host = Host(
            node, CONFIG, scheduler, hard_states, self.transport, random.random, tick_ms=20
        )
        first = Membership(frozenset(self.peers))
        self.machines = {}
        for number in range(groups):
            log = FileLog(disk, scheduler, f"log-{number}")
            machine = self.machines[number] = Texts()
            hard_state = hard_states.found.get(number, HardState(0, None))
            self.host.add(number, log, hard_state, log.known_members(first), machine)

    async def run(self):
        await self.transport.start(self.peers[self.node], self.peers)
        server = await asyncio.start_server(self._serve, *self.listen)
        await server.serve_forever()

    async def _serve(self, reader, writer):
        while line := await reader.readline():
            writer.write(json.dumps(await self._answer(json.loads(line))).encode() + b"\n")

    async def _answer(self, request):
        done = asyncio.get_running_loop().create_future()

        def settle(error):
            if not done.done():
                done.set_result(error)

        if request["op"] == "status":
            return {
                "leaders": [group.leader for group in self.host.groups.values()],
                "commits": [group.raft.commit for group in self.host.groups.values()],
                "suspects": [peer for peer in self.peers if peer != self.node and self.host.suspects(peer)],
            }
        group = self.host.groups[request["group"]]
        try:
            if request["op"] == "append":
                group.propose([request["text"].encode()], settle)
                if self.hasty:
                    settle(None)
            else:
                group.read(settle)
            error = await done
        except (NotLeader, NotNow) as refusal:
            error = refusal
        if error is not None:
            return {"error": type(error).__name__, "leader": group.leader}
        if request["op"] == "append":
            return {"error": None}
        return {"error": None, "texts": list(self.machines[request["group"]].texts)}


async def main():
    await Service(**json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    asyncio.run(main())
