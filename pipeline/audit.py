"""What came out, against pandas over the same flights."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pandas as pd

from pipeline.tables import END, expected_clean, expected_delays


class Check(NamedTuple):
    holds: bool
    text: str


def audit(flights: pd.DataFrame, folder: Path) -> list[Check]:
    clean: pd.DataFrame = pd.read_pickle(folder / "clean.pickle")
    delays: pd.DataFrame = pd.read_pickle(folder / "delays.pickle")
    return judge(flights, clean, delays, pd.read_parquet(folder / "delays.parquet"))


def judge(
    flights: pd.DataFrame, clean: pd.DataFrame, topic: pd.DataFrame, parquet: pd.DataFrame
) -> list[Check]:
    """The cleaned flights as read from their topic; the delays as read from theirs, and from the Parquet table."""
    clean = clean[clean["id"] != END["id"]]
    expected = expected_clean(flights)
    found = {
        "flights": len(clean),
        "ids": int(clean["id"].sum()),
        "with airport": int(clean["airport"].notna().sum()),
        "with weather": int(clean["visib"].notna().sum()),
    }
    wanted_ids = set(flights.dropna(subset=["dep_delay", "arr_delay"])["id"])
    lost, doubled = len(wanted_ids - set(clean["id"])), len(clean) - clean["id"].nunique()
    wanted = _shape(expected_delays(flights))
    return [
        Check(lost == 0 and doubled == 0, f"flights lost {lost}, doubled {doubled}, of {len(wanted_ids):,}"),
        Check(found == expected, f"cleaned and enriched: {found}, as pandas has it"),
        Check(
            _shape(topic).equals(wanted), f"{len(wanted):,} weekly delays in the topic, each as pandas has it"
        ),
        Check(
            _shape(parquet).equals(wanted),
            f"{len(parquet):,} weekly delays in Parquet, each as pandas has it",
        ),
    ]


def _shape(delays: pd.DataFrame) -> pd.DataFrame:
    """In one order and with the same types, wherever it was read from."""
    delays = delays.copy()
    if not pd.api.types.is_integer_dtype(delays["week"]):
        week = pd.to_datetime(delays["week"], utc=True)
        delays["week"] = week.astype("datetime64[ms, UTC]").astype("int64")
    numbers = ["week", "flights", "dep_delay", "arr_delay"]
    delays = delays.astype(dict.fromkeys(numbers, "int64")).astype({"carrier": "object", "origin": "object"})
    columns = ["week", "carrier", "origin", "flights", "dep_delay", "arr_delay"]
    return delays[columns].sort_values(columns, ignore_index=True)
