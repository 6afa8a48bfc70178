"""Fetch of a sealed segment in which many partitions are interleaved: extents and bytes read, MB/s."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from uuid import UUID

from bench.load import JavaLoad
from bench.report import Result, Table
from bench.systems.sealog import SealogProcess
from bench.systems.usage import drop_cached
from broker.client import LayoutClient
from storage.cache import SegmentCache
from storage.chain_scan import ChainScan
from storage.disk import File
from storage.format import SEGMENT_SUFFIX, parse_name
from storage.layout import LogConfig, RangeIdentity, SegmentInfo
from storage.partition import PartitionLog
from storage.reader import read
from storage.real_disk import RealDisk
from storage.segment import Segment

SHORT = "A sealed segment of 1, 10 and 100 interleaved partitions: extents and bytes read, MB/s."
TINY = {"widths": (1, 2), "megabytes": 1, "batches": (16_384,)}
QUICK = {"widths": (1, 10, 100), "megabytes": 10, "batches": (16_384, 1_100)}
FULL = {"widths": (1, 10, 100), "megabytes": 200, "batches": (16_384, 1_100)}

TOPIC = "sealed"
FETCH_BYTES = 1 << 20
"""What a consumer asks of a partition at once (max.partition.fetch.bytes)."""


class _CountingDisk(RealDisk):
    """Counts what is read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, lambda call, *args: call(*args))
        self.reads = 0
        self.bytes = 0

    def open_readonly(self, path: str) -> Any:
        return _CountingFile(super().open_readonly(path), self)


class _CountingFile:
    def __init__(self, file: File, disk: _CountingDisk) -> None:
        self._file = file
        self._disk = disk
        self.path = file.path

    def pread(self, size_bytes: int, position: int) -> bytes:
        data = self._file.pread(size_bytes, position)
        self._disk.reads += 1
        self._disk.bytes += len(data)
        return data

    def will_read(self, size_bytes: int, position: int) -> None:
        self._file.will_read(size_bytes, position)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


def run(folder: Path, *, widths: tuple[int, ...], megabytes: int, batches: tuple[int, ...]) -> Result:
    """The same bytes over more and more partitions, by batches of a usual and of the smallest size."""
    result = Result(
        "fetch-sealed",
        "Fetching from a sealed segment of many partitions",
        f"{megabytes:,} MB of 1 KB records, spread over the partitions one by one, then sealed. The first columns "
        "read one partition after the other with the broker's reader, 1 MiB at a time; the last two are a Java "
        "consumer of all partitions. MB/s of what was asked for; cold: out of the page cache before.",
    )
    table = Table(
        "",
        [
            "batches",
            "partitions",
            "reads per MiB",
            "bytes read / returned",
            "MB/s cached",
            "MB/s cold",
            "consumer MB/s",
            "consumer cold MB/s",
        ],
    )
    with JavaLoad() as load:
        for batch_bytes in batches:
            for width in widths:
                table.rows.append(
                    [f"{batch_bytes:,} bytes", width, *_measure(folder, load, width, megabytes, batch_bytes)]
                )
    result.tables.append(table)
    return result


def _measure(folder: Path, load: JavaLoad, width: int, megabytes: int, batch_bytes: int) -> list[float]:
    data = folder / f"sealed-{width}-{batch_bytes}"
    records = megabytes * 1_000_000 // 1024
    with SealogProcess(data) as broker:
        load.ask("topic", broker, topic=TOPIC, partitions=width)
        # Batches of one record take their time on a slow disk.
        config = {"batch.size": str(batch_bytes), "linger.ms": "20", "delivery.timeout.ms": "1200000"}
        load.ask("stream", broker, topic=TOPIC, partitions=width, records=records, config=config)
        with LayoutClient(broker.address) as layout:
            layout.seal(TOPIC, 0)

        def consume() -> float:
            answer = load.ask("consume", broker, topic=TOPIC, read=list(range(width)), records=records)
            return float(answer["bytes"]) / 1e6 / float(answer["seconds"])

        consume()
        warm = max(consume() for _ in range(3))
        drop_cached(data)
        cold = consume()
        broker.sigterm()
    disk = _CountingDisk(data)
    partitions = _open(disk)
    _read_all(partitions)
    disk.reads = disk.bytes = 0
    returned, seconds = _read_all(partitions)
    reads, read_bytes = disk.reads, disk.bytes
    drop_cached(data)
    _, cold_seconds = _read_all(partitions)
    disk.close()
    return [
        reads * (1 << 20) / returned,
        read_bytes / returned,
        returned / 1e6 / seconds,
        returned / 1e6 / cold_seconds,
        warm,
        cold,
    ]


def _open(disk: RealDisk) -> list[PartitionLog]:
    (name,) = disk.list("topics")
    folder = f"topics/{name}"
    cache = SegmentCache()
    infos = []
    for file in disk.list(folder):
        parsed = parse_name(file)
        if parsed is None or parsed.suffix != SEGMENT_SUFFIX:
            continue
        segment = Segment.open(disk, folder, parsed.segment_id, cache, readonly=True)
        header = segment.header
        infos.append(
            SegmentInfo(segment.segment_id, header.first, header.last, _state(segment), tuple(header.parents))
        )
        segment.close()
    infos.sort(key=lambda info: info.segment_id)
    identity = RangeIdentity(folder, UUID(hex=name.rsplit(".", 1)[1]), infos[0].first, infos[0].last, 1 << 31)
    scan = ChainScan(disk, identity, LogConfig(), cache, 0, readonly=True)
    scan.look(infos)
    for log in scan.partitions:
        log.high_watermark = log.end_offset
    return scan.partitions


def _state(segment: Segment) -> Any:
    return "SEALED" if segment.state == "SEALED" else "ACTIVE"


def _read_all(partitions: list[PartitionLog]) -> tuple[int, float]:
    """(bytes returned, seconds)."""
    returned = 0
    began = time.perf_counter()
    for log in partitions:
        offset = 0
        while offset < log.high_watermark:
            found = read(
                log,
                offset,
                limit_offset=log.high_watermark,
                max_bytes=FETCH_BYTES,
                at_least_one=True,
                skip=None,
                skip_scan_bytes=1 << 20,
            )
            offset = found.batches[-1].last_offset + 1
            returned += found.bytes
    return returned, time.perf_counter() - began
