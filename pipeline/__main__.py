"""`python -m pipeline`: the flights of 2013 through Spark and sealog, killed twice. Exit code 1 if a total is wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pandas as pd

from demo.server import ROOT, BrokerFailed, Server
from pipeline.audit import audit
from pipeline.plot import plot_delays
from pipeline.queries import CLEAN, DELAYS, RAW
from pipeline.screen import Screen
from pipeline.tables import END, END_TIME, FLIGHTS, expected_delays, flights, table, write_lines

LEAST_FLIGHTS = 1_000
MOST_FAILURES = 3
"""How often the job may end by itself: a machine under load can be too slow for Spark's own timeouts."""


class PipelineFailed(RuntimeError):
    """The job ended when nobody killed it."""


@click.command()
@click.option(
    "--flights", "count", type=click.IntRange(LEAST_FLIGHTS, FLIGHTS), default=FLIGHTS, show_default=True
)
@click.option("--folder", type=click.Path(path_type=Path), help="Where everything is put, and kept.")
@click.option("--plot", type=click.Path(path_type=Path), default=Path("delays.png"), show_default=True)
def main(count: int, folder: Path | None, plot: Path) -> None:
    """Clean, enrich and count a year of flights in three streaming queries; kill Spark and the broker on the way."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    where = folder or Path(tempfile.mkdtemp(prefix="sealog-pipeline-"))
    where.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    server = Server(where / "broker")
    try:
        holds = run(server, where, flights(count), plot)
    except (PipelineFailed, BrokerFailed) as error:
        click.echo(f"the pipeline could not finish: {error}", err=True)
        sys.exit(1)
    finally:
        server.end()
        if folder is None:
            shutil.rmtree(where, ignore_errors=True)
    click.echo(f"{'all holds' if holds else 'BROKEN'}, in {time.monotonic() - started:.0f} s")
    sys.exit(0 if holds else 1)


def run(server: Server, folder: Path, frame: pd.DataFrame, plot: Path) -> bool:
    flown = len(frame.dropna(subset=["dep_delay", "arr_delay"]))
    totals = {"enrich": len(frame) + 1, "delays": flown + 1, "archive": len(expected_delays(frame))}
    write_lines(frame, folder / "flights.json", END | {"time_hour": END_TIME})
    for name in ("airlines", "airports", "weather"):
        table(name).to_csv(folder / f"{name}.csv", index=False)
    server.start()
    with Screen(totals) as screen:
        screen.tell(f"{len(frame):,} flights through {RAW}, {CLEAN} and {DELAYS} on {server.bootstrap}")
        stream(server, folder, screen, len(frame))
    checks = audit(frame, folder)
    for check in checks:
        click.echo(f"{'holds' if check.holds else 'BROKEN':7} {check.text}")
    plot_delays(pd.read_parquet(folder / "delays.parquet"), table("airlines"), plot)
    click.echo(f"the delays as a picture: {plot.resolve()}")
    return all(check.holds for check in checks)


def stream(server: Server, folder: Path, screen: Screen, count: int) -> None:
    """Run the job until it is through: killed once, and the broker under it once; started again after every end."""
    spark_killed = broker_killed = False
    failures = 0
    while True:
        job = Job(server, folder, count)
        try:
            for report in job.reports():
                if report.done is None:
                    screen.tell(f"Spark is {report.stage}")
                    continue
                screen.show(report.done)
                enriched = report.done["enrich"]
                if not spark_killed and enriched > count // 5:
                    job.kill()
                    spark_killed = True
                    screen.tell("Spark killed (SIGKILL) in the middle of three queries")
                elif spark_killed and not broker_killed and enriched > count // 4:
                    server.kill()
                    broker_killed = True
                    screen.tell("broker killed (SIGKILL)")
                    server.start()
        finally:
            job.kill()
        if job.finished:
            return
        if not job.killed:
            failures += 1
            if failures > MOST_FAILURES:
                raise PipelineFailed(f"the Spark job ended by itself:\n{job.log_tail()}")
            screen.tell("Spark ended by itself; it is started again")


class Report(NamedTuple):
    """What the job says: the stage it is in, or how many records each query has taken."""

    stage: str
    done: dict[str, int] | None


class Job:
    """The Spark job in processes of its own: its reports, and its end."""

    def __init__(self, server: Server, folder: Path, flights: int) -> None:
        self.finished = self.killed = False
        self._log = folder / "spark.log"
        environment = os.environ | {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipeline.job", server.bootstrap, str(folder), str(flights)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                text=True,
            )

    def reports(self) -> Iterator[Report]:
        """What it says, until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                said = json.loads(line)
                self.finished = said.get("stage") == "done"
                yield Report(said.get("stage", ""), said.get("done"))
        self.finished = self._process.wait() == 0 and self.finished

    def kill(self) -> None:
        """The driver, its JVM and its Python workers, at once."""
        if self._process.poll() is None and not self.finished:
            self.killed = True
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait()

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-3_000:]


if __name__ == "__main__":
    main()
