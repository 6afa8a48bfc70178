"""Stage 1: the file into the topic `flights`, keyed by carrier, a few thousand flights per transaction.

Exactly once because the position in the file is committed as a group offset inside the same transaction as the
flights before it: after an error the feeder asks for that offset and goes on from there, whatever it believed.
"""

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from kafka.structs import ConsumerGroupMetadata

from demo.flights import Flight, encode, read_flights
from demo.plan import FEEDERS, KillOrder, Plan, Report, Stage, Wires, client_settings
from demo.transactions import Transactions, patiently

STAGE: Stage = "flights"


class Feeder:
    def __init__(self, plan: Plan, wires: Wires, worker: int, kill_order: KillOrder | None) -> None:
        self._plan = plan
        self._wires = wires
        self._worker = worker
        self._kill_order = kill_order
        self._flights = list(read_flights(plan.flights, shard=worker, shards=FEEDERS))
        wires.go.wait()
        self._slot = TopicPartition(plan.source_topic, worker)
        self._transactions = Transactions(plan, STAGE, worker)
        self._offsets = patiently(self._open)

    def _open(self) -> KafkaConsumer:
        return KafkaConsumer(
            **client_settings(self._plan),
            group_id=self._plan.feeder_group,
            enable_auto_commit=False,
            isolation_level="read_committed",
        )

    def _committed_position(self) -> int:
        """Where to go on. Nothing of ours is open when this is asked, so the answer is final."""
        return patiently(lambda: self._offsets.committed(self._slot, timeout_ms=5_000)) or 0

    def run(self) -> None:
        position = self._committed_position()
        while position < len(self._flights):
            chunk = self._flights[position : position + self._plan.flights_per_transaction]
            position = self._write(chunk, position)
        self._transactions.close()
        self._offsets.close()

    def _write(self, chunk: list[Flight], position: int) -> int:
        """One transaction, committed or aborted; where to go on."""
        end = position + len(chunk)
        transactions = self._transactions
        name = transactions.next_name()
        size = len(chunk)
        report = Report("committed", STAGE, self._worker, name, records=size, flights=size)
        try:
            transactions.begin()
            half = len(chunk) // 2
            self._send(chunk[:half], name)
            order = self._kill_order
            if order and half and not transactions.is_to_abort() and order.is_due(position):
                transactions.flush()
                order.carry_out(self._wires, report._replace(kind="kill-me"))
            self._send(chunk[half:], name)
            transactions.send_offsets(
                {self._slot: end}, ConsumerGroupMetadata(group_id=self._plan.feeder_group), name
            )
            if transactions.is_to_abort():
                transactions.flush()
                transactions.abort()
                self._wires.reports.put(report._replace(kind="aborted"))
                return position
            transactions.commit()
        except KafkaError as error:
            transactions.start_over()
            position = self._committed_position()
            self._wires.reports.put(
                report._replace(kind="in-doubt", resolved=position >= end, message=repr(error))
            )
            return position
        self._wires.reports.put(report)
        return end

    def _send(self, flights: list[Flight], name: str) -> None:
        for flight in flights:
            self._transactions.send(self._plan.flights_topic, flight.carrier.encode(), encode(flight, name))
