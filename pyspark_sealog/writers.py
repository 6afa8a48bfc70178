"""The batch and the streaming writer: exactly once, and visible in one instant, by group transactions.

Every task writes in a transaction of its own, enlisted in the group (sink, batch), and ends it with a vote, which shows
nothing. Spark's commit names the tasks that won: one write in the broker shows exactly their records and discards
everything else that was written for this batch (docs/design.md, T10; docs/spark.md has the failure table).
"""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_sealog.cluster import Cluster
from pyspark_sealog.encode import encode
from pyspark_sealog.errors import SealogError
from pyspark_sealog.member_ids import MemberIds
from pyspark_sealog.producer import Outgoing, Producer
from pyspark_sealog.rows import Distributor, check_schema
from pyspark_sealog.sink_options import SinkOptions
from pyspark_sealog.task_process import leave_imports_alone
from wire import group_transactions as messages
from wire.errors import ErrorCode, KafkaError

_log = logging.getLogger(__name__)

_member_ids: Final = MemberIds()

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_RUN_ID: Final = "spark.jobGroup.id"


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which batch of which sink is written, and by which run: `name` is query id/run id.

    A higher generation supersedes a lower one that is not committed: it is the time, in ms, when the run planned it.
    """

    sink: str
    batch: int
    name: str
    generation: int

    @property
    def query(self) -> str:
        return self.name.partition("/")[0]


class Written(WriterCommitMessage):
    """What one task tells the commit. `member` is None where it wrote nothing."""

    def __init__(self, attempt: Attempt, member: messages.Member | None, rows: int) -> None:
        self.attempt = attempt
        self.member = member
        self.rows = rows


class TaskWriter:
    """Writes the rows of one task as a member of an attempt."""

    def __init__(self, options: SinkOptions, attempt: Attempt) -> None:
        self._options = options
        self._attempt = attempt
        self._extended_at = 0.0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        leave_imports_alone()
        batches = (batch for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return Written(self._attempt, None, 0)
        with Cluster(self._options.client) as cluster:
            name = _member_ids.take(self._attempt.sink, self._attempt.batch)
            producer = Producer(cluster, name)
            producer.init()
            if not self._enlist(cluster, producer):
                for _ in batches:
                    """Done before: the rows are counted among those that are there already."""
                return Written(self._attempt, None, 0)
            try:
                rows = self._send_all(cluster, producer, itertools.chain([first], batches))
                producer.end(commit=True)
            except BaseException:
                self._discard(producer)
                raise
            _member_ids.voted(self._attempt.sink, self._attempt.batch, name)
            return Written(self._attempt, producer.member, rows)

    def _enlist(self, cluster: Cluster, producer: Producer) -> bool:
        """Whether the batch is still to be written."""
        answer = cluster.ask(
            messages.Enlist(
                sink=self._attempt.sink,
                batch=self._attempt.batch,
                attempt=self._attempt.name,
                generation=self._attempt.generation,
                member=producer.member,
                timeout_ms=self._options.client.transaction_timeout_ms,
            )
        )
        self._extended_at = time.monotonic()
        if answer.repeated:
            check_outcome(answer, self._attempt, self._options)
        return not answer.repeated

    def _send_all(self, cluster: Cluster, producer: Producer, batches: Iterator[pa.RecordBatch]) -> int:
        settings = self._options.client
        distribute = Distributor(cluster, self._options, seed=uuid.uuid4().int & 0xFFFF)
        rows = 0
        for batch in batches:
            self._extend(cluster)
            timestamp_ms = time.time_ns() // 1_000_000
            ready: dict[object, list[Outgoing]] = {}
            for of_part in distribute(batch):
                encoded = encode(of_part.keys, of_part.values, of_part.headers, settings.batch_bytes)
                sequence = producer.sequences.get(of_part.part, 0)
                for head, records, count in encoded.batches(
                    compression=settings.compression,
                    timestamp_ms=timestamp_ms,
                    producer_id=producer.member.producer_id,
                    epoch=producer.member.epoch,
                    sequence=sequence,
                ):
                    ready.setdefault(of_part.part, []).append(Outgoing(of_part.part, head, records))
                    sequence = (sequence + count) & 0x7FFFFFFF
                producer.sequences[of_part.part] = sequence
            for request in _requests(list(ready.values()), settings.request_bytes):
                producer.send(request)
            rows += batch.num_rows
        producer.flush()
        return rows

    def _extend(self, cluster: Cluster) -> None:
        """More time for the whole attempt while a task of it is writing."""
        timeout_ms = self._options.client.transaction_timeout_ms
        if time.monotonic() - self._extended_at < timeout_ms / 3000:
            return
        attempt = self._attempt
        cluster.ask(
            messages.Extend(
                sink=attempt.sink, batch=attempt.batch, attempt=attempt.name, timeout_ms=timeout_ms
            )
        )
        self._extended_at = time.monotonic()

    @staticmethod
    def _discard(producer: Producer) -> None:
        """At once, so that no reader is held back; if it fails, the next run or the deadline does it."""
        try:
            producer.end(commit=False)
        except (OSError, KafkaError, SealogError) as error:
            _log.info("a failed task's transaction is left to its deadline: %s", error)


def _requests(by_part: Sequence[Sequence[Outgoing]], request_bytes: int) -> Iterator[list[Outgoing]]:
    """Requests of one batch per partition each, of about `request_bytes` at the most."""
    for round_ in itertools.zip_longest(*by_part):
        request: list[Outgoing] = []
        size = 0
        for one in round_:
            if one is None:
                continue
            if request and size + one.size_bytes > request_bytes:
                yield request
                request, size = [], 0
            request.append(one)
            size += one.size_bytes
        if request:
            yield request


def check_outcome(answer: messages.Response, attempt: Attempt, options: SinkOptions) -> None:
    """Whether a batch that is done was done by this query. Raises SealogError.

    A query with a new checkpoint counts its batches from 0 again. Under the sinkId of another it would skip as many
    batches as the other one wrote, so that is said, and done only when it is asked for.
    """
    if options.skip_batches_of_others or answer.attempt.partition("/")[0] == attempt.query:
        return
    raise SealogError(
        f"sink {attempt.sink!r} has batches up to {answer.batch} from another query (another checkpoint); this one is "
        f"at batch {attempt.batch}. Give it a sinkId of its own; or, where it reads the same input from the same "
        "start and shall skip what is written already, set newCheckpoint=skip."
    )


def commit(messages_: Sequence[WriterCommitMessage | None], options: SinkOptions) -> None:
    """Show what the winners wrote, in one instant. May be repeated."""
    written = [one for one in messages_ if isinstance(one, Written)]
    if not written:
        return
    attempt = written[0].attempt
    winners = tuple(one.member for one in written if one.member is not None)
    request = messages.Commit(sink=attempt.sink, batch=attempt.batch, attempt=attempt.name, members=winners)
    with Cluster(options.client) as cluster:
        try:
            if not winners:
                _make_way(cluster, attempt)
            answer = cluster.ask(request)
        except KafkaError as error:
            if error.code in (ErrorCode.producer_fenced, ErrorCode.invalid_txn_state):
                raise SealogError(
                    f"batch {attempt.batch} of sink {attempt.sink!r} was taken over by another run of the query, "
                    f"or its time ran out: nothing of it is visible; a restart writes it again ({error})"
                ) from error
            raise
        if answer.repeated:
            check_outcome(answer, attempt, options)


def _make_way(cluster: Cluster, attempt: Attempt) -> None:
    """Nobody enlisted for a batch without rows, so what an earlier run left of it has not been superseded yet."""
    for one in cluster.ask(messages.Describe(sink=attempt.sink)).undecided:
        if one.batch == attempt.batch and one.attempt not in ("", attempt.name):
            cluster.ask(messages.Abort(sink=attempt.sink, batch=one.batch, attempt=one.attempt))


def abort(messages_: Sequence[WriterCommitMessage | None], options: SinkOptions) -> None:
    """Discard what an attempt wrote. If that fails a newer attempt or the deadline does it: only logged."""
    attempts = {one.attempt for one in messages_ if isinstance(one, Written)}
    try:
        with Cluster(options.client) as cluster:
            for one in attempts:
                cluster.ask(messages.Abort(sink=one.sink, batch=one.batch, attempt=one.name))
    except (OSError, KafkaError, SealogError) as error:
        _log.warning("an attempt was not aborted, its deadline will do it: %s", error)


class StreamWriter(DataSourceStreamArrowWriter):
    """Made anew on the driver for each batch, for its tasks and again for its commit."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options
        self._generation = time.time_ns() // 1_000_000

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query, run, batch = (context.getLocalProperty(name) for name in (_QUERY_ID, _RUN_ID, _BATCH_ID))
        if query is None or batch is None:
            raise SealogError(
                "the task does not know its query and batch: is this a streaming query of Spark 4.2?"
            )
        sink = self._options.sink_id or query
        attempt = Attempt(sink, int(batch), f"{query}/{run or query}", self._generation)
        return TaskWriter(self._options, attempt).write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        commit(messages, self._options)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        abort(messages, self._options)


class BatchWriter(DataSourceArrowWriter):
    """One DataFrame: visible in one instant or never. One writer, made on the driver, serves tasks and commit."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options
        generation = time.time_ns() // 1_000_000
        unique = uuid.uuid4().hex
        if options.sink_id is not None and options.batch_id is not None:
            # Whoever writes this batch of this sink again is the same job by its own word.
            self._attempt = Attempt(options.sink_id, options.batch_id, f"batch/{unique}", generation)
        else:
            self._attempt = Attempt(f"spark-{unique}", 0, f"batch/{unique}", generation)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return TaskWriter(self._options, self._attempt).write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit(messages, self._options)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        abort(messages, self._options)
