"""Every request of a transactional producer over a `SimClient`, in every version, under any identity."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from support.sim_node import SimClient, SimNode, batch
from support.sim_producer import Producer, produce_fields

from wire.apis import ApiKey
from wire.errors import ErrorCode

BATCHED_ADD_VERSION = 4
IDENTITY_VERSION = 3
TOPIC_ID_VERSION = 13


@dataclass(frozen=True, slots=True)
class Caller:
    """Asks as the holder of (name, producer id, epoch); every answer is its error code."""

    client: SimClient
    name: str
    producer_id: int
    epoch: int

    @classmethod
    def of(cls, producer: Producer) -> Caller:
        return cls(producer.client, producer.name, producer.producer_id, producer.epoch)

    def but(self, **changes: Any) -> Caller:
        return replace(self, **changes)

    def add_partitions(self, version: int, topic: str = "t", partitions: Iterable[int] = (0,)) -> ErrorCode:
        topics = ({"name": topic, "partitions": tuple(partitions)},)
        if version < BATCHED_ADD_VERSION:
            answer = self.client.ask(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                version,
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=topics,
            )
            results = answer.results_by_topic_v3_and_below
        else:
            answer = self.client.ask(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                version,
                transactions=(
                    {
                        "transactional_id": self.name,
                        "producer_id": self.producer_id,
                        "producer_epoch": self.epoch,
                        "verify_only": False,
                        "topics": topics,
                    },
                ),
            )
            results = answer.results_by_transaction[0].topic_results
        code: ErrorCode = results[0].results_by_partition[0].partition_error_code
        return code

    def add_offsets(self, version: int, group: str = "g") -> ErrorCode:
        answer = self.client.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, **self._identity(), group_id=group)
        code: ErrorCode = answer.error_code
        return code

    def send_offset(
        self,
        version: int,
        offset: int = 1,
        *,
        group: str = "g",
        topic: str = "t",
        partition: int = 0,
        generation: int = -1,
        member: str = "",
        instance: str | None = None,
    ) -> int:
        """TxnOffsetCommit without waiting; the request's number."""
        part = {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        fields = self._identity() | {
            "group_id": group,
            "topics": ({"name": topic, "partitions": (part,)},),
            "generation_id": generation,
            "member_id": member,
            "group_instance_id": instance,
        }
        return self.client.send(ApiKey.TXN_OFFSET_COMMIT, version, **fields)

    def commit_offset(self, version: int, offset: int = 1, **options: Any) -> ErrorCode:
        """The same, with its answer; `options` as of `send_offset`."""
        number = self.send_offset(version, offset, **options)
        self.client._scheduler.run_until(lambda: number in self.client.answers or self.client.closed)
        code: ErrorCode = self.client.answers[number].topics[0].partitions[0].error_code
        return code

    def produce_answer(
        self, version: int, *values: bytes, sequence: int = 0, topic: str = "t", partition: int = 0
    ) -> Any:
        """The partition's part of the answer."""
        data = batch(
            *(values or (b"x",)),
            producer_id=self.producer_id,
            epoch=self.epoch,
            sequence=sequence,
            transactional=True,
        )
        fields = produce_fields(topic, {partition: data}, transactional_id=self.name)
        if version >= TOPIC_ID_VERSION:
            known = self.client.session._node.topics.get(topic)
            assert known is not None
            fields["topic_data"][0]["topic_id"] = known.id
        answer = self.client.ask(ApiKey.PRODUCE, version, **fields)
        return answer.responses[0].partition_responses[0]

    def produce(self, version: int, *values: bytes, **options: Any) -> ErrorCode:
        code: ErrorCode = self.produce_answer(version, *values, **options).error_code
        return code

    def end_answer(self, version: int, *, commit: bool) -> Any:
        return self.client.ask(ApiKey.END_TXN, version, **self._identity(), committed=commit)

    def commit(self, version: int) -> ErrorCode:
        code: ErrorCode = self.end_answer(version, commit=True).error_code
        return code

    def abort(self, version: int) -> ErrorCode:
        code: ErrorCode = self.end_answer(version, commit=False).error_code
        return code

    def init_answer(self, version: int, *, timeout_ms: int = 60_000) -> Any:
        """InitProducerId with this identity, where the version has one; -1, -1 names none."""
        return self.client.ask(
            ApiKey.INIT_PRODUCER_ID,
            version,
            transactional_id=self.name,
            transaction_timeout=timeout_ms,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
        )

    def init(self, version: int, **options: Any) -> ErrorCode:
        code: ErrorCode = self.init_answer(version, **options).error_code
        return code

    def _identity(self) -> dict[str, Any]:
        return {
            "transactional_id": self.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }


def set_epoch(world: SimNode, producer: Producer, epoch: int) -> None:
    """Take a producer, with nothing open, to an epoch that it would take days to get to."""
    held = world.node.coordinator.get(producer.name)
    assert held is not None
    assert held.open is None
    held.epoch = producer.epoch = epoch
    held.last_end = None
    world.node.store.apply(world.node.coordinator._ids.record_ops(held))
    producer.sequences.clear()
