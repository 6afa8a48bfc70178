"""Transactional producers: one instance of a transactional id after another, some of which go on as zombies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.history import Begun, EndCalled, Ended, Fenced, OffsetsSent, Placed, Sent
from tests.simulation.actor import OK, Actor, Link, batch_of, produce_fields
from tests.simulation.network import Gone
from wire.apis import ApiKey
from wire.errors import ErrorCode

RETRIES = 4
AGAIN = (ErrorCode.concurrent_transactions, ErrorCode.coordinator_load_in_progress)
ABORTABLE = (ErrorCode.transaction_abortable, ErrorCode.invalid_producer_id_mapping)
"""Answers of EndTxn on which librdkafka and Java's client abort; the second in versions that lack the first."""
Records = Mapping[int, Iterable[tuple[str | None, str]]]
"""Per partition, (key, value)."""


class Failed(Exception):
    """A request of a transaction was refused: the transaction can only abort."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class Instance:
    """One producer of a transactional id, from its InitProducerId on. `v2`: transactions v2 (KIP-890)."""

    def __init__(self, actor: Actor, name: str, number: int, *, v2: bool, timeout_ms: int) -> None:
        self.actor = actor
        self.name = name
        self.number = number
        self.v2 = v2
        self.timeout_ms = timeout_ms
        self.link = Link(actor)
        self.producer_id = -1
        self.epoch = -1
        self.order = -1
        self.history_name = name
        """Under which its records stand in the history: those of a group's members under their group's."""
        self._sequences: dict[tuple[str, int], int] = {}
        self._added: set[tuple[str, int]] = set()
        self._failed = False

    async def init(self) -> None:
        """Until it is initialised. Its predecessors are fenced then."""
        while True:
            try:
                answer = await self.link.ask(
                    ApiKey.INIT_PRODUCER_ID,
                    4,
                    transactional_id=self.name,
                    transaction_timeout=self.timeout_ms,
                    producer_id=-1,
                    producer_epoch=-1,
                )
            except Gone:
                await self.actor.pause(40)
                continue
            if answer.error_code is OK:
                break
            await self.actor.pause(40)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        # The broker's own order: of two that asked at the same time the later one is the holder.
        self.order = self.producer_id * (1 << 16) + self.epoch
        self.actor.note(Fenced(self.name, self.order))

    def begin(self, number: int) -> None:
        self.actor.note(Begun(self.history_name, number, self.order))
        self._begin()

    def _begin(self) -> None:
        self._added.clear()
        self._failed = False

    async def _again(self, key: int, version: int, **fields: Any) -> Any:
        """The same request until it is answered. Raises Gone."""
        for left in reversed(range(RETRIES)):
            try:
                return await self.link.ask(key, version, **fields)
            except Gone:
                if not left:
                    raise
                await self.actor.pause(30)
        raise Gone

    async def write(self, number: int, topic: str, records: Records) -> None:
        """One produce request. Raises Failed, Gone."""
        if not self.v2:
            await self._add(topic, records)
        data: dict[int, bytes] = {}
        values: dict[int, list[str]] = {}
        for partition, parts in records.items():
            parts = list(parts)
            values[partition] = [value for _, value in parts]
            for key, value in parts:
                source = value.partition("<")[2] or None
                self.actor.note(Sent(self.history_name, number, topic, partition, value, key, source))
            sequence = self._sequences.get((topic, partition), 0)
            self._sequences[topic, partition] = sequence + len(parts)
            data[partition] = batch_of(
                [(key, self.actor.padded(value)) for key, value in parts],
                self.actor.process.now_ms(),
                producer_id=self.producer_id,
                epoch=self.epoch,
                sequence=sequence,
                transactional=True,
            )
        answer = await self._again(
            ApiKey.PRODUCE,
            12 if self.v2 else 11,
            **produce_fields(topic, data, transactional_id=self.name),
        )
        refused: ErrorCode | None = None
        for part in answer.responses[0].partition_responses:
            if part.error_code is OK:
                for at, value in enumerate(values[part.index]):
                    if part.base_offset >= 0:
                        self.actor.note(Placed(value, part.base_offset + at))
            elif part.error_code is not ErrorCode.duplicate_sequence_number:
                refused = part.error_code
        if refused is not None:
            self._failed = True
            raise Failed(refused)

    async def _add(self, topic: str, partitions: Iterable[int]) -> None:
        new = [partition for partition in partitions if (topic, partition) not in self._added]
        if not new:
            return
        answer = await self._again(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=({"name": topic, "partitions": tuple(new)},),
        )
        for result in answer.results_by_topic_v3_and_below[0].results_by_partition:
            if result.partition_error_code is not OK:
                self._failed = True
                raise Failed(result.partition_error_code)
        self._added.update((topic, partition) for partition in new)

    async def send_offsets(
        self,
        number: int,
        group: str,
        offsets: Mapping[tuple[str, int], tuple[int, int]],
        *,
        generation: int = -1,
        member: str = "",
    ) -> None:
        """`offsets`: (start, offset) per partition. Raises Failed, Gone."""
        if not self.v2:
            added = await self._again(
                ApiKey.ADD_OFFSETS_TO_TXN,
                3,
                transactional_id=self.name,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=group,
            )
            if added.error_code is not OK:
                self._failed = True
                raise Failed(added.error_code)
        for (topic, partition), (start, offset) in offsets.items():
            self.actor.note(OffsetsSent(self.history_name, number, group, topic, partition, offset, start))
        answer = await self._again(
            ApiKey.TXN_OFFSET_COMMIT,
            5 if self.v2 else 3,
            transactional_id=self.name,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id=generation,
            member_id=member,
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
                for (topic, partition), (_, offset) in offsets.items()
            ),
        )
        for topic in answer.topics:
            for part in topic.partitions:
                if part.error_code is not OK:
                    self._failed = True
                    raise Failed(part.error_code)

    async def end(self, number: int, *, commit: bool) -> bool:
        """EndTxn, again until it is answered. Whether this instance can go on."""
        self.actor.note(EndCalled(self.history_name, number, commit))
        outcome = await self.end_quietly(commit=commit)
        self.actor.note(
            Ended(self.history_name, number, commit, "failed" if outcome == "abortable" else outcome)
        )
        if outcome == "abortable" and commit:
            # What the broker wants aborted has not committed, also where an answer was lost before.
            self.actor.world.count("commits refused")
            return await self.end(number, commit=False)
        if outcome == "acked":
            self.actor.world.count("transactions committed" if commit else "transactions aborted")
        # Under the first protocol what failed leaves a gap in the sequences: its clients take a new epoch.
        return outcome == "acked" and (self.v2 or not self._failed)

    async def end_quietly(self, *, commit: bool) -> Any:
        """ "acked", "abortable", "failed" or "unknown"."""
        unanswered = False
        for _ in range(RETRIES):
            try:
                answer = await self.link.ask(
                    ApiKey.END_TXN,
                    5 if self.v2 else 3,
                    transactional_id=self.name,
                    producer_id=self.producer_id,
                    producer_epoch=self.epoch,
                    committed=commit,
                )
            except Gone:
                unanswered = True
                await self.actor.pause(30)
                continue
            code = answer.error_code
            if code is OK:
                if self.v2:
                    self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
                    self._sequences.clear()
                return "acked"
            if code in AGAIN:
                continue
            if code in ABORTABLE:
                return "abortable"
            if unanswered or code is ErrorCode.coordinator_not_available:
                return "unknown"
            return "failed"
        return "unknown"


class Transactor(Actor):
    """A transactional id and its instances, one after another and side by side. `transaction` is what each does."""

    living = 0
    instances = 0
    transactions = 0

    async def run(self) -> None:
        self._live()
        while self.living:
            await self.process.sleep(10)
        # Whatever is left open is fenced, so that the end of the world finds nothing undecided.
        await self._new_instance().init()

    def _live(self) -> None:
        self.living += 1
        self.process.spawn(self._life())

    def _new_instance(self) -> Instance:
        self.instances += 1
        return Instance(
            self,
            self.name,
            self.instances,
            v2=self.options.get("v2", True),
            timeout_ms=self.options.get("timeout_ms", 60_000),
        )

    async def _life(self) -> None:
        """Instances until the end, or, for a zombie, until it is noticed."""
        number = 0
        while not self.over and number in (0, self.instances):
            instance = self._new_instance()
            number = instance.number
            await instance.init()
            self.started(instance)
            while not self.over:
                self.transactions += 1
                if not await self.transaction(instance, self.transactions):
                    break
                await self.pause(self.options.get("every_ms", 30))
        self.living -= 1

    def started(self, instance: Instance) -> None:
        """It was initialised."""

    def maybe_replaced(self) -> None:
        """Now and then another instance begins while this one goes on as if it knew nothing."""
        if not self.over and self.random.random() < self.options.get("zombies", 0.02):
            self.world.count("zombies")
            self._live()

    async def transaction(self, instance: Instance, number: int) -> bool:
        """One transaction; whether the instance can go on."""
        instance.begin(number)
        try:
            await self.body(instance, number)
        except Gone:
            return False
        except Failed as refused:
            self.world.count(f"refused: {refused.code.name}")
            await instance.end(number, commit=False)
            return False
        self.maybe_replaced()
        if self.random.random() < 0.03:
            await self.pause(400)
        return await instance.end(number, commit=self.random.random() < 0.75)

    async def body(self, instance: Instance, number: int) -> None:
        raise NotImplementedError


class Writer(Transactor):
    """Writes records to several partitions that others write to as well."""

    count = 0

    async def body(self, instance: Instance, number: int) -> None:
        topic = self.options["topic"]
        for _ in range(self.random.choice((1, 2, 2, 4))):
            partitions = range(self.world.partitions[topic])
            chosen = self.random.sample(partitions, min(len(partitions), self.random.choice((1, 1, 2))))
            await instance.write(
                number,
                topic,
                {
                    partition: [self._record() for _ in range(self.random.choice((1, 1, 3)))]
                    for partition in chosen
                },
            )
            self.maybe_replaced()
            await self.pause(self.options.get("think_ms", 5))

    def _record(self) -> tuple[str | None, str]:
        self.count += 1
        key = f"{self.name}-k{self.random.randrange(3)}" if self.options.get("keyed") else None
        return key, f"{self.name}.{self.count}"
