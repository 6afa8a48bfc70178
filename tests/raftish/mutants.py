"""Cores that are wrong on purpose. Each is a patch of one method, and a word on what it breaks."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from raftish.config import Config
from raftish.core import Raft
from raftish.entries import HardState
from raftish.following import Following
from raftish.leadership import Leadership
from raftish.log import RaftLog
from raftish.membership import Membership
from raftish.outbox import Outbox
from raftish.progress import Progress


def vote_not_persisted():
    """A vote is told at once, and forgotten in a crash."""
    set_hard_state = Outbox.set_hard_state

    def keep_the_term_alone(self, hard_state):
        if hard_state.term == self.hard_state.term:
            self.hard_state = hard_state
        else:
            set_hard_state(self, hard_state)

    return patch.object(Outbox, "set_hard_state", keep_the_term_alone)


def speaks_before_its_term_is_durable():
    return patch.object(Outbox, "say", lambda self, message: self.send(message))


def votes_twice():
    def forget(self, message):
        self.outbox.hard_state = HardState(self.term, None)
        on_vote_request(self, message)

    on_vote_request = Raft._on_vote_request
    return patch.dict(Raft._HANDLERS, {_key("VoteRequest"): forget})


def votes_for_a_shorter_log():
    return patch.object(RaftLog, "is_up_to_date", lambda self, last_index, last_term: True)


def votes_by_length_alone():
    return patch.object(
        RaftLog, "is_up_to_date", lambda self, last_index, last_term: last_index >= self.last_index
    )


def commits_an_old_term_by_counting():
    """Figure 8 of the raft paper."""
    return patch.object(Leadership, "_may_count", lambda self, index: True)


def leader_counts_itself_unflushed():
    return patch.object(Leadership, "_own_match", lambda self: self._log.last_index)


def follower_acknowledges_before_the_flush():
    return patch.object(Following, "_durable_index", lambda self: self._log.last_index)


def a_minority_is_enough():
    def half(self, values, absent):
        ordered = sorted([values.get(voter, absent) for voter in self.voters], reverse=True)
        return ordered[(len(ordered) - 1) // 2]

    return patch.object(Membership, "majority_of", half)


def grants_pre_votes_beside_a_fresh_leader():
    on_pre_vote_request = Raft._on_pre_vote_request

    def grant(self, message):
        with patch.object(Raft, "_leader_is_fresh", lambda self: False):
            on_pre_vote_request(self, message)

    return patch.object(Raft, "_on_pre_vote_request", grant)


def changes_members_before_the_last_change_is_committed():
    return patch.object(Leadership, "_change_is_pending", lambda self: False)


def truncates_after_what_a_message_ends_with():
    """An old message, come late, takes away what was acknowledged since."""
    on_append_request = Following.on_append_request

    def truncate(self, message):
        on_append_request(self, message)
        last = message.prev_index + len(message.entries)
        if message.entries and last < self._log.last_index and self._log.term_at(last):
            self._log.truncate(last + 1)
            self._raft.memberships.truncate(last + 1)

    return patch.object(Following, "on_append_request", truncate)


def does_not_compare_the_entry_before():
    on_append_request = Following.on_append_request

    def accept(self, message):
        there = self._log.term_at(message.prev_index)
        if there is not None and there != message.prev_term:
            message = type(message)(
                message.source,
                message.target,
                message.term,
                message.prev_index,
                there,
                message.commit,
                message.entries,
            )
        on_append_request(self, message)

    return patch.object(Following, "on_append_request", accept)


def follows_the_commit_index_unverified():
    def follow(self, message):
        self._raft.commit_to(min(message.commit, self._log.last_index))
        on_heartbeat(self, message)

    def send(self):
        self._round += 1
        self._rounds.append((self._round, self._raft.now_ms))
        for node in self.progress:
            self._raft.send(
                _message("Heartbeat")(self._id, node, self._raft.term, self._round, self._raft.commit)
            )

    on_heartbeat = Following.on_heartbeat
    return _both(
        patch.object(Following, "on_heartbeat", follow), patch.object(Leadership, "_send_round", send)
    )


def leases_without_drift():
    """As long as the followers' promise, by a clock that may be slower than theirs."""
    return patch.object(Config, "lease_ms", property(lambda self: self.election_timeout_ms))


def leases_from_the_answer_on():
    on_heartbeat_response = Leadership.on_heartbeat_response

    def count_from_now(self, message):
        on_heartbeat_response(self, message)
        if message.source in self.progress:
            self.progress[message.source].acked_sent_ms = self._raft.now_ms

    return patch.object(Leadership, "on_heartbeat_response", count_from_now)


def leases_go_on_after_handing_over():
    hold = Leadership._lease_holds

    def forget(self):
        self._handed_over = False
        return hold(self)

    return patch.object(Leadership, "_lease_holds", forget)


def a_start_forgets_promises():
    init = Raft.__init__

    def start(self, *args, **more):
        init(self, *args, **more)
        self._heard_leader_ms = float("-inf")

    return patch.object(Raft, "__init__", start)


def reads_without_asking_a_majority():
    def read(self, context):
        self._raft.give_reads([_ready(context, self._raft.commit)])

    return patch.object(Leadership, "read", read)


def reads_confirmed_by_an_earlier_round():
    return _both(
        patch.object(Config, "lease_ms", property(lambda self: 0)),
        patch.object(
            Leadership,
            "_give_reads",
            lambda self: self._raft.give_reads(self.reads.confirmed(self._round)),
        ),
    )


def reads_before_its_term_has_a_commit():
    return patch.object(Leadership, "_has_committed_in_term", lambda self: True)


def believes_an_old_write_after_a_truncation():
    """A write reported durable counts, though its entries were taken away and came back since."""
    truncate = RaftLog.truncate

    def keep_marks(self, first):
        marks = [list(write) for write in self._writes]
        truncate(self, first)
        for write, mark in zip(self._writes, marks, strict=True):
            write[1] = mark[1]

    def persisted(self, seq):
        while self._writes and self._writes[0][0] <= seq:
            self.durable_index = max(self.durable_index, min(self._writes.popleft()[1], self.last_index))
        # What is handed out stays in the tail, so that only the acknowledgement is wrong.

    return _both(patch.object(RaftLog, "truncate", keep_marks), patch.object(RaftLog, "persisted", persisted))


def sends_what_was_lost_never_again():
    return patch.object(Progress, "tick", lambda self, now_ms: False)


def never_steps_down_without_a_majority():
    return patch.object(Leadership, "has_quorum", lambda self: True)


@contextmanager
def _both(*patches):
    with ExitStack() as stack:
        for one in patches:
            stack.enter_context(one)
        yield


def _message(name):
    import raftish.messages

    return getattr(raftish.messages, name)


_key = _message


def _ready(context, index):
    from raftish.reads import ReadReady

    return ReadReady(context, index)


FAULTS, STALE = "faults", "stale leaders"

MUTANTS = {
    vote_not_persisted: (FAULTS, 20),
    speaks_before_its_term_is_durable: (FAULTS, 10),
    votes_twice: (FAULTS, 30),
    votes_for_a_shorter_log: (FAULTS, 50),
    votes_by_length_alone: (FAULTS, 200),
    commits_an_old_term_by_counting: (FAULTS, 100),
    leader_counts_itself_unflushed: (FAULTS, 10),
    follower_acknowledges_before_the_flush: (FAULTS, 10),
    a_minority_is_enough: (FAULTS, 10),
    grants_pre_votes_beside_a_fresh_leader: (FAULTS, 10),
    changes_members_before_the_last_change_is_committed: (FAULTS, 30),
    truncates_after_what_a_message_ends_with: (FAULTS, 20),
    does_not_compare_the_entry_before: (FAULTS, 60),
    follows_the_commit_index_unverified: (FAULTS, 30),
    leases_without_drift: (STALE, 30),
    leases_from_the_answer_on: (STALE, 30),
    leases_go_on_after_handing_over: (STALE, 200),
    a_start_forgets_promises: (STALE, 10),
    reads_without_asking_a_majority: (FAULTS, 20),
    reads_confirmed_by_an_earlier_round: (STALE, 30),
    reads_before_its_term_has_a_commit: (FAULTS, 30),
    believes_an_old_write_after_a_truncation: (FAULTS, 100),
    sends_what_was_lost_never_again: (FAULTS, 50),
    never_steps_down_without_a_majority: (FAULTS, 20),
}
"""Each with the kind of run, and the number of seeds, within which it is found."""
