"""What the demo shows: a progress bar on a terminal, plain lines anywhere else, the same table on both."""

from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from demo.audit import Row, Verdict
from demo.plan import Stage

PLAIN_STEPS = 10
LABELS: dict[Stage, str] = {"flights": "stage 1: flights", "airport-totals": "stage 2: airport-totals"}


class Screen:
    """Use it as a context manager around the work; tell() and advance() are for main's thread only."""

    def __init__(self, flights: int) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._flights = flights
        self._done: dict[Stage, int] = dict.fromkeys(LABELS, 0)
        self._progress: Progress | None = None
        self._tasks: dict[Stage, TaskID] = {}
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description:24}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self._console,
            )
            self._tasks = {
                stage: self._progress.add_task(label, total=flights) for stage, label in LABELS.items()
            }

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.stop()

    def tell(self, text: str) -> None:
        self._console.print(text, markup=False)

    def advance(self, stage: Stage, flights: int) -> None:
        """More flights have been committed in this stage."""
        before = self._done[stage] * PLAIN_STEPS // self._flights
        self._done[stage] += flights
        if self._progress:
            self._progress.update(self._tasks[stage], completed=self._done[stage])
        elif (after := self._done[stage] * PLAIN_STEPS // self._flights) > before:
            share = after * 100 // PLAIN_STEPS
            self.tell(f"{LABELS[stage]}: {share:3d} % ({self._done[stage]:,} flights committed)")

    def show(self, verdict: Verdict) -> None:
        self.tell("")
        self._show_table(verdict.rows)
        self.tell("")
        for check in verdict.checks:
            self.tell(f"{'holds' if check.holds else 'BROKEN':7} {check.text}")

    def _show_table(self, rows: list[Row]) -> None:
        table = Table("topic", box=box.HEAVY_HEAD if self._console.is_terminal else box.ASCII)
        for name in Row._fields[1:]:
            table.add_column(name, justify="right")
        for row in rows:
            table.add_row(row.topic, *(f"{figure:,}" for figure in row[1:]))
        self._console.print(table)
