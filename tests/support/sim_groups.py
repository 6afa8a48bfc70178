"""A consumer of the classic group protocol over a `SimClient`: as much of it as an administrator's tests need."""

from __future__ import annotations

from typing import Any

from support.sim_node import SimClient

from wire.apis import ApiKey
from wire.errors import ErrorCode


def subscription(*topics: str) -> bytes:
    """A ConsumerProtocolSubscription, version 0."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return bytes(2) + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


class Member:
    """One member; it leads its group."""

    def __init__(
        self,
        client: SimClient,
        group_id: str,
        *topics: str,
        protocol_type: str = "consumer",
        metadata: bytes | None = None,
        session_timeout_ms: int = 30_000,
    ) -> None:
        self.client = client
        self.group_id = group_id
        self.protocol_type = protocol_type
        self.metadata = subscription(*topics) if metadata is None else metadata
        self.session_timeout_ms = session_timeout_ms
        self.member_id = ""
        self.generation_id = -1

    def join_fields(self) -> dict[str, Any]:
        return {
            "group_id": self.group_id,
            "session_timeout": self.session_timeout_ms,
            "rebalance_timeout": 60_000,
            "member_id": self.member_id,
            "group_instance_id": None,
            "protocol_type": self.protocol_type,
            "protocols": ({"name": "range", "metadata": self.metadata},),
        }

    def join(self) -> Any:
        """Join, with the id handed out first, and wait for the generation."""
        answer = self.client.ask(ApiKey.JOIN_GROUP, 5, **self.join_fields())
        if answer.error_code is ErrorCode.member_id_required:
            self.member_id = answer.member_id
            answer = self.client.ask(ApiKey.JOIN_GROUP, 5, **self.join_fields())
        assert answer.error_code is ErrorCode.none, answer
        self.member_id, self.generation_id = answer.member_id, answer.generation_id
        return answer

    def sync(self, assignment: bytes = b"mine") -> None:
        answer = self.client.ask(
            ApiKey.SYNC_GROUP,
            3,
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=None,
            assignments=({"member_id": self.member_id, "assignment": assignment},),
        )
        assert answer.error_code is ErrorCode.none, answer

    def settle(self) -> Member:
        self.join()
        self.sync()
        return self

    def heartbeat(self) -> ErrorCode:
        answer = self.client.ask(
            ApiKey.HEARTBEAT,
            3,
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=None,
        )
        code: ErrorCode = answer.error_code
        return code

    def leave(self) -> None:
        answer = self.client.ask(
            ApiKey.LEAVE_GROUP,
            3,
            group_id=self.group_id,
            members=({"member_id": self.member_id, "group_instance_id": None},),
        )
        assert answer.error_code is ErrorCode.none, answer

    def commit(self, offsets: dict[tuple[str, int], int]) -> ErrorCode:
        return commit_offsets(
            self.client,
            self.group_id,
            offsets,
            generation_id=self.generation_id,
            member_id=self.member_id,
        )


def commit_offsets(
    client: SimClient,
    group_id: str,
    offsets: dict[tuple[str, int], int],
    *,
    generation_id: int = -1,
    member_id: str = "",
) -> ErrorCode:
    """OffsetCommit; without a member it is a simple consumer's. The first partition's error."""
    answer = client.ask(
        ApiKey.OFFSET_COMMIT,
        7,
        group_id=group_id,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
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
            for (topic, partition), offset in offsets.items()
        ),
    )
    code: ErrorCode = answer.topics[0].partitions[0].error_code
    return code


def committed(client: SimClient, group_id: str) -> dict[tuple[str, int], int]:
    """Every offset that a group has."""
    answer = client.ask(ApiKey.OFFSET_FETCH, 7, group_id=group_id, topics=None, require_stable=False)
    assert answer.error_code is ErrorCode.none
    return {
        (topic.name, one.partition_index): one.committed_offset
        for topic in answer.topics
        for one in topic.partitions
    }
