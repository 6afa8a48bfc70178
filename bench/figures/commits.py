"""A commit of one node and of three, in units of what a flush and a round trip take.

On a cluster a commit waits for one flush, which runs on all nodes at once, and one round trip between them.
"""

from __future__ import annotations

from pathlib import Path

from bench.load import JavaLoad
from bench.report import Result, Table
from bench.setting import Samples
from bench.systems import shims
from bench.systems.cluster import SealogCluster
from bench.workloads.turns import COMMIT, PLAIN, TXN

SHORT = "Commits of one node and of three, with flushes and links that are delayed."
TINY = {"cases": ((1, 0.0, 0.0), (3, 1.0, 1.0)), "turns": 3, "warmup": 1}
QUICK = {
    "cases": ((1, 0.0, 0.0), (3, 0.0, 0.0), (1, 10.0, 0.0), (3, 10.0, 0.0), (3, 10.0, 10.0), (3, 0.0, 10.0)),
    "turns": 100,
    "warmup": 100,
}
FULL = QUICK | {"turns": 400, "warmup": 200}


def run(folder: Path, *, cases: tuple[tuple[int, float, float], ...], turns: int, warmup: int) -> Result:
    """Clusters one after the other; the client is beside the nodes, without a delay."""
    result = Result(
        "commits",
        "A commit on one node and on three",
        "One producer (Java client), one 1 KB record per turn to one partition; milliseconds, p50. Every flush takes "
        "so much longer, and the links between the nodes have that round trip time; the client's have none. The last "
        "column is what a plain record waits beyond that of the same number of nodes without delays, in units of "
        "flush + round trip.",
    )
    table = Table(
        "",
        [
            *("nodes", "flush delay", "RTT", "plain", "plain p99", "commit alone"),
            *("whole transaction", "(plain - plain without delays) / (flush + RTT)"),
        ],
    )
    bare: dict[int, float] = {}
    with JavaLoad() as load:
        for number, (nodes, flush_ms, rtt_ms) in enumerate(cases):
            env = {}
            if flush_ms:
                env = shims.preload(shims.build("slowflush")) | shims.slow_flushes(int(flush_ms * 1000))
            with SealogCluster(folder / str(number), nodes, env=env, rtt_ms=rtt_ms) as cluster:
                load.ask("topic", cluster.address, topic="commits", partitions=1)
                answer = load.ask(
                    "turns",
                    cluster.address,
                    topic="commits",
                    partitions=1,
                    turns=turns,
                    warmup=warmup,
                    modes=[PLAIN, TXN, COMMIT],
                )
            found = {
                mode: Samples([[micros / 1000 for micros in answer[mode]]]) for mode in (PLAIN, TXN, COMMIT)
            }
            plain = found[PLAIN]
            if not flush_ms + rtt_ms:
                bare[nodes] = plain.p50
            units = (plain.p50 - bare.get(nodes, 0.0)) / (flush_ms + rtt_ms) if flush_ms + rtt_ms else None
            row = [nodes, flush_ms, rtt_ms, plain.p50, plain.p99, found[COMMIT].p50, found[TXN].p50, units]
            table.rows.append(row)
    result.tables.append(table)
    return result
