"""A standby's requests to the leader: answered, and given up soon where nobody leads any more."""

from __future__ import annotations

import asyncio
import time

import pytest

from broker.replication.relay import LeaderRelay

FRAME = (3).to_bytes(4, "big") + b"ask"
ANSWER = (6).to_bytes(4, "big") + b"answer"
SOON_S = 4.0
"""On a loaded machine; clients wait longer by all their defaults."""


class Leader:
    """A socket that answers each frame, or takes it and says nothing."""

    def __init__(self, *, hangs=False):
        self.hangs = hangs
        self.connections = 0
        self.asked = asyncio.Event()

    async def _serve(self, reader, writer):
        self.connections += 1
        try:
            while await reader.readexactly(len(FRAME)):
                self.asked.set()
                if not self.hangs:
                    writer.write(ANSWER)
        except asyncio.IncompleteReadError:
            writer.close()

    async def start(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self.server.sockets[0].getsockname()


def ask(relay):
    told = asyncio.get_running_loop().create_future()
    relay.ask(FRAME, told.set_result)
    return told


def test_answers_come_back_over_one_connection():
    async def scenario():
        leader = Leader()
        address = await leader.start()
        relay = LeaderRelay(lambda: address)
        assert [await ask(relay) for _ in range(3)] == [ANSWER] * 3
        assert leader.connections == 1
        relay.close()

    asyncio.run(scenario())


def test_without_a_leader_a_request_is_given_up_soon():
    async def scenario():
        relay = LeaderRelay(lambda: None)
        began = time.monotonic()
        assert await ask(relay) is None
        assert time.monotonic() - began < SOON_S
        relay.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("next_leader", [None, ("127.0.0.1", 1)])
def test_a_request_that_hangs_at_a_leader_is_given_up_when_that_leads_no_more(next_leader):
    """A process that is stopped answers nothing and closes nothing; a new leader may be known or not."""

    async def scenario():
        leader = Leader(hangs=True)
        known = await leader.start()
        relay = LeaderRelay(lambda: known)
        told = ask(relay)
        await leader.asked.wait()
        done, _ = await asyncio.wait({told}, timeout=0.7)
        assert not done, "as long as it leads it is waited for"
        known = next_leader
        assert await asyncio.wait_for(told, SOON_S) is None
        relay.close()

    asyncio.run(scenario())


def test_a_leader_that_comes_within_the_patience_is_asked():
    async def scenario():
        address = await Leader().start()
        known = None
        relay = LeaderRelay(lambda: known)
        told = ask(relay)
        await asyncio.sleep(0)
        known = address
        assert await asyncio.wait_for(told, SOON_S) == ANSWER
        relay.close()

    asyncio.run(scenario())
