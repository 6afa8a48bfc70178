"""The clients' side of the account: which transactions were acknowledged, aborted, or never answered."""

from dataclasses import dataclass, field

from demo.plan import Report, Stage


@dataclass
class StageLedger:
    """Records per transaction, by what the workers know of its end."""

    committed: dict[str, int] = field(default_factory=dict)
    aborted: dict[str, int] = field(default_factory=dict)
    undecided: dict[str, int] = field(default_factory=dict)
    """No answer, and the committed offsets no longer tell: only the readers can."""
    in_doubt: int = 0
    flights: int = 0
    """Flights in committed transactions."""

    def enter(self, report: Report) -> None:
        if report.kind == "in-doubt":
            self.in_doubt += 1
        is_committed = report.kind == "committed" or report.resolved is True
        if is_committed:
            self.committed[report.transaction] = report.records
            self.flights += report.flights
        elif report.kind == "aborted" or report.resolved is False:
            self.aborted[report.transaction] = report.records
        else:
            self.undecided[report.transaction] = report.records


@dataclass
class Ledger:
    stages: dict[Stage, StageLedger] = field(
        default_factory=lambda: {"flights": StageLedger(), "airport-totals": StageLedger()}
    )

    def enter(self, report: Report) -> None:
        self.stages[report.stage].enter(report)
