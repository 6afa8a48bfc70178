"""The end of a run: nothing is open any more, and everything is read from the beginning."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.history import FinalEnds, FinalOffset, FinalRead
from tests.simulation.actor import OK, Actor, decode, fetch_fields
from wire.apis import ApiKey
from wire.errors import ErrorCode, KafkaError


class Auditor(Actor):
    """Reads all partitions as both kinds of readers do, and the groups' offsets."""

    done = False

    def trouble(self, what: str) -> None:
        """A client was told that something is wrong: which it must not be, unless something was damaged."""
        if self.options.get("damaged"):
            self.world.count("damage that a reader was told of")
        else:
            self.world.faults_found.append(what)

    async def run(self) -> None:
        for topic, count in sorted(self.world.partitions.items()):
            for partition in range(count):
                ends = await self.persist(lambda p=partition, t=topic: self._ends(t, p))
                if ends is None:
                    continue
                self.note(FinalEnds(topic, partition, *ends))
                for committed in (True, False):
                    await self._read(topic, partition, ends, committed=committed)
        for group, partitions in sorted(self.world.groups.items()):
            await self._offsets(group, sorted(partitions))
        self.done = True

    async def _ends(self, topic: str, partition: int) -> tuple[int, int, int] | None:
        """(log start, last stable offset, high watermark); None: the partition is not there."""
        found = []
        for isolation, timestamp in ((0, -2), (1, -1), (0, -1)):
            part = await list_offset(self, topic, partition, committed=isolation == 1, at=timestamp)
            if part.error_code is not OK:
                self.trouble(f"{topic}-{partition} has no offsets in the end: {part.error_code.name}")
                return None
            found.append(part.offset)
        return found[0], found[1], found[2]

    async def _read(self, topic: str, partition: int, ends: tuple[int, int, int], *, committed: bool) -> None:
        position, stop = ends[0], ends[1] if committed else ends[2]
        records: list[tuple[int, str]] = []
        while position < stop:
            at = position
            part = await self.persist(lambda at=at: self._fetch(topic, partition, at, committed=committed))
            if part.error_code is not OK:
                self.trouble(
                    f"{topic}-{partition} cannot be read at {position} in the end: {part.error_code.name}"
                )
                break
            try:
                found, position = decode(part.records, position)
            except KafkaError as damaged:
                self.trouble(f"{topic}-{partition} is damaged at {position}: {damaged}")
                break
            records += found
            if position == at:
                break
        self.note(FinalRead(topic, partition, committed, tuple(records), position))

    async def _fetch(self, topic: str, partition: int, offset: int, *, committed: bool) -> Any:
        fields = fetch_fields(
            topic, {partition: offset}, committed=committed, max_wait_ms=0, max_bytes=1 << 20
        )
        answer = await self.ask(ApiKey.FETCH, 11, **fields)
        return answer.responses[0].partitions[0]

    async def _offsets(self, group: str, partitions: list[tuple[str, int]]) -> None:
        for topic, partition in partitions:
            part = await self.persist(lambda t=topic, p=partition: fetch_offset(self, group, t, p))
            error = None if part.error_code is OK else part.error_code.name
            offset = part.committed_offset if part.committed_offset >= 0 else None
            self.note(FinalOffset(group, topic, partition, offset, error))


async def list_offset(actor: Actor, topic: str, partition: int, *, committed: bool, at: int) -> Any:
    """The partition's part of a ListOffsets; `at`: -1 for the end, -2 for the start. Raises Gone."""
    answer = await actor.ask(
        ApiKey.LIST_OFFSETS,
        5,
        replica_id=-1,
        isolation_level=int(committed),
        topics=(
            {
                "name": topic,
                "partitions": ({"partition_index": partition, "current_leader_epoch": -1, "timestamp": at},),
            },
        ),
    )
    return answer.topics[0].partitions[0]


class GroupOffset(NamedTuple):
    error_code: ErrorCode
    committed_offset: int


async def fetch_offset(actor: Actor, group: str, topic: str, partition: int) -> GroupOffset:
    """What OffsetFetch says of the partition where only what is decided is wanted. Raises Gone."""
    answer = await actor.ask(
        ApiKey.OFFSET_FETCH,
        7,
        group_id=group,
        topics=({"name": topic, "partition_indexes": (partition,)},),
        require_stable=True,
    )
    if answer.error_code is not OK:
        return GroupOffset(answer.error_code, -1)
    part = answer.topics[0].partitions[0]
    return GroupOffset(part.error_code, part.committed_offset)
