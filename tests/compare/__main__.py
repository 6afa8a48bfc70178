"""`./run compare`: sealog beside Apache Kafka 4.3.1, case by case; or the client tests against Apache Kafka alone."""

import os
import sys
import tempfile
from pathlib import Path

import click
import pytest
from rich.console import Console
from rich.progress import track

from tests.compare import all_cases  # noqa: F401  (it registers them)
from tests.compare.cases import CASES
from tests.compare.report import Report
from tests.compare.servers import Servers
from tests.support.kafka_process import KafkaProcess

CLIENT_TESTS = "tests/clients"
CLIENT_SETTINGS = {
    "group.coordinator.rebalance.protocols": "classic,consumer",
    # The scenarios of the new group protocol count heartbeats: a new target is there with the one that wants it.
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.assignor.offload.enable": "false",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.min.session.timeout.ms": "1000",
    "auto.create.topics.enable": "true",
    # Timeouts of transactions are looked for as often as sealog's tests expect an end of them.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
"""What the client tests want of a broker, and sealog does without being told."""


@click.command()
@click.option("-k", "wanted", default="", help="Only cases whose name has this in it (or: pytest's -k).")
@click.option("--clients", is_flag=True, help="Run the client tests against Apache Kafka instead.")
@click.argument("rest", nargs=-1)
def main(wanted: str, clients: bool, rest: tuple[str, ...]) -> None:
    """Send the same requests to Apache Kafka 4.3.1 and to sealog, and report in what the answers differ.

    Exits with 1 where a difference is not among those that are there on purpose. Needs java and mvn.

    --clients: what sealog's client tests expect is held to Apache Kafka. REST are tests to run in place of all of
    them, and further options of pytest behind a --. A test of a deliberate difference is left out, and listed with its
    reason.
    """
    with tempfile.TemporaryDirectory(prefix="sealog-compare-") as folder:
        sys.exit(_clients(Path(folder), wanted, rest) if clients else _cases(Path(folder), wanted))


def _cases(folder: Path, wanted: str) -> int:
    cases = [case for case in CASES if wanted in case.id]
    if not cases:
        raise click.UsageError(f"no case has {wanted!r} in its name")
    console = Console(stderr=True)
    report = Report()
    console.print("starting Apache Kafka and sealog, twice each ...")
    with Servers(folder) as servers:
        for case in track(cases, f"{len(cases)} cases", console=console):
            try:
                report.outcomes.append(servers.run(case))
            except AssertionError as error:
                report.failed[case.id] = str(error)
    click.echo("\n".join(report.lines()))
    return 0 if report.is_good else 1


def _clients(folder: Path, wanted: str, rest: tuple[str, ...]) -> int:
    with KafkaProcess(folder / "kafka", settings=CLIENT_SETTINGS) as kafka:
        os.environ["SEALOG_TEST_BOOTSTRAP"] = kafka.address
        os.environ.pop("SEALOG_TEST_BROKER", None)
        named = any(Path(each.split("::")[0]).exists() for each in rest)
        tests = [] if named else [CLIENT_TESTS]
        return int(pytest.main([*tests, *(["-k", wanted] if wanted else []), *rest]))


if __name__ == "__main__":
    main()
