"""The demo finds what it looks for: an auditor that can't fail proves nothing. And it runs, kills included."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from demo.audit import Seen, Verdict, judge
from demo.flights import Totals, data_file
from demo.ledger import Ledger
from demo.plan import Plan, Report
from tests.support.broker_process import CHECKOUT

PLAN = Plan("nowhere", 4, "", kills=True)
EXPECTED = Totals(Counter(UA=3, B6=1), Counter(JFK=3, EWR=1), Counter(MIA=4))


def honest() -> tuple[Ledger, Seen, Seen]:
    """Four flights in two transactions, each read in one of stage 2; one aborted; one answer lost."""
    ledger = Ledger()
    for report in (
        Report("committed", "flights", 0, "0:1", records=2, flights=2),
        Report("aborted", "flights", 0, "0:2", records=2, flights=2),
        Report("in-doubt", "flights", 1, "1:1", records=2, flights=2, resolved=True),
        Report("committed", "airport-totals", 0, "0:1", records=3, flights=2),
        Report("in-doubt", "airport-totals", 1, "1:1", records=2, flights=2, resolved=None),
        Report("in-doubt", "airport-totals", 1, "1:2", records=2, flights=2, resolved=False),
    ):
        ledger.enter(report)
    flights = Seen(
        numbers=Counter({0: 1, 1: 1, 2: 1, 3: 1}),
        transactions=Counter({"0:1": 2, "1:1": 2}),
        by_carrier=Counter(UA=3, B6=1),
    )
    totals = Seen(
        transactions=Counter({"0:1": 3, "1:1": 2}),
        departures=Counter(JFK=3, EWR=1),
        arrivals=Counter(MIA=4),
    )
    return ledger, flights, totals


def verdict(ledger: Ledger, flights: Seen, totals: Seen, lag: int = 0) -> Verdict:
    return judge(PLAN, ledger, EXPECTED, flights, totals, lag)


def test_an_honest_run_holds() -> None:
    result = verdict(*honest())
    assert result.holds
    assert result.rows == [
        ("flights", 4, 2, 4, 0, 0, 0),
        ("airport-totals", 5, 2, 5, 0, 0, 0),
    ]


def lose_a_flight(ledger: Ledger, flights: Seen, totals: Seen) -> None:
    del flights.numbers[3]
    flights.transactions["1:1"] -= 1
    flights.by_carrier["UA"] -= 1


def double_a_flight(ledger: Ledger, flights: Seen, totals: Seen) -> None:
    flights.numbers[3] += 1
    flights.transactions["1:1"] += 1


def swap_one_flight_for_another(ledger: Ledger, flights: Seen, totals: Seen) -> None:
    del flights.numbers[3]
    flights.numbers[2] += 1


def show_an_aborted_record(ledger: Ledger, flights: Seen, totals: Seen) -> None:
    flights.transactions["0:2"] = 2
    flights.numbers[0] += 1
    flights.numbers[1] += 1


def show_half_of_one_without_an_answer(ledger: Ledger, flights: Seen, totals: Seen) -> None:
    totals.transactions["1:1"] = 1


def lose_a_total(ledger: Ledger, flights: Seen, totals: Seen) -> None:
    totals.transactions["0:1"] = 2
    totals.departures["JFK"] -= 1


def double_a_total(ledger: Ledger, flights: Seen, totals: Seen) -> None:
    totals.doubled_totals = 1


def show_a_stranger(ledger: Ledger, flights: Seen, totals: Seen) -> None:
    totals.transactions["7:7"] = 1


def count_a_flight_at_another_airport(ledger: Ledger, flights: Seen, totals: Seen) -> None:
    totals.arrivals = Counter(MIA=3, BOS=1)


def key_a_flight_wrongly(ledger: Ledger, flights: Seen, totals: Seen) -> None:
    flights.wrong_keys = 1


def leave_a_reader_behind(ledger: Ledger, flights: Seen, totals: Seen) -> None:
    totals.lag = 1


@pytest.mark.parametrize(
    ("harm", "figure"),
    [
        (lose_a_flight, "lost"),
        (double_a_flight, "doubled"),
        (swap_one_flight_for_another, "doubled"),
        (show_an_aborted_record, "doubled"),
        (show_half_of_one_without_an_answer, "lost"),
        (lose_a_total, "lost"),
        (double_a_total, "doubled"),
        (show_a_stranger, None),
        (count_a_flight_at_another_airport, None),
        (key_a_flight_wrongly, None),
        (leave_a_reader_behind, "lag"),
    ],
)
def test_any_harm_is_found(harm: Callable[[Ledger, Seen, Seen], None], figure: str | None) -> None:
    account = honest()
    harm(*account)
    result = verdict(*account)
    assert not result.holds
    if figure is not None:
        assert any(getattr(row, figure) > 0 for row in result.rows)


def test_a_lagging_group_is_found() -> None:
    assert not verdict(*honest(), lag=1).holds


def test_the_demo_runs_and_holds() -> None:
    """A small part of the flights, the broker of this checkout, both kills."""
    try:
        data_file()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    done = subprocess.run(
        [sys.executable, "-m", "demo", "--flights", "2000"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed in mid-transaction 2 times" in done.stdout
    assert "all holds" in done.stdout
    assert "BROKEN" not in done.stdout
