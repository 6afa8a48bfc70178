"""Whoever waits for a record is told when there is one: a patient fetch, and a record in the middle of it."""

from __future__ import annotations

from tests.history import PlainAcked, Sent
from tests.simulation.actor import OK, Actor, Link, batch_of, decode, fetch_fields, produce_fields
from tests.simulation.final import list_offset
from tests.simulation.network import Gone
from wire.apis import ApiKey

PATIENCE_MS = 30_000
ENOUGH_MS = 2_000


class Watcher(Actor):
    """In a world without faults."""

    done = False

    async def run(self) -> None:
        topic = self.options["topic"]
        partition = self.random.randrange(self.world.partitions[topic])
        committed = self.random.random() < 0.7
        end = (await list_offset(self, topic, partition, committed=committed, at=-1)).offset
        connection = await self.persist(self.link.connection)
        fields = fetch_fields(
            topic, {partition: end}, committed=committed, max_wait_ms=PATIENCE_MS, max_bytes=1 << 20
        )
        waiting = connection.send(ApiKey.FETCH, 11, **fields)
        await self.process.sleep(200)
        value = f"{self.name}.1"
        self.note(Sent(self.name, None, topic, partition, value))
        data = batch_of([(None, value.encode())], self.process.now_ms())
        answer = await self.persist(
            lambda: Link(self).ask(ApiKey.PRODUCE, 9, **produce_fields(topic, {partition: data})), tries=1
        )
        part = answer.responses[0].partition_responses[0]
        assert part.error_code is OK, part
        self.note(PlainAcked(value, part.base_offset))
        try:
            fetched = await connection.within(waiting, ENOUGH_MS)
        except Gone:
            self.world.faults_found.append(
                f"a reader that waits at {topic}-{partition} was not told of a record"
            )
        else:
            found, _ = decode(fetched.responses[0].partitions[0].records, end)
            if (part.base_offset, value) not in found:
                self.world.faults_found.append(f"a reader that waited at {topic}-{partition} got {found}")
        self.done = True
