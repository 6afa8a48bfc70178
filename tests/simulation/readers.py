"""Readers of both isolation levels: they follow a topic's partitions, and begin anew now and then."""

from __future__ import annotations

from tests.history import Read
from tests.simulation.actor import OK, Actor, Link, decode, fetch_fields
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
                await read_once(
                    self,
                    self.link,
                    topic,
                    positions,
                    committed=committed,
                    max_wait_ms=self.random.choice((0, 20, 200)),
                    max_bytes=self.random.choice((100, 1_000, 1 << 20)),
                )
            except Gone:
                await self.pause(40)
            await self.pause(self.options.get("every_ms", 20))


async def read_once(
    actor: Actor,
    link: Link,
    topic: str,
    positions: dict[int, int],
    *,
    committed: bool,
    max_wait_ms: int,
    max_bytes: int = 1 << 20,
) -> dict[int, Read]:
    """One fetch; `positions` move on. What came per partition that could be read. Raises Gone."""
    begun = len(actor.world.events)
    found: dict[int, Read] = {}
    answer = await link.ask(
        ApiKey.FETCH,
        11,
        **fetch_fields(topic, positions, committed=committed, max_wait_ms=max_wait_ms, max_bytes=max_bytes),
    )
    for part in answer.responses[0].partitions if answer.responses else ():
        partition = part.partition_index
        first = positions[partition]
        if part.error_code is ErrorCode.offset_out_of_range:
            # Before the log start: what was there is gone.
            positions[partition] = max(part.log_start_offset, 0) if first < part.log_start_offset else 0
            continue
        if part.error_code is not OK:
            actor.world.count(f"fetches refused: {part.error_code.name}")
            continue
        try:
            records, position = decode(part.records, first)
        except KafkaError as damaged:
            actor.world.faults_found.append(f"a reader of {topic}-{partition} got damaged records: {damaged}")
            continue
        actor.world.count("records read", len(records))
        positions[partition] = position
        found[partition] = Read(
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
        actor.note(found[partition])
    return found
