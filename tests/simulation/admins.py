"""Administrators: layouts, retention, deletions and settings change while everything else goes on."""

from __future__ import annotations

from tests.history import Deleted, PlainAcked, Sent
from tests.simulation.actor import OK, Actor, batch_of, create_topic, produce_fields
from tests.simulation.network import Gone
from wire import layouts
from wire.apis import ApiKey

TOPIC, BROKER, SET = 2, 4, 0


class LayoutAdmin(Actor):
    """Splits, merges and seals the ranges of some topics, at random."""

    async def run(self) -> None:
        while not self.over:
            await self.pause(self.options.get("every_ms", 100))
            topic = self.random.choice(self.options["topics"])
            count = self.world.partitions[topic]
            kind = self.random.choice(("split", "merge", "seal", "seal"))
            request: layouts.Request
            if kind == "split" and count > 1:
                request = layouts.Split(topic=topic, at=(self.random.randrange(1, count),))
            elif kind == "merge":
                request = layouts.Merge(topic=topic, first=0, last=count - 1)
            else:
                request = layouts.Seal(topic=topic, partition=self.random.randrange(count))
            try:
                answer = await (await self.link.connection()).ask_layout(request)
            except Gone:
                continue
            if not answer.error:
                self.world.count("layout changes")


class Truncator(Actor):
    """Deletes records of one topic from the front, and changes its retention."""

    async def run(self) -> None:
        topic = self.options["topic"]
        while not self.over:
            await self.pause(150)
            try:
                if self.random.random() < 0.5:
                    await self._delete_records(topic)
                else:
                    await self._alter(topic)
            except Gone:
                continue

    async def _delete_records(self, topic: str) -> None:
        partition = self.random.randrange(self.world.partitions[topic])
        answer = await self.ask(
            ApiKey.DELETE_RECORDS,
            2,
            topics=(
                {
                    "name": topic,
                    "partitions": (
                        {"partition_index": partition, "offset": self.random.choice((-1, 3, 10, 30))},
                    ),
                },
            ),
            timeout=30_000,
        )
        if answer.topics[0].partitions[0].error_code is OK:
            self.world.count("records deleted from the front")

    async def _alter(self, topic: str) -> None:
        name, values = self.random.choice(
            (
                ("retention.bytes", ("1", "2000", "-1")),
                ("retention.ms", ("100", "-1")),
                ("segment.ms", ("60", "100000")),
                ("segment.bytes", ("1048576", "14")),
            )
        )
        answer = await self.ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            1,
            resources=(
                {
                    "resource_type": TOPIC,
                    "resource_name": topic,
                    "configs": (
                        {"name": name, "config_operation": SET, "value": self.random.choice(values)},
                    ),
                },
            ),
            validate_only=False,
        )
        if answer.responses[0].error_code is OK:
            self.world.count("settings changed")


class TopicAdmin(Actor):
    """Makes a topic, writes to it, gives it more partitions, deletes it, and makes one of the same name again."""

    count = 0

    async def run(self) -> None:
        while not self.over:
            name = f"{self.name}-{self.random.randrange(2)}"
            # What becomes of the records of such a topic nobody knows but this one; that nothing breaks is the test.
            self.note(Deleted(name))
            try:
                await create_topic(self, name, self.random.choice((1, 3)), {})
                for _ in range(self.random.randrange(4)):
                    await self._write(name)
                if self.random.random() < 0.5:
                    await self._grow(name, 4)
                    await self._write(name)
                if self.random.random() < 0.7:
                    await self._delete(name)
                    self.world.count("topics deleted")
            except Gone:
                pass
            await self.pause(100)

    async def _write(self, topic: str) -> None:
        self.count += 1
        value = f"{self.name}.{self.count}"
        self.note(Sent(f"{self.name}/{self.count}", None, topic, 0, value))
        data = batch_of([(None, self.padded(value))], self.process.now_ms())
        answer = await self.ask(ApiKey.PRODUCE, 9, **produce_fields(topic, {0: data}))
        if answer.responses[0].partition_responses[0].error_code is OK:
            self.note(PlainAcked(value))

    async def _grow(self, topic: str, count: int) -> None:
        await self.ask(
            ApiKey.CREATE_PARTITIONS,
            3,
            topics=({"name": topic, "count": count, "assignments": None},),
            timeout=30_000,
            validate_only=False,
        )

    async def _delete(self, topic: str) -> None:
        await self.ask(ApiKey.DELETE_TOPICS, 6, topics=({"name": topic, "topic_id": None},), timeout=30_000)
