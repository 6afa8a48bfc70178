"""What a stranger reads in the sealed segments of a disk (`storage.sealed`), against what clients were given."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from tests.history import FinalEnds, FinalRead
from tests.simulation.actor import PADDING
from tests.support.sim_disk import SimDisk
from wire.records import iterate_records


def available() -> bool:
    """Whether this tree has a reader of sealed files."""
    return importlib.util.find_spec("storage.sealed") is not None


def check_sealed(disk: SimDisk, finals: list[Any], leave_out: tuple[str, ...]) -> tuple[int, list[str]]:
    """(segments read, what is wrong in them): of each that is settled, the committed records of every partition."""
    sealed = importlib.import_module("storage.sealed")
    reads = {
        (one.topic, one.partition): one for one in finals if isinstance(one, FinalRead) and one.committed
    }
    starts = {(one.topic, one.partition): one.log_start for one in finals if isinstance(one, FinalEnds)}
    count, wrong = 0, []
    for folder in disk.list("topics"):
        for name in disk.list(f"topics/{folder}"):
            if not name.endswith(".seg"):
                continue
            try:
                segment = sealed.SealedSegment(disk, f"topics/{folder}/{name}")
            except sealed.NotSealed:
                continue
            with segment:
                if segment.settled is None or segment.topic in leave_out:
                    continue
                count += 1
                for partition, index in sorted(segment.partitions.items()):
                    final = reads.get((segment.topic, partition))
                    if final is None or not index.runs:
                        continue
                    first = max(index.start_offset, starts[segment.topic, partition])
                    expected = [record for record in final.records if first <= record[0] < index.end_offset]
                    found = _committed(segment, partition, index.start_offset, first)
                    if found != expected:
                        wrong.append(f"{segment.path}, partition {partition}: {found} instead of {expected}")
    return count, wrong


def _committed(segment: Any, partition: int, start: int, first: int) -> list[tuple[int, str]]:
    return [
        (record.offset, (record.value or b"").partition(PADDING)[0].decode())
        for batch in segment.committed(partition, start)
        for record in iterate_records(batch.data)
        if record.offset >= first
    ]
