"""Small producers and readers over a `SimClient`: both transaction protocols, and reads as a consumer does
them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from support.sim_groups import Member
from support.sim_node import SimClient, batch

from wire.apis import ApiKey
from wire.batch import BATCH_HEADER_SIZE, parse_header
from wire.errors import ErrorCode
from wire.records import iterate_records

READ_COMMITTED = 1


def create_topic(client: SimClient, name: str, partitions: int = 1, **configs: str) -> None:
    answer = client.ask(
        ApiKey.CREATE_TOPICS,
        7,
        topics=(
            {
                "name": name,
                "num_partitions": partitions,
                "replication_factor": 1,
                "assignments": (),
                "configs": tuple({"name": key, "value": value} for key, value in configs.items()),
            },
        ),
        timeout=30_000,
        validate_only=False,
    )
    assert answer.topics[0].error_code is ErrorCode.none, answer


def produce_fields(
    topic: str, records: dict[int, bytes], *, transactional_id: str | None = None, acks: int = -1
) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": 30_000,
        "topic_data": (
            {
                "name": topic,
                "partition_data": tuple({"index": p, "records": data} for p, data in records.items()),
            },
        ),
    }


class Producer:
    """A transactional producer. `v2`: transactions v2 (KIP-890); else the first protocol."""

    def __init__(self, client: SimClient, name: str, *, v2: bool = True, timeout_ms: int = 60_000) -> None:
        self.client = client
        self.name = name
        self.v2 = v2
        self.timeout_ms = timeout_ms
        self.producer_id = -1
        self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    def init(self) -> ErrorCode:
        answer = self.client.ask(
            ApiKey.INIT_PRODUCER_ID,
            4,
            transactional_id=self.name,
            transaction_timeout=self.timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences.clear()
        return answer.error_code

    def add(self, topic: str, partitions: Iterable[int]) -> ErrorCode:
        answer = self.client.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=({"name": topic, "partitions": tuple(partitions)},),
        )
        return answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code

    def send(self, topic: str, records: dict[int, list[bytes]], *, add: bool = True) -> dict[int, ErrorCode]:
        """One produce request; under the first protocol the partitions are added before, unless told not
        to."""
        if not self.v2 and add:
            assert self.add(topic, records) is ErrorCode.none
        data = {}
        for partition, values in records.items():
            sequence = self.sequences.get((topic, partition), 0)
            self.sequences[topic, partition] = sequence + len(values)
            data[partition] = batch(
                *values,
                producer_id=self.producer_id,
                epoch=self.epoch,
                sequence=sequence,
                transactional=True,
            )
        answer = self.client.ask(
            ApiKey.PRODUCE, 12 if self.v2 else 11, **produce_fields(topic, data, transactional_id=self.name)
        )
        return {one.index: one.error_code for one in answer.responses[0].partition_responses}

    def commit_offsets(
        self, group: str, offsets: dict[tuple[str, int], int], member: Member | None = None
    ) -> ErrorCode:
        """With the metadata of a member of the group, or with none (KIP-447)."""
        if not self.v2:
            added = self.client.ask(
                ApiKey.ADD_OFFSETS_TO_TXN,
                3,
                transactional_id=self.name,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=group,
            )
            if added.error_code is not ErrorCode.none:
                return added.error_code
        answer = self.client.ask(
            ApiKey.TXN_OFFSET_COMMIT,
            5 if self.v2 else 3,
            transactional_id=self.name,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id=member.generation_id if member else -1,
            member_id=member.member_id if member else "",
            group_instance_id=None,
            topics=tuple(
                {
                    "name": topic,
                    "partitions": (
                        {
                            "partition_index": partition,
                            "committed_offset": offset,
                            "committed_leader_epoch": -1,
                            "committed_metadata": "",
                        },
                    ),
                }
                for (topic, partition), offset in offsets.items()
            ),
        )
        return answer.topics[0].partitions[0].error_code

    def end_request(self, commit: bool) -> int:
        """Send EndTxn without waiting; the request's number."""
        return self.client.send(
            ApiKey.END_TXN,
            5 if self.v2 else 3,
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )

    def take_end(self, answer: Any) -> ErrorCode:
        """Go on with the identity that an EndTxn answered."""
        if self.v2 and answer.error_code is ErrorCode.none:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return answer.error_code

    def end(self, commit: bool = True) -> ErrorCode:
        number = self.end_request(commit)
        self.client._scheduler.run_until(lambda: number in self.client.answers or self.client.closed)
        return self.take_end(self.client.answers[number])


def list_offset(
    client: SimClient, topic: str, partition: int = 0, *, at: int = -1, committed: bool = True
) -> int:
    answer = client.ask(
        ApiKey.LIST_OFFSETS,
        5,
        replica_id=-1,
        isolation_level=READ_COMMITTED if committed else 0,
        topics=(
            {
                "name": topic,
                "partitions": ({"partition_index": partition, "current_leader_epoch": -1, "timestamp": at},),
            },
        ),
    )
    one = answer.topics[0].partitions[0]
    assert one.error_code is ErrorCode.none, one
    return one.offset


def fetch_fields(
    topic: str,
    offset: int,
    partition: int = 0,
    *,
    committed: bool = True,
    max_wait_ms: int = 0,
    max_bytes: int = 1 << 20,
) -> dict[str, Any]:
    return {
        "replica_id": -1,
        "max_wait": max_wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 26,
        "isolation_level": READ_COMMITTED if committed else 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": (
            {
                "topic": topic,
                "partitions": (
                    {
                        "partition": partition,
                        "current_leader_epoch": -1,
                        "fetch_offset": offset,
                        "log_start_offset": -1,
                        "partition_max_bytes": max_bytes,
                    },
                ),
            },
        ),
        "forgotten_topics_data": (),
        "rack_id": "",
    }


def fetch_one(client: SimClient, topic: str, offset: int, partition: int = 0, **options: Any) -> Any:
    """The partition's part of a Fetch v11 answer."""
    return (
        client.ask(ApiKey.FETCH, 11, **fetch_fields(topic, offset, partition, **options))
        .responses[0]
        .partitions[0]
    )


def batches(records: bytes) -> list[bytes]:
    found = []
    while len(records) >= BATCH_HEADER_SIZE:
        size = parse_header(records).size_bytes
        found.append(records[:size])
        records = records[size:]
    return found


def read_all(
    client: SimClient, topic: str, partition: int = 0, *, committed: bool = True, start: int | None = None
) -> tuple[list[bytes], int]:
    """(values, position) of a reader from the beginning, or `start`, to the end of what it may see."""
    values: list[bytes] = []
    position = list_offset(client, topic, partition, at=-2) if start is None else start
    end = list_offset(client, topic, partition, committed=committed)
    while position < end:
        one = fetch_one(client, topic, position, partition, committed=committed)
        assert one.error_code is ErrorCode.none, one
        assert one.records, f"nothing to read at {position} below {end}: a reader would be stuck"
        for data in batches(one.records):
            header = parse_header(data)
            if not header.is_control:
                values += [
                    record.value or b"" for record in iterate_records(data) if record.offset >= position
                ]
            position = header.last_offset + 1
    return values, position
