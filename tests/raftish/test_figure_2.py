"""Figure 2 of the raft paper (extended version), clause by clause, as one node's behaviour."""

from __future__ import annotations

import pytest

from raftish.core import NotLeader, Role
from raftish.entries import HardState, Kind
from raftish.messages import AppendRequest, AppendResponse, Heartbeat, VoteRequest, VoteResponse
from tests.raftish.rig import Rig, entries


def only(messages, kind):
    found = [message for message in messages if isinstance(message, kind)]
    assert len(found) == 1, messages
    return found[0]


# State: "Persistent state on all servers (updated on stable storage before responding to RPCs)"


def test_current_term_is_persistent_before_a_response():
    rig = Rig()
    assert rig.step(VoteRequest, 2, 4, 0, 0, True) == []
    assert only(rig.flush(), VoteResponse).granted
    assert rig.disk.hard_state == HardState(4, 2)


def test_voted_for_is_persistent_before_a_response():
    rig = Rig(term=4)
    rig.wait(95)
    assert rig.step(VoteRequest, 2, 4, 0, 0, True) == []
    rig.restart()
    assert rig.disk.hard_state == HardState(4, None)
    rig.step(VoteRequest, 3, 4, 0, 0, True)
    assert only(rig.flush(), VoteResponse).target == 3


def test_the_log_is_persistent_before_a_response():
    rig = Rig(term=1)
    assert rig.append(2, 1, 0, 0, *entries(1, 1)) == []
    assert only(rig.flush(), AppendResponse).index == 2


def test_a_response_in_a_new_term_waits_for_the_term_though_the_log_is_durable():
    rig = Rig(terms=(1, 1))
    assert rig.append(2, 3, 2, 1) == []
    assert only(rig.flush(), AppendResponse).index == 2


# State: "Volatile state on leaders: nextIndex initialized to leader last log index + 1, matchIndex to 0"


def test_a_leader_starts_with_the_next_entry_and_no_match():
    rig = Rig(terms=(1, 1, 2)).elect(answer=False)
    for progress in rig.raft.leadership.progress.values():
        assert (progress.next, progress.match) == (4, 0)


# AppendEntries RPC, receiver implementation


def test_append_1_reply_false_if_term_is_old():
    rig = Rig(terms=(1, 3))
    (answer,) = rig.append(2, 2, 2, 3, *entries(2, first=3))
    assert answer.term == 3
    assert rig.terms() == [1, 3]


@pytest.mark.parametrize(
    ("prev_index", "prev_term", "hint_index", "hint_term"),
    [
        (5, 3, 3, 2),  # nothing there
        (3, 3, 3, 2),  # another term there
        (3, 1, 1, 1),  # the entry there is of a later term: nothing of it, nor of any like it, can match
    ],
)
def test_append_2_reply_false_if_the_entry_before_does_not_match(
    prev_index, prev_term, hint_index, hint_term
):
    rig = Rig(terms=(1, 2, 2), term=3)
    answer = only(rig.append(2, 3, prev_index, prev_term, *entries(3, first=prev_index + 1)), AppendResponse)
    assert (answer.success, answer.index) == (False, prev_index)
    assert (answer.hint_index, answer.hint_term) == (hint_index, hint_term)
    assert rig.terms() == [1, 2, 2]


def test_append_3_delete_a_conflicting_entry_and_all_that_follow():
    rig = Rig(terms=(1, 1, 2, 2), term=3)
    rig.append(2, 3, 1, 1, *entries(3, first=2))
    assert rig.terms() == [1, 3]
    (write,) = rig.disk.pending
    assert write.truncate_from == 2


def test_append_3_nothing_is_deleted_without_a_conflict():
    """A message that came late is a part of what is here already."""
    rig = Rig(terms=(1, 1, 2, 2), term=2)
    rig.append(2, 2, 0, 0, *entries(1, 1))
    assert rig.terms() == [1, 1, 2, 2]
    assert not rig.disk.pending


def test_append_4_append_what_is_not_there():
    rig = Rig(terms=(1, 1), term=2)
    rig.append(2, 2, 1, 1, *entries(1, 2, 2, first=2))
    assert rig.terms() == [1, 1, 2, 2]
    (write,) = rig.disk.pending
    assert [entry.index for entry in write.entries] == [3, 4]


def test_append_5_commit_index_is_the_lower_of_the_leaders_and_the_last_new_entry():
    rig = Rig(terms=(1, 1, 1, 1), term=1)
    rig.append(2, 1, 0, 0, *entries(1, 1), commit=4)
    assert rig.raft.commit == 2, "what follows in this log may be another leader's"
    rig.append(2, 1, 2, 1, *entries(1, first=3), commit=3)
    assert rig.raft.commit == 3


def test_a_heartbeat_commits_what_was_acknowledged_in_its_term_also_before_a_restart():
    rig = Rig(terms=(1, 1, 1), term=2)
    rig.append(2, 2, 3, 1, *entries(2, first=4))
    rig.step(Heartbeat, 2, 2, 1, 3)
    assert rig.raft.commit == 3
    rig.step(Heartbeat, 2, 2, 2, 4)
    assert rig.raft.commit == 3, "the last entry is not durable here, so no leader would say that"
    rig.flush()
    rig.restart()
    assert rig.raft.commit == 0
    rig.step(Heartbeat, 2, 2, 3, 4)
    assert rig.raft.commit == 4, "with nothing new to append, nothing else would tell it"


# RequestVote RPC, receiver implementation


def test_vote_1_reply_false_if_term_is_old():
    rig = Rig(term=5)
    rig.wait(95)
    assert not only(rig.step(VoteRequest, 2, 4, 9, 4, True), VoteResponse).granted


def test_vote_2_grant_once_a_term_and_again_to_the_same():
    rig = Rig(term=1)
    rig.step(VoteRequest, 2, 2, 0, 0, True)
    rig.flush()
    assert not only(rig.step(VoteRequest, 3, 2, 0, 0, True), VoteResponse).granted
    assert only(rig.step(VoteRequest, 2, 2, 0, 0, True), VoteResponse).granted


def test_vote_2_a_restart_does_not_forget_the_vote():
    rig = Rig(term=1)
    rig.step(VoteRequest, 2, 2, 0, 0, True)
    rig.flush()
    rig.restart()
    assert not only(rig.step(VoteRequest, 3, 2, 0, 0, True), VoteResponse).granted


@pytest.mark.parametrize(
    ("last_index", "last_term", "granted"),
    [(3, 2, True), (2, 3, True), (9, 2, True), (2, 2, False), (9, 1, False), (0, 0, False)],
)
def test_vote_2_only_to_a_log_at_least_as_up_to_date(last_index, last_term, granted):
    rig = Rig(terms=(1, 2, 2))
    rig.step(VoteRequest, 2, 3, last_index, last_term, True)
    assert only(rig.flush(), VoteResponse).granted is granted


# Rules for servers: all servers


def test_all_apply_what_is_committed_in_order():
    rig = Rig(term=1)
    rig.append(2, 1, 0, 0, *entries(1, 1, 1), commit=2)
    assert rig.raft.take_output().commit == 2


@pytest.mark.parametrize("role", ["follower", "candidate", "leader"])
@pytest.mark.parametrize(
    "message",
    [
        (AppendRequest, 9, 0, 0, 0, ()),
        (AppendResponse, 9, False, 0, 0, 0),
        (Heartbeat, 9, 1, 0),
        (VoteRequest, 9, 0, 0, True),
        (VoteResponse, 9, False),
    ],
    ids=lambda message: message[0].__name__,
)
def test_all_convert_to_follower_of_a_higher_term(role, message):
    rig = Rig()
    if role == "leader":
        rig.elect()
    elif role == "candidate":
        rig.become_candidate()
    kind, *fields = message
    rig.step(kind, 2, *fields)
    assert (rig.raft.role, rig.raft.term) == (Role.FOLLOWER, 9)


# Rules for servers: followers


def test_followers_stand_for_election_when_they_hear_of_no_leader():
    rig = Rig()
    rig.wait(95)
    assert rig.raft.role is Role.FOLLOWER
    rig.wait(5)
    assert rig.raft.role is Role.PRE_CANDIDATE


def test_followers_wait_on_as_long_as_they_hear_of_the_leader():
    rig = Rig(term=1)
    for round_ in range(10):
        rig.step(Heartbeat, 2, 1, round_, 0)
        rig.wait(90)
    assert rig.raft.role is Role.FOLLOWER


def test_followers_wait_on_when_they_gave_a_vote():
    rig = Rig()
    rig.wait(95)
    rig.step(VoteRequest, 2, 1, 0, 0, True)
    rig.wait(95)
    assert rig.raft.role is Role.FOLLOWER


# Rules for servers: candidates


def test_candidates_begin_a_term_vote_for_themselves_and_ask_all():
    rig = Rig(terms=(1, 2), term=4)
    rig.become_candidate()
    assert rig.raft.term == 5
    asked = [message for message in rig.flush() if isinstance(message, VoteRequest)]
    assert rig.disk.hard_state == HardState(5, 1)
    assert [(m.target, m.term, m.last_index, m.last_term) for m in asked] == [(2, 5, 2, 2), (3, 5, 2, 2)]


def test_candidates_become_leader_with_a_majority():
    rig = Rig(voters=(1, 2, 3, 4, 5))
    rig.become_candidate()
    rig.flush()
    rig.step(VoteResponse, 2, 1, True)
    rig.step(VoteResponse, 2, 1, True)
    assert rig.raft.role is Role.CANDIDATE, "one node's vote counts once"
    rig.step(VoteResponse, 3, 1, True)
    assert rig.raft.is_leader


def test_candidates_count_their_own_vote_when_it_is_durable():
    rig = Rig(voters=(1,))
    assert rig.raft.role is Role.CANDIDATE
    rig.flush()
    assert rig.raft.is_leader


def test_candidates_follow_a_leader_of_their_term():
    rig = Rig()
    rig.become_candidate()
    rig.append(2, 1, 0, 0)
    assert (rig.raft.role, rig.raft.leader) == (Role.FOLLOWER, 2)


def test_candidates_begin_anew_when_nobody_wins():
    rig = Rig()
    rig.become_candidate()
    rig.flush()
    rig.become_candidate()
    assert rig.raft.term == 2


# Rules for servers: leaders


def test_leaders_tell_at_once_and_again_and_again():
    rig = Rig()
    rig.become_candidate()
    rig.flush()
    sent = rig.step(VoteResponse, 2, 1, True)
    assert [m.target for m in sent if isinstance(m, Heartbeat)] == [2, 3]
    rig.answer_all()
    sent = rig.wait(50)
    assert sum(isinstance(m, Heartbeat) and m.target == 2 for m in sent) == 2


def test_leaders_append_what_clients_want_and_commit_with_a_majority():
    rig = Rig().elect()
    proposed = rig.use("propose", [b"x"])
    assert proposed == (1, 2, 2)
    rig.flush()
    assert rig.raft.commit == 1
    rig.acknowledge(2)
    assert rig.raft.commit == 2


def test_only_leaders_take_proposals():
    rig = Rig(term=1)
    rig.step(Heartbeat, 2, 1, 1, 0)
    with pytest.raises(NotLeader) as refusal:
        rig.use("propose", [b"x"])
    assert refusal.value.leader == 2


def test_leaders_send_what_a_follower_lacks():
    rig = Rig(terms=(1, 1)).elect(answer=False)
    rig.wait(60)
    answer = rig.step(AppendResponse, 2, 2, False, 2, 1, 1)
    append = only(answer, AppendRequest)
    assert (append.prev_index, append.prev_term) == (1, 1)
    assert [(entry.term, entry.index) for entry in append.entries] == [(1, 2), (2, 3)]


def test_leaders_update_next_and_match_on_success():
    rig = Rig(terms=(1, 1)).elect(answer=False)
    rig.acknowledge(2, 3)
    progress = rig.raft.leadership.progress[2]
    assert (progress.match, progress.next) == (3, 4)


def test_leaders_go_back_on_a_refusal_by_terms():
    """Terms 1 1 1 3 here, 1 1 2 2 2 there: one refusal finds the place (end of section 5.3)."""
    rig = Rig(terms=(1, 1, 1, 3), term=4).elect(answer=False)
    append = only(rig.step(AppendResponse, 2, 5, False, 4, 4, 2), AppendRequest)
    assert (append.prev_index, append.prev_term) == (3, 1)


def test_leaders_commit_only_entries_of_their_term_by_counting():
    """Figure 8: an older entry on a majority is not safe until one of this term is."""
    rig = Rig(terms=(1, 2), term=3).elect(answer=False)
    rig.acknowledge(2, 2)
    rig.acknowledge(3, 2)
    assert rig.raft.commit == 0
    rig.acknowledge(2, 3)
    assert rig.raft.commit == 3


def test_leaders_never_take_back_their_own_entries():
    rig = Rig(terms=(1, 1)).elect()
    rig.step(AppendResponse, 2, 2, False, 3, 0, 0)
    rig.wait(50)
    assert rig.terms() == [1, 1, 2]


# Section 8


def test_leaders_begin_with_an_entry_of_their_own():
    rig = Rig(terms=(1,)).elect(answer=False)
    entry = rig.raft.log.entries(2, 2, 100)[0]
    assert (entry.term, entry.kind) == (2, Kind.NOOP)


def test_two_leaders_of_a_term_are_an_impossibility_that_is_not_passed_over():
    rig = Rig().elect()
    with pytest.raises(AssertionError, match="both lead term 1"):
        rig.append(2, 1, 0, 0)


def test_a_committed_entry_is_never_truncated():
    rig = Rig(terms=(1, 1), term=1)
    rig.append(2, 1, 2, 1, commit=2)
    rig.append(3, 2, 0, 0, *entries(2, 2))
    assert rig.terms() == [1, 1]
