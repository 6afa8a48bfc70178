"""What the pipeline shows: bars on a terminal, plain lines anywhere else."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

LABELS: Final = {
    "enrich": "flights cleaned and enriched",
    "delays": "flights counted into weeks",
    "archive": "weekly delays to Parquet",
}


class Screen:
    def __init__(self, totals: dict[str, int]) -> None:
        """`totals`: how many records each query has to take."""
        self._console = Console(highlight=False, soft_wrap=True)
        self._totals = totals
        self._said = dict.fromkeys(totals, 0)
        self._progress = Progress(
            TextColumn("{task.description:30}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._tasks = {name: self._progress.add_task(LABELS[name], total=totals[name]) for name in totals}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def tell(self, text: str) -> None:
        self._console.print(text, markup=False)

    def show(self, done: dict[str, int]) -> None:
        for name, count in done.items():
            self._progress.update(self._tasks[name], completed=count)
            if not self._console.is_terminal and count > self._said[name]:
                self._said[name] = count
                self.tell(f"{LABELS[name]}: {count:,} of {self._totals[name]:,}")
