"""The delays as a picture."""

from __future__ import annotations

from pathlib import Path

import pandas as pd


def plot_delays(delays: pd.DataFrame, airlines: pd.DataFrame, path: Path) -> None:
    """Mean delay at departure by week and airport, and by airline; `delays` are the weekly sums."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(14, 6), width_ratios=[3, 2])
    weekly = delays.groupby(["week", "origin"], as_index=False)[["flights", "dep_delay"]].sum()
    for origin, of_airport in weekly.groupby("origin"):
        left.plot(of_airport["week"], of_airport["dep_delay"] / of_airport["flights"], label=str(origin))
    left.set(title="Mean delay at departure, by week", ylabel="minutes")
    left.legend(title="airport")
    left.grid(alpha=0.3)
    names = dict(zip(airlines["carrier"], airlines["name"], strict=True))
    sums = delays.groupby("carrier")[["flights", "dep_delay", "arr_delay"]].sum()
    means = sums[["dep_delay", "arr_delay"]].div(sums["flights"], axis=0).sort_values("dep_delay")
    means.index = pd.Index([names.get(carrier, carrier) for carrier in means.index])
    means.columns = pd.Index(["at departure", "at arrival"])
    means.plot.barh(ax=right, width=0.8)
    right.set(title="Mean delay, by airline", xlabel="minutes", ylabel="")
    right.grid(axis="x", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
