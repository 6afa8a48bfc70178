"""A transactional producer for one task: one transaction, under transactions v2 (KIP-890).

Guarantee: batches arrive once each and in order, also when the broker restarts in the middle: what got no answer is
sent again under its sequence number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn

from typing_extensions import Buffer

from pyspark_sealog.cluster import Cluster, TopicPartition
from pyspark_sealog.errors import SealogError
from wire.apis import ApiKey
from wire.errors import ErrorCode, KafkaError
from wire.group_transactions import Member

_FENCED: Final = frozenset(
    {ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced, ErrorCode.invalid_txn_state}
)
_WRITTEN: Final = frozenset({ErrorCode.none, ErrorCode.duplicate_sequence_number})


class Outgoing(NamedTuple):
    """One batch: its header, and its records, which may be large and are not copied."""

    part: TopicPartition
    head: bytes
    records: Buffer

    @property
    def size_bytes(self) -> int:
        return len(self.head) + memoryview(self.records).nbytes


@dataclass(slots=True)
class _UnderWay:
    """A request without an answer yet, all of it for one broker; `number` is None where it must be sent again."""

    batches: list[Outgoing]
    number: int | None


class Producer:
    """`init`, then `send` as often as wanted, then `end`."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._under_way: _UnderWay | None = None
        self.member = Member(transactional_id, -1, -1)
        self.sequences: dict[TopicPartition, int] = {}

    def init(self) -> None:
        answer = self._coordinated(
            ApiKey.INIT_PRODUCER_ID,
            transaction_timeout=self._cluster.settings.transaction_timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        self.member = Member(self._transactional_id, answer.producer_id, answer.producer_epoch)

    def send(self, outgoing: Sequence[Outgoing]) -> None:
        """One request, on its way when this returns; the one before it has been answered then."""
        self.flush()
        by_leader: dict[tuple[str, int], list[Outgoing]] = {}
        for one in outgoing:
            leader = self._cluster.retrying(f"leader of {one.part}", lambda part=one.part: self._leader(part))  # type: ignore[misc]
            by_leader.setdefault(leader, []).append(one)
        for batches in by_leader.values():
            self.flush()
            try:
                number = self._start(batches)
            except (OSError, KafkaError):
                number = None  # `flush` sends it, and waits for a broker that is away
            self._under_way = _UnderWay(batches, number)

    def _leader(self, part: TopicPartition) -> tuple[str, int]:
        return self._cluster.leader(part)

    def _start(self, batches: Sequence[Outgoing]) -> int:
        timeout_ms = int(self._cluster.settings.request_timeout_s * 1000)
        pieces = [(part.topic, part.partition, (head, records)) for part, head, records in batches]
        connection = self._cluster.connection(self._leader(batches[0].part))
        return connection.send_produce(self._transactional_id, timeout_ms, pieces)

    def flush(self) -> None:
        """Wait for the answer to the request that is under way. Raises SealogError or KafkaError."""
        if self._under_way is None:
            return
        under_way, self._under_way = self._under_way, None

        def finish() -> None:
            number, under_way.number = under_way.number, None
            if number is None:
                number = self._start(under_way.batches)
            connection = self._cluster.connection(self._leader(under_way.batches[0].part))
            answer = connection.receive(ApiKey.PRODUCE, number)
            under_way.batches, refused = self._refused(answer, under_way.batches)
            if refused is not None:
                raise refused

        self._cluster.retrying(f"writing as {self._transactional_id}", finish, give_up_on_unknown_topic=False)

    def _refused(self, answer: Any, batches: Sequence[Outgoing]) -> tuple[list[Outgoing], KafkaError | None]:
        """The batches that must be sent again, and why. Raises where there is no sense in that."""
        codes = {
            TopicPartition(topic.name, one.index): (one.error_code, one.error_message)
            for topic in answer.responses
            for one in topic.partition_responses
        }
        left, refused = [], None
        for one in batches:
            code, message = codes[one.part]
            if code in _WRITTEN:
                continue
            if code in _FENCED:
                self._fenced(code, message)
            error = KafkaError(code, f"writing to {one.part}{f': {message}' if message else ''}")
            if not error.retriable:
                raise error
            left.append(one)
            refused = error
        return left, refused

    def _fenced(self, code: ErrorCode, message: str | None) -> NoReturn:
        raise SealogError(
            f"the writer {self._transactional_id} was fenced: its batch was committed, aborted or taken over "
            f"meanwhile, or its time ({self._cluster.settings.transaction_timeout_ms} ms, "
            f"kafka.transaction.timeout.ms) ran out; nothing it wrote is visible ({code.name}: {message or ''})"
        )

    def end(self, *, commit: bool) -> None:
        """EndTxn. In a group transaction a commit is a vote and shows nothing yet."""
        self.flush()
        try:
            self._coordinated(
                ApiKey.END_TXN,
                producer_id=self.member.producer_id,
                producer_epoch=self.member.epoch,
                committed=commit,
            )
        except KafkaError as error:
            if error.code in _FENCED:
                self._fenced(error.code, error.message)
            raise

    def _coordinated(self, key: ApiKey, **fields: Any) -> Any:
        def call() -> Any:
            address = self._cluster.coordinator(self._transactional_id)
            answer = self._cluster.connection(address).call(
                key, transactional_id=self._transactional_id, **fields
            )
            if answer.error_code is not ErrorCode.none:
                raise KafkaError(answer.error_code, f"{key.name} of {self._transactional_id}")
            return answer

        return self._cluster.retrying(f"{key.name} of {self._transactional_id}", call)
