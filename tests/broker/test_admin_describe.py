"""DescribeCluster, DescribeTopicPartitions, DescribeLogDirs: what an administrator sees of a broker and its topics."""

from __future__ import annotations

from typing import Any

import pytest
from support.sim_admin import delete_records, grow, send
from support.sim_node import SimClient, SimNode
from support.sim_producer import create_topic

from broker.handlers.describe_topic_partitions import MAX_PARTITIONS
from wire.apis import ApiKey
from wire.errors import ErrorCode

NOT_ASKED = -(1 << 31)


class TestCluster:
    @pytest.mark.parametrize("version", [0, 1, 2])
    def test_one_broker_is_all(self, version: int) -> None:
        world = SimNode(node_id=5)
        answer = world.client().ask(
            ApiKey.DESCRIBE_CLUSTER,
            version,
            include_cluster_authorized_operations=False,
            **({"endpoint_type": 1} if version >= 1 else {}),
        )
        assert answer.error_code is ErrorCode.none
        assert (answer.cluster_id, answer.controller_id) == (world.node.cluster_id, 5)
        assert [(one.broker_id, one.host, one.port) for one in answer.brokers] == [(5, "sim", 9092)]
        assert answer.cluster_authorized_operations == NOT_ASKED

    def test_everything_is_allowed_to_everybody(self) -> None:
        answer = (
            SimNode().client().ask(ApiKey.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=True)
        )
        operations = {n for n in range(31) if answer.cluster_authorized_operations & 1 << n}
        assert operations == {5, 7, 8, 9, 10, 11, 12}

    def test_there_is_no_controllers_address(self) -> None:
        answer = (
            SimNode()
            .client()
            .ask(ApiKey.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=False, endpoint_type=2)
        )
        assert answer.error_code is ErrorCode.mismatched_endpoint_type
        assert answer.brokers == ()
        answer = (
            SimNode()
            .client()
            .ask(ApiKey.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=False, endpoint_type=9)
        )
        assert answer.error_code is ErrorCode.unsupported_endpoint_type


class TestTopicPartitions:
    @staticmethod
    def ask(
        client: SimClient, *names: str, limit: int = 2_000, cursor: tuple[str, int] | None = None
    ) -> tuple[dict[str, list[int]], tuple[str, int] | None, Any]:
        """(partitions by topic, where to go on, the whole answer)."""
        answer = client.ask(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            0,
            topics=tuple({"name": name} for name in names),
            response_partition_limit=limit,
            cursor={"topic_name": cursor[0], "partition_index": cursor[1]} if cursor else None,
        )
        after = answer.next_cursor
        return (
            {topic.name: [one.partition_index for one in topic.partitions] for topic in answer.topics},
            (after.topic_name, after.partition_index) if after is not None else None,
            answer,
        )

    def client(self) -> SimClient:
        client = SimNode().client()
        for name, count in (("b", 3), ("a", 2), ("c", 4)):
            create_topic(client, name, count)
        return client

    def test_all_topics_in_the_order_of_names(self) -> None:
        found, after, answer = self.ask(self.client())
        assert list(found.items()) == [("a", [0, 1]), ("b", [0, 1, 2]), ("c", [0, 1, 2, 3])]
        assert after is None
        partition = answer.topics[0].partitions[0]
        assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, (1,), (1,))
        assert partition.leader_epoch == 1
        assert partition.eligible_leader_replicas == partition.last_known_elr == ()

    def test_topics_by_name_and_one_that_is_not_there(self) -> None:
        found, _, answer = self.ask(self.client(), "c", "x", "a")
        assert list(found) == ["a", "c", "x"]
        assert [topic.error_code for topic in answer.topics] == [
            ErrorCode.none,
            ErrorCode.none,
            ErrorCode.unknown_topic_or_partition,
        ]

    @pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 8, 9])
    def test_pages_of_any_size_make_the_whole(self, limit: int) -> None:
        client = self.client()
        whole: dict[str, list[int]] = {}
        cursor = None
        pages = 0
        while True:
            found, cursor, _ = self.ask(client, limit=limit, cursor=cursor)
            pages += 1
            assert sum(map(len, found.values())) <= limit
            for name, indexes in found.items():
                whole.setdefault(name, []).extend(indexes)
            if cursor is None:
                break
        assert whole == {"a": [0, 1], "b": [0, 1, 2], "c": [0, 1, 2, 3]}
        assert pages == -(-9 // limit)

    def test_a_limit_below_one_is_one_and_above_the_brokers_is_the_brokers(self) -> None:
        client = self.client()
        assert self.ask(client, limit=0)[0] == {"a": [0]}
        create_topic(client, "wide", MAX_PARTITIONS + 1)
        found, after, _ = self.ask(client, "wide", limit=1 << 30)
        assert (len(found["wide"]), after) == (MAX_PARTITIONS, ("wide", MAX_PARTITIONS))

    def test_a_cursor_that_makes_no_sense(self) -> None:
        client = self.client()
        for cursor in (("b", -1), ("b", 0)):
            names = ("a",) if cursor[1] == 0 else ("a", "b")
            _, _, answer = self.ask(client, *names, cursor=cursor)
            assert {topic.error_code for topic in answer.topics} == {ErrorCode.invalid_request}

    def test_a_cursor_at_a_topic_that_was_deleted_goes_on_behind_it(self) -> None:
        found, _, _ = self.ask(self.client(), cursor=("aa", 7))
        assert list(found) == ["b", "c"]

    def test_added_partitions_are_there(self) -> None:
        client = self.client()
        grow(client, "a", 4)
        assert self.ask(client, "a")[0] == {"a": [0, 1, 2, 3]}


class TestLogDirs:
    @staticmethod
    def sizes(client: SimClient, topics: Any = None, version: int = 4) -> dict[tuple[str, int], int]:
        answer = client.ask(ApiKey.DESCRIBE_LOG_DIRS, version, topics=topics)
        (folder,) = answer.results
        assert folder.error_code is ErrorCode.none
        return {
            (topic.name, one.partition_index): one.partition_size
            for topic in folder.topics
            for one in topic.partitions
        }

    @pytest.mark.parametrize("version", [1, 2, 3, 4])
    def test_sizes_grow_with_what_is_written(self, version: int) -> None:
        world = SimNode(data="/somewhere")
        client = world.client()
        create_topic(client, "t", 2)
        create_topic(client, "u")
        assert self.sizes(client, version=version) == {("t", 0): 0, ("t", 1): 0, ("u", 0): 0}
        send(client, "t", {1: [bytes(1_000)]})
        sizes = self.sizes(client, version=version)
        assert sizes["t", 0] == sizes["u", 0] == 0
        assert 1_000 < sizes["t", 1] < 1_200
        wanted = ({"topic": "t", "partitions": (1, 9)}, {"topic": "absent", "partitions": (0,)})
        assert self.sizes(client, wanted, version) == {("t", 1): sizes["t", 1]}
        answer = client.ask(ApiKey.DESCRIBE_LOG_DIRS, version, topics=None)
        assert answer.results[0].log_dir == "/somewhere"

    def test_sizes_are_those_of_all_segments_also_after_a_start(self) -> None:
        world = SimNode(segment_bytes=1 << 16)
        client = world.client()
        create_topic(client, "t", 2)
        for _ in range(20):
            send(client, "t", {0: [bytes(9_000)]})
            world.scheduler.advance(50)
        assert len(world.node.topics.get("t").ranges[0].segments) > 2
        before = self.sizes(client)
        assert 180_000 < before["t", 0] < 185_000
        for ending in ("kill", "cut_power", "restart"):
            getattr(world, ending)()
            assert self.sizes(world.client()) == before, ending
        delete_records(world.client(), "t", {0: 10})
        assert self.sizes(world.client()) == before, "the bytes stay until their segment goes"
