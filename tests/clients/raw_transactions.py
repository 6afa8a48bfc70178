"""Transactions spoken by hand, in either protocol, for the raw tests: what is sent is what the test says."""

import time
from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from tests.clients.raw_batches import batch, parse
from tests.clients.raw_kafka import RawKafka

HANG_S = 60.0


class RawTransactions:
    """A transactional producer's identity and its requests. `epoch` moves only when the test moves it."""

    def __init__(self, raw: RawKafka, transactional_id: str, *, timeout_ms: int = 60_000) -> None:
        self.raw = raw
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        response = raw.init_producer(transactional_id, timeout_ms=timeout_ms)
        assert response.error_code is ErrorCode.none, response
        self.pid: int = response.producer_id
        self.epoch: int = response.producer_epoch

    def produce(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        sequence: int = 0,
        partition: int = 0,
        version: int = 12,
        epoch: int | None = None,
        transactional_id: str | None = "",
    ) -> Any:
        """One batch to one partition; its PartitionProduceResponse."""
        data = batch(
            values,
            pid=self.pid,
            epoch=self.epoch if epoch is None else epoch,
            sequence=sequence,
            transactional=True,
        )
        name = self.transactional_id if transactional_id == "" else transactional_id
        return self.raw.produce(topic, {partition: data}, transactional_id=name, version=version)[partition]

    def add_partitions(
        self, topic: str, partitions: Sequence[int] = (0,), *, version: int = 3, epoch: int | None = None
    ) -> dict[int, ErrorCode]:
        response = self.raw.call(
            "add_partitions_to_txn",
            version,
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.pid,
            v3_and_below_producer_epoch=self.epoch if epoch is None else epoch,
            v3_and_below_topics=[{"name": topic, "partitions": partitions}],
        )
        results = response.results_by_topic_v3_and_below[0].results_by_partition
        return {each.partition_index: each.partition_error_code for each in results}

    def add_offsets(self, group: str, *, version: int = 3) -> ErrorCode:
        response = self.raw.call(
            "add_offsets_to_txn",
            version,
            transactional_id=self.transactional_id,
            producer_id=self.pid,
            producer_epoch=self.epoch,
            group_id=group,
        )
        code: ErrorCode = response.error_code
        return code

    def commit_offset(
        self,
        group: str,
        topic: str,
        offset: int,
        *,
        version: int = 5,
        epoch: int | None = None,
        generation: int = -1,
        member: str = "",
        metadata: str = "",
    ) -> ErrorCode:
        partition = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": metadata,
        }
        response = self.raw.call(
            "txn_offset_commit",
            version,
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.pid,
            producer_epoch=self.epoch if epoch is None else epoch,
            generation_id=generation,
            member_id=member,
            group_instance_id=None,
            topics=[{"name": topic, "partitions": [partition]}],
        )
        code: ErrorCode = response.topics[0].partitions[0].error_code
        return code

    def end(self, *, commit: bool, version: int = 5, epoch: int | None = None) -> Any:
        """EndTxn, asked again while Apache Kafka, still writing markers, says CONCURRENT_TRANSACTIONS."""
        deadline = time.monotonic() + HANG_S
        while True:
            response = self.raw.end_txn(
                self.transactional_id,
                self.pid,
                self.epoch if epoch is None else epoch,
                commit=commit,
                version=version,
            )
            if response.error_code is not ErrorCode.concurrent_transactions:
                return response
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def commit(self) -> None:
        """End by commit in protocol 2 and take up the next epoch."""
        response = self.end(commit=True)
        assert (response.error_code, response.producer_id) == (ErrorCode.none, self.pid), response
        self.epoch = response.producer_epoch

    def abort(self) -> None:
        response = self.end(commit=False)
        assert (response.error_code, response.producer_id) == (ErrorCode.none, self.pid), response
        self.epoch = response.producer_epoch

    def init_again(self) -> Any:
        """A new instance with the same id: the fencing InitProducerId, asked again while Kafka answers 51."""
        deadline = time.monotonic() + HANG_S
        while True:
            response = self.raw.init_producer(self.transactional_id, timeout_ms=self.timeout_ms)
            if response.error_code is not ErrorCode.concurrent_transactions:
                return response
            assert time.monotonic() < deadline
            time.sleep(0.005)


def committed_offset(raw: RawKafka, group: str, topic: str, *, stable: bool = True) -> tuple[int, ErrorCode]:
    """OffsetFetch v8 of partition 0: (offset or -1, error)."""
    response = raw.call(
        "offset_fetch",
        8,
        groups=[{"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}],
        require_stable=stable,
    )
    assert response.groups[0].error_code is ErrorCode.none, response
    partition = response.groups[0].topics[0].partitions[0]
    return partition.committed_offset, partition.error_code


def settled_offset(raw: RawKafka, group: str, topic: str) -> int:
    """The committed offset once no transaction holds it any more (Apache Kafka frees it after the commit)."""
    deadline = time.monotonic() + HANG_S
    while True:
        offset, error = committed_offset(raw, group, topic)
        if error is ErrorCode.none:
            return offset
        assert error is ErrorCode.unstable_offset_commit
        assert time.monotonic() < deadline
        time.sleep(0.005)


def read_committed(raw: RawKafka, topic: str, count: int, partition: int = 0) -> list[bytes | None]:
    """The first `count` committed values, following the log from its start; more of them are a failure."""
    deadline = time.monotonic() + HANG_S
    found: list[bytes | None] = []
    offset = 0
    while True:
        got = raw.fetch(topic, partition, offset, max_wait_ms=100)
        assert got.error_code is ErrorCode.none, got
        dropped = {each.producer_id: each.first_offset for each in got.aborted_transactions or ()}
        for each in parse(got.records):
            if each.is_control:
                dropped.pop(each.pid, None)
            elif not (each.pid in dropped and dropped[each.pid] <= each.base_offset):
                found.extend(each.values)
            offset = each.last_offset + 1
        if offset >= got.last_stable_offset and len(found) >= count:
            assert len(found) == count, found
            return found
        assert time.monotonic() < deadline, found
