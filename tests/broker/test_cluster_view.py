"""What clients hear of a cluster on the wire: leaders, coordinators, hints (KIP-951), near replicas (KIP-392)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sim_node import SimNode, batch
from support.sim_producer import create_topic, fetch_fields, produce_fields

from broker.cluster_view import NOBODY, Broker, Leadership
from broker.read_replica import NONE, Replica, follower_error, preferred
from wire.apis import ApiKey
from wire.errors import ErrorCode, KafkaError

BROKERS = (Broker(1, "one", 9001, "a"), Broker(2, "two", 9002, "b"), Broker(3, "three", 9003, "b"))


class View:
    """Three nodes, of which the simulated one is 1. Node `leader` leads everything, in epoch 7."""

    node_id = 1

    def __init__(self, leader, followers=(), *, is_new=False):
        self.leader = leader
        self.is_new = is_new
        self.followers = followers

    def brokers(self):
        return BROKERS

    def controller(self):
        return 3

    def leadership(self, partition):
        return Leadership(self.leader, 7, (1, 2, 3), (1, 2, 3))

    def leads(self, partition):
        return self.leader == self.node_id

    def led_lately(self, partition):
        return self.is_new

    def goes_on(self, partition):
        return self.is_new

    def replicas(self, partition):
        return self.followers

    def coordinator(self, kind, key):
        return NOBODY if key == "nowhere" else 2 + kind

    def replication_factor(self, wanted):
        if wanted > 3:
            raise KafkaError(ErrorCode.invalid_replication_factor, "three nodes")
        return 3 if wanted == -1 else wanted


@pytest.fixture(scope="module")
def world():
    made = SimNode(broker_rack="a")
    create_topic(made.client(), "t", 2)
    client = made.client()
    client.ask(ApiKey.PRODUCE, 9, **produce_fields("t", {0: batch(b"x", b"y")}))
    return made


@pytest.fixture
def client(world):
    yield world.client()
    world.node.cluster = None


def topic_id(world):
    return world.node.topics.get("t").id


def produce(world, client, version):
    fields = produce_fields("t", {0: batch(b"z"), 1: batch(b"z")})
    if version >= 13:
        fields["topic_data"][0]["topic_id"] = topic_id(world)
        del fields["topic_data"][0]["name"]
    return client.ask(ApiKey.PRODUCE, version, **fields)


def fetch(world, client, version, *, rack="", offset=0, epoch=-1, wait_ms=0):
    fields = fetch_fields("t", offset, max_wait_ms=wait_ms) | ({"rack_id": rack} if version >= 11 else {})
    fields["topics"][0]["partitions"][0]["current_leader_epoch"] = epoch
    if version >= 13:
        fields["topics"][0]["topic_id"] = topic_id(world)
        del fields["topics"][0]["topic"]
    if version >= 15:
        del fields["replica_id"]
    answer = client.ask(ApiKey.FETCH, version, **fields)
    return answer, answer.responses[0].partitions[0]


def endpoints(answer):
    return [(int(one.node_id), one.host, int(one.port), one.rack) for one in answer.node_endpoints]


def leader(result):
    return int(result.current_leader.leader_id), int(result.current_leader.leader_epoch)


# -- who is there


@pytest.mark.parametrize("version", [0, 1, 9, 12, 13])
def test_metadata_names_brokers_racks_and_leaders(world, client, version):
    world.node.cluster = View(2)
    answer = client.ask(ApiKey.METADATA, version, topics=None if version else ())
    assert [(int(one.node_id), one.host, int(one.port)) for one in answer.brokers] == [
        (1, "one", 9001),
        (2, "two", 9002),
        (3, "three", 9003),
    ]
    partition = answer.topics[0].partitions[1]
    assert int(partition.leader_id) == 2
    assert tuple(map(int, partition.replica_nodes)) == (1, 2, 3)
    if version >= 1:
        assert [one.rack for one in answer.brokers] == ["a", "b", "b"]
        assert int(answer.controller_id) == 3


def test_metadata_says_that_there_is_no_leader(world, client):
    world.node.cluster = View(NOBODY)
    partition = client.ask(ApiKey.METADATA, 12, topics=None).topics[0].partitions[0]
    assert partition.error_code is ErrorCode.leader_not_available
    assert int(partition.leader_id) == -1


def test_a_broker_by_itself_shows_its_rack(world, client):
    answer = client.ask(ApiKey.METADATA, 12, topics=None)
    assert [(int(one.node_id), one.rack) for one in answer.brokers] == [(1, "a")]
    assert [one.rack for one in client.ask(ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=1).brokers] == ["a"]


def test_the_cluster_is_described(world, client):
    world.node.cluster = View(2)
    answer = client.ask(ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=1)
    assert int(answer.controller_id) == 3
    assert [(int(one.broker_id), one.host, one.rack) for one in answer.brokers][1] == (2, "two", "b")


@pytest.mark.parametrize(("kind", "node"), [(0, (2, "two", 9002)), (1, (3, "three", 9003))])
def test_coordinators_are_on_their_nodes(world, client, kind, node):
    world.node.cluster = View(1)
    answer = client.ask(ApiKey.FIND_COORDINATOR, 4, key_type=kind, coordinator_keys=("k", "nowhere"))
    first, second = answer.coordinators
    assert (int(first.node_id), first.host, int(first.port)) == node
    assert (second.error_code, int(second.node_id)) == (ErrorCode.coordinator_not_available, -1)
    single = client.ask(ApiKey.FIND_COORDINATOR, 3, key_type=kind, key="k")
    assert (int(single.node_id), single.host, int(single.port)) == node


@pytest.mark.parametrize(
    ("factor", "code"),
    [(-1, ErrorCode.none), (2, ErrorCode.none), (4, ErrorCode.invalid_replication_factor)],
)
def test_a_topic_s_replication_factor_is_checked(world, client, factor, code):
    world.node.cluster = View(1)
    topic = {
        "name": "new",
        "num_partitions": 1,
        "replication_factor": factor,
        "assignments": (),
        "configs": (),
    }
    answer = client.ask(ApiKey.CREATE_TOPICS, 7, topics=(topic,), timeout=30_000, validate_only=True)
    assert answer.topics[0].error_code is code
    if code is ErrorCode.none:
        assert int(answer.topics[0].replication_factor) == (3 if factor == -1 else factor)


# -- hints


@pytest.mark.parametrize("version", [8, 9, 10, 12, 13])
def test_produce_names_the_leader_from_version_10_on(world, client, version):
    world.node.cluster = View(2)
    answer = produce(world, client, version)
    results = answer.responses[0].partition_responses
    assert {one.error_code for one in results} == {ErrorCode.not_leader_or_follower}
    if version >= 10:
        assert {leader(one) for one in results} == {(2, 7)}
        assert endpoints(answer) == [(2, "two", 9002, "b")]
    world.node.cluster = None
    assert produce(world, client, version).responses[0].partition_responses[0].error_code is ErrorCode.none


def test_nobody_is_named_where_nobody_leads(world, client):
    world.node.cluster = View(NOBODY)
    answer = produce(world, client, 12)
    assert leader(answer.responses[0].partition_responses[0]) == (-1, -1)
    assert endpoints(answer) == []


@pytest.mark.parametrize("version", [4, 11, 12, 15, 16, 18])
def test_fetch_names_the_leader_from_version_16_on(world, client, version):
    world.node.cluster = View(3)
    answer, result = fetch(world, client, version)
    assert result.error_code is ErrorCode.not_leader_or_follower
    if version >= 12:
        assert leader(result) == ((3, 7) if version >= 16 else (-1, -1))
    if version >= 16:
        assert endpoints(answer) == [(3, "three", 9003, "b")]


# -- near replicas


def test_the_leader_sends_a_consumer_to_the_replica_in_its_rack_at_once(world, client):
    near = [Replica(2, "b", 0, 2), Replica(3, "b", 0, 1)]
    world.node.cluster = View(1, near)
    _, result = fetch(world, client, 11, rack="b", offset=2, wait_ms=60_000)
    assert int(result.preferred_read_replica) == 2
    assert not result.records
    for version, rack in ((11, "a"), (11, "c"), (11, ""), (10, "b")):
        _, result = fetch(world, client, version, rack=rack)
        assert result.records, (version, rack)
        assert version < 11 or int(result.preferred_read_replica) == -1


def test_a_follower_answers_whoever_names_a_rack(world, client):
    world.node.cluster = View(2)
    _, result = fetch(world, client, 12, rack="a")
    assert result.error_code is ErrorCode.none
    assert result.records
    assert int(result.preferred_read_replica) == -1
    _, result = fetch(world, client, 12, rack="a", offset=1_000)
    assert result.error_code is ErrorCode.offset_not_available


CHOICES = [
    ("the leader is there", "a", [Replica(2, "a", 0, 10)], NONE),
    ("no rack", "", [Replica(2, "b", 0, 10)], NONE),
    ("one there", "b", [Replica(2, "b", 0, 10)], 2),
    ("none there", "c", [Replica(2, "b", 0, 10)], NONE),
    ("the one that has more", "b", [Replica(2, "b", 0, 6), Replica(3, "b", 0, 7)], 3),
    ("alike: the first", "b", [Replica(3, "b", 0, 7), Replica(2, "b", 0, 7)], 2),
    ("it does not have it yet", "b", [Replica(2, "b", 0, 4)], NONE),
    ("it does not have it any more", "b", [Replica(2, "b", 6, 9)], NONE),
    ("it is out of sync", "b", [Replica(2, "b", 0, 9, in_sync=False)], NONE),
    ("a node without a rack", "b", [Replica(2, None, 0, 9)], NONE),
]


@pytest.mark.parametrize(
    ("rack", "followers", "chosen"), [c[1:] for c in CHOICES], ids=[c[0] for c in CHOICES]
)
def test_the_choice_of_a_replica(rack, followers, chosen):
    assert preferred(rack, "a", followers, 5) == chosen


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_a_follower_s_answer(offset, start, length):
    error = follower_error(offset, start, start + length)
    expected = (
        ErrorCode.offset_out_of_range
        if offset < start
        else ErrorCode.none
        if offset <= start + length
        else ErrorCode.offset_not_available
    )
    assert error is expected


# -- batches ahead of their turn


def send(client, producer_id, sequence, *, epoch=0):
    data = batch(b"v", producer_id=producer_id, epoch=epoch, sequence=sequence)
    answer = client.ask(ApiKey.PRODUCE, 9, **produce_fields("t", {1: data}))
    return answer.responses[0].partition_responses[0].error_code


@pytest.mark.parametrize("known", [True, False])
def test_a_batch_ahead_of_its_turn_is_asked_for_again_as_long_as_the_leader_is_new(world, client, known):
    world.node.cluster = View(1, is_new=True)
    producer_id = 1000 + known
    first = 5 if known else 0
    if known:
        for sequence in range(first):
            assert send(client, producer_id, sequence) is ErrorCode.none
    # What comes before it failed at the leader of before, and is sent again after this one (librdkafka's race).
    assert send(client, producer_id, first + 1) is ErrorCode.not_enough_replicas
    assert send(client, producer_id, first) is ErrorCode.none
    assert send(client, producer_id, first + 1) is ErrorCode.none
    assert send(client, producer_id, 1, epoch=1) is ErrorCode.not_enough_replicas
    # What is behind its turn, and no repeat that is known, does not get right by being sent again.
    for sequence in range(2, 9):
        send(client, producer_id, first + sequence)
    assert send(client, producer_id, 0) is ErrorCode.out_of_order_sequence_number
    world.node.cluster = View(1)
    assert send(client, producer_id, 100) is ErrorCode.out_of_order_sequence_number
    assert send(client, producer_id + 10, 100) is ErrorCode.none
