"""Who may commit and fetch offsets in a group of the new protocol, by member epochs (KIP-848, KIP-1251)."""

from __future__ import annotations

import pytest
from consumer_clients import Consumer
from consumer_world import GROUP, ConsumerWorld

from wire.errors import ErrorCode

HERS, HIS = ("orders", 0), ("orders", 2)


@pytest.fixture
def world() -> ConsumerWorld:
    return ConsumerWorld()


@pytest.fixture
def anna(world: ConsumerWorld) -> Consumer:
    """Anna had everything in epoch 2; in epoch 3 she shares with Ben."""
    anna, ben = world.consumers("anna", "ben")
    anna.join()
    ben.join()
    world.settle(anna, ben)
    assert (anna.epoch, anna.has, ben.has) == (3, {"orders": {0, 1}}, {"orders": {2, 3}})
    return anna


NONE, STALE, UNKNOWN = ErrorCode.none, ErrorCode.stale_member_epoch, ErrorCode.unknown_member_id


def test_epochs(anna: Consumer) -> None:
    assert anna.commit(HERS) is NONE
    assert anna.commit(HERS, epoch=2) is NONE, "it was hers then as well"
    assert anna.commit(HERS, HIS, epoch=2) is STALE, "one of them is hers no more"
    assert anna.commit(HERS, epoch=1) is STALE
    assert anna.commit(HERS, epoch=-1) is STALE
    assert anna.commit(HERS, epoch=4) is STALE
    assert anna.commit(HERS, knows_epochs=False) is ErrorCode.unsupported_version
    assert anna.commit(HIS) is NONE, "in its present epoch a member is trusted"


def test_what_is_being_given_up_may_still_be_committed(world: ConsumerWorld, anna: Consumer) -> None:
    anna.stubborn = True
    carl, dora = world.consumers("carl", "dora")
    carl.join()
    dora.join()
    anna.beat()
    assert world.by_name(anna.target_partitions) == {"orders": {0}}
    assert anna.commit(("orders", 1)) is NONE
    assert anna.commit(("orders", 1), epoch=2) is NONE
    anna.give_up()
    anna.beat()
    assert anna.commit(("orders", 1), epoch=2) is STALE


def test_strangers(world: ConsumerWorld, anna: Consumer) -> None:
    stranger = world.consumer("carl", member_id="")
    assert stranger.commit(HERS, epoch=-1) is UNKNOWN
    assert stranger.commit(HERS, epoch=-1, transactional=True) is NONE, "TxnOffsetCommit need not say who"
    stranger.member_id = "carl"
    assert stranger.commit(HERS, epoch=3) is UNKNOWN
    assert stranger.commit(HERS, epoch=3, transactional=True) is UNKNOWN


def test_in_a_transaction(anna: Consumer) -> None:
    assert anna.commit(HERS, transactional=True, knows_epochs=False) is NONE
    assert anna.commit(HERS, epoch=2, transactional=True) is NONE
    assert anna.commit(HIS, epoch=2, transactional=True) is ErrorCode.illegal_generation
    assert anna.commit(HERS, epoch=4, transactional=True) is ErrorCode.illegal_generation


def test_without_members(world: ConsumerWorld) -> None:
    anna = world.consumer("anna")
    anna.join()
    anna.leave()
    assert anna.commit(HERS, epoch=-1) is NONE
    assert anna.commit(HERS, epoch=3) is UNKNOWN


def test_without_a_group(world: ConsumerWorld) -> None:
    anna = world.consumer("anna")
    assert anna.commit(HERS, epoch=2) is ErrorCode.group_id_not_found
    assert anna.commit(HERS, epoch=2, knows_epochs=False) is ErrorCode.illegal_generation
    assert anna.commit(HERS, epoch=-1) is NONE


def test_fetches(world: ConsumerWorld, anna: Consumer) -> None:
    check = world.coordinator.validate_offset_fetch
    assert check(GROUP, "anna", 3) is NONE
    assert check(GROUP, None, -1) is NONE
    for epoch in (2, 4, -1):
        assert check(GROUP, "anna", epoch) is STALE
    assert check(GROUP, "carl", 2) is UNKNOWN
    assert check(GROUP, "", -1) is UNKNOWN
    assert check(GROUP, None, 2) is UNKNOWN
    assert check("none", "anna", 2) is NONE
