"""9: three nodes each on this machine: transactions of one and of several producers, and bulk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench import perf_tools
from bench.load import JavaLoad, LoadFailed
from bench.report import Result, Table, Target, percentile
from bench.setting import KAFKA, SEALOG, Setting, alternate, ratio
from bench.systems.cluster import Cluster, KafkaCluster, SealogCluster, SealogRangesCluster
from bench.workloads.bulk import PRODUCER

FACTOR = 10.0
"""What sealog's rate of transactions must be of Kafka's, whose nodes flush nothing before an answer."""
TINY = {"widths": (1,), "producers": (1, 2), "seconds": 0.3, "warmup_s": 0.1, "megabytes": 1, "rounds": 1}
QUICK = {
    "widths": (1, 4),
    "producers": (1, 8),
    "seconds": 6.0,
    "warmup_s": 4.0,
    "megabytes": 50,
    "rounds": 2,
}
FULL = {
    "widths": (1, 4),
    "producers": (1, 8),
    "seconds": 20.0,
    "warmup_s": 10.0,
    "megabytes": 500,
    "rounds": 3,
}

SEALOG_RANGES = "sealog, groups = ranges"
MAKERS: dict[str, Callable[[Path], Cluster]] = {
    SEALOG: SealogCluster,
    SEALOG_RANGES: SealogRangesCluster,
    KAFKA: KafkaCluster,
}
PARTITIONS = 32


def run(
    setting: Setting,
    *,
    widths: tuple[int, ...],
    producers: tuple[int, ...],
    seconds: float,
    warmup_s: float,
    megabytes: int,
    rounds: int,
) -> Result:
    names = [name for name in MAKERS if name in setting.systems or name == SEALOG_RANGES]
    result = Result(
        "cluster",
        "9. Three nodes",
        "Three nodes of each system on this machine, replication 3, Java client, acks=all, 1 KB records. sealog "
        "answers when a majority of the nodes has flushed: by default one node leads everything, with groups = ranges "
        "ranges have leaders on all nodes. Kafka (min.insync.replicas=2, its default flush) answers when all "
        "replicas in sync have it in memory. Transactions back to back, one record to each partition; rates are "
        "medians of the rounds, latencies in milliseconds. Bulk: ProducerPerformance, "
        f"{megabytes:,} MB, batches of 64 KB, linger 5 ms.",
    )
    table = Table(
        "transactions",
        ["system", "producers", "partitions", "transactions/s", "p50", "p99", "rate, sealog / it"],
    )
    bulk = Table("produce, MB/s", ["partitions", *names, "sealog / Kafka"])
    running: dict[str, Cluster] = {}
    with JavaLoad() as load:
        try:
            for name in names:
                folder = setting.new_folder(f"cluster-{len(running)}")
                running[name] = MAKERS[name](folder).__enter__()
                load.ask("topic", running[name].address, topic="txn", partitions=PARTITIONS, replication=3)
            for count in producers:
                for width in widths:
                    setting.say(f"cluster: {count} producers, {width} partitions")

                    def one(name: str, count: int = count, width: int = width) -> dict[str, object]:
                        return _ask(
                            result,
                            load,
                            running[name],
                            "concurrent",
                            topic="txn",
                            partitions=PARTITIONS,
                            width=width,
                            producers=count,
                            seconds=seconds,
                            warmup_s=warmup_s,
                        )

                    found = alternate(names, rounds, one)
                    _rows(result, table, count, width, found)
            for partitions in widths:
                setting.say(f"cluster: bulk, {partitions} partitions")
                rates = {
                    name: percentile(taken, 50)
                    for name, taken in alternate(
                        names,
                        rounds,
                        lambda name, partitions=partitions: _bulk(  # type: ignore[misc]
                            load, running[name].address, partitions, megabytes
                        ),
                    ).items()
                }
                over = ratio(rates[SEALOG], rates[KAFKA]) if KAFKA in rates else None
                bulk.rows.append([partitions, *(rates[name] for name in names), over])
        finally:
            for cluster in running.values():
                cluster.__exit__(None, None, None)
    result.tables += [table, bulk]
    return result


def _ask(result: Result, load: JavaLoad, cluster: Cluster, op: str, **values: object) -> dict[str, object]:
    """A run that fails is noted, and repeated once: on few cores a leader may be replaced that only stalled."""
    try:
        return load.ask(op, cluster.address, **values)
    except LoadFailed as error:
        what = str(error).split("\n")[0]
        result.notes.append(f"{type(cluster).__name__}: a run failed and was repeated: {what}")
        result.raw[f"failed {len(result.raw)}"] = f"{error}\n{cluster.logs()}"
    return load.ask(op, cluster.address, **values)


def _rows(
    result: Result, table: Table, count: int, width: int, found: dict[str, list[dict[str, object]]]
) -> None:
    rates = {
        name: percentile([float(str(one["per_second"])) for one in answers], 50)
        for name, answers in found.items()
    }
    for name, answers in found.items():
        ms = [micros / 1000 for one in answers for micros in one["txn"]]  # type: ignore[attr-defined]
        row = [name, count, width, rates[name], percentile(ms, 50), percentile(ms, 99)]
        table.rows.append([*row, ratio(rates[SEALOG], rates[name])])
    result.raw[f"{count} producers, {width} partitions"] = {
        name: [one["per_second"] for one in answers] for name, answers in found.items()
    }
    if KAFKA in rates:
        result.targets.append(
            Target(
                f"{count} producers, {width} partitions: rate, sealog / Kafka",
                ratio(rates[SEALOG], rates[KAFKA]),
                FACTOR,
                True,
            )
        )


def _bulk(load: JavaLoad, address: str, partitions: int, megabytes: int) -> float:
    records = megabytes * 1_000_000 // 1024
    topic = f"bulk-{partitions}"
    try:
        load.ask("topic", address, topic=topic, partitions=partitions, replication=3)
    except RuntimeError as error:
        if "TopicExists" not in str(error):
            raise
    return perf_tools.produce(
        address,
        topic,
        records=records,
        record_bytes=1024,
        warmup_records=records // 4,
        config=PRODUCER,
    )
