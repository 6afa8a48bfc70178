"""Consumer groups: exactly-once loops that commit their offsets in their transactions, with and without members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.history import OffsetSeen
from tests.simulation.actor import OK
from tests.simulation.final import fetch_offset
from tests.simulation.loop import Task
from tests.simulation.network import Gone
from tests.simulation.readers import read_once
from tests.simulation.transactions import Failed, Instance, Transactor
from wire.apis import ApiKey
from wire.errors import ErrorCode


class ExactlyOnce(Transactor):
    """Reads its input partition from the group's offset, writes what it found there, commits the offset with it."""

    count = 0

    async def body(self, instance: Instance, number: int) -> None:
        await self.step(instance, number, self.options["group"], self.options["partition"])

    async def step(self, instance: Instance, number: int, group: str, partition: int, **member: Any) -> None:
        source, sink = self.options["source"], self.options["sink"]
        self.world.groups.setdefault(group, {})[source, partition] = None
        start = await self.committed(instance, group, source, partition)
        positions = {partition: start}
        read = await read_once(
            self,
            instance.link,
            source,
            positions,
            committed=True,
            max_wait_ms=50,
            max_bytes=self.random.choice((100, 400)),
        )
        if partition not in read or positions[partition] == start:
            return
        for _, value in read[partition].records[:10]:
            self.count += 1
            where = self.random.randrange(self.world.partitions[sink])
            await instance.write(number, sink, {where: [(None, f"{self.name}.{self.count}<{value}")]})
            self.maybe_replaced()
        stop = positions[partition]
        if len(read[partition].records) > 10:
            stop = read[partition].records[10][0]
        await instance.send_offsets(number, group, {(source, partition): (start, stop)}, **member)

    async def committed(self, instance: Instance, group: str, topic: str, partition: int) -> int:
        """The group's offset, when nothing undecided holds it. Raises Gone."""
        for _ in range(20):
            begun = len(self.world.events)
            part = await fetch_offset(instance.link, group, topic, partition)
            if part.error_code is OK:
                offset = part.committed_offset if part.committed_offset >= 0 else None
                self.note(OffsetSeen(group, topic, partition, offset, begun))
                return offset or 0
            await self.pause(40)
        raise Gone("the offset is held")


def subscription(topic: str) -> bytes:
    """A ConsumerProtocolSubscription, version 0."""
    name = topic.encode()
    return bytes(2) + b"\0\0\0\1" + len(name).to_bytes(2, "big") + name + b"\xff\xff\xff\xff"


class GroupMember(ExactlyOnce):
    """The same, as a member of a classic group: partitions come and go, and a generation that is over commits nothing.

    Offsets are committed with the member's generation (KIP-447), so who lost its partitions is refused.
    """

    member_id = ""
    generation = -1
    mine: tuple[int, ...] = ()
    heart: Task | None = None

    async def body(self, instance: Instance, number: int) -> None:
        if self.generation < 0:
            await self._join(instance)
        if self.random.random() < self.options.get("pauses", 0.03):
            await self.pause(1_500)  # longer than the session: the others get its partitions
        if not self.mine:
            await self._heartbeat(instance)
            return
        partition = self.random.choice(self.mine)
        member = {"generation": self.generation, "member": self.member_id}
        await self.step(instance, number, self.options["group"], partition, **member)
        if self.random.random() < 0.4:
            await self._heartbeat(instance)

    def started(self, instance: Instance) -> None:
        self.generation = -1

    def _reset(self, code: ErrorCode) -> None:
        self.generation = -1
        if code is ErrorCode.unknown_member_id:
            self.member_id = ""

    async def _join(self, instance: Instance) -> None:
        """Raises Failed where it is to be tried again, Gone."""
        connection = await instance.link.connection()
        fields = {
            "group_id": self.options["group"],
            "session_timeout": 1_000,
            "rebalance_timeout": 500,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": ({"name": "range", "metadata": subscription(self.options["source"])},),
        }
        answer = await connection.ask(ApiKey.JOIN_GROUP, 5, member_id=self.member_id, **fields)
        if answer.error_code is ErrorCode.member_id_required:
            self.member_id = answer.member_id
            answer = await connection.ask(ApiKey.JOIN_GROUP, 5, member_id=self.member_id, **fields)
        self._check(answer.error_code)
        self.member_id, generation = answer.member_id, answer.generation_id
        assignments: Mapping[str, bytes] = {}
        if answer.leader == self.member_id:
            members = sorted(member.member_id for member in answer.members)
            count = self.world.partitions[self.options["source"]]
            assignments = {
                member: bytes(partition for partition in range(count) if partition % len(members) == at)
                for at, member in enumerate(members)
            }
        synced = await connection.ask(
            ApiKey.SYNC_GROUP,
            3,
            group_id=self.options["group"],
            generation_id=generation,
            member_id=self.member_id,
            group_instance_id=None,
            assignments=tuple({"member_id": m, "assignment": a} for m, a in assignments.items()),
        )
        self._check(synced.error_code)
        self.generation = generation
        self.mine = tuple(synced.assignment)
        self.world.count("rebalances")

    async def _heartbeat(self, instance: Instance) -> None:
        answer = await instance.link.ask(
            ApiKey.HEARTBEAT,
            3,
            group_id=self.options["group"],
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=None,
        )
        if answer.error_code is not OK:
            self._reset(answer.error_code)

    def _check(self, code: ErrorCode) -> None:
        if code is not OK:
            self._reset(code)
            raise Failed(code)
