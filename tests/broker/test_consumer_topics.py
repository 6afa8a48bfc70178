"""Topic patterns, the hash of a group's topics, and the settings of groups of the new protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from consumer_world import Topics

from broker.config import ConfigError, load
from broker.groups import ConsumerConfig, MigrationPolicy
from broker.groups.consumer.topics import TopicPatterns, topics_hash
from wire.errors import ErrorCode, KafkaError


@pytest.fixture
def topics() -> Topics:
    topics = Topics()
    for name in ("orders", "orders.eu", "bills"):
        topics.make(name, 2)
    return topics


def test_a_pattern_is_matched_from_end_to_end(topics: Topics) -> None:
    patterns = TopicPatterns(topics)
    for pattern, found in {
        "orders": {"orders"},
        "^orders$": {"orders"},
        "orders.*": {"orders", "orders.eu"},
        "order": set(),
        "": set(),
        "(?i)ORDERS": {"orders"},
        "bills|orders": {"bills", "orders"},
        "[^b].*": {"orders", "orders.eu"},
        r"\w+\.eu": {"orders.eu"},
    }.items():
        patterns.check(pattern)
        patterns.acquire(pattern)
        assert patterns.matches(pattern) == found, pattern


def test_what_it_matches_follows_the_topics(topics: Topics) -> None:
    patterns = TopicPatterns(topics)
    patterns.acquire("o.*")
    before = patterns.matches("o.*")
    assert patterns.matches("o.*") is before
    topics.make("other", 1)
    topics.delete("orders")
    assert patterns.matches("o.*") == {"orders.eu", "other"}


def test_a_pattern_is_forgotten_with_its_last_user(topics: Topics) -> None:
    patterns = TopicPatterns(topics)
    patterns.acquire("a")
    patterns.acquire("a")
    patterns.release("a")
    assert len(patterns) == 1
    patterns.release("a")
    assert len(patterns) == 0


@pytest.mark.parametrize("pattern", ["(", "[a", "a**", "(?=a)", r"(a)\1", "a{1001}", "x" * 5_000])
def test_patterns_that_are_refused(topics: Topics, pattern: str) -> None:
    with pytest.raises(KafkaError) as refused:
        TopicPatterns(topics).check(pattern)
    assert refused.value.code is ErrorCode.invalid_regular_expression


def test_a_pattern_made_to_be_slow_is_not(topics: Topics) -> None:
    """A backtracking matcher would need longer than the world has existed."""
    topics.make("a" * 200 + "!", 1)
    patterns = TopicPatterns(topics)
    patterns.acquire("(a|a?)+(a|a?)+(a|a?)+b")
    assert patterns.matches("(a|a?)+(a|a?)+(a|a?)+b") == frozenset()


def test_the_hash_tells_of_ids_counts_and_names(topics: Topics) -> None:
    names = {"orders", "bills", "nothing"}
    before = topics_hash(topics, names)
    assert topics_hash(topics, sorted(names)) == before
    assert topics_hash(topics, names | {"orders.eu"}) != before
    assert topics_hash(topics, names | {"no.more"}) == before, "what is not there does not count"
    topics.grow("orders", 3)
    grown = topics_hash(topics, names)
    assert grown != before
    topics.delete("orders")
    assert topics_hash(topics, names) not in (before, grown)
    topics.make("orders", 2)
    assert topics_hash(topics, names) not in (before, grown), "another topic of the same name"
    assert -(1 << 63) <= grown < 1 << 63


@pytest.mark.parametrize(
    "settings",
    [
        {"heartbeat_interval_ms": 0},
        {"heartbeat_interval_ms": 45_000},
        {"session_timeout_ms": 5_000},
        {"assignment_interval_ms": -1},
        {"assignors": ()},
        {"assignors": ("sticky",)},
        {"assignors": ("range", "range")},
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        ConsumerConfig(**settings)


def test_policies() -> None:
    assert {policy: (policy.may_upgrade, policy.may_downgrade) for policy in MigrationPolicy} == {
        MigrationPolicy.BIDIRECTIONAL: (True, True),
        MigrationPolicy.UPGRADE: (True, False),
        MigrationPolicy.DOWNGRADE: (False, True),
        MigrationPolicy.DISABLED: (False, False),
    }


@pytest.mark.parametrize(
    "line",
    [
        'group_consumer_assignors = ["sticky"]',
        "group_consumer_assignors = []",
        'group_consumer_migration_policy = "sideways"',
        "group_consumer_heartbeat_interval_ms = 45000",
        "group_consumer_session_timeout_ms = 0",
    ],
)
def test_a_configuration_that_is_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "sealog.toml"
    file.write_text(line)
    with pytest.raises(ConfigError, match=r"sealog\.toml"):
        load(str(file))


def test_a_configuration(tmp_path: Path) -> None:
    file = tmp_path / "sealog.toml"
    file.write_text('group_consumer_assignors = ["range"]\ngroup_consumer_migration_policy = "upgrade"')
    config = load(str(file))
    assert config.group_consumer_assignors == ["range"]
    assert config.group_consumer_migration_policy == "upgrade"
