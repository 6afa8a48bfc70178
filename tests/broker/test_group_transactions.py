"""Group transactions on a whole node in virtual time: one instant, no trace of losers, outcome kept (design T10)."""

from __future__ import annotations

from typing import Any

import pytest
from support.sim_node import SimClient, SimNode
from support.sim_producer import Producer, create_topic, list_offset, read_all

from txn import keys
from wire import group_transactions as messages
from wire import private_api
from wire.apis import ApiKey
from wire.errors import ErrorCode

both_protocols = pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
MINUTE_MS = 60_000


class World(SimNode):
    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        create_topic(self.client(), "t", 3)

    def ask(self, request: messages.Request) -> messages.Response:
        return ask(self.client(), request)

    def enlist(
        self, producer: Producer, batch: int = 1, attempt: str = "a", generation: int = 0, sink: str = "s"
    ) -> messages.Response:
        return self.ask(
            messages.Enlist(
                sink=sink,
                batch=batch,
                attempt=attempt,
                generation=generation,
                member=member(producer),
                timeout_ms=MINUTE_MS,
            )
        )

    def commit(
        self,
        *members: messages.Member,
        batch: int = 1,
        attempt: str = "a",
        offsets: tuple[messages.Offset, ...] = (),
    ) -> messages.Response:
        return self.ask(
            messages.Commit(sink="s", batch=batch, attempt=attempt, members=members, offsets=offsets)
        )

    def abort(self, batch: int = 1, attempt: str = "a") -> messages.Response:
        return self.ask(messages.Abort(sink="s", batch=batch, attempt=attempt))

    def writer(
        self,
        name: str,
        partition: int = 0,
        *values: bytes,
        batch: int = 1,
        attempt: str = "a",
        v2: bool = True,
        vote: bool = True,
    ) -> tuple[Producer, messages.Member]:
        """A producer that enlisted, wrote, and voted."""
        producer = Producer(self.client(), name, v2=v2)
        assert producer.init() is ErrorCode.none
        as_written = member(producer)
        assert self.enlist(producer, batch, attempt).error == 0
        assert producer.send("t", {partition: list(values)}) == {partition: ErrorCode.none}
        if vote:
            assert producer.end() is ErrorCode.none
        return producer, as_written

    def everything(self) -> list[list[bytes]]:
        return [read_all(self.client(), "t", partition)[0] for partition in range(3)]


def ask(client: SimClient, request: messages.Request) -> messages.Response:
    client._correlation_id += 1
    number = client._correlation_id
    client._asked.append((ApiKey.SEALOG_GROUP_TRANSACTION, 0, number))
    client.session.received(
        private_api.encode_request(ApiKey.SEALOG_GROUP_TRANSACTION, number, "sim", request)
    )
    client._scheduler.run_until(lambda: number in client.answers or client.closed)
    assert not client.closed
    answer: messages.Response = client.answers[number]
    return answer


def member(producer: Producer) -> messages.Member:
    return messages.Member(producer.name, producer.producer_id, producer.epoch)


@both_protocols
def test_votes_show_nothing_and_the_commit_shows_everything(v2: bool) -> None:
    world = World()
    _, first = world.writer("w1", 0, b"a", b"b", v2=v2)
    _, second = world.writer("w2", 1, b"c", v2=v2)
    world.scheduler.advance(1_000)
    assert world.everything() == [[], [], []]
    done = world.commit(first, second)
    assert (done.error, done.members, done.repeated) == (0, 2, False)
    assert world.everything() == [[b"a", b"b"], [b"c"], []]


def test_a_commit_is_one_flush_of_the_metadata_log_however_many_members() -> None:
    world = World(flush_delay_ms=5.0)
    members = [world.writer(f"w{n}", n % 3, b"%d" % n)[1] for n in range(12)]
    world.scheduler.advance(10_000)
    before, began = world.disk.flushes.copy(), world.scheduler._now_ms
    client = world.client()
    assert ask(client, messages.Commit(sink="s", batch=1, attempt="a", members=tuple(members))).members == 12
    assert max(client.answered_at_ms.values()) - began == 5.0
    assert [path.split("/")[0] for path in world.disk.flushes - before] == ["metadata"]


def test_losers_leave_no_trace_and_are_fenced() -> None:
    world = World()
    _, winner = world.writer("winner", 0, b"good")
    voted, _ = world.writer("twin", 0, b"twin")
    writing, _ = world.writer("zombie", 1, b"zombie", vote=False)
    assert world.commit(winner).members == 1
    world.scheduler.advance(1_000)
    assert world.everything() == [[b"good"], [], []]
    assert writing.send("t", {1: [b"more"]}) == {1: ErrorCode.invalid_producer_epoch}
    assert writing.end() is ErrorCode.producer_fenced
    assert voted.send("t", {0: [b"more"]}) == {0: ErrorCode.invalid_producer_epoch}
    assert list_offset(world.client(), "t", 1) == 1, "nothing of a loser holds readers back"


def test_a_replay_and_a_second_committer_hear_the_recorded_outcome() -> None:
    world = World()
    _, winner = world.writer("w1", 0, b"a")
    world.commit(winner)
    for ending in ("", "kill", "cut_power", "restart"):
        if ending:
            getattr(world, ending)()
        again = world.commit(winner)
        assert (again.error, again.repeated, again.attempt, again.members) == (0, True, "a", 1)
        other = world.commit(messages.Member("other", 9, 9), attempt="b")
        assert (other.repeated, other.attempt) == (True, "a")
        late = world.abort(attempt="a")
        assert late.repeated
        newcomer = Producer(world.client(), f"late-{ending}")
        newcomer.init()
        told = world.enlist(newcomer)
        assert (told.repeated, told.attempt) == (True, "a")
        assert world.everything() == [[b"a"], [], []]


def test_lower_batches_than_the_last_done_one_are_done() -> None:
    world = World()
    _, winner = world.writer("w1", 0, b"a", batch=7)
    world.commit(winner, batch=7)
    assert world.commit(batch=3).repeated
    assert not world.commit(batch=8).repeated, "an empty batch is committed, too"
    assert world.commit(batch=8).repeated


def test_a_newer_attempt_supersedes_an_older_one() -> None:
    world = World()
    old, old_member = world.writer("old", 0, b"old", attempt="run-1")
    _, new_member = world.writer("new", 1, b"new", attempt="run-2")
    zombie = Producer(world.client(), "zombie")
    zombie.init()
    assert world.enlist(zombie, attempt="run-1").error_code is ErrorCode.producer_fenced
    assert world.commit(old_member, attempt="run-1").error_code is ErrorCode.producer_fenced
    assert old.send("t", {0: [b"again"]}) == {0: ErrorCode.invalid_producer_epoch}
    assert world.commit(new_member, attempt="run-2").members == 1
    assert world.everything() == [[], [b"new"], []]


def test_a_lower_generation_never_supersedes() -> None:
    world = World()
    new, late = Producer(world.client(), "new"), Producer(world.client(), "late")
    new.init()
    late.init()
    assert world.enlist(new, attempt="run-2", generation=2).error == 0
    assert world.enlist(late, attempt="run-1", generation=1).error_code is ErrorCode.producer_fenced


def test_a_member_that_has_not_voted_cannot_win() -> None:
    world = World()
    producer, as_written = world.writer("w1", 0, b"a", vote=False)
    refused = world.commit(as_written)
    assert refused.error_code is ErrorCode.invalid_txn_state
    assert "w1" in (refused.message or "")
    assert producer.end() is ErrorCode.none
    assert world.commit(as_written).members == 1


def test_an_aborted_attempt_makes_room_for_the_next() -> None:
    world = World()
    _, first = world.writer("w1", 0, b"a")
    assert world.abort().error == 0
    assert world.commit(first).error_code is ErrorCode.producer_fenced
    _, second = world.writer("w1", 0, b"b", attempt="b")
    assert world.commit(second, attempt="b").members == 1
    assert world.everything() == [[b"b"], [], []]


@pytest.mark.parametrize("earlier", [True, False], ids=["failed-before", "fails-now"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_no_outcome_that_the_store_did_not_take_is_ever_answered(commit: bool, earlier: bool) -> None:
    """Neither at once nor to those who ask again; and nobody waits for ever."""
    world = World()
    _, first = world.writer("w1", 0, b"a")
    _, _ = world.writer("w2", 1, b"b")
    world.disk.fail("flush", "metadata")
    if earlier:
        assert Producer(world.client(), "other", v2=True).init() is ErrorCode.coordinator_not_available
    for _ in range(3):
        answer = world.commit(first) if commit else world.abort()
        assert answer.error_code is ErrorCode.coordinator_not_available
    assert world.everything() == [[], [], []]


def test_the_deadline_aborts_what_nobody_commits_and_can_be_extended() -> None:
    world = World()
    _, first = world.writer("w1", 0, b"a")
    world.scheduler.advance(50_000)
    assert world.ask(messages.Extend(sink="s", batch=1, attempt="a", timeout_ms=MINUTE_MS)).error == 0
    world.scheduler.advance(50_000)
    assert len(world.ask(messages.Describe(sink="s")).undecided) == 1
    world.scheduler.advance(20_000)
    assert world.ask(messages.Describe(sink="s")).undecided == ()
    assert world.commit(first).error_code is ErrorCode.invalid_txn_state
    assert world.everything() == [[], [], []]
    assert list_offset(world.client(), "t") == 1
    world.kill()
    assert world.everything() == [[], [], []]


def test_offsets_of_consumer_groups_are_committed_with_the_batch() -> None:
    from wire.apis import ApiKey

    world = World()
    _, first = world.writer("w1", 0, b"a")
    world.commit(first, offsets=(messages.Offset("readers", "t", 2, 42),))
    answer = world.client().ask(
        ApiKey.OFFSET_FETCH,
        7,
        group_id="readers",
        topics=({"name": "t", "partition_indexes": (2,)},),
        require_stable=True,
    )
    assert answer.topics[0].partitions[0].committed_offset == 42


@both_protocols
@pytest.mark.parametrize("ending", ["kill", "restart", "cut_power"])
def test_votes_outlive_every_kind_of_stop(ending: str, v2: bool) -> None:
    world = World()
    _, first = world.writer("w1", 0, b"a", v2=v2)
    _, second = world.writer("w2", 1, b"b", v2=v2)
    getattr(world, ending)()
    assert world.everything() == [[], [], []]
    (undecided,) = world.ask(messages.Describe(sink="s")).undecided
    assert (undecided.members, undecided.voted) == (2, 2)
    assert world.commit(first, second).members == 2
    world.cut_power()
    assert world.everything() == [[b"a"], [b"b"], []]
    world.scheduler.advance(5_000)
    assert world.node.store.count(keys.TXNS) == 0
    assert world.node.store.count(keys.TXN_GROUPS) == 0


@pytest.mark.parametrize("keep", ["none", "prefix", "sectors", "all"])
@pytest.mark.parametrize("cut_at", range(10))
def test_a_commit_cut_anywhere_is_whole_or_undecided(cut_at: int, keep: str) -> None:
    world = World(flush_linger_ms=60_000)
    _, first = world.writer("w1", 0, b"a")
    _, second = world.writer("w2", 1, b"b")
    loser, _ = world.writer("loser", 2, b"x")
    client = world.client()
    client._asked.append((ApiKey.SEALOG_GROUP_TRANSACTION, 0, 1))
    client._correlation_id = 1
    client.session.received(
        private_api.encode_request(
            ApiKey.SEALOG_GROUP_TRANSACTION,
            1,
            "sim",
            messages.Commit(sink="s", batch=1, attempt="a", members=(first, second)),
        )
    )
    for _ in range(cut_at):
        if not world.scheduler.run_turn():
            due = world.scheduler._next_due()
            if due is None or due > world.scheduler._now_ms + 1_000:
                break
            world.scheduler._now_ms = due
    acknowledged = 1 in client.answers
    world.cut_power(keep=keep)
    seen = world.everything()
    assert seen in ([[b"a"], [b"b"], []], [[], [], []])
    if acknowledged:
        assert seen == [[b"a"], [b"b"], []]
    again = world.commit(first, second)
    assert again.error == 0
    assert again.repeated == (seen != [[], [], []])
    assert world.everything() == [[b"a"], [b"b"], []]
    loser.client = world.client()
    assert loser.send("t", {2: [b"zombie"]})[2] is not ErrorCode.none
    world.scheduler.advance(70_000)
    world.cut_power(keep=keep)
    assert world.everything() == [[b"a"], [b"b"], []]


@pytest.mark.parametrize("ending", ["kill", "cut_power"])
def test_losers_that_a_kill_left_behind_are_fenced_by_the_next_start(ending: str) -> None:
    """The group's record is durable, its losers' are not yet: their outcome is the group's all the same."""
    world = World(flush_linger_ms=60_000)
    _, winner = world.writer("winner", 0, b"good")
    loser, _ = world.writer("loser", 1, b"bad", vote=False)
    client = world.client()
    client._asked.append((ApiKey.SEALOG_GROUP_TRANSACTION, 0, 1))
    client._correlation_id = 1
    client.session.received(
        private_api.encode_request(
            ApiKey.SEALOG_GROUP_TRANSACTION,
            1,
            "sim",
            messages.Commit(sink="s", batch=1, attempt="a", members=(winner,)),
        )
    )
    world.scheduler.run_until(lambda: 1 in client.answers)
    getattr(world, ending)()
    assert world.everything() == [[b"good"], [], []]
    loser.client = world.client()
    assert loser.send("t", {1: [b"zombie"]})[1] is not ErrorCode.none
    assert loser.end() is not ErrorCode.none
    assert world.everything() == [[b"good"], [], []]


def test_a_voter_may_go_on_with_other_transactions() -> None:
    world = World()
    producer, as_written = world.writer("w1", 0, b"voted")
    producer.send("t", {1: [b"own"]})
    assert producer.end() is ErrorCode.none
    assert world.everything() == [[], [b"own"], []]
    world.commit(as_written)
    assert world.everything() == [[b"voted"], [b"own"], []]


def test_a_transaction_cannot_be_in_two_groups() -> None:
    world = World()
    producer, _ = world.writer("w1", 0, b"a", vote=False)
    assert world.enlist(producer, sink="other").error_code is ErrorCode.invalid_txn_state


def test_malformed_requests_close_the_connection() -> None:
    world = World()
    client = world.client()
    frame = bytearray(
        private_api.encode_request(ApiKey.SEALOG_GROUP_TRANSACTION, 1, "x", messages.Describe(sink="s"))
    )
    frame[-1] ^= 0xFF
    client.session.received(bytes(frame))
    assert client.closed
    assert world.ask(messages.Describe(sink="s")).error == 0


def test_an_attempt_without_members_may_commit_where_the_one_before_was_aborted() -> None:
    """A batch without records: its committer is the first that the broker hears of the attempt."""
    world = World()
    _, old = world.writer("w1", 0, b"a", attempt="old")
    assert world.abort(attempt="old").error == 0
    assert world.commit(attempt="old").error == ErrorCode.producer_fenced, "what was aborted never comes back"
    done = world.commit(attempt="new")
    assert (done.error, done.members, done.repeated) == (0, 0, False)
    assert world.commit(old, attempt="old").repeated
    assert world.everything() == [[], [], []]
