"""Producers outside of transactions: plain ones never repeat themselves, idempotent ones do until they know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.history import PlainAcked, Sent
from tests.simulation.actor import OK, Actor, batch_of, produce_fields
from tests.simulation.network import Gone
from wire.apis import ApiKey
from wire.errors import ErrorCode

ABSENT = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)


class Plain(Actor):
    """acks=all, one record after another, none of them twice. Who got no answer goes on under another name."""

    async def run(self) -> None:
        topic = self.options["topic"]
        keyed = self.options.get("keyed", False)
        count, incarnation = 0, 0
        while not self.over:
            count += 1
            partition = self.random.randrange(self.world.partitions[topic])
            value = f"{self.name}.{count}"
            key = f"{self.name}-k{self.random.randrange(3)}" if keyed else None
            self.note(Sent(f"{self.name}/{incarnation}", None, topic, partition, value, key))
            data = batch_of([(key, self.padded(value))], self.process.now_ms())
            try:
                answer = await self.ask(ApiKey.PRODUCE, 9, **produce_fields(topic, {partition: data}))
            except Gone:
                incarnation += 1
                await self.pause(30)
                continue
            part = answer.responses[0].partition_responses[0]
            if part.error_code is OK:
                self.note(PlainAcked(value, part.base_offset))
                self.world.count("records acknowledged")
            elif part.error_code is ErrorCode.kafka_storage_error:
                await self.pause(50)
            elif part.error_code in ABSENT:
                return
            await self.pause(self.options.get("every_ms", 20))


@dataclass(slots=True)
class _Batch:
    partition: int
    sequence: int
    values: list[str]
    data: bytes


class Idempotent(Actor):
    """Several batches in flight on one connection; after a failure what is not acknowledged is sent again, in order."""

    async def run(self) -> None:
        self._count = 0
        incarnation = 0
        while not self.over:
            incarnation += 1
            producer_id = await self.persist(self._init)
            await self._stream(f"{self.name}/{incarnation}", producer_id)

    async def _init(self) -> int:
        while True:
            answer = await self.ask(
                ApiKey.INIT_PRODUCER_ID,
                4,
                transactional_id=None,
                transaction_timeout=60_000,
                producer_id=-1,
                producer_epoch=-1,
            )
            if answer.error_code is OK:
                return int(answer.producer_id)
            await self.pause(50)

    async def _stream(self, name: str, producer_id: int) -> None:
        """Until the producer id cannot go on."""
        topic = self.options["topic"]
        sequences: dict[int, int] = {}
        waiting: list[_Batch] = []
        while waiting or not self.over:
            while (
                not self.over
                and len(waiting) < self.options.get("in_flight", 4)
                and self.random.random() < 0.7
            ):
                partition = self.random.randrange(self.world.partitions[topic])
                values = [self._value() for _ in range(self.random.choice((1, 1, 2, 5)))]
                for value in values:
                    self.note(Sent(name, None, topic, partition, value))
                sequence = sequences.get(partition, 0)
                sequences[partition] = sequence + len(values)
                data = batch_of(
                    [(None, self.padded(value)) for value in values],
                    self.process.now_ms(),
                    producer_id=producer_id,
                    epoch=0,
                    sequence=sequence,
                )
                waiting.append(_Batch(partition, sequence, values, data))
            if waiting:
                left = await self._send(topic, waiting)
                if left is None:
                    return
                waiting = left
            await self.pause(self.options.get("every_ms", 20))

    def _value(self) -> str:
        self._count += 1
        return f"{self.name}.{self._count}"

    async def _send(self, topic: str, waiting: list[_Batch]) -> list[_Batch] | None:
        """Send all; what is to be sent again. None: this producer id is at its end."""
        try:
            connection = await self.link.connection()
        except Gone:
            await self.pause(30)
            return waiting
        futures = [
            connection.send(ApiKey.PRODUCE, 9, **produce_fields(topic, {batch.partition: batch.data}))
            for batch in waiting
        ]
        left: list[_Batch] = []
        failed: set[int] = set()
        over = False
        for batch, future in zip(waiting, futures, strict=True):
            try:
                answer = await connection.within(future, 3_000.0)
            except Gone:
                failed.add(batch.partition)
                left.append(batch)
                continue
            over |= self._take(batch, answer.responses[0].partition_responses[0], left, failed)
        return None if over else left

    def _take(self, batch: _Batch, part: Any, left: list[_Batch], failed: set[int]) -> bool:
        """Whether this is the end of the producer id."""
        code = part.error_code
        if code is OK or code is ErrorCode.duplicate_sequence_number:
            self.world.count("records acknowledged", len(batch.values))
            for number, value in enumerate(batch.values):
                known = code is OK and part.base_offset >= 0
                self.note(PlainAcked(value, part.base_offset + number if known else None))
            return False
        if code is ErrorCode.kafka_storage_error or batch.partition in failed:
            failed.add(batch.partition)
            left.append(batch)
            return False
        return True
