"""Groups that change their protocol while members of both are in them (KIP-848), by hand.

Every expectation holds on Apache Kafka 4.3.1 too, unless a test says `sealog_only`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.clients.raw_kafka import RawKafka
from tests.clients.scenario_tools import eventually
from tests.clients.test_protocol_consumer_groups import (
    Member,
    Share,
    TopicFactory,
    commit,
    fetch,
    group,
)

__all__ = ("group",)

SESSION_MS = 30_000


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def partitions(share: Mapping[str, set[int]]) -> bytes:
    out = struct.pack(">i", len(share))
    for name, numbers in share.items():
        out += string(name) + struct.pack(f">i{len(numbers)}i", len(numbers), *sorted(numbers))
    return out


def subscription(topics: Sequence[str], owned: Mapping[str, set[int]]) -> bytes:
    """A ConsumerProtocolSubscription of version 1."""
    names = struct.pack(">hi", 1, len(topics)) + b"".join(map(string, topics))
    return names + struct.pack(">i", -1) + partitions(owned)


def assignment(share: Mapping[str, set[int]], user_data: bytes | None = None) -> bytes:
    """A ConsumerProtocolAssignment of version 1."""
    tail = struct.pack(">i", -1) if user_data is None else struct.pack(">i", len(user_data)) + user_data
    return struct.pack(">h", 1) + partitions(share) + tail


def read_share(data: bytes) -> Share:
    if not data:
        return {}
    (count,) = struct.unpack_from(">i", data, 2)
    share: Share = {}
    at = 6
    for _ in range(count):
        (length,) = struct.unpack_from(">h", data, at)
        name = data[at + 2 : at + 2 + length].decode()
        at += 2 + length
        (size,) = struct.unpack_from(">i", data, at)
        share[name] = set(struct.unpack_from(f">{size}i", data, at + 4))
        at += 4 + 4 * size
    return share


class Classic:
    """A cooperative consumer of the classic protocol, on a connection of its own: its requests may be held."""

    def __init__(
        self,
        bootstrap: str,
        group_id: str,
        *topics: str,
        instance: str | None = None,
        protocols: Sequence[str] = ("range",),
    ) -> None:
        self.raw = RawKafka(bootstrap)
        self.group = group_id
        self.topics = topics
        self.instance = instance
        self.protocols = protocols
        self.member_id = ""
        self.generation = -1
        self.share: Share = {}
        self.joined: Any = None

    def send_join(self, **fields: Any) -> Callable[[], Any]:
        metadata = fields.pop("metadata", None) or subscription(self.topics, self.share)
        request = {
            "group_id": self.group,
            "session_timeout": SESSION_MS,
            "rebalance_timeout": 60_000,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocols": [{"name": name, "metadata": metadata} for name in self.protocols],
        }
        request |= fields
        if not self.member_id and self.instance is None:
            answer = self.raw.call("join_group", 7, **request)  # a dynamic member is first told its id
            if answer.error_code is not ErrorCode.member_id_required:
                return lambda: answer
            self.member_id = request["member_id"] = answer.member_id
        receive = self.raw.send("join_group", 7, request)

        def joined() -> Any:
            answer = receive()
            if answer.error_code is ErrorCode.none:
                self.member_id, self.generation = answer.member_id, answer.generation_id
                self.joined = answer
            return answer

        return joined

    def join(self, **fields: Any) -> Any:
        return self.send_join(**fields)()

    def send_sync(
        self, shares: Mapping[str, Share] | None = None, user_data: bytes | None = None, **fields: Any
    ) -> Callable[[], Any]:
        request = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocol_name": self.protocols[0],
            "assignments": [
                {"member_id": member_id, "assignment": assignment(share, user_data)}
                for member_id, share in (shares or {}).items()
            ],
        }
        receive = self.raw.send("sync_group", 5, request | fields)

        def synced() -> Any:
            answer = receive()
            if answer.error_code is ErrorCode.none:
                self.share = read_share(answer.assignment)
            return answer

        return synced

    def sync(self, shares: Mapping[str, Share] | None = None, **fields: Any) -> Any:
        return self.send_sync(shares, **fields)()

    def heartbeat(self, **fields: Any) -> ErrorCode:
        request = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
        }
        return self.raw.call("heartbeat", 4, **request | fields).error_code

    def leave(self) -> ErrorCode:
        gone = {"member_id": self.member_id, "group_instance_id": self.instance}
        return self.raw.call("leave_group", 4, group_id=self.group, members=[gone]).members[0].error_code

    def live(self) -> None:
        """What a client does about its heartbeat's answer, in a group of the new protocol."""
        if self.heartbeat() is ErrorCode.rebalance_in_progress:
            assert self.join().error_code is ErrorCode.none
            before = self.share
            if self.sync().error_code is ErrorCode.none and self.share != before:
                self.live()


@pytest.fixture
def classic(broker: Any, group: str) -> Any:
    opened: list[Classic] = []

    def make(*topics: str, **fields: Any) -> Classic:
        opened.append(Classic(broker.bootstrap, group, *topics, **fields))
        return opened[-1]

    yield make
    for one in opened:
        one.raw.close()


@pytest.fixture
def member(raw: RawKafka, group: str) -> Callable[..., Member]:
    return lambda name, *topics, **fields: Member(raw, group, name, topics, **fields)


ClassicFactory = Callable[..., Classic]
MemberFactory = Callable[..., Member]


def classic_pair(classic: ClassicFactory, name: str) -> tuple[Classic, Classic]:
    """A stable classic group of two, with two partitions each."""
    anna, ben = classic(name), classic(name)
    assert anna.join().error_code is ErrorCode.none
    waiting = ben.send_join()
    eventually(lambda: anna.heartbeat() is ErrorCode.rebalance_in_progress, "a rebalance")
    hers = anna.send_join()
    assert (hers().error_code, waiting().error_code) == (ErrorCode.none, ErrorCode.none)
    assert anna.joined.leader == anna.member_id
    his = ben.send_sync()
    anna.sync({anna.member_id: {name: {0, 1}}, ben.member_id: {name: {2, 3}}})
    assert his().error_code is ErrorCode.none
    assert (anna.share, ben.share) == ({name: {0, 1}}, {name: {2, 3}})
    return anna, ben


def described(raw: RawKafka, group_id: str) -> Any:
    return raw.call("consumer_group_describe", 1, group_ids=[group_id]).groups[0]


def share_out(name: str, classics: Sequence[Classic], members: Sequence[Member]) -> None:
    """Everybody lives on until the four partitions are shared evenly."""

    def even() -> bool:
        shares = [one.share.get(name, set()) for one in (*classics, *members)]
        total = sum(len(share) for share in shares)
        fair = max(map(len, shares)) - min(map(len, shares)) <= 1
        return fair and total == len(set().union(*shares)) == 4

    def step() -> None:
        for one in classics:
            one.live()
        for other in members:
            assert other.beat().error_code is ErrorCode.none

    eventually(even, "four partitions shared", step=step)


def test_up_and_down_again(
    raw: RawKafka, group: str, classic: ClassicFactory, member: MemberFactory, topic: TopicFactory
) -> None:
    name = topic(partitions=4)
    anna, ben = classic_pair(classic, name)
    generation = anna.generation
    carl = member("carl", name)
    assert carl.join().error_code is ErrorCode.none
    assert carl.epoch > generation
    assert carl.share == {}, "all is still the others'"
    kinds = {each.member_id: each.member_type for each in described(raw, group).members}
    assert kinds == {anna.member_id: 0, ben.member_id: 0, "carl": 1}

    assert anna.heartbeat() is ErrorCode.rebalance_in_progress
    answer = anna.join()
    assert (answer.error_code, answer.leader, answer.members) == (ErrorCode.none, "", ())
    share_out(name, [anna, ben], [carl])
    assert described(raw, group).group_state == "Stable"

    assert carl.leave().error_code is ErrorCode.none
    assert described(raw, group).error_code is ErrorCode.group_id_not_found, "it is a classic group again"
    assert anna.heartbeat() is ErrorCode.rebalance_in_progress
    hers, his = anna.send_join(), ben.send_join()
    assert (hers().error_code, his().error_code) == (ErrorCode.none, ErrorCode.none)
    leader, other = (anna, ben) if anna.joined.leader == anna.member_id else (ben, anna)
    assert {each.member_id for each in leader.joined.members} == {anna.member_id, ben.member_id}
    held = other.send_sync()
    leader.sync({leader.member_id: {name: {0, 1}}, other.member_id: {name: {2, 3}}})
    assert held().error_code is ErrorCode.none
    assert anna.heartbeat() is ErrorCode.none


def test_a_classic_member_joins_a_group_of_the_new_protocol(
    raw: RawKafka, group: str, classic: ClassicFactory, member: MemberFactory, topic: TopicFactory
) -> None:
    name = topic(partitions=4)
    carl = member("carl", name)
    carl.join()
    carl.beat()
    anna = classic(name)
    assert anna.join().error_code is ErrorCode.none
    assert anna.sync().error_code is ErrorCode.none
    share_out(name, [anna], [carl])
    assert (
        commit(raw, group, anna.member_id, anna.generation, (name, min(anna.share[name]))) is ErrorCode.none
    )
    stale = commit(raw, group, anna.member_id, anna.generation + 1, (name, min(anna.share[name])))
    assert stale is ErrorCode.illegal_generation
    found = fetch(raw, group, anna.member_id, anna.generation - 1, (name, 0))
    assert found == (ErrorCode.illegal_generation, None)
    assert anna.leave() is ErrorCode.none
    share_out(name, [], [carl])


def test_what_classic_members_are_refused(
    raw: RawKafka, group: str, classic: ClassicFactory, member: MemberFactory, topic: TopicFactory
) -> None:
    name = topic(partitions=2)
    carl, dora = member("carl", name), member("dora", name, instance="d")
    carl.join()
    dora.join()
    anna = classic(name)
    assert anna.join(protocol_type="connect").error_code is ErrorCode.inconsistent_group_protocol
    assert anna.join().error_code is ErrorCode.none
    other = classic(name, protocols=("sticky",))
    assert other.join().error_code is ErrorCode.inconsistent_group_protocol
    assert anna.join(session_timeout=1).error_code is ErrorCode.invalid_session_timeout

    assert anna.heartbeat(generation_id=anna.generation + 1) is ErrorCode.illegal_generation
    assert anna.heartbeat(member_id="nobody") is ErrorCode.unknown_member_id
    assert anna.heartbeat(member_id="carl") is ErrorCode.unknown_member_id, "it does not speak this protocol"
    assert anna.heartbeat(member_id="x", group_instance_id="d") is ErrorCode.fenced_instance_id
    assert anna.sync(generation_id=anna.generation + 1).error_code is ErrorCode.illegal_generation
    assert anna.sync(member_id="carl").error_code is ErrorCode.unknown_member_id
    assert anna.sync(protocol_name="sticky").error_code is ErrorCode.inconsistent_group_protocol
    assert anna.sync(protocol_type="connect").error_code is ErrorCode.inconsistent_group_protocol
    stranger = classic(name)
    stranger.member_id = "stranger"
    assert stranger.leave() is ErrorCode.unknown_member_id
    fenced = classic(name, instance="d")
    fenced.member_id = "another"
    assert fenced.leave() is ErrorCode.fenced_instance_id
    assert fenced.join().error_code is ErrorCode.fenced_instance_id


def test_groups_without_members_take_any_protocol(
    raw: RawKafka, group: str, classic: ClassicFactory, member: MemberFactory, topic: TopicFactory
) -> None:
    name = topic(partitions=1)
    anna, carl = classic(name), member("carl", name)
    anna.join()
    anna.sync({anna.member_id: {name: {0}}})
    assert commit(raw, group, anna.member_id, anna.generation, (name, 0)) is ErrorCode.none
    anna.leave()
    assert carl.join().error_code is ErrorCode.none
    eventually(lambda: carl.share == {name: {0}}, "the partition", step=carl.beat)
    assert fetch(raw, group, "carl", carl.epoch, (name, 0)) == (ErrorCode.none, 7)
    carl.leave()
    ben = classic(name)
    assert ben.join().error_code is ErrorCode.none
    assert ben.joined.leader == ben.member_id
    assert ben.sync({ben.member_id: {name: {0}}}).error_code is ErrorCode.none
    assert fetch(raw, group, None, -1, (name, 0)) == (ErrorCode.none, 7)


def test_groups_that_cannot_be_upgraded(
    classic: ClassicFactory, member: MemberFactory, topic: TopicFactory
) -> None:
    name = topic(partitions=1)
    anna, carl = classic(name), member("carl", name)
    anna.join()
    assert anna.send_sync({anna.member_id: {name: {0}}}, user_data=b"mine")().error_code is ErrorCode.none
    answer = carl.join()
    assert answer.error_code is ErrorCode.group_id_not_found
    assert anna.heartbeat() is ErrorCode.none, "the group is what it was"


def test_groups_of_other_protocol_types_are_left_alone(
    classic: ClassicFactory, member: MemberFactory, topic: TopicFactory
) -> None:
    anna, carl = classic(topic()), member("carl", topic())
    assert anna.join(protocol_type="connect").error_code is ErrorCode.none
    assert carl.join().error_code is ErrorCode.group_id_not_found
    assert carl.leave().error_code is ErrorCode.group_id_not_found


def test_members_that_wait_are_told_to_join_again(
    classic: ClassicFactory, member: MemberFactory, topic: TopicFactory
) -> None:
    name = topic(partitions=4)
    anna, ben = classic_pair(classic, name)
    waiting = ben.send_join(protocols=[{"name": "range", "metadata": subscription((), {})}])
    eventually(lambda: anna.heartbeat() is ErrorCode.rebalance_in_progress, "a rebalance")
    carl = member("carl", name)
    assert carl.join().error_code is ErrorCode.none
    assert waiting().error_code is ErrorCode.rebalance_in_progress
    ben.share = {}
    assert ben.join().error_code is ErrorCode.none
    ben.sync()
    share_out(name, [anna, ben], [carl])


def test_a_static_member_changes_its_protocol(
    raw: RawKafka, group: str, classic: ClassicFactory, member: MemberFactory, topic: TopicFactory
) -> None:
    """A rolling upgrade of static members, and back: each takes its predecessor's place and partitions."""
    name = topic(partitions=2)
    old = classic(name, instance="s")
    old.join()
    old.sync({old.member_id: {name: {0, 1}}})
    new = member("new", name, instance="s")
    assert new.join().error_code is ErrorCode.none
    eventually(lambda: new.share == {name: {0, 1}}, "the partitions", step=new.beat)
    assert old.heartbeat() is ErrorCode.fenced_instance_id
    back = classic(name, instance="s")
    assert back.join().error_code is ErrorCode.none
    assert new.ask().error_code is ErrorCode.group_id_not_found, "the last of the new protocol is gone"
    eventually(lambda: back.sync().error_code is ErrorCode.none, "its assignment", step=back.live)
    assert back.share == {name: {0, 1}}
