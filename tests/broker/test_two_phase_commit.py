"""Two-phase commit as KIP-939: no deadline, kept over everything, ended by whoever holds the id next."""

from __future__ import annotations

from typing import Any

import pytest
from support.sim_node import SimNode
from support.sim_producer import Producer, create_topic, list_offset, read_all

from wire.apis import ApiKey
from wire.errors import ErrorCode


class TwoPhaseProducer(Producer):
    ongoing: tuple[int, int] = (-1, -1)

    def init(self, *, keep: bool = False, two_phase: bool = True) -> ErrorCode:
        answer = self.client.ask(
            ApiKey.INIT_PRODUCER_ID,
            6,
            transactional_id=self.name,
            transaction_timeout=self.timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
            enable2_pc=two_phase,
            keep_prepared_txn=keep,
        )
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.ongoing = answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch
        self.sequences.clear()
        return answer.error_code


def world(**config: Any) -> SimNode:
    made = SimNode(transaction_two_phase_commit=True, **config)
    create_topic(made.client(), "t", 2)
    return made


both_protocols = pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])


def test_it_is_off_by_default() -> None:
    made = SimNode()
    producer = TwoPhaseProducer(made.client(), "p")
    assert producer.init() is ErrorCode.transactional_id_authorization_failed
    assert producer.init(two_phase=False) is ErrorCode.none


def test_a_prepared_transaction_is_kept_only_with_two_phase_commit() -> None:
    producer = TwoPhaseProducer(world().client(), "p")
    assert producer.init(two_phase=False, keep=True) is ErrorCode.invalid_request


def test_no_deadline_ends_it() -> None:
    made = world()
    producer = TwoPhaseProducer(made.client(), "p", timeout_ms=1_000)
    producer.init()
    producer.send("t", {0: [b"a"]})
    made.scheduler.advance(3_600_000)
    assert producer.end() is ErrorCode.none
    assert read_all(made.client(), "t")[0] == [b"a"]


@both_protocols
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("ending", ["", "kill", "restart", "cut_power"])
def test_a_new_producer_ends_what_the_former_one_prepared(ending: str, commit: bool, v2: bool) -> None:
    """The first crashed after it had flushed; an outer coordinator knows the outcome."""
    made = world(flush_linger_ms=60_000)
    first = TwoPhaseProducer(made.client(), "p", v2=v2)
    first.init()
    assert first.send("t", {0: [b"a"], 1: [b"b"]}) == {0: ErrorCode.none, 1: ErrorCode.none}
    assert first.commit_offsets("g", {("t", 0): 7}) is ErrorCode.none
    if ending:
        getattr(made, ending)()
    second = TwoPhaseProducer(made.client(), "p", v2=v2)
    assert second.init(keep=True) is ErrorCode.none
    assert second.ongoing == (first.producer_id, first.epoch)
    assert list_offset(made.client(), "t") == 0, "undecided still"
    first.client = made.client()
    assert first.end() is ErrorCode.producer_fenced
    if v2:
        assert second.send("t", {0: [b"early"]}) == {0: ErrorCode.transaction_abortable}, "it must end first"
    assert second.end(commit=commit) is ErrorCode.none
    assert read_all(made.client(), "t", 0)[0] == ([b"a"] if commit else [])
    assert read_all(made.client(), "t", 1)[0] == ([b"b"] if commit else [])
    assert second.send("t", {0: [b"next"]}) == {0: ErrorCode.none}
    assert second.end() is ErrorCode.none
    made.cut_power()
    assert read_all(made.client(), "t", 0)[0] == ([b"a", b"next"] if commit else [b"next"])


def test_without_keep_the_prepared_transaction_is_aborted() -> None:
    made = world()
    first, second = TwoPhaseProducer(made.client(), "p"), TwoPhaseProducer(made.client(), "p")
    first.init()
    first.send("t", {0: [b"a"]})
    assert second.init() is ErrorCode.none
    assert second.ongoing == (-1, -1)
    assert read_all(made.client(), "t") == ([], 1)


def test_keep_without_anything_prepared_is_a_plain_init() -> None:
    made = world()
    producer = TwoPhaseProducer(made.client(), "p")
    assert producer.init(keep=True) is ErrorCode.none
    assert producer.ongoing == (-1, -1)
    producer.send("t", {0: [b"a"]})
    assert producer.end() is ErrorCode.none


def test_what_was_answered_is_on_the_disk() -> None:
    made = world(flush_linger_ms=60_000)
    producer = TwoPhaseProducer(made.client(), "p")
    producer.init()
    producer.send("t", {0: [b"a"]})
    made.cut_power(keep="none")
    assert made.report.transactions.resumed == 1
    producer.client = made.client()
    assert producer.send("t", {0: [b"b"]}) == {0: ErrorCode.none}
    assert producer.end() is ErrorCode.none
    assert read_all(made.client(), "t")[0] == [b"a", b"b"]


def test_a_kept_transaction_outlives_a_second_crash() -> None:
    made = world()
    first = TwoPhaseProducer(made.client(), "p")
    first.init()
    first.send("t", {0: [b"a"]})
    made.kill()
    second = TwoPhaseProducer(made.client(), "p")
    second.init(keep=True)
    made.cut_power(keep="none")
    third = TwoPhaseProducer(made.client(), "p")
    third.init(keep=True)
    assert third.ongoing == (first.producer_id, first.epoch)
    identity = third.producer_id, third.epoch
    assert third.end() is ErrorCode.none
    third.producer_id, third.epoch = identity
    assert third.end() is ErrorCode.none, "a repeat"
    assert read_all(made.client(), "t")[0] == [b"a"]
