"""The pipeline finds what it looks for, and runs, kills included."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from pipeline.audit import judge
from pipeline.tables import END, expected_delays, flights, table
from tests.support.broker_process import CHECKOUT
from tests.support.toolchains import require_program


def honest(count: int = 1_000) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """What a pipeline without a fault comes to: flights, cleaned flights, delays, delays in Parquet."""
    frame = flights(count)
    clean = frame.dropna(subset=["dep_delay", "arr_delay"])
    airports = table("airports")[["faa", "name"]].rename(columns={"faa": "dest", "name": "airport"})
    weather = table("weather")[["origin", "time_hour", "visib"]].drop_duplicates(["origin", "time_hour"])
    clean = clean.merge(airports, "left", "dest").merge(weather, "left", ["origin", "time_hour"])
    clean = pd.concat([clean, pd.DataFrame([END])], ignore_index=True)
    delays = expected_delays(frame)
    return frame, clean, delays, delays.copy()


def test_an_honest_run_holds() -> None:
    assert all(check.holds for check in judge(*honest()))


def lose_a_flight(clean: pd.DataFrame, topic: pd.DataFrame, parquet: pd.DataFrame) -> list[pd.DataFrame]:
    return [clean.iloc[1:], topic, parquet]


def double_a_flight(clean: pd.DataFrame, topic: pd.DataFrame, parquet: pd.DataFrame) -> list[pd.DataFrame]:
    return [pd.concat([clean, clean.head(1)]), topic, parquet]


def lose_a_week(clean: pd.DataFrame, topic: pd.DataFrame, parquet: pd.DataFrame) -> list[pd.DataFrame]:
    return [clean, topic.iloc[1:], parquet]


def double_a_week(clean: pd.DataFrame, topic: pd.DataFrame, parquet: pd.DataFrame) -> list[pd.DataFrame]:
    return [clean, topic, pd.concat([parquet, parquet.head(1)])]


def a_wrong_sum(clean: pd.DataFrame, topic: pd.DataFrame, parquet: pd.DataFrame) -> list[pd.DataFrame]:
    return [clean, topic.assign(dep_delay=topic["dep_delay"] + 1), parquet]


@pytest.mark.parametrize("fault", [lose_a_flight, double_a_flight, lose_a_week, double_a_week, a_wrong_sum])
def test_a_fault_is_found(fault: Callable[..., list[pd.DataFrame]]) -> None:
    frame, *found = honest()
    assert not all(check.holds for check in judge(frame, *fault(*found)))


@pytest.mark.timeout(1_500)
def test_the_whole_pipeline_runs_killed_twice_and_its_totals_hold(tmp_path: Path) -> None:
    require_program("java", "Spark cannot be tested")
    picture = tmp_path / "delays.png"
    options = ["--flights", "1500", "--folder", str(tmp_path / "run"), "--plot", str(picture)]
    run = subprocess.run(
        [sys.executable, "-m", "pipeline", *options],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=1_400,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Spark killed (SIGKILL)" in run.stdout
    assert "broker killed (SIGKILL)" in run.stdout
    assert len(re.findall("^holds ", run.stdout, re.MULTILINE)) == 4
    assert picture.read_bytes().startswith(b"\x89PNG")
