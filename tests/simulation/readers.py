"""Readers of both isolation levels: they follow a topic's partitions, and begin anew now and then."""

from __future__ import annotations

from tests.history import Read
from tests.simulation.actor import OK, Actor, decode, fetch_fields
from tests.simulation.network import Gone
from wire.apis import ApiKey
from wire.errors import ErrorCode, KafkaError


class Reader(Actor):
    async def run(self) -> None:
        topic = self.options["topic"]
        committed = self.options.get("committed", True)
        positions: dict[int, int] = {}
        while not self.over:
            for partition in range(self.world.partitions.get(topic, 0)):
                positions.setdefault(partition, 0)
            if self.random.random() < 0.05:
                positions = dict.fromkeys(positions, 0)
            try:
                await self.read(
                    topic, positions, committed=committed, max_wait_ms=self.random.choice((0, 20, 200))
                )
            except Gone:
                await self.pause(40)
            await self.pause(10)

    async def read(self, topic: str, positions: dict[int, int], *, committed: bool, max_wait_ms: int) -> None:
        """One fetch; `positions` move on. Raises Gone."""
        begun = len(self.world.events)
        max_bytes = self.random.choice((100, 1_000, 1 << 20))
        answer = await self.ask(
            ApiKey.FETCH,
            11,
            **fetch_fields(
                topic, positions, committed=committed, max_wait_ms=max_wait_ms, max_bytes=max_bytes
            ),
        )
        for part in answer.responses[0].partitions if answer.responses else ():
            partition = part.partition_index
            first = positions[partition]
            if part.error_code is ErrorCode.offset_out_of_range:
                # Before the log start: what was there is gone.
                positions[partition] = max(part.log_start_offset, 0) if first < part.log_start_offset else 0
                continue
            if part.error_code is not OK:
                self.world.count(f"fetches refused: {part.error_code.name}")
                continue
            try:
                records, position = decode(part.records, first)
            except KafkaError as damaged:
                self.world.faults_found.append(
                    f"a reader of {topic}-{partition} got damaged records: {damaged}"
                )
                continue
            self.world.count("records read", len(records))
            positions[partition] = position
            self.note(
                Read(
                    topic,
                    partition,
                    committed,
                    first,
                    position,
                    tuple(records),
                    part.high_watermark,
                    part.last_stable_offset,
                    part.log_start_offset,
                    begun,
                )
            )
