"""The consensus core of one group on one node: inputs in, `Output` out; docs/raft.md is its contract.

Guarantees: whatever is in `Output.messages` may be sent at once. What would promise something that is not durable
stays inside until `persisted` says that it is. After every input, take the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from raftish.config import Config
from raftish.entries import HardState, Kind
from raftish.following import Following
from raftish.leadership import NEVER, Leadership, NotNow
from raftish.log import LogView, RaftLog
from raftish.membership import Change, Membership, Memberships
from raftish.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    SnapshotRequest,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from raftish.outbox import Outbox, Output
from raftish.reads import ReadReady

__all__ = ["NotLeader", "NotNow", "Output", "Proposed", "Raft", "Role"]


class Role(Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


TRANSITIONS: Final[Mapping[Role, frozenset[Role]]] = {
    Role.FOLLOWER: frozenset({Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE}),
    Role.PRE_CANDIDATE: frozenset({Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE}),
    Role.CANDIDATE: frozenset({Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER}),
    Role.LEADER: frozenset({Role.FOLLOWER}),
}


NEVER_HEARD: Final = float("-inf")


class NotLeader(Exception):
    """Nothing was done; `leader` is who may be it, if known."""

    def __init__(self, leader: int | None) -> None:
        super().__init__(f"the leader is node {leader}" if leader is not None else "no leader is known")
        self.leader = leader


class Proposed(NamedTuple):
    """Where the proposals stand. They are committed when `last` is, if its entry then still has this term."""

    term: int
    first: int
    last: int


class Raft:
    """Times are milliseconds of the node's monotonic clock. `jitter` gives a random part of 1 for each timeout.

    `log` holds what is durable, `hard_state` likewise, `known_members` what `Memberships` takes: the first or the
    snapshot's members, and those of every membership entry in the log since.
    """

    def __init__(
        self,
        node_id: int,
        config: Config,
        log: LogView,
        hard_state: HardState,
        known_members: Iterable[tuple[int, Membership]],
        jitter: Callable[[], float],
        now_ms: float,
        *,
        commit: int = 0,
        is_new: bool = False,
        may_stand: bool = True,
    ) -> None:
        """`commit`: what the driver knows to have been committed in an earlier life; it is in `log`. `is_new`: this
        node never left the term in which the group begins and nobody leads (0, or that of the driver's choice), so it
        has not heard of a leader yet, and need not wait before it votes. `may_stand`: whether it stands for election
        where it is a voter by its log; the driver may change that."""
        assert not (is_new and hard_state.vote is not None), "a node that has voted is not new"
        self.node_id = node_id
        self.config = config
        self.log = RaftLog(log)
        self.memberships = Memberships(known_members)
        self.may_stand = may_stand
        """A node that comes back to a group with an empty log passes by memberships of its former stay."""
        self.now_ms = now_ms
        self.role = Role.FOLLOWER
        self.leader: int | None = None
        self.leadership: Leadership | None = None
        self.commit = max(self.log.first_index - 1, commit)
        self._jitter = jitter
        # What it had promised to a leader before it went down is not known any more: assume the most. In the
        # first term there was no leader yet, and whoever hears of one leaves it before it answers.
        self._heard_leader_ms = NEVER_HEARD if is_new else now_ms
        self._timeout_at_ms = NEVER
        self._granted: set[int] = set()
        self._refused: set[int] = set()
        self.outbox = Outbox(hard_state)
        self.following = Following(self)
        self._arm_timeout()
        if self._is_able() and self.membership.voters == {node_id} and not self.memberships.index:
            # Nobody else ever had a say here.
            self._campaign(transfer=False)

    @property
    def term(self) -> int:
        return self.outbox.hard_state.term

    @property
    def membership(self) -> Membership:
        return self.memberships.current

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    # Inputs.

    def tick(self, now_ms: float) -> bool:
        """Whether it led to anything: if not, there is no output to take. Cheap then, as most groups are idle."""
        if now_ms > self.now_ms:
            self.now_ms = now_ms
        if self.leadership is not None:
            if self.leadership.has_quorum():
                return self.leadership.tick()
            self._become_follower(self.term, None)
            return True
        if now_ms < self._timeout_at_ms:
            return False
        self._arm_timeout()
        if not self._is_able():
            return False
        self._pre_campaign()
        return True

    def step(self, message: Message, now_ms: float) -> None:
        """A message came; twice, late or out of order is fine."""
        self._at(now_ms)
        if isinstance(message, PreVoteRequest):
            self._on_pre_vote_request(message)
            return
        if isinstance(message, PreVoteResponse):
            self._on_pre_vote_response(message)
            return
        if isinstance(message, VoteRequest) and not message.transfer and self._leader_is_fresh():
            # Whatever its term: the leader may be answering reads in the belief that nobody else can be elected.
            return
        if message.term > self.term:
            from_leader = isinstance(message, AppendRequest | Heartbeat | SnapshotRequest)
            self._become_follower(message.term, message.source if from_leader else None)
        handler = self._HANDLERS.get(type(message))
        if handler is None:
            raise TypeError(f"no message: {message!r}")
        if message.term < self.term:
            self._on_old_term(message)
        else:
            handler(self, message)

    def propose(self, payloads: Sequence[bytes], now_ms: float, *, kind: Kind = Kind.NORMAL) -> Proposed:
        """`kind`: NOOP for what the programs above say in the log and no state machine applies. Raises `NotLeader`,
        `NotNow`."""
        self._at(now_ms)
        return Proposed(self.term, *self._leading().propose(payloads, kind))

    def change_members(self, change: Change, now_ms: float) -> Proposed:
        """Raises `NotLeader`, `NotNow`, `ChangeRefused`."""
        self._at(now_ms)
        return Proposed(self.term, *self._leading().change_members(change))

    def transfer(self, target: int, now_ms: float) -> None:
        """Hand leadership to a voter; given up after an election timeout. Raises as `change_members`."""
        self._at(now_ms)
        self._leading().transfer(target)

    def read(self, context: Any, now_ms: float) -> None:
        """`Output.reads` will name the context once. Raises `NotLeader`, `NotNow`."""
        self._at(now_ms)
        self._leading().read(context)

    def stand(self, now_ms: float) -> None:
        """Ask for votes now and not at the timeout, where no leader is known. They are given as at any other time."""
        self._at(now_ms)
        if self.leader is None and self.role in (Role.FOLLOWER, Role.PRE_CANDIDATE) and self._is_able():
            self._pre_campaign()

    def persisted(self, seq: int, now_ms: float) -> None:
        """Everything in outputs up to `seq` is durable, and the log has it."""
        self._at(now_ms)
        waited = not self.outbox.hard_state_is_durable
        if not self.outbox.persisted(seq):
            return
        self.log.persisted(seq)
        if self.role is Role.CANDIDATE and waited and self.outbox.hard_state_is_durable:
            self._take_vote(self.node_id, True)
        elif self.leadership is not None:
            self.leadership.advance_commit()

    def snapshot_installed(
        self, now_ms: float, known_members: Iterable[tuple[int, Membership]] | None = None
    ) -> None:
        """The driver's log was replaced, durably, by what `Output.restore` asked for, or by more: all that it has now
        is committed. `known_members`: of the new log, as at a start, where it has more than what was asked for."""
        self._at(now_ms)
        self.following.installed(known_members)

    def snapshot_failed(self, now_ms: float) -> None:
        self._at(now_ms)
        self.following.restoring = None

    def take_output(self) -> Output:
        """What is to be done now. Persist in the order of seq; send at once."""
        if self.leadership is not None:
            self.leadership.send_all()
        self.following.acknowledge()
        output = self.outbox.take(self.log)
        output.commit = self.commit
        return output

    # What the parts use.

    def send(self, message: Message) -> None:
        self.outbox.send(message)

    def say(self, message: Message) -> None:
        """Send when this node's term and vote are durable."""
        self.outbox.say(message)

    def commit_to(self, index: int) -> None:
        if index <= self.commit:
            return
        if index > self.log.last_index:
            raise AssertionError(f"commit {index} is beyond the log's end {self.log.last_index}")
        self.commit = index
        self.memberships.forget_before(index)
        if self.leadership is not None and self._is_removed_for_good():
            # It led until its own removal was committed (dissertation, 4.2.2).
            self.leadership.leave()
            self._become_follower(self.term, None)

    def _is_removed_for_good(self) -> bool:
        return self.node_id not in self.membership.voters and self.memberships.index <= self.commit

    def give_reads(self, ready: Iterable[ReadReady]) -> None:
        self.outbox.output.reads.extend(ready)

    # Roles.

    def _at(self, now_ms: float) -> None:
        self.now_ms = max(self.now_ms, now_ms)

    def _leading(self) -> Leadership:
        if self.leadership is None:
            raise NotLeader(self.leader)
        return self.leadership

    def _move(self, role: Role) -> None:
        if role not in TRANSITIONS[self.role]:
            raise AssertionError(f"a {self.role.value} does not become a {role.value}")
        self.role = role
        self._granted.clear()
        self._refused.clear()

    def _arm_timeout(self) -> None:
        self._timeout_at_ms = self.now_ms + self.config.election_timeout_ms * (1 + self._jitter())

    def _become_follower(self, term: int, leader: int | None) -> None:
        if term > self.term:
            self.outbox.set_hard_state(HardState(term, None))
            self.following.term_began()
        if self.leadership is not None:
            self.give_reads(self.leadership.reads.fail_all())
            self.leadership = None
            self._arm_timeout()
        self._move(Role.FOLLOWER)
        self.leader = leader

    def _is_able(self) -> bool:
        """Whether this node may be elected."""
        return self.may_stand and self.node_id in self.membership.voters and self.following.restoring is None

    def _pre_campaign(self) -> None:
        self._move(Role.PRE_CANDIDATE)
        self.leader = None
        self._granted.add(self.node_id)
        if self.membership.is_majority(self._granted):
            self._campaign(transfer=False)
            return
        log = self.log
        for node in self._other_voters():
            self.send(PreVoteRequest(self.node_id, node, self.term + 1, log.last_index, log.last_term))

    def _campaign(self, *, transfer: bool) -> None:
        self._move(Role.CANDIDATE)
        self.leader = None
        self.outbox.set_hard_state(HardState(self.term + 1, self.node_id))
        self.following.term_began()
        self._arm_timeout()
        log = self.log
        for node in self._other_voters():
            self.say(VoteRequest(self.node_id, node, self.term, log.last_index, log.last_term, transfer))

    def _other_voters(self) -> list[int]:
        return [node for node in sorted(self.membership.voters) if node != self.node_id]

    def _take_vote(self, node: int, granted: bool) -> None:
        (self._granted if granted else self._refused).add(node)
        if self.membership.is_majority(self._granted):
            self._become_leader()
        elif self.membership.is_majority(self._refused):
            self._become_follower(self.term, None)

    def _become_leader(self) -> None:
        self._move(Role.LEADER)
        self.leader = self.node_id
        self.leadership = Leadership(self)

    def _leader_is_fresh(self) -> bool:
        """Whether this node promised, by answering a leader, to elect nobody yet."""
        return self.is_leader or self.now_ms - self._heard_leader_ms < self.config.election_timeout_ms

    # Elections.

    def _on_pre_vote_request(self, message: PreVoteRequest) -> None:
        granted = (
            message.term > self.term
            and self.log.is_up_to_date(message.last_index, message.last_term)
            and not self._leader_is_fresh()
        )
        term = message.term if granted else self.term
        self.send(PreVoteResponse(self.node_id, message.source, term, granted))

    def _on_pre_vote_response(self, message: PreVoteResponse) -> None:
        if not message.granted and message.term > self.term:
            self._become_follower(message.term, None)
        elif self.role is Role.PRE_CANDIDATE and (not message.granted or message.term == self.term + 1):
            (self._granted if message.granted else self._refused).add(message.source)
            if self.membership.is_majority(self._granted):
                self._campaign(transfer=False)
            elif self.membership.is_majority(self._refused):
                self._become_follower(self.term, None)

    def _on_vote_request(self, message: VoteRequest) -> None:
        granted = self.outbox.hard_state.vote in (None, message.source) and self.log.is_up_to_date(
            message.last_index, message.last_term
        )
        if granted:
            self.outbox.set_hard_state(HardState(self.term, message.source))
            self._arm_timeout()
        self.say(VoteResponse(self.node_id, message.source, self.term, granted))

    def _on_vote_response(self, message: VoteResponse) -> None:
        if self.role is Role.CANDIDATE:
            self._take_vote(message.source, message.granted)

    def _on_timeout_now(self, message: TimeoutNow) -> None:
        if self.leadership is None and self._is_able():
            self._campaign(transfer=True)

    # Following.

    def _on_old_term(self, message: Message) -> None:
        """Its sender must hear of the newer term, or a cluster with pre-votes might never get past it."""
        if isinstance(message, AppendRequest | Heartbeat | SnapshotRequest):
            self.say(HeartbeatResponse(self.node_id, message.source, self.term, 0))
        elif isinstance(message, VoteRequest):
            self.say(VoteResponse(self.node_id, message.source, self.term, False))

    def _follow(self, leader: int) -> None:
        if self.is_leader:
            raise AssertionError(f"nodes {self.node_id} and {leader} both lead term {self.term}")
        if self.role is not Role.FOLLOWER:
            self._move(Role.FOLLOWER)
        self.leader = leader
        self._heard_leader_ms = self.now_ms
        self._arm_timeout()

    def _on_append_request(self, message: AppendRequest) -> None:
        self._follow(message.source)
        self.following.on_append_request(message)

    def _on_heartbeat(self, message: Heartbeat) -> None:
        self._follow(message.source)
        self.following.on_heartbeat(message)

    def _on_snapshot_request(self, message: SnapshotRequest) -> None:
        self._follow(message.source)
        self.following.on_snapshot_request(message)

    # What a leader hears.

    def _on_append_response(self, message: AppendResponse) -> None:
        if self.leadership is not None:
            self.leadership.on_append_response(message)

    def _on_heartbeat_response(self, message: HeartbeatResponse) -> None:
        if self.leadership is not None:
            self.leadership.on_heartbeat_response(message)

    _HANDLERS: Final[Mapping[type[Any], Callable[[Raft, Any], None]]] = {
        VoteRequest: _on_vote_request,
        VoteResponse: _on_vote_response,
        AppendRequest: _on_append_request,
        AppendResponse: _on_append_response,
        Heartbeat: _on_heartbeat,
        HeartbeatResponse: _on_heartbeat_response,
        SnapshotRequest: _on_snapshot_request,
        TimeoutNow: _on_timeout_now,
    }
