"""The readers' side of the account: both topics from start to end, read_committed, by new consumers.

What they saw is held against the ledger. A record of an aborted transaction, one seen twice or one not seen is
counted here, and every count that should be zero and isn't makes the audit fail.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.context import SpawnContext
from typing import Any, NamedTuple

from kafka import KafkaConsumer, TopicPartition

from demo.flights import Totals, decode
from demo.ledger import Ledger, StageLedger
from demo.plan import FLIGHT_PARTITIONS, TOTAL_PARTITIONS, Plan, client_settings

STUCK_S = 60.0
READERS = 2


@dataclass
class Seen:
    """What a reader found in its partitions."""

    numbers: Counter[int] = field(default_factory=Counter)
    transactions: Counter[str] = field(default_factory=Counter)
    doubled_totals: int = 0
    by_carrier: Counter[str] = field(default_factory=Counter)
    departures: Counter[str] = field(default_factory=Counter)
    arrivals: Counter[str] = field(default_factory=Counter)
    wrong_keys: int = 0
    lag: int = 0
    """End offset less the reader's position, when it had read all."""

    def add(self, other: "Seen") -> None:
        self.numbers.update(other.numbers)
        self.transactions.update(other.transactions)
        self.doubled_totals += other.doubled_totals
        self.by_carrier.update(other.by_carrier)
        self.departures.update(other.departures)
        self.arrivals.update(other.arrivals)
        self.wrong_keys += other.wrong_keys
        self.lag += other.lag


def read_flights_topic(plan: Plan, partitions: list[int]) -> Seen:
    seen = Seen()
    for record in _read(plan, plan.flights_topic, partitions, seen):
        flight = decode(record.value)
        seen.numbers[flight.number] += 1
        seen.transactions[flight.transaction] += 1
        seen.by_carrier[flight.carrier] += 1
        seen.wrong_keys += record.key.decode() != flight.carrier
    return seen


def read_totals_topic(plan: Plan, partitions: list[int]) -> Seen:
    seen = Seen()
    once: set[tuple[str, bytes]] = set()
    for record in _read(plan, plan.totals_topic, partitions, seen):
        value = json.loads(record.value)
        identity = (value["transaction"], record.key)
        seen.doubled_totals += identity in once
        once.add(identity)
        seen.transactions[value["transaction"]] += 1
        seen.departures[record.key.decode()] += value["departures"]
        seen.arrivals[record.key.decode()] += value["arrivals"]
    return seen


def _read(plan: Plan, topic: str, partitions: list[int], seen: Seen) -> Iterator[Any]:
    """Every committed record of the partitions. Raises TimeoutError when the reader does not get to the end."""
    consumer = KafkaConsumer(
        **client_settings(plan),
        isolation_level="read_committed",
        enable_auto_commit=False,
        max_poll_records=5000,
        fetch_max_wait_ms=200,
    )
    wanted = [TopicPartition(topic, partition) for partition in partitions]
    consumer.assign(wanted)
    consumer.seek_to_beginning(*wanted)
    moved = time.monotonic()
    while True:
        batches = consumer.poll(timeout_ms=300)
        for records in batches.values():
            yield from records
        if batches:
            moved = time.monotonic()
            continue
        ends = consumer.end_offsets(wanted)
        lag = sum(max(0, ends[each] - consumer.position(each)) for each in wanted)
        if lag == 0 or time.monotonic() > moved + STUCK_S:
            seen.lag = lag
            break
    consumer.close()


def group_lag(plan: Plan) -> int:
    """What a monitor shows for stage 2: end offset less committed offset, over all partitions of `flights`."""
    consumer = KafkaConsumer(
        **client_settings(plan),
        group_id=plan.totals_group,
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    wanted = [TopicPartition(plan.flights_topic, partition) for partition in range(FLIGHT_PARTITIONS)]
    ends = consumer.end_offsets(wanted)
    lag: int = sum(ends[each] - (consumer.committed(each) or 0) for each in wanted)
    consumer.close()
    return lag


class Row(NamedTuple):
    """One topic's figures, in records. `lag` is that of its reader: stage 2's group, and the audit's own."""

    topic: str
    committed: int
    aborted: int
    seen: int
    lost: int
    doubled: int
    lag: int


class Check(NamedTuple):
    holds: bool
    text: str


class Verdict(NamedTuple):
    rows: list[Row]
    checks: list[Check]

    @property
    def holds(self) -> bool:
        return all(check.holds for check in self.checks)


def audit(plan: Plan, ledger: Ledger, expected: Totals, context: SpawnContext) -> Verdict:
    flights, totals = Seen(), Seen()
    with ProcessPoolExecutor(READERS, mp_context=context) as pool:
        shares = [list(range(FLIGHT_PARTITIONS))[number::READERS] for number in range(READERS)]
        of_flights = [pool.submit(read_flights_topic, plan, share) for share in shares]
        of_totals = pool.submit(read_totals_topic, plan, list(range(TOTAL_PARTITIONS)))
        for each in of_flights:
            flights.add(each.result())
        totals.add(of_totals.result())
    return judge(plan, ledger, expected, flights, totals, group_lag(plan))


def judge(
    plan: Plan, ledger: Ledger, expected: Totals, flights: Seen, totals: Seen, lag_of_group: int
) -> Verdict:
    """Pure: the two sides of the account against each other and against the plain computation."""
    of_flights, of_totals = ledger.stages["flights"], ledger.stages["airport-totals"]
    doubled_flights = sum(count - 1 for count in flights.numbers.values())
    rows = [
        _row("flights", of_flights, flights, doubled_flights, lag_of_group),
        _row("airport-totals", of_totals, totals, totals.doubled_totals, totals.lag),
    ]
    missing = plan.flights - len(flights.numbers)
    shown = _of_aborted(of_flights, flights) + _of_aborted(of_totals, totals)
    parts = _parts(of_flights, flights) + _parts(of_totals, totals)
    strangers = _strangers(of_flights, flights) + _strangers(of_totals, totals)
    counted = sum(totals.departures.values())
    checks = [
        Check(not any(row.lost for row in rows), "no acknowledged record is lost"),
        Check(not any(row.doubled for row in rows), "no record is doubled"),
        Check(missing == 0, f"every flight of the file is there ({plan.flights:,} less {missing:,})"),
        Check(shown == 0, f"no record of an aborted transaction is seen ({shown:,})"),
        Check(parts == 0, f"every transaction is seen whole or not at all ({parts:,} in part)"),
        Check(strangers == 0, f"no record is of an unknown transaction ({strangers:,})"),
        Check(not any(row.lag for row in rows), "lag is 0"),
        Check(
            flights.by_carrier == expected.by_carrier and flights.wrong_keys == 0,
            f"flights per carrier equal the file's ({len(expected.by_carrier)} carriers)",
        ),
        Check(
            +totals.departures == expected.departures and +totals.arrivals == expected.arrivals,
            f"flights per airport equal the file's ({counted:,} departures,"
            f" {len(expected.departures | expected.arrivals)} airports)",
        ),
    ]
    return Verdict(rows, checks)


def _row(topic: str, ledger: StageLedger, seen: Seen, doubled: int, lag: int) -> Row:
    """Transactions that got no answer count as what the readers found them to be."""
    found = {name: records for name, records in ledger.undecided.items() if seen.transactions[name]}
    not_found = sum(records for name, records in ledger.undecided.items() if name not in found)
    committed = ledger.committed | found
    lost = sum(max(0, records - seen.transactions[name]) for name, records in committed.items())
    return Row(
        topic,
        committed=sum(committed.values()),
        aborted=sum(ledger.aborted.values()) + not_found,
        seen=sum(seen.transactions.values()),
        lost=lost,
        doubled=doubled,
        lag=lag,
    )


def _of_aborted(ledger: StageLedger, seen: Seen) -> int:
    return sum(seen.transactions[name] for name in ledger.aborted)


def _parts(ledger: StageLedger, seen: Seen) -> int:
    """Transactions of which some records are seen and some are not."""
    everything = ledger.committed | ledger.aborted | ledger.undecided
    return sum(seen.transactions[name] not in (0, records) for name, records in everything.items())


def _strangers(ledger: StageLedger, seen: Seen) -> int:
    known = ledger.committed.keys() | ledger.aborted.keys() | ledger.undecided.keys()
    return sum(count for name, count in seen.transactions.items() if name not in known)
