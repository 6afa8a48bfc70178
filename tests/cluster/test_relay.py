"""A standby's requests to the leader: answered, and given up soon where nobody leads any more."""

from __future__ import annotations

import asyncio
import time

import pytest
from support.sim_loop import SimScheduler
from support.sim_node import SimClient

from broker.config import BrokerConfig
from broker.leader_relay import LeaderRelay
from broker.replication.standby import Standby
from broker.replication.standby_view import StandbyView
from wire.apis import ApiKey
from wire.errors import ErrorCode

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


# -- what clients hear where nobody leads


class NoLeader:
    def ask(self, frame, done):
        done(None)


def standby_client():
    scheduler = SimScheduler()
    return SimClient(Standby(BrokerConfig(), scheduler, NoLeader()), scheduler)


TRANSACTION = {"transactional_id": "p", "producer_id": 7, "producer_epoch": 1}
TOPICS = ({"name": "t", "partitions": (0, 3)},)
OFFSETS = (
    {
        "name": "t",
        "partitions": (
            {
                "partition_index": 3,
                "committed_offset": 1,
                "committed_leader_epoch": -1,
                "committed_metadata": "",
            },
        ),
    },
)
ADD_OF_OLD = {f"v3_and_below_{name}": value for name, value in (TRANSACTION | {"topics": TOPICS}).items()}
OFFSETS_SENT = TRANSACTION | {
    "group_id": "g",
    "generation_id": -1,
    "member_id": "",
    "group_instance_id": None,
    "topics": OFFSETS,
}


@pytest.mark.parametrize(
    ("key", "version", "fields", "code_of"),
    [
        (ApiKey.END_TXN, 3, TRANSACTION | {"committed": True}, lambda answer: answer.error_code),
        (ApiKey.END_TXN, 5, TRANSACTION | {"committed": True}, lambda answer: answer.error_code),
        (
            ApiKey.INIT_PRODUCER_ID,
            4,
            TRANSACTION | {"transaction_timeout": 1000},
            lambda answer: answer.error_code,
        ),
        (ApiKey.ADD_OFFSETS_TO_TXN, 3, TRANSACTION | {"group_id": "g"}, lambda answer: answer.error_code),
        (
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            ADD_OF_OLD,
            lambda answer: (
                answer.results_by_topic_v3_and_below[0].results_by_partition[1].partition_error_code
            ),
        ),
        (
            ApiKey.ADD_PARTITIONS_TO_TXN,
            4,
            {"transactions": (TRANSACTION | {"verify_only": False, "topics": TOPICS},)},
            lambda answer: (
                answer.results_by_transaction[0].topic_results[0].results_by_partition[1].partition_error_code
            ),
        ),
        (
            ApiKey.TXN_OFFSET_COMMIT,
            3,
            OFFSETS_SENT,
            lambda answer: answer.topics[0].partitions[0].error_code,
        ),
    ],
)
def test_a_transaction_s_requests_hear_that_it_is_not_coordinated_here(key, version, fields, code_of):
    assert code_of(standby_client().ask(key, version, **fields)) is ErrorCode.not_coordinator


@pytest.mark.parametrize(
    ("key", "version", "fields"),
    [
        (ApiKey.METADATA, 9, {"topics": None}),
        (ApiKey.FIND_COORDINATOR, 3, {"key_type": 1, "key": "p"}),
        (
            ApiKey.INIT_PRODUCER_ID,
            4,
            {
                "transactional_id": None,
                "transaction_timeout": -1,
                "producer_id": -1,
                "producer_epoch": -1,
            },
        ),
    ],
)
def test_what_any_node_may_answer_is_cut_off_so_that_another_is_asked(key, version, fields):
    client = standby_client()
    client.send(key, version, **fields)
    assert client.closed


@pytest.mark.parametrize("leader", [2, None])
def test_a_new_connection_is_greeted_where_a_leader_is_known(leader):
    scheduler = SimScheduler()
    view = StandbyView(1, lambda: (leader, 3), list)
    client = SimClient(Standby(BrokerConfig(), scheduler, NoLeader(), view), scheduler)
    client.send(ApiKey.API_VERSIONS, 3, client_software_name="c", client_software_version="1")
    scheduler.run_ready()
    assert client.closed is (leader is None)
    assert bool(client.answers) is (leader is not None)
