"""Server side assignors: complete, fair, sticky, and the same for the same input."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.groups.consumer.assignors import ASSIGNORS, Subscriber, assign_range, assign_uniform
from broker.groups.consumer.member import Partitions

TOPICS = [UUID(int=number) for number in range(1, 6)]
A, B, C = TOPICS[:3]


def everyone(*names: str, topics: frozenset[UUID] = frozenset({A})) -> dict[str, Subscriber]:
    return {name: Subscriber(topics=topics) for name in names}


def owners(assigned: dict[str, Partitions]) -> dict[tuple[UUID, int], list[str]]:
    found: dict[tuple[UUID, int], list[str]] = {}
    for member_id, topics in assigned.items():
        for topic_id, numbers in topics.items():
            for number in numbers:
                found.setdefault((topic_id, number), []).append(member_id)
    return found


def sizes(assigned: dict[str, Partitions], members: dict[str, Subscriber]) -> list[int]:
    counts = Counter(dict.fromkeys(members, 0))
    for member_id, topics in assigned.items():
        counts[member_id] += sum(len(numbers) for numbers in topics.values())
    return sorted(counts.values())


def moves(before: dict[str, Partitions], after: dict[str, Partitions]) -> int:
    """Partitions that somebody had and another has now."""
    now = owners(after)
    return sum(now[at] != held for at, held in owners(before).items() if at in now)


subscribers = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.builds(
        Subscriber,
        topics=st.frozensets(st.sampled_from(TOPICS)),
        instance_id=st.none() | st.text("xyz", min_size=1, max_size=2),
        current=st.dictionaries(
            st.sampled_from(TOPICS), st.frozensets(st.integers(0, 9), min_size=1), max_size=3
        ),
    ),
    max_size=8,
)
counts = st.fixed_dictionaries({topic: st.integers(1, 12) for topic in TOPICS})


@pytest.mark.parametrize("name", ASSIGNORS)
@given(members=subscribers, partitions=counts)
def test_everything_subscribed_has_one_owner_who_wants_it(
    name: str, members: dict[str, Subscriber], partitions: dict[UUID, int]
) -> None:
    """Whatever was assigned before, be it twice, to the wrong one, or no longer there."""
    assigned = ASSIGNORS[name](members, partitions)
    found = owners(assigned)
    wanted = {topic for member in members.values() for topic in member.topics}
    assert set(found) == {(topic, number) for topic in wanted for number in range(partitions[topic])}
    for (topic, _), (owner,) in found.items():
        assert topic in members[owner].topics
    assert all(assigned.values())
    assert all(numbers for topics in assigned.values() for numbers in topics.values())
    assert ASSIGNORS[name](dict(reversed(members.items())), partitions) == assigned


@given(
    number=st.integers(1, 12), partitions=counts, topics=st.frozensets(st.sampled_from(TOPICS), min_size=1)
)
def test_uniform_is_even_and_moves_as_little_as_that_takes(
    number: int, partitions: dict[UUID, int], topics: frozenset[UUID]
) -> None:
    """A member comes, and then the first one goes."""
    members = everyone(*(f"m{n:02}" for n in range(number)), topics=topics)
    total = sum(partitions[topic] for topic in topics)
    first = assign_uniform(members, partitions)
    assert sizes(first, members)[-1] - sizes(first, members)[0] <= 1

    grown = with_current(members, first) | everyone("new", topics=topics)
    second = assign_uniform(grown, partitions)
    assert sizes(second, grown)[-1] - sizes(second, grown)[0] <= 1
    assert moves(first, second) == sum(len(numbers) for numbers in second.get("new", {}).values())
    assert moves(first, second) == total // (number + 1), "the newcomer takes no more than its fair share"

    shrunk = with_current(grown, second)
    gone = shrunk.pop("m00")
    third = assign_uniform(shrunk, partitions) if shrunk else {}
    kept = {member_id: share for member_id, share in second.items() if member_id != "m00"}
    assert moves(kept, third) == 0
    del gone


def with_current(members: dict[str, Subscriber], assigned: dict[str, Partitions]) -> dict[str, Subscriber]:
    return {
        member_id: Subscriber(topics=member.topics, current=assigned.get(member_id, {}))
        for member_id, member in members.items()
    }


@given(members=subscribers, partitions=counts)
def test_uniform_leaves_nothing_to_even_out(
    members: dict[str, Subscriber], partitions: dict[UUID, int]
) -> None:
    """No partition could go to a member with two less: with few topics the rounds always come to that."""
    assigned = assign_uniform(members, partitions)
    load = {m: sum(len(n) for n in assigned.get(m, {}).values()) for m in members}
    for (topic, _), (owner,) in owners(assigned).items():
        least = min(load[m] for m, member in members.items() if topic in member.topics)
        assert load[owner] - least <= 1


@given(members=subscribers, partitions=counts)
def test_uniform_that_is_done_stays_as_it_is(
    members: dict[str, Subscriber], partitions: dict[UUID, int]
) -> None:
    assigned = assign_uniform(members, partitions)
    assert assign_uniform(with_current(members, assigned), partitions) == assigned


def test_uniform_spreads_each_topic() -> None:
    members = everyone("a", "b", topics=frozenset({A, B}))
    assigned = assign_uniform(members, {A: 4, B: 4})
    assert {m: {t: len(n) for t, n in share.items()} for m, share in assigned.items()} == {
        "a": {A: 2, B: 2},
        "b": {A: 2, B: 2},
    }


def test_uniform_serves_those_first_who_can_choose_least() -> None:
    members = {"a": Subscriber(topics=frozenset({A, B})), "b": Subscriber(topics=frozenset({A}))}
    assigned = assign_uniform(members, {A: 2, B: 2})
    assert assigned == {"a": {B: frozenset({0, 1})}, "b": {A: frozenset({0, 1})}}


def test_range_is_in_the_order_of_members() -> None:
    members = everyone("c", "a", topics=frozenset({A, B})) | {
        "z": Subscriber(topics=frozenset({A, B}), instance_id="i2"),
        "y": Subscriber(topics=frozenset({A, B}), instance_id="i1"),
    }
    assigned = assign_range(members, {A: 6, B: 3})
    assert assigned == {
        "y": {A: frozenset({0, 1}), B: frozenset({0})},
        "z": {A: frozenset({2, 3}), B: frozenset({1})},
        "a": {A: frozenset({4}), B: frozenset({2})},
        "c": {A: frozenset({5})},
    }


def test_range_counts_the_subscribers_of_each_topic() -> None:
    members = everyone("a", "b") | {"c": Subscriber(topics=frozenset({A, B}))}
    assigned = assign_range(members, {A: 3, B: 2})
    assert assigned["c"] == {A: frozenset({2}), B: frozenset({0, 1})}


def test_topics_with_the_same_number_of_partitions_are_split_alike() -> None:
    assigned = assign_range(everyone("a", "b", "c", topics=frozenset({A, B, C})), {A: 7, B: 7, C: 7})
    for share in assigned.values():
        assert share[A] == share[B] == share[C]


@pytest.mark.parametrize("name", ASSIGNORS)
def test_nobody_and_nothing(name: str) -> None:
    assert ASSIGNORS[name]({}, {}) == {}
    assert ASSIGNORS[name](everyone("a", topics=frozenset()), {}) == {}
