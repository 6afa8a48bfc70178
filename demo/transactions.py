"""One transactional producer that outlives errors, the same for both stages.

Any error leaves a transaction in doubt: the commit may or may not have reached the broker. So the next producer
is made with the same transactional.id: its init_transactions() fences the old one and returns when the open
transaction, if there was one, has its outcome. Only then does the stage ask how far the committed offsets are.
They were part of the transaction, so they say which way it ended, and what to do (again) next.

A transactional request that kafka-python 3.0.12 makes while the broker is away is lost, and the call waits for
ever: hence a deadline around every call, and a new producer when it has passed.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from kafka import KafkaProducer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata

from demo.plan import ABORT_EVERY, TRANSACTION_TIMEOUT_MS, Plan, Stage, client_settings

Result = TypeVar("Result")
CALL_DEADLINE_S = 5.0
BROKER_MISSING_S = 60.0


def within_deadline(call: Callable[[], None]) -> None:
    """Make a blocking call; raises KafkaTimeoutError when it is not back in time (its thread is left behind)."""
    outcome: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            outcome.put(error)
        else:
            outcome.put(None)

    threading.Thread(target=run, daemon=True).start()
    try:
        error = outcome.get(timeout=CALL_DEADLINE_S)
    except queue.Empty:
        raise KafkaTimeoutError(f"no answer within {CALL_DEADLINE_S} s") from None
    if error is not None:
        raise error


def patiently(call: Callable[[], Result]) -> Result:
    """Repeat a call that may be repeated until there is a broker to answer it, for up to a minute."""
    deadline = time.monotonic() + BROKER_MISSING_S
    while True:
        try:
            return call()
        except KafkaError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


class Transactions:
    """A transactional producer and the numbers of its transactions."""

    def __init__(self, plan: Plan, stage: Stage, worker: int) -> None:
        self._plan = plan
        self._transactional_id = plan.transactional_id(stage, worker)
        self._worker = worker
        self._count = 0
        self._producer = patiently(self._open)

    def _open(self) -> KafkaProducer:
        """A new producer with our id. It fences whatever went before."""
        producer = KafkaProducer(
            **client_settings(self._plan),
            transactional_id=self._transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            batch_size=256 * 1024,
            linger_ms=20,
        )
        try:
            within_deadline(producer.init_transactions)
        except KafkaError:
            self._let_go(producer)
            raise
        return producer

    @staticmethod
    def _let_go(producer: KafkaProducer) -> None:
        """Close it if it lets itself be closed. Records it still holds may keep it: fencing is what stops it."""
        with contextlib.suppress(KafkaError):
            within_deadline(lambda: producer.close(timeout=0.1))

    def next_name(self) -> str:
        """The name of the transaction to begin next, unique in its stage; its records carry it."""
        self._count += 1
        return f"{self._worker}:{self._count}"

    def is_to_abort(self) -> bool:
        """Whether the transaction named last is one of those that are aborted on purpose."""
        return self._count % ABORT_EVERY == ABORT_EVERY // 2

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        self._producer.send(topic, value, key=key)

    def flush(self) -> None:
        self._producer.flush(timeout=CALL_DEADLINE_S)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int], group: ConsumerGroupMetadata, transaction: str
    ) -> None:
        """The transaction's name goes along as the offsets' metadata: it tells later whose they are."""
        wanted = {
            partition: OffsetAndMetadata(offset, transaction, -1) for partition, offset in offsets.items()
        }
        within_deadline(lambda: self._producer.send_offsets_to_transaction(wanted, group))

    def commit(self) -> None:
        within_deadline(self._producer.commit_transaction)

    def abort(self) -> None:
        within_deadline(self._producer.abort_transaction)

    def start_over(self) -> None:
        """After an error: let go of the producer and fence it with a new one."""
        self._let_go(self._producer)
        self._producer = patiently(self._open)

    def close(self) -> None:
        self._let_go(self._producer)
