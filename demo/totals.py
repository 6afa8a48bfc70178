"""Stage 2: from `flights` to `airport-totals`, consume-transform-produce, what read_committed shows and no more.

Each transaction takes what one poll gave, writes one record per airport in it (how many departures and arrivals
it adds) and commits the offsets of its input with the generation of its consumer (KIP-447). After an error the
consumer goes back to the committed offsets, which say whether the transaction counted.
"""

import json
from collections import Counter
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from demo.flights import FlightRecord, decode
from demo.plan import KillOrder, Plan, Report, Stage, Wires, client_settings
from demo.transactions import Transactions, patiently

STAGE: Stage = "airport-totals"


def encode_total(transaction: str, departures: int, arrivals: int) -> bytes:
    return json.dumps({"transaction": transaction, "departures": departures, "arrivals": arrivals}).encode()


class Totaller:
    def __init__(self, plan: Plan, wires: Wires, worker: int, kill_order: KillOrder | None) -> None:
        self._plan = plan
        self._wires = wires
        self._worker = worker
        self._kill_order = kill_order
        self._done = 0
        wires.go.wait()
        self._transactions = Transactions(plan, STAGE, worker)
        # The other stage's kill may fall into any of this.
        self._consumer = patiently(self._open)
        # A poll that runs out while kafka-python 3.0.12 rejoins for news of its topics' partitions loses the
        # assignment for good. So let there be no news: learn of the partitions before the first join.
        patiently(lambda: self._consumer.partitions_for_topic(plan.flights_topic))

    def _open(self) -> KafkaConsumer:
        plan = self._plan
        return KafkaConsumer(
            plan.flights_topic,
            **client_settings(plan),
            group_id=plan.totals_group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            heartbeat_interval_ms=500,
            max_poll_records=2 * plan.flights_per_transaction,
            fetch_max_wait_ms=200,
        )

    def run(self) -> None:
        while not self._wires.stop.is_set():
            try:
                batches = self._consumer.poll(timeout_ms=300)
            except KafkaError:
                # The broker is away. Whatever the poll may have taken was not processed: back to what was.
                self._rewind()
                continue
            if batches:
                self._process(batches)
            else:
                self._report_idle()
        self._commit_positions()
        self._transactions.close()
        self._consumer.close(autocommit=False)

    def _report_idle(self) -> None:
        try:
            partitions = sorted(self._consumer.assignment())
            ends = self._consumer.end_offsets(partitions, timeout_ms=1_000) if partitions else {}
            positions = {each: self._consumer.position(each, timeout_ms=1_000) for each in partitions}
        except KafkaError:
            return
        if all((positions[each] or 0) >= end for each, end in ends.items()):
            numbers = tuple(each.partition for each in partitions)
            self._wires.reports.put(Report("idle", STAGE, self._worker, partitions=numbers))

    def _commit_positions(self) -> None:
        """The last transaction committed the offset behind its last record; aborted ones may lie behind that."""
        try:
            self._consumer.commit()
        except KafkaError as error:
            self._wires.reports.put(Report("failed", STAGE, self._worker, message=repr(error)))

    def _process(self, batches: dict[TopicPartition, list[Any]]) -> None:
        """One transaction, committed or aborted."""
        offsets = {partition: records[-1].offset + 1 for partition, records in batches.items()}
        flights = [decode(record.value) for records in batches.values() for record in records]
        totals = add_up(flights)
        transactions = self._transactions
        name = transactions.next_name()
        report = Report("committed", STAGE, self._worker, name, records=len(totals), flights=len(flights))
        try:
            transactions.begin()
            half = len(totals) // 2
            order = self._kill_order
            is_due = order and half and not transactions.is_to_abort() and order.is_due(self._done)
            for index, (airport, (departures, arrivals)) in enumerate(totals.items()):
                if order and is_due and index == half:
                    transactions.flush()
                    order.carry_out(self._wires, report._replace(kind="kill-me"))
                value = encode_total(name, departures, arrivals)
                transactions.send(self._plan.totals_topic, airport.encode(), value)
            transactions.send_offsets(offsets, self._consumer.group_metadata(), name)
            if transactions.is_to_abort():
                transactions.flush()
                transactions.abort()
                self._wires.reports.put(report._replace(kind="aborted"))
                self._rewind()
                return
            transactions.commit()
        except KafkaError as error:
            transactions.start_over()
            resolved = self._was_committed(name, offsets)
            self._rewind()
            self._wires.reports.put(report._replace(kind="in-doubt", resolved=resolved, message=repr(error)))
            return
        self._done += len(flights)
        self._wires.reports.put(report)

    def _was_committed(self, name: str, offsets: dict[TopicPartition, int]) -> bool | None:
        """What the committed offsets say of an ended transaction. None when another member took over meanwhile."""
        for partition, offset in offsets.items():
            found = self._committed(partition)
            if found is None or found.offset < offset:
                return False
            if found.metadata != name:
                return None
        return True

    def _rewind(self) -> None:
        for partition in self._consumer.assignment():
            found = self._committed(partition)
            self._consumer.seek(partition, found.offset if found else 0)

    def _committed(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        return patiently(lambda: self._consumer.committed(partition, metadata=True, timeout_ms=5_000))


def add_up(flights: list[FlightRecord]) -> dict[str, tuple[int, int]]:
    """Departures and arrivals per airport."""
    departures: Counter[str] = Counter(flight.origin for flight in flights)
    arrivals: Counter[str] = Counter(flight.destination for flight in flights)
    airports = sorted(departures.keys() | arrivals.keys())
    return {airport: (departures[airport], arrivals[airport]) for airport in airports}
