"""One step of a member towards its target, by itself; and the table of a member's states."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.groups.consumer.member import (
    AWAY_EPOCH,
    TRANSITIONS,
    ImpossibleMove,
    Member,
    MemberState,
    Partitions,
    Profile,
    without_epochs,
)
from broker.groups.consumer.reconcile import reconcile

A, B = UUID(int=1), UUID(int=2)
BOTH = frozenset({A, B})


def numbers(**topics: set[int]) -> Partitions:
    return {{"a": A, "b": B}[name]: frozenset(found) for name, found in topics.items() if found}


def a_member(
    state: MemberState = MemberState.STABLE,
    epoch: int = 5,
    assigned: Partitions | None = None,
    revoking: Partitions | None = None,
) -> Member:
    def given_in(partitions: Partitions | None, epoch: int) -> Mapping[UUID, Mapping[int, int]]:
        return {topic: dict.fromkeys(found, epoch) for topic, found in (partitions or {}).items()}

    return Member(
        member_id="m",
        profile=Profile(),
        epoch=epoch,
        previous_epoch=epoch - 1,
        state=state,
        assigned=given_in(assigned, 3),
        revoking=given_in(revoking, 3),
    )


def step(
    member: Member,
    target: Partitions,
    *,
    epoch: int = 6,
    owned: Partitions | None = None,
    taken: Partitions | None = None,
    subscribed: frozenset[UUID] = BOTH,
    changed: bool = False,
) -> Member:
    return reconcile(
        member,
        target_epoch=epoch,
        target=target,
        subscribed=subscribed,
        owned=owned,
        is_free=lambda topic, number: number not in (taken or {}).get(topic, ()),
        subscription_changed=changed,
    )


def shape(member: Member) -> tuple[MemberState, int, Partitions, Partitions]:
    return member.state, member.epoch, without_epochs(member.assigned), without_epochs(member.revoking)


STABLE, REVOKING, WAITING = MemberState.STABLE, MemberState.REVOKING, MemberState.WAITING


def test_a_new_member_takes_what_is_free() -> None:
    member = step(a_member(MemberState.JOINING, 0), numbers(a={0, 1}), owned={})
    assert shape(member) == (STABLE, 6, numbers(a={0, 1}), {})
    assert member.given_in(A, 0) == 6


def test_a_new_member_waits_for_the_rest() -> None:
    member = step(a_member(MemberState.JOINING, 0), numbers(a={0, 1}), owned={}, taken=numbers(a={1}))
    assert shape(member) == (WAITING, 6, numbers(a={0}), {})
    member = step(a_member(MemberState.JOINING, 0), numbers(a={0}), owned={}, taken=numbers(a={0}))
    assert shape(member) == (WAITING, 6, {}, {})


def test_a_settled_member_stays_as_it_is() -> None:
    member = a_member(assigned=numbers(a={0}))
    assert step(member, numbers(a={0, 1}), epoch=5) is member


def test_what_is_taken_away_is_given_up_first() -> None:
    member = a_member(assigned=numbers(a={0, 1}))
    told = step(member, numbers(a={1, 2}))
    assert shape(told) == (REVOKING, 5, numbers(a={1}), numbers(a={0})), "nothing new before that"
    again = step(told, numbers(a={1, 2}), owned=numbers(a={0, 1}))
    assert again is told
    done = step(told, numbers(a={1, 2}), owned=numbers(a={1}))
    assert shape(done) == (STABLE, 6, numbers(a={1, 2}), {})
    assert (done.given_in(A, 1), done.given_in(A, 2), done.given_in(A, 0)) == (3, 6, None)


def test_what_was_given_up_before_it_was_asked_for() -> None:
    member = a_member(assigned=numbers(a={0, 1}))
    assert shape(step(member, numbers(a={1}), owned=numbers(a={1}))) == (STABLE, 6, numbers(a={1}), {})


def test_silence_is_no_revocation() -> None:
    member = a_member(REVOKING, assigned=numbers(a={1}), revoking=numbers(a={0}))
    assert step(member, numbers(a={1}), owned=None) is member


def test_a_target_that_changes_while_it_revokes() -> None:
    member = a_member(REVOKING, assigned=numbers(a={1, 2}), revoking=numbers(a={0}))
    taken = numbers(a={0, 1, 2})  # by itself
    back = step(member, numbers(a={0, 1, 2}), epoch=7, owned=numbers(a={1, 2}), taken=taken)
    assert shape(back) == (STABLE, 7, numbers(a={0, 1, 2}), {}), (
        "what it gave up was its own: it may have it back"
    )
    more = step(member, numbers(a={1}), epoch=7, owned=numbers(a={1, 2}), taken=taken)
    assert shape(more) == (REVOKING, 5, numbers(a={1}), numbers(a={2}))


def test_a_waiting_member_takes_what_becomes_free() -> None:
    member = a_member(WAITING, 6, assigned=numbers(a={0}))
    target = numbers(a={0, 1, 2})
    some = step(member, target, taken=numbers(a={0, 2}))
    assert shape(some) == (WAITING, 6, numbers(a={0, 1}), {})
    assert some.previous_epoch == member.previous_epoch, "an answer that got lost may still be asked for"
    assert shape(step(some, target)) == (STABLE, 6, target, {})
    assert step(member, target, taken=numbers(a={0, 1, 2})) == member


def test_topics_it_does_not_subscribe_to() -> None:
    member = a_member(assigned=numbers(a={0}, b={0}))
    told = step(member, numbers(a={0}, b={0}), epoch=5, subscribed=frozenset({A}), changed=True)
    assert shape(told) == (REVOKING, 5, numbers(a={0}), numbers(b={0})), "before there is another target"
    quick = step(
        member,
        numbers(a={0}, b={0}),
        epoch=5,
        subscribed=frozenset({A}),
        changed=True,
        owned=numbers(a={0}),
    )
    assert shape(quick) == (STABLE, 5, numbers(a={0}), {})
    unmoved = step(member, numbers(a={0}, b={0}), epoch=5, changed=True)
    assert unmoved is member
    old_target = step(member, numbers(a={0, 1}, b={0, 1}), subscribed=frozenset({A}), owned=numbers(a={0}))
    assert shape(old_target) == (STABLE, 6, numbers(a={0, 1}), {})
    more = step(
        a_member(REVOKING, assigned=numbers(a={1}, b={0}), revoking=numbers(a={0})),
        numbers(a={1}),
        subscribed=frozenset({A}),
        changed=True,
        owned=numbers(a={0, 1}, b={0}),
    )
    assert shape(more) == (REVOKING, 5, numbers(a={1}), numbers(a={0}, b={0}))


some_numbers = st.frozensets(st.integers(0, 3))
some_partitions = st.builds(lambda a, b: numbers(a=set(a), b=set(b)), some_numbers, some_numbers)


@given(
    member=st.builds(
        lambda state, owned, split: a_member(
            state,
            assigned={t: n - split for t, n in owned.items() if n - split},
            revoking={t: n & split for t, n in owned.items() if n & split} if state is REVOKING else {},
        ),
        st.sampled_from([STABLE, REVOKING, WAITING]),
        some_partitions,
        some_numbers,
    ),
    target=some_partitions,
    owned=st.none() | some_partitions,
    taken=some_partitions,
    subscribed=st.frozensets(st.sampled_from([A, B])),
    changed=st.booleans(),
)
def test_whatever_the_state(
    member: Member,
    target: Partitions,
    owned: Partitions | None,
    taken: Partitions,
    subscribed: frozenset[UUID],
    changed: bool,
) -> None:
    def had(topic: UUID, number: int) -> bool:
        return member.given_in(topic, number) is not None

    others = {topic: frozenset(n for n in found if not had(topic, n)) for topic, found in taken.items()}
    mine = {
        topic: frozenset(n for n in range(4) if had(topic, n)) | others.get(topic, frozenset())
        for topic in BOTH
    }
    after = step(member, target, owned=owned, taken=mine, subscribed=subscribed, changed=changed)
    for topic, found in after.assigned.items():
        for number in found:
            assert number not in others.get(topic, ()), "nothing that another has"
            assert had(topic, number) or number in target.get(topic, ())
            assert had(topic, number) or topic in subscribed
    for topic in BOTH:
        for number in range(4):
            if had(topic, number) and after.given_in(topic, number) is None:
                assert owned is not None, "nothing is free that the member has not let go of"
                assert number not in owned.get(topic, ()), "nor what it says it holds"
    if after.epoch > member.epoch:
        assert after.revoking == {}
        assert {
            t: n for t, n in without_epochs(after.assigned).items() if t in subscribed
        }.keys() <= target.keys()
        if after.state is STABLE:
            assert without_epochs(after.assigned) == {t: n for t, n in target.items() if t in subscribed}


# -- the table


@pytest.mark.parametrize("state", MemberState)
@pytest.mark.parametrize("wanted", MemberState)
def test_moves_follow_the_table(state: MemberState, wanted: MemberState) -> None:
    member = a_member(state)
    if wanted in TRANSITIONS[state]:
        assert member.moved(wanted, epoch=9).state is wanted
    else:
        with pytest.raises(ImpossibleMove, match=f"from {state.value} to {wanted.value}"):
            member.moved(wanted, epoch=9)


def test_nothing_leads_to_joining_and_from_away() -> None:
    assert all(MemberState.JOINING not in found for found in TRANSITIONS.values())
    assert TRANSITIONS[MemberState.AWAY] == {MemberState.AWAY}


def test_going_away_and_coming_back() -> None:
    member = a_member(REVOKING, assigned=numbers(a={1}), revoking=numbers(a={0}))
    away = member.gone_away()
    assert shape(away) == (MemberState.AWAY, AWAY_EPOCH, numbers(a={1}), {})
    assert away.given_in(A, 1) == 0
    back = away.returned("n")
    assert (back.member_id, back.state, back.epoch) == ("n", MemberState.JOINING, 0)
    assert without_epochs(back.assigned) == numbers(a={1})
