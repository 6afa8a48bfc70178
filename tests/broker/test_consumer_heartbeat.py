"""ConsumerGroupHeartbeat: joining, sharing, leaving, and everything that moves a group on (KIP-848)."""

from __future__ import annotations

from consumer_world import GROUP, REBALANCE_MS, SESSION_MS, ConsumerWorld

from broker.groups import ConsumerGroupState
from wire.errors import ErrorCode


def test_a_member_is_given_everything_by_its_first_request() -> None:
    world = ConsumerWorld()
    (anna,) = world.consumers("anna")
    answer = anna.join().answer
    assert answer.error is ErrorCode.none
    assert (answer.member_id, answer.member_epoch) == ("anna", 2)
    assert anna.has == {"orders": {0, 1, 2, 3}}
    assert world.group_state is ConsumerGroupState.STABLE


def test_a_heartbeat_without_news_tells_none_and_stores_none() -> None:
    world = ConsumerWorld()
    (anna,) = world.consumers("anna")
    anna.join()
    stored = world.changes_stored
    anna.beat()
    assert anna.beat().answer.assignment is None
    assert world.changes_stored == stored


def test_a_partition_moves_only_when_its_owner_has_given_it_up() -> None:
    world = ConsumerWorld()
    anna, ben = world.consumers("anna", "ben")
    anna.join()
    anna.stubborn = True
    assert ben.join().answer.member_epoch == 3
    assert ben.has == {}, "all is still Anna's"
    assert anna.beat().answer.member_epoch == 2, "she stays in her epoch until she has given up"
    assert world.by_name({t: frozenset(n) for t, n in anna.target.items()}) == {"orders": {0, 1}}
    ben.beat()
    assert ben.has == {}
    assert world.group_state is ConsumerGroupState.RECONCILING

    anna.give_up()
    assert anna.beat().answer.member_epoch == 3
    ben.beat()
    assert ben.has == {"orders": {2, 3}}
    assert world.group_state is ConsumerGroupState.STABLE


def test_many_members_share_evenly_and_few_partitions_move() -> None:
    world = ConsumerWorld({"orders": 12})
    members = world.consumers("anna", "ben", "carl")
    for count, member in enumerate(members, 1):
        before = {one.name: one.has.get("orders", set()) for one in members}
        member.join()
        world.settle(*members[:count])
        assert {len(one.has["orders"]) for one in members[:count]} == {12 // count}
        for one in members[: count - 1]:
            assert one.has["orders"] < before[one.name], "nobody who was there is given another's"
    assert sorted(owner for (owner,) in world.owners().values()) == ["anna"] * 4 + ["ben"] * 4 + ["carl"] * 4


def test_more_members_than_partitions() -> None:
    world = ConsumerWorld({"orders": 2})
    members = world.consumers("anna", "ben", "carl")
    world.settle(*members)
    assert sorted(len(member.has.get("orders", ())) for member in members) == [0, 1, 1]


def test_a_member_that_leaves_frees_its_partitions_at_once() -> None:
    world = ConsumerWorld()
    anna, ben = world.consumers("anna", "ben")
    world.settle(anna, ben)
    answer = anna.leave().answer
    assert (answer.error, answer.member_id, answer.member_epoch) == (ErrorCode.none, "anna", -1)
    ben.beat()
    assert ben.has == {"orders": {0, 1, 2, 3}}
    ben.leave()
    assert world.group_state is ConsumerGroupState.EMPTY
    assert world.stored[GROUP].members == {}
    epoch = world.epoch
    anna.join()
    assert anna.epoch == epoch + 1, "the epochs of a group do not repeat"


def test_a_member_that_vanishes_is_out_after_its_session() -> None:
    world = ConsumerWorld()
    anna, ben = world.consumers("anna", "ben")
    world.settle(anna, ben)
    for _ in range(SESSION_MS // 1_000 - 1):
        world.advance(1_000)
        ben.beat()
    assert len(ben.has["orders"]) == 2
    world.advance(1_000)
    ben.beat()
    assert ben.has == {"orders": {0, 1, 2, 3}}
    assert anna.beat().answer.error is ErrorCode.unknown_member_id


def test_a_member_that_does_not_give_up_in_time_is_out() -> None:
    world = ConsumerWorld()
    anna, ben = world.consumers("anna", "ben")
    anna.join()
    anna.stubborn = True
    ben.join()
    anna.beat()
    for _ in range(REBALANCE_MS // 1_000):
        world.advance(1_000)
        anna.beat()
        ben.beat()
    assert ben.has == {"orders": {0, 1, 2, 3}}
    assert anna.errors == [ErrorCode.unknown_member_id]


def test_time_to_give_up_ends_with_the_revocation() -> None:
    world = ConsumerWorld()
    anna, ben = world.consumers("anna", "ben")
    anna.join()
    ben.join()
    anna.beat()
    anna.beat()
    for _ in range(2 * REBALANCE_MS // 1_000):
        world.advance(1_000)
        anna.beat()
        ben.beat()
    assert anna.errors == ben.errors == []


def test_a_fenced_member_joins_again_and_goes_on() -> None:
    world = ConsumerWorld()
    anna, ben = world.consumers("anna", "ben")
    world.settle(anna, ben)
    anna.epoch = 77
    assert anna.beat().answer.error is ErrorCode.fenced_member_epoch
    assert anna.has == {}
    epoch = world.epoch
    anna.live()
    assert anna.has == {"orders": {0, 1}}, "it is the same member, and nothing has changed"
    assert world.epoch == epoch


def test_an_answer_that_was_lost_is_given_again() -> None:
    world = ConsumerWorld()
    anna, ben = world.consumers("anna", "ben")
    world.settle(anna, ben)
    ben.leave()
    lost, had = anna.epoch, dict(anna.owned)
    anna.beat()
    anna.epoch, anna.owned = lost, had
    answer = anna.beat_in_full().answer
    assert answer.error is ErrorCode.none
    assert answer.member_epoch == lost + 1
    assert anna.has == {"orders": {0, 1, 2, 3}}


def test_an_old_epoch_with_partitions_that_are_another_s_is_fenced() -> None:
    world = ConsumerWorld()
    anna, ben = world.consumers("anna", "ben")
    anna.join()
    had, lost = {t: set(n) for t, n in anna.owned.items()}, anna.epoch
    world.settle(anna, ben)
    anna.epoch, anna.owned = lost, had
    assert anna.beat_in_full().answer.error is ErrorCode.fenced_member_epoch
    anna.epoch = lost
    assert anna.request().answer.error is ErrorCode.fenced_member_epoch, "an old epoch must say what it owns"


def test_topics_that_are_made_grown_and_deleted_move_the_group_on() -> None:
    world = ConsumerWorld({"orders": 2})
    anna, ben = world.consumers("anna", "ben", topics=("orders", "bills"))
    world.settle(anna, ben)
    world.topics.grow("orders", 4)
    world.settle(anna, ben)
    assert [len(member.has["orders"]) for member in (anna, ben)] == [2, 2]
    world.topics.make("bills", 2)
    world.settle(anna, ben)
    assert [len(member.has["bills"]) for member in (anna, ben)] == [1, 1]
    world.topics.delete("orders")
    world.settle(anna, ben)
    assert [set(member.has) for member in (anna, ben)] == [{"bills"}, {"bills"}]
    before = world.topics.get("bills").id
    world.topics.delete("bills")
    assert world.topics.make("bills", 2) != before
    world.settle(anna, ben)
    assert [len(member.has["bills"]) for member in (anna, ben)] == [1, 1]


def test_other_topics_do_not_disturb_the_group() -> None:
    world = ConsumerWorld()
    (anna,) = world.consumers("anna")
    anna.join()
    epoch = world.epoch
    world.topics.make("bills", 3)
    anna.beat()
    assert (anna.epoch, world.epoch) == (epoch, epoch)


def test_a_subscription_that_changes() -> None:
    world = ConsumerWorld({"orders": 2, "bills": 2})
    (anna,) = world.consumers("anna")
    anna.join()
    anna.subscribe("orders", "bills")
    assert anna.has == {"orders": {0, 1}, "bills": {0, 1}}
    anna.stubborn = True
    answer = anna.subscribe("bills").answer
    assert world.by_name(answer.assignment) == {"bills": {0, 1}}
    assert set(anna.has) == {"orders", "bills"}
    assert {owner for (owner,) in world.owners().values()} == {"anna"}, "it has not said that it gave up"
    anna.give_up()
    anna.beat()
    assert world.owners().keys() == {("bills", 0), ("bills", 1)}
    anna.subscribe()
    anna.give_up()
    anna.beat()
    assert (world.owners(), anna.has) == ({}, {})


def test_members_with_different_subscriptions() -> None:
    world = ConsumerWorld({"orders": 4, "bills": 4})
    anna, ben = world.consumer("anna"), world.consumer("ben", topics=("orders", "bills"))
    world.settle(anna, ben)
    assert anna.has == {"orders": {0, 1, 2, 3}}
    assert ben.has == {"bills": {0, 1, 2, 3}}


def test_a_topic_that_is_not_there_is_no_error() -> None:
    world = ConsumerWorld()
    (anna,) = world.consumers("anna", topics=("nothing",))
    assert anna.join().answer.assignment == {}
    assert world.group_state is ConsumerGroupState.STABLE


def test_a_member_without_topics_is_a_member() -> None:
    world = ConsumerWorld()
    (anna,) = world.consumers("anna", topics=())
    assert anna.join().answer.member_epoch == 1
    anna.beat()
    assert world.description.members[0].member_id == "anna"


def test_the_server_names_members_of_version_0() -> None:
    world = ConsumerWorld()
    (anna,) = world.consumers("anna")
    answer = anna.join(member_id="", names_itself=False).answer
    assert answer.member_id == "anna-1"
    assert anna.beat().answer.error is ErrorCode.none


# -- assignors


def test_the_assignor_most_members_ask_for() -> None:
    world = ConsumerWorld({"orders": 3, "bills": 3}, assignors=("uniform", "range"))
    topics = ("orders", "bills")
    anna, ben = world.consumers("anna", "ben", topics=topics, assignor="range")
    carl = world.consumer("carl", topics=topics)
    world.settle(anna)
    assert world.description.assignor == "range"
    world.settle(anna, ben)
    assert anna.has == {"orders": {0, 1}, "bills": {0, 1}}
    assert ben.has == {"orders": {2}, "bills": {2}}
    carl.assignor = "uniform"
    world.settle(anna, ben, carl)
    assert world.description.assignor == "range"
    ben.beat(assignor="uniform")
    assert world.description.assignor == "uniform"


def test_the_first_assignor_is_the_default() -> None:
    world = ConsumerWorld(assignors=("range", "uniform"))
    (anna,) = world.consumers("anna")
    anna.join()
    assert world.description.assignor == "range"


# -- patterns


def test_a_pattern_subscribes_to_what_it_matches_from_end_to_end() -> None:
    world = ConsumerWorld({"orders": 1, "orders.eu": 1, "my.orders": 1})
    (anna,) = world.consumers("anna", topics=None, pattern="^orders.*")
    anna.join()
    assert set(anna.has) == {"orders", "orders.eu"}
    anna.subscribe(pattern="orders")
    assert set(anna.has) == {"orders"}


def test_a_pattern_finds_topics_as_they_come_and_go() -> None:
    world = ConsumerWorld({"orders": 1})
    anna, ben = world.consumers("anna", "ben", topics=None, pattern="(orders|bills).*")
    world.settle(anna, ben)
    world.topics.make("bills.eu", 1)
    world.settle(anna, ben)
    assert {**anna.has, **ben.has} == {"orders": {0}, "bills.eu": {0}}
    world.topics.delete("orders")
    world.settle(anna, ben)
    assert {**anna.has, **ben.has} == {"bills.eu": {0}}
    epoch = world.epoch
    world.topics.make("other", 1)
    world.settle(anna, ben)
    assert world.epoch == epoch


def test_names_and_a_pattern_at_once() -> None:
    world = ConsumerWorld({"orders": 1, "bills": 1, "other": 1})
    (anna,) = world.consumers("anna", topics=("orders",), pattern="b.*")
    anna.join()
    assert set(anna.has) == {"orders", "bills"}
    anna.request(pattern="")
    assert set(anna.has) == {"orders"}


def test_patterns_nobody_uses_any_more_are_forgotten() -> None:
    world = ConsumerWorld()
    anna, ben = world.consumers("anna", "ben", topics=None, pattern="o.*")
    patterns = world.coordinator._consumer._core.patterns
    world.settle(anna, ben)
    assert len(patterns) == 1
    anna.subscribe(pattern="or.*")
    assert len(patterns) == 2
    anna.leave()
    assert len(patterns) == 1
    world.advance(SESSION_MS)
    assert len(patterns) == 0


# -- pace


def test_few_members_are_asked_to_come_often_and_many_not() -> None:
    world = ConsumerWorld(heartbeat_interval_ms=3_000)
    anna = world.consumer("anna")
    assert anna.join().answer.heartbeat_interval_ms == 500
    crowd = world.consumers(*(f"m{number}" for number in range(600)), group_id="crowd")
    for member in crowd:
        member.join()
    assert crowd[0].beat().answer.heartbeat_interval_ms == 3_000
    assert anna.beat().answer.heartbeat_interval_ms == 3_000
    ben = world.consumer("ben")
    assert ben.join().answer.heartbeat_interval_ms == 500, "it waits for what Anna has to give up"


def test_a_large_group_is_not_assigned_anew_with_each_member() -> None:
    world = ConsumerWorld({"orders": 5_000}, assignment_interval_ms=1_000)
    anna, ben, carl = world.consumers("anna", "ben", "carl")
    anna.join()
    assert ben.join().answer.member_epoch == 2, "the target assignment is a moment old"
    assert world.group_state is ConsumerGroupState.ASSIGNING
    world.advance(500)
    assert carl.join().answer.member_epoch == 4
    world.settle(anna, ben, carl)
    assert sorted(len(member.has["orders"]) for member in (anna, ben, carl)) == [1666, 1667, 1667]


def test_one_group_s_members_do_not_see_another_s() -> None:
    world = ConsumerWorld()
    anna, ben = world.consumer("anna", group_id="a"), world.consumer("ben", group_id="b")
    anna.join()
    ben.join()
    assert anna.has == ben.has == {"orders": {0, 1, 2, 3}}
