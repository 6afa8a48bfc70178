"""Which partitions a query reads, and from where to where: options and the broker's answers put together.

Guarantee: what cannot be read is an error before any task runs, or, with failOnDataLoss=false, left out with a warning.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from pyspark_sealog.cluster import EARLIEST, LATEST, Cluster, TopicPartition
from pyspark_sealog.errors import DataLossError, OptionError, SealogError
from pyspark_sealog.options import SourceOptions, Where
from pyspark_sealog.ranges import OffsetRange, Offsets, split

_log = logging.getLogger(__name__)


def find_partitions(cluster: Cluster, options: SourceOptions) -> list[TopicPartition]:
    """What there is now of what the query subscribes to. Raises SealogError where something named is missing."""
    if options.assigned:
        counts = cluster.partitions(part.topic for part in options.assigned)
        missing = [part for part in options.assigned if part.partition >= counts.get(part.topic, 0)]
        if missing:
            raise SealogError(f"option assign: there is no {', '.join(map(str, missing))}")
        return list(options.assigned)
    if options.pattern is not None:
        pattern = re.compile(options.pattern)
        topics: tuple[str, ...] = tuple(name for name in cluster.topics() if pattern.fullmatch(name))
        counts = cluster.partitions(topics)
    else:
        topics = options.topics
        counts = cluster.partitions(topics)
        missing_topics = [name for name in topics if name not in counts]
        if missing_topics:
            raise SealogError(
                f"option subscribe: there is no topic {', '.join(missing_topics)} at "
                f"{options.client.servers_text}"
            )
    return sorted(TopicPartition(name, n) for name in counts for n in range(counts[name]))


def resolve(
    cluster: Cluster, options: SourceOptions, parts: list[TopicPartition], where: Where, side: str
) -> Offsets:
    """One side of the query as an offset for every partition. `side` is "starting" or "ending"."""
    if where.time_ms is not None:
        return _by_time(cluster, options, dict.fromkeys(parts, where.time_ms), side)
    if where.times_ms is not None:
        _check_names(parts, where.times_ms, f"{side}OffsetsByTimestamp")
        return _by_time(cluster, options, dict(where.times_ms), side)
    if where.offsets is not None:
        _check_names(parts, where.offsets, f"{side}Offsets")
        asked = {part: offset for part, offset in where.offsets.items() if offset < 0}
        return dict(where.offsets) | cluster.list_offsets(asked)
    assert where.offset is not None
    return cluster.list_offsets(dict.fromkeys(parts, where.offset))


def _check_names(parts: list[TopicPartition], named: Mapping[TopicPartition, int], option: str) -> None:
    missing = sorted(set(parts) - set(named))
    unknown = sorted(set(named) - set(parts))
    if missing or unknown:
        raise OptionError(
            f"option {option} must name the partitions that are read, and no others: "
            + "; ".join(
                text
                for text in (
                    f"it lacks {', '.join(map(str, missing))}" if missing else "",
                    f"{', '.join(map(str, unknown))} is not read" if unknown else "",
                )
                if text
            )
        )


def _by_time(
    cluster: Cluster, options: SourceOptions, times_ms: dict[TopicPartition, int], side: str
) -> Offsets:
    found = cluster.list_offsets(times_ms)
    late = [part for part, offset in found.items() if offset < 0]
    if late:
        if side == "starting" and not options.late_start_is_latest:
            raise OptionError(
                f"{', '.join(map(str, late))}: no record is as late as the starting time "
                "(startingOffsetsByTimestampStrategy=latest starts at the end then)"
            )
        found |= cluster.list_offsets(dict.fromkeys(late, LATEST))
    return found


def checked_ranges(
    cluster: Cluster,
    options: SourceOptions,
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
) -> list[OffsetRange]:
    """The ranges between two sets of offsets, cut for the tasks, as far as the broker still has their records.

    A partition that `start` does not know is new and read from its first record on.
    """
    gone = sorted(set(start) - set(end))
    if gone:
        _lost(options, f"{', '.join(map(str, gone))} is no longer there")
    counts = cluster.partitions({part.topic for part in end})
    present = [part for part in end if part.partition < counts.get(part.topic, 0)]
    if len(present) < len(end):
        lacking = sorted(set(end) - set(present))
        _lost(options, f"{', '.join(map(str, lacking))} does not exist any more")
    earliest = cluster.list_offsets(dict.fromkeys(present, EARLIEST))
    latest = cluster.list_offsets(dict.fromkeys(present, LATEST))
    ranges = []
    for part in present:
        first, stop = start.get(part, earliest[part]), end[part]
        if first < earliest[part] and first < stop:
            _lost(options, f"{part}: records {first} to {min(stop, earliest[part]) - 1} have been deleted")
            first = earliest[part]
        if stop > latest[part]:
            _lost(
                options,
                f"{part} ends at {latest[part]}, before offset {stop}: was the topic deleted and made anew?",
            )
            stop = latest[part]
        if first > stop and first != start.get(part):
            first = stop
        if first > stop:
            _lost(options, f"{part}: offset {first} to start at lies behind the end, {stop}")
            first = stop
        ranges.append(OffsetRange(part, first, stop))
    return split(ranges, options.min_partitions, options.max_records_per_partition)


def _lost(options: SourceOptions, what: str) -> None:
    if options.fail_on_data_loss:
        raise DataLossError(f"{what}. With failOnDataLoss=false the query goes on with what is there.")
    _log.warning("data loss (failOnDataLoss=false): %s", what)
