"""Members of a group of the new protocol (KIP-848): the broker assigns, each heartbeat moves a member one step."""

from __future__ import annotations

import uuid
from typing import Any

from tests.simulation.actor import OK
from tests.simulation.groups import GroupMember
from tests.simulation.transactions import Failed, Instance
from wire.apis import ApiKey


class NewMember(GroupMember):
    """An exactly-once loop over the partitions that the broker gave it; its generation is its member epoch."""

    topic_id: Any = None

    async def _join(self, instance: Instance) -> None:
        if not self.member_id:
            self.member_id = str(uuid.UUID(int=self.random.getrandbits(128), version=4))
        self.mine = ()
        await self._beat(instance, 0)
        if self.generation < 0:
            raise Failed(self.refused)
        self.world.count("rebalances")

    async def _heartbeat(self, instance: Instance) -> None:
        await self._beat(instance, self.generation)

    async def _beat(self, instance: Instance, epoch: int) -> None:
        owned = ({"topic_id": self.topic_id, "partitions": self.mine},) if self.mine else ()
        answer = await instance.link.ask(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            1,
            group_id=self.options["group"],
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=None,
            rack_id=None,
            rebalance_timeout=500,
            subscribed_topic_names=(self.options["source"],),
            subscribed_topic_regex=None,
            server_assignor=None,
            topic_partitions=owned,
        )
        if answer.error_code is not OK:
            self.refused = answer.error_code
            self._reset(answer.error_code)
            return
        self.generation = answer.member_epoch
        if answer.assignment is not None:
            self.mine = ()
            for topic in answer.assignment.topic_partitions:
                self.topic_id, self.mine = topic.topic_id, tuple(topic.partitions)
