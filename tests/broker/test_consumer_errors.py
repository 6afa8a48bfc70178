"""Every refusal of ConsumerGroupHeartbeat, and that a refused request changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from consumer_clients import Consumer
from consumer_world import GROUP, ConsumerWorld

from broker.groups.consumer import topics as topics_module
from wire.errors import ErrorCode

Case = tuple[Callable[[Consumer], Any], ErrorCode]

CASES: Mapping[str, Case] = {
    "no member id": (lambda m: m.join(member_id=""), ErrorCode.invalid_request),
    "no member id in version 0, but an epoch": (
        lambda m: m.request(member_id="", member_epoch=1, names_itself=False),
        ErrorCode.invalid_request,
    ),
    "no member id in version 0, leaving": (
        lambda m: m.request(member_id="", member_epoch=-1, names_itself=False),
        ErrorCode.invalid_request,
    ),
    "no group id": (lambda m: m.join(group_id=""), ErrorCode.invalid_request),
    "a blank group id": (lambda m: m.join(group_id=" "), ErrorCode.invalid_request),
    "an empty instance id": (lambda m: m.join(instance_id=""), ErrorCode.invalid_request),
    "an empty rack id": (lambda m: m.join(rack_id=""), ErrorCode.invalid_request),
    "no rebalance timeout": (lambda m: m.join(rebalance_timeout_ms=None), ErrorCode.invalid_request),
    "joining with partitions": (
        lambda m: m.join(owned={m.world.topics.get("orders").id: frozenset({0})}),
        ErrorCode.invalid_request,
    ),
    "joining without a word of partitions": (lambda m: m.join(owned=None), ErrorCode.invalid_request),
    "joining without topics": (lambda m: m.join(topics=None), ErrorCode.invalid_request),
    "away without an instance id": (lambda m: m.request(member_epoch=-2), ErrorCode.invalid_request),
    "an epoch that is none": (lambda m: m.request(member_epoch=-3), ErrorCode.invalid_request),
    "an unknown assignor": (lambda m: m.join(assignor="sticky"), ErrorCode.unsupported_assignor),
    "an unknown assignor later": (
        lambda m: m.request(member_epoch=5, assignor="sticky"),
        ErrorCode.unsupported_assignor,
    ),
    "a bad pattern": (lambda m: m.join(pattern="("), ErrorCode.invalid_regular_expression),
    "a pattern that RE2 cannot do": (
        lambda m: m.join(pattern=r"(a)\1"),
        ErrorCode.invalid_regular_expression,
    ),
    "a pattern that grows without bounds": (
        lambda m: m.join(pattern="((((a{100}){100}){100}){100})"),
        ErrorCode.invalid_regular_expression,
    ),
    "a pattern that is too long": (
        lambda m: m.join(pattern="a" * 5_000),
        ErrorCode.invalid_regular_expression,
    ),
    "a member that is not": (lambda m: m.request(member_epoch=1), ErrorCode.unknown_member_id),
    "leaving without being there": (lambda m: m.request(member_epoch=-1), ErrorCode.unknown_member_id),
    "an instance id that is not": (
        lambda m: m.request(member_epoch=1, instance_id="nobody"),
        ErrorCode.unknown_member_id,
    ),
    "leaving by an instance id that is not": (
        lambda m: m.request(member_epoch=-2, instance_id="nobody"),
        ErrorCode.unknown_member_id,
    ),
    "another's instance id": (
        lambda m: m.request(member_epoch=1, instance_id="i"),
        ErrorCode.fenced_instance_id,
    ),
    "joining with another's instance id": (
        lambda m: m.join(instance_id="i"),
        ErrorCode.unreleased_instance_id,
    ),
    "an epoch ahead": (
        lambda m: m.request(member_id="anna", member_epoch=99),
        ErrorCode.fenced_member_epoch,
    ),
    "another's epoch before": (
        lambda m: m.request(member_id="anna", member_epoch=1),
        ErrorCode.fenced_member_epoch,
    ),
    "a group that is not": (
        lambda m: m.request(member_epoch=1, group_id="none"),
        ErrorCode.group_id_not_found,
    ),
    "leaving a group that is not": (
        lambda m: m.request(member_epoch=-1, group_id="none"),
        ErrorCode.group_id_not_found,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_refused_request_changes_nothing(name: str) -> None:
    world = ConsumerWorld()
    anna, ben = world.consumer("anna"), world.consumer("ben", instance="i")
    world.settle(anna, ben)
    before = (world.description, world.changes_stored)
    ask, code = CASES[name]
    answer = ask(world.consumer("carl")).answer
    assert answer.error is code
    assert answer.message
    assert (world.description, world.changes_stored) == before
    assert world.coordinator.describe("none") is None
    assert [member.beat().answer.error for member in (anna, ben)] == [ErrorCode.none] * 2


@pytest.mark.parametrize("name", CASES)
def test_a_refused_request_makes_no_group(name: str) -> None:
    world = ConsumerWorld()
    ask, _ = CASES[name]
    assert ask(world.consumer("carl")).answer.error is not ErrorCode.none or "instance" in name
    if "instance id" not in name:
        assert world.coordinator.list_groups() == []


def test_a_full_group() -> None:
    world = ConsumerWorld(classic={"max_members_per_group": 2})
    anna, ben, carl = world.consumers("anna", "ben", "carl")
    world.settle(anna, ben)
    assert carl.join().answer.error is ErrorCode.group_max_size_reached
    assert carl.join(member_id="", names_itself=False).answer.error is ErrorCode.group_max_size_reached
    assert anna.join().answer.error is ErrorCode.none, "members may join again"
    ben.leave()
    assert carl.join().answer.error is ErrorCode.none


def test_a_full_broker() -> None:
    world = ConsumerWorld(classic={"max_groups": 2})
    world.consumer("anna").join()
    classic = world.classic("ben", group_id="classic")
    classic.join()
    assert classic.generation_id == 1
    assert world.consumer("carl", group_id="third").join().answer.error is ErrorCode.group_max_size_reached
    late = world.classic("dora", group_id="third")
    assert late.join().answer.error is ErrorCode.group_max_size_reached
    assert world.consumer("emil").join().answer.error is ErrorCode.none


def test_full_memory() -> None:
    world = ConsumerWorld(classic={"max_memory_bytes": 20_000})
    (anna,) = world.consumers("anna")
    anna.join()
    budget = world.coordinator._shared.budget
    used = budget.used_bytes
    many = tuple(f"topic-{number}" for number in range(1_000))
    refused = ErrorCode.group_max_size_reached
    assert world.consumer("ben", topics=many).join().answer.error is refused
    assert world.consumer("carl", topics=many, group_id="other").join().answer.error is refused
    assert anna.request(topics=many).answer.error is refused
    assert budget.used_bytes == used
    assert world.coordinator.describe("other") is None
    anna.leave()
    assert budget.used_bytes == 0


def test_too_many_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_module, "MAX_PATTERNS", 1)
    world = ConsumerWorld()
    anna, ben, carl = world.consumers("anna", "ben", "carl", topics=None, pattern="a.*")
    assert anna.join().answer.error is ErrorCode.none
    carl.pattern = "b.*"
    assert carl.join().answer.error is ErrorCode.group_max_size_reached
    assert ben.join().answer.error is ErrorCode.none, "the same pattern is one"


def test_the_group_s_books_after_all_that() -> None:
    world = ConsumerWorld()
    members = world.consumers("anna", "ben", "carl")
    world.settle(*members)
    for member in members:
        member.leave()
    assert world.coordinator.describe(GROUP).members == ()
    assert world.coordinator._shared.budget.used_bytes == 0
    assert world.coordinator.next_deadline() is None
