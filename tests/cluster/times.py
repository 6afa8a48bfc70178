"""Times until service was back, per kind of fault, as a table of a distribution."""

from __future__ import annotations

from collections import defaultdict

SHARES = (0.5, 0.9, 0.99)


class ServiceTimes:
    """Seconds from the begin of a fault (`meanwhile`), or from its end (`after`), until every lane moved again."""

    def __init__(self) -> None:
        self.meanwhile: dict[str, list[float]] = defaultdict(list)
        self.after: dict[str, list[float]] = defaultdict(list)

    def add(self, other: ServiceTimes) -> None:
        for mine, more in ((self.meanwhile, other.meanwhile), (self.after, other.after)):
            for kind, times in more.items():
                mine[kind] += times

    def table(self) -> str:
        head = f"{'service is back (s)':<24}{'n':>5}{'median':>9}{'90 %':>9}{'99 %':>9}{'longest':>9}"
        lines = [head]
        for title, times in (("beside", self.meanwhile), ("after", self.after)):
            lines += [_row(f"{title} {kind}", times[kind]) for kind in sorted(times)]
            everything = [time_s for kind in times.values() for time_s in kind]
            lines.append(_row(f"{title} all of them", everything))
        return "\n".join(lines)


def _row(name: str, times: list[float]) -> str:
    if not times:
        return f"{name:<24}{0:>5}"
    shares = "".join(f"{share_of(times, share):>9.2f}" for share in SHARES)
    return f"{name:<24}{len(times):>5}{shares}{max(times):>9.2f}"


def share_of(times: list[float], share: float) -> float:
    """The time within which that share of them lies."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
