"""Producers of two client libraries behind one small interface, for the load of the crash tests.

What can go wrong is sorted into three: the same call may be repeated (Again), the transaction must be aborted
(MustAbort), the producer is lost (Lost). `name` of each is the library's own name of the error.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaProducer
from kafka import errors as kafka_errors
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaPythonPartition

TRANSACTION_TIMEOUT_MS = 60_000
CALL_TIMEOUT_S = 5.0


# Thousands of refused connections while the broker is down; what matters comes as an error.
logging.getLogger("kafka").setLevel(logging.CRITICAL)

# Clients that find the broker soon after its restart.
RDKAFKA: dict[str, Any] = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 50,
    # Re-bootstrapping whenever the one broker is down leaves librdkafka 2.16 busy with itself for a minute.
    "metadata.recovery.strategy": "none",
    "socket.timeout.ms": 10_000,
    "log_level": 0,
}


class ClientError(Exception):
    """A call failed; `name`: the client library's name of the error."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Again(ClientError):
    """Nothing came of it yet: the same call may be repeated."""


class MustAbort(ClientError):
    """The transaction can only be aborted."""


class Lost(ClientError):
    """The producer can do nothing any more; what the call came to is unknown."""

    @property
    def fenced(self) -> bool:
        """By its successor, or by its deadline."""
        return "FENCED" in self.name.upper()


class TransactionalProducer(Protocol):
    """What the load needs of a client. Calls may raise Again, MustAbort or Lost; send MustAbort or Lost."""

    def init(self) -> None: ...
    def begin(self) -> None: ...
    def send(self, topic: str, partition: int, value: bytes) -> None: ...
    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None:
        """Leaves at once, whatever is open."""


def _name(error: KafkaException | BufferError) -> str:
    return str(error.args[0].name()) if isinstance(error, KafkaException) else type(error).__name__


class RdkafkaProducer:
    """librdkafka, by confluent-kafka."""

    library = "librdkafka"

    def __init__(
        self, address: str, transactional_id: str, settings: Mapping[str, Any] | None = None
    ) -> None:
        self._producer = Producer(
            RDKAFKA
            | {
                "bootstrap.servers": address,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 1,
            }
            | dict(settings or {})
        )
        self._groups: dict[str, tuple[Consumer, Any]] = {}
        self._address = address

    def _call(self, function: Callable[..., Any], *args: Any) -> None:
        try:
            function(*args)
        except KafkaException as error:
            cause = error.args[0]
            if cause.fatal():
                raise Lost(cause.name()) from error
            if cause.txn_requires_abort():
                raise MustAbort(cause.name()) from error
            if cause.retriable():
                raise Again(cause.name()) from error
            raise Lost(cause.name()) from error
        finally:
            # What it wants to log waits for that, and a fatal error comes here once more.
            with contextlib.suppress(KafkaException):
                self._producer.poll(0)

    def init(self) -> None:
        self._call(self._producer.init_transactions, CALL_TIMEOUT_S)

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, topic: str, partition: int, value: bytes) -> None:
        try:
            self._producer.produce(topic, value, partition=partition)
        except (KafkaException, BufferError) as error:
            raise MustAbort(_name(error)) from error
        with contextlib.suppress(KafkaException):
            self._producer.poll(0)

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        if group not in self._groups:
            consumer = Consumer(RDKAFKA | {"bootstrap.servers": self._address, "group.id": group})
            self._groups[group] = (consumer, consumer.consumer_group_metadata())
        position = TopicPartition(topic, partition, offset)
        send = self._producer.send_offsets_to_transaction
        self._call(send, [position], self._groups[group][1], CALL_TIMEOUT_S)

    def commit(self) -> None:
        self._call(self._producer.commit_transaction, CALL_TIMEOUT_S)

    def abort(self) -> None:
        # Else librdkafka purges what is not sent yet, so that little of it would reach the log.
        self._call(self._producer.flush, CALL_TIMEOUT_S)
        self._call(self._producer.abort_transaction, CALL_TIMEOUT_S)

    def close(self) -> None:
        for consumer, _ in self._groups.values():
            consumer.close()
        self._groups.clear()
        with contextlib.suppress(KafkaException):
            self._producer.purge(blocking=False)
        del self._producer


class KafkaPythonProducer:
    """kafka-python."""

    library = "kafka-python"

    def __init__(self, address: str, transactional_id: str) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                self._producer = KafkaProducer(
                    bootstrap_servers=address,
                    transactional_id=transactional_id,
                    transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                    reconnect_backoff_ms=10,
                    reconnect_backoff_max_ms=50,
                    retry_backoff_ms=20,
                    request_timeout_ms=10_000,
                    max_block_ms=int(CALL_TIMEOUT_S * 1000),
                    linger_ms=1,
                )
            except kafka_errors.KafkaError:
                # The constructor asks the broker for its versions; the broker may be down for a moment.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def _call(self, function: Callable[..., Any], *args: Any) -> None:
        try:
            function(*args)
        except (kafka_errors.ProducerFencedError, kafka_errors.InvalidProducerEpochError) as error:
            raise Lost(type(error).__name__) from error
        except kafka_errors.KafkaTimeoutError as error:
            raise Again(type(error).__name__) from error
        except kafka_errors.KafkaError as error:
            kind = Lost if self._manager.has_fatal_error() else MustAbort
            raise kind(type(error).__name__) from error

    @property
    def _manager(self) -> Any:
        return self._producer._transaction_manager

    def init(self) -> None:
        try:
            self._call(self._producer.init_transactions)
        except Again as error:
            # The request may be lost for good, see _wait: only another producer helps.
            raise Lost(error.name) from error

    def begin(self) -> None:
        self._sends: list[Any] = []
        self._call(self._producer.begin_transaction)

    def send(self, topic: str, partition: int, value: bytes) -> None:
        try:
            self._sends.append(self._producer.send(topic, value, partition=partition))
        except kafka_errors.KafkaError as error:
            raise MustAbort(type(error).__name__) from error

    def _wait(self, start: Callable[..., Any], *args: Any) -> None:
        """What commit_transaction and its like do, but not for ever: kafka-python 3.0 loses a request for
        good when its connection breaks at the wrong moment."""
        result = start(*args)
        self._producer._sender.wakeup()
        if not result.wait(timeout_ms=3000):
            raise Lost("no end of waiting")

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        offsets = {KafkaPythonPartition(topic, partition): OffsetAndMetadata(offset, "", -1)}
        self._call(self._wait, self._manager.send_offsets_to_transaction, offsets, group)

    def commit(self) -> None:
        self._call(self._wait, self._manager.begin_commit)
        # kafka-python 3.0 may take a new epoch because of a failed record and then call the commit a success
        # without having asked the broker.
        if any(send.failed() for send in self._sends):
            raise Lost("commit acknowledged without its records")

    def abort(self) -> None:
        self._call(self._wait, self._manager.begin_abort)

    def close(self) -> None:
        # close() alone first waits for what is open.
        self._producer._sender.force_close()
        self._producer._sender.join(CALL_TIMEOUT_S)
        with contextlib.suppress(kafka_errors.KafkaTimeoutError):
            self._producer.close(timeout=0)
