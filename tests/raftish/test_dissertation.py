"""What the raft dissertation has beyond figure 2, by its sections, and what docs/raft.md adds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftish import membership as members
from raftish.core import NotNow, Role
from raftish.entries import Entry, HardState, Kind
from raftish.membership import Change, ChangeRefused, Membership, Step
from raftish.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    PreVoteRequest,
    PreVoteResponse,
    SnapshotRequest,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from raftish.progress import Stage
from tests.raftish.rig import CONFIG, Rig, entries
from tests.raftish.test_figure_2 import only


def sent(messages, kind, target):
    return [message for message in messages if isinstance(message, kind) and message.target == target]


# 3.10: leadership transfer


def test_transfer_takes_no_proposals_and_sends_timeout_now_when_the_target_has_all():
    rig = Rig().elect()
    rig.use("propose", [b"x"])
    rig.use("transfer", 2)
    with pytest.raises(NotNow):
        rig.use("propose", [b"y"])
    assert not sent(rig.sent, TimeoutNow, 2)
    assert sent(rig.acknowledge(2), TimeoutNow, 2)


def test_transfer_is_given_up_after_an_election_timeout():
    rig = Rig().elect()
    rig.use("transfer", 2)
    for _ in range(11):
        rig.wait(10)
        rig.answer_all()
    assert rig.use("propose", [b"x"])


def test_transfer_only_to_another_voter_and_one_at_a_time():
    rig = Rig(learners=(4,)).elect()
    for target in (1, 4, 9):
        with pytest.raises(ChangeRefused):
            rig.use("transfer", target)
    rig.use("transfer", 2)
    with pytest.raises(NotNow):
        rig.use("transfer", 3)


def test_timeout_now_makes_a_candidate_that_is_not_refused_for_the_leaders_sake():
    rig = Rig(term=1)
    rig.step(Heartbeat, 2, 1, 1, 0)
    rig.step(TimeoutNow, 2, 1)
    assert rig.raft.role is Role.CANDIDATE
    assert all(message.transfer for message in rig.flush() if isinstance(message, VoteRequest))
    other = Rig(term=1)
    other.step(Heartbeat, 2, 1, 1, 0)
    other.step(VoteRequest, 3, 2, 0, 0, True)
    assert only(other.flush(), VoteResponse).granted


def test_no_lease_holds_after_timeout_now_went_out():
    rig = Rig().elect()
    rig.use("read", "leased")
    assert [ready.context for ready in rig.reads] == ["leased"]
    rig.use("transfer", 2)
    rig.use("read", "asked")
    assert [ready.context for ready in rig.reads] == ["leased"]


# 4.1: one change of members at a time, in force when it is in the log


def test_a_change_is_in_force_when_appended():
    rig = Rig().elect()
    rig.use("change_members", Change(Step.ADD_LEARNER, 4))
    assert 4 in rig.raft.membership.learners
    follower = Rig(term=1)
    grown = Membership(frozenset((1, 2, 3)), frozenset((4,)))
    follower.append(2, 1, 0, 0, Entry(1, 1, Kind.MEMBERSHIP, members.encode(grown)))
    assert follower.raft.membership == grown


def test_a_change_is_taken_back_with_its_entry():
    follower = Rig(term=1)
    grown = Membership(frozenset((1, 2, 3)), frozenset((4,)))
    follower.append(2, 1, 0, 0, Entry(1, 1, Kind.MEMBERSHIP, members.encode(grown)))
    follower.append(3, 2, 0, 0, *entries(2))
    assert follower.raft.membership == follower.members


def test_no_change_before_the_last_one_is_committed():
    rig = Rig().elect()
    rig.use("change_members", Change(Step.ADD_LEARNER, 4))
    with pytest.raises(NotNow, match="not committed"):
        rig.use("change_members", Change(Step.REMOVE, 3))
    rig.flush()
    rig.acknowledge(2)
    rig.use("change_members", Change(Step.REMOVE, 3))


def test_no_change_before_the_term_has_a_commit():
    """The fault in the dissertation's 4.1, found after it was published (raft-dev, July 2015)."""
    rig = Rig().elect(answer=False)
    with pytest.raises(NotNow, match="this term"):
        rig.use("change_members", Change(Step.REMOVE, 3))


def test_a_learner_has_no_vote_and_becomes_a_voter_when_it_has_caught_up():
    rig = Rig(learners=(4,)).elect()
    rig.use("propose", [b"x"] * 10)
    rig.flush()
    rig.acknowledge(4)
    assert rig.raft.commit == 1
    rig.acknowledge(2)
    assert rig.raft.commit == 11
    rig.use("propose", [b"x"] * 10)
    with pytest.raises(ChangeRefused, match="10 entries behind"):
        rig.use("change_members", Change(Step.PROMOTE, 4))
    rig.acknowledge(4)
    rig.use("change_members", Change(Step.PROMOTE, 4))
    assert 4 in rig.raft.membership.voters


def test_a_learner_that_never_answered_is_not_made_a_voter():
    """The majority would be one of more nodes, and none of them more would be there."""
    rig = Rig().elect()
    rig.use("change_members", Change(Step.ADD_LEARNER, 4))
    rig.flush()
    rig.acknowledge(2)
    with pytest.raises(ChangeRefused, match="does not answer"):
        rig.use("change_members", Change(Step.PROMOTE, 4))
    rig.acknowledge(4)
    rig.use("change_members", Change(Step.PROMOTE, 4))


def test_a_learner_does_not_stand_for_election():
    rig = Rig(voters=(2, 3), learners=(1,))
    assert rig.wait(500) == []
    rig.step(TimeoutNow, 2, 0)
    assert rig.raft.role is Role.FOLLOWER


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (Change(Step.ADD_LEARNER, 2), "member already"),
        (Change(Step.PROMOTE, 2), "not a learner"),
        (Change(Step.REMOVE, 9), "not a member"),
    ],
)
def test_changes_that_make_no_sense_are_refused(change, word):
    rig = Rig().elect()
    with pytest.raises(ChangeRefused, match=word):
        rig.use("change_members", change)


def test_the_last_voter_is_not_removed():
    with pytest.raises(ChangeRefused, match="last voter"):
        Membership(frozenset((1,)), frozenset((2,))).changed(Change(Step.REMOVE, 1))


# 4.2.2: a leader that is removed


def test_a_leader_leads_until_its_removal_is_committed_and_does_not_count_itself():
    rig = Rig().elect()
    rig.use("change_members", Change(Step.REMOVE, 1))
    rig.flush()
    rig.acknowledge(2)
    assert rig.raft.is_leader, "one of the two that are left is no majority"
    messages = rig.acknowledge(3)
    assert rig.raft.role is Role.FOLLOWER
    assert len([m for m in messages if isinstance(m, TimeoutNow)]) == 1
    assert rig.wait(500) == []


# 4.2.3 and 6.2: disruptive servers; a leader without a majority


def test_no_vote_while_the_leader_is_fresh_whatever_the_term():
    rig = Rig(term=1)
    rig.wait(90)
    rig.step(Heartbeat, 2, 1, 1, 0)
    rig.flush()
    assert rig.step(VoteRequest, 3, 7, 9, 9, False) == []
    assert rig.raft.term == 1
    rig.wait(95)
    assert rig.step(VoteRequest, 3, 7, 9, 9, False) == []
    rig.jitter = 0.9
    rig.step(Heartbeat, 2, 1, 2, 0)
    rig.wait(100)
    rig.step(VoteRequest, 3, 7, 9, 9, False)
    assert only(rig.flush(), VoteResponse).granted


def test_no_vote_within_a_timeout_after_a_start():
    """It may have answered a leader just before."""
    rig = Rig(term=1)
    rig.wait(95)
    assert rig.step(VoteRequest, 3, 2, 0, 0, False) == []


def test_a_leader_steps_down_when_it_hears_no_majority():
    rig = Rig(voters=(1, 2, 3, 4, 5)).elect()
    for _ in range(20):
        rig.wait(10)
        rig.step(HeartbeatResponse, 2, 1, 1)
        rig.step(HeartbeatResponse, 3, 1, 1)
    assert rig.raft.is_leader
    for _ in range(11):
        rig.wait(10)
        rig.step(HeartbeatResponse, 2, 1, 1)
    assert (rig.raft.role, rig.raft.leader) == (Role.FOLLOWER, None)


def test_a_learner_keeps_no_leader_in_office():
    rig = Rig(learners=(4,)).elect()
    for _ in range(11):
        rig.wait(10)
        rig.step(HeartbeatResponse, 4, 1, 1)
    assert rig.raft.role is Role.FOLLOWER


# 6.4: reads


def test_a_read_waits_for_the_terms_first_commit():
    rig = Rig(terms=(1, 1)).elect(answer=False)
    rig.use("read", "r")
    rig.acknowledge(2)
    assert rig.reads == []
    newest = max(m.round for m in rig.sent if isinstance(m, Heartbeat))
    rig.step(HeartbeatResponse, 2, 2, newest)
    assert [(ready.context, ready.index) for ready in rig.reads] == [("r", 3)]


def test_a_read_without_lease_needs_an_answer_to_a_later_heartbeat():
    rig = Rig(config=replace(CONFIG, lease_reads=False)).elect()
    before = rig.raft.leadership.progress[2].acked_round
    rig.use("read", "r")
    rig.step(HeartbeatResponse, 2, 1, before)
    assert rig.reads == []
    rig.step(HeartbeatResponse, 3, 1, before + 1)
    assert [(ready.context, ready.index) for ready in rig.reads] == [("r", 1)]


def test_the_reads_of_one_turn_share_a_heartbeat():
    rig = Rig(config=replace(CONFIG, lease_reads=False)).elect()
    for name in range(5):
        rig.raft.read(name, rig.now)
    assert len(sent(rig.take(), Heartbeat, 2)) == 1


def test_a_lease_lasts_from_the_sending_and_for_less_than_the_promise():
    rig = Rig().elect()
    for _ in range(4):
        rig.wait(5)
        rig.answer_all()
    (newest,) = {m.round for m in rig.wait(25) if isinstance(m, Heartbeat)}
    sent_ms = rig.now - rig.now % 25
    rig.wait(20)
    rig.step(HeartbeatResponse, 2, 1, newest)
    assert rig.raft.leadership.lease_until_ms() == sent_ms + 100 / 1.25
    rig.now = sent_ms + 79
    rig.use("read", "leased")
    assert len(rig.reads) == 1
    rig.now = sent_ms + 80
    rig.use("read", "asked")
    assert len(rig.reads) == 1


def test_reads_end_with_the_leadership():
    rig = Rig(config=replace(CONFIG, lease_reads=False)).elect()
    rig.use("read", "r")
    rig.step(Heartbeat, 2, 2, 1, 0)
    assert [(ready.context, ready.index) for ready in rig.reads] == [("r", None)]


def test_reads_are_bounded():
    rig = Rig(config=replace(CONFIG, lease_reads=False, max_pending_reads=3)).elect()
    for name in range(3):
        rig.use("read", name)
    with pytest.raises(NotNow):
        rig.use("read", 3)


# 9.6: pre-vote


def test_a_pre_vote_changes_nothing_at_the_voter():
    rig = Rig(term=1)
    rig.wait(95)
    rig.jitter = 0.9
    rig.step(Heartbeat, 2, 1, 1, 0)
    rig.flush()
    rig.wait(100)
    answer = only(rig.step(PreVoteRequest, 3, 2, 0, 0), PreVoteResponse)
    assert (answer.granted, answer.term) == (True, 2)
    assert (rig.raft.term, rig.disk.pending) == (1, [])


def test_no_pre_vote_beside_a_fresh_leader_nor_for_a_shorter_log_nor_for_an_old_term():
    rig = Rig(terms=(1, 1), term=1)
    assert not only(rig.step(PreVoteRequest, 3, 2, 2, 1), PreVoteResponse).granted
    rig.jitter = 0.9
    rig.wait(95)
    rig.step(Heartbeat, 2, 1, 1, 0)
    rig.wait(100)
    assert not only(rig.step(PreVoteRequest, 3, 2, 1, 1), PreVoteResponse).granted
    assert not only(rig.step(PreVoteRequest, 3, 1, 2, 1), PreVoteResponse).granted
    assert only(rig.step(PreVoteRequest, 3, 2, 2, 1), PreVoteResponse).granted


def test_a_pre_candidate_learns_of_a_higher_term():
    rig = Rig()
    rig.wait(100)
    rig.step(PreVoteResponse, 2, 5, False)
    assert (rig.raft.role, rig.raft.term) == (Role.FOLLOWER, 5)


def test_a_leader_of_an_old_term_hears_of_the_new_one():
    """Else a node whose term went ahead would never hear its leader, which nobody would replace."""
    rig = Rig(term=5)
    assert only(rig.step(Heartbeat, 2, 4, 1, 0), HeartbeatResponse).term == 5
    assert only(rig.append(2, 4, 0, 0), HeartbeatResponse).term == 5


# 10.2.1: the leader's own disk, beside the followers'


def test_a_leader_sends_before_its_own_flush_and_counts_itself_after_it():
    rig = Rig().elect()
    rig.use("propose", [b"x"])
    assert sent(rig.sent, AppendRequest, 2)
    rig.acknowledge(2)
    assert rig.raft.commit == 1
    rig.flush()
    assert rig.raft.commit == 2


def test_a_majority_of_followers_commits_without_the_leaders_disk():
    rig = Rig().elect()
    rig.use("propose", [b"x"])
    rig.acknowledge(2)
    rig.acknowledge(3)
    assert rig.raft.commit == 2


# 10.2.2: batching and pipelining, and their bounds


def test_proposals_of_one_turn_travel_together_and_later_ones_do_not_wait():
    rig = Rig().elect()
    rig.raft.propose([b"a"], rig.now)
    rig.raft.propose([b"b"], rig.now)
    assert [len(m.entries) for m in sent(rig.take(), AppendRequest, 2)] == [2]
    rig.raft.propose([b"c"], rig.now)
    assert [m.prev_index for m in sent(rig.take(), AppendRequest, 2)] == [3]


def test_appends_have_a_size():
    rig = Rig().elect()
    rig.raft.propose([b"x" * 40] * 5 + [b"y" * 500], rig.now)
    assert [len(m.entries) for m in sent(rig.take(), AppendRequest, 2)] == [2, 2, 1, 1]


def test_what_is_under_way_to_one_follower_is_bounded_in_number():
    rig = Rig(config=replace(CONFIG, max_inflight_messages=2)).elect()
    for text in (b"a", b"b", b"c", b"d"):
        rig.use("propose", [text])
    assert len(sent(rig.sent, AppendRequest, 2)) == 2
    messages = rig.acknowledge(2, 2)
    assert [[entry.payload for entry in m.entries] for m in sent(messages, AppendRequest, 2)] == [
        [b"c", b"d"]
    ]


def test_what_is_under_way_to_one_follower_is_bounded_in_bytes():
    rig = Rig(config=replace(CONFIG, max_inflight_bytes=100)).elect()
    for _ in range(4):
        rig.use("propose", [b"x" * 60])
    assert len(sent(rig.sent, AppendRequest, 2)) == 2
    assert rig.raft.leadership.progress[2].inflight_bytes == 120


def test_what_is_not_committed_is_bounded():
    rig = Rig(config=replace(CONFIG, max_uncommitted_bytes=100)).elect()
    rig.use("propose", [b"x" * 80])
    with pytest.raises(NotNow):
        rig.use("propose", [b"x" * 30])
    rig.acknowledge(2)
    rig.acknowledge(3)
    rig.use("propose", [b"x" * 30])


def test_what_was_lost_is_sent_again_from_the_last_match():
    rig = Rig().elect()
    rig.use("propose", [b"a"])
    rig.use("propose", [b"b"])
    rig.sent.clear()
    for _ in range(7):
        rig.wait(10)
        rig.step(HeartbeatResponse, 2, 1, 1)
    (again,) = sent(rig.sent, AppendRequest, 2)
    assert (again.prev_index, len(again.entries)) == (1, 2)
    assert rig.raft.leadership.progress[2].stage is Stage.PROBE


def test_a_silent_follower_is_not_sent_the_log_from_its_begin():
    rig = Rig(terms=(1,) * 9).elect(answer=False)
    for _ in range(30):
        rig.wait(10)
        rig.step(HeartbeatResponse, 2, 2, 1)
        rig.step(HeartbeatResponse, 3, 2, 1)
    again = sent(rig.sent, AppendRequest, 3)
    assert len(again) >= 3
    assert {m.prev_index for m in again} == {9}


def test_an_append_that_found_its_place_is_not_sent_twice():
    rig = Rig(terms=(1, 1)).elect(answer=False)
    messages = rig.acknowledge(2, 2)
    assert not [m for m in messages if isinstance(m, AppendRequest) and m.entries]
    rig.acknowledge(2, 3)
    assert rig.raft.commit == 3


def test_heartbeats_of_all_groups_of_a_node_fall_into_the_same_tick():
    rigs = [Rig().elect() for _ in range(2)]
    rigs[1].now += 5
    ticks = []
    for rig in rigs:
        for now in range(rig.now + 1, 260):
            rig.now = now
            rig.raft.tick(now)
            if any(isinstance(m, Heartbeat) for m in rig.take()):
                ticks.append((rig, now))
            rig.step(HeartbeatResponse, 2, 1, 1)
    first, second = ([now for rig, now in ticks if rig is one] for one in rigs)
    assert first == second
    assert len(first) > 4


# Durability (docs/raft.md)


def test_an_acknowledgement_goes_as_far_as_the_disk():
    rig = Rig(term=1)
    rig.append(2, 1, 0, 0, *entries(1, 1))
    rig.append(2, 1, 2, 1, *entries(1, first=3))
    assert [m.index for m in rig.flush(1)] == [2]
    assert [m.index for m in rig.flush(1)] == [3]


def test_a_write_that_was_truncated_since_does_not_count():
    rig = Rig(term=1)
    rig.append(2, 1, 0, 0, *entries(1, 1))
    rig.append(3, 2, 0, 0, *entries(2, 2))
    rig.append(2, 3, 0, 0, *entries(1, 1))
    assert rig.flush(1) == []
    assert rig.flush(1) == []
    assert rig.raft.log.durable_index == 0
    assert only(rig.flush(1), AppendResponse).index == 2


def test_a_leaders_unflushed_tail_is_gone_with_its_crash():
    rig = Rig().elect()
    rig.use("propose", [b"x"])
    rig.restart()
    assert rig.terms() == [1]
    assert rig.raft.role is Role.FOLLOWER


def test_a_group_of_one_that_never_had_others_leads_at_once():
    rig = Rig(voters=(1,), terms=(3,))
    rig.flush()
    assert (rig.raft.is_leader, rig.raft.term) == (True, 4)
    rig.flush()
    assert rig.raft.commit == 2


def test_a_group_of_one_that_had_others_waits_a_timeout():
    """One of them may lead yet, on this node's promise."""
    rig = Rig(voters=(1,))
    alone = Membership(frozenset((1,)))
    rig.disk.entries = [Entry(1, 1, Kind.MEMBERSHIP, members.encode(alone))]
    rig.disk.hard_state = HardState(1, None)
    rig.restart()
    assert rig.raft.role is Role.FOLLOWER
    rig.wait(100)
    rig.flush()
    assert rig.raft.is_leader


# 5: snapshots


def snapshot(rig, source=2, term=1, index=5, index_term=1):
    return rig.step(SnapshotRequest, source, term, index, index_term, rig.members)


def test_a_follower_whose_next_entry_is_gone_is_sent_to_fetch_the_state():
    rig = Rig(terms=(1, 1, 1)).elect(answer=False)
    rig.acknowledge(2)
    rig.disk.compact(4)
    request = only(rig.step(AppendResponse, 3, 2, False, 3, 0, 0), SnapshotRequest)
    assert (request.target, request.index, request.index_term) == (3, 4, 2)
    assert request.membership == rig.members


def test_nothing_is_appended_while_a_snapshot_is_fetched():
    rig = Rig(term=1)
    snapshot(rig)
    assert [request.index for request in rig.restores] == [5]
    assert rig.append(2, 1, 0, 0, *entries(1)) == []
    assert not rig.disk.pending
    snapshot(rig, index=7)
    assert len(rig.restores) == 1


def test_an_installed_snapshot_is_acknowledged_and_the_log_goes_on_behind_it():
    rig = Rig(terms=(1, 1), term=1)
    snapshot(rig)
    rig.disk.install(rig.restores[0])
    rig.raft.snapshot_installed(rig.now)
    assert only(rig.take(), AppendResponse).index == 5
    assert rig.raft.commit == 5
    rig.append(2, 1, 5, 1, *entries(1, first=6))
    assert only(rig.flush(), AppendResponse).index == 6


def test_a_log_that_was_replaced_by_more_than_was_asked_for_is_committed_to_its_end():
    rig = Rig(terms=(1, 1), term=1)
    snapshot(rig)
    changed = Membership(frozenset({1, 2, 3}), frozenset({7}))
    rig.disk.install(rig.restores[0])
    rig.disk.entries = list(entries(1, 1, 1, first=6))
    rig.raft.snapshot_installed(rig.now, [(5, rig.members), (7, changed)])
    assert only(rig.take(), AppendResponse).index == 8
    assert rig.raft.commit == rig.raft.log.last_index == 8
    assert rig.raft.membership == changed
    rig.append(2, 1, 8, 1, *entries(1, first=9))
    assert only(rig.flush(), AppendResponse).index == 9


def test_a_log_that_was_replaced_by_less_than_was_asked_for_is_refused():
    rig = Rig(terms=(1, 1), term=1)
    snapshot(rig)
    with pytest.raises(AssertionError, match="5 was asked for"):
        rig.raft.snapshot_installed(rig.now)


def test_no_snapshot_is_fetched_of_what_is_here():
    rig = Rig(terms=(1,) * 5, term=1)
    assert only(snapshot(rig), AppendResponse).index == 5
    assert rig.restores == []
    assert rig.raft.commit == 5


def test_a_node_that_fetches_a_snapshot_does_not_stand_for_election():
    rig = Rig(term=1)
    snapshot(rig)
    rig.flush()
    assert rig.wait(500) == []
    rig.raft.snapshot_failed(rig.now)
    rig.wait(200)
    assert rig.raft.role is Role.PRE_CANDIDATE
