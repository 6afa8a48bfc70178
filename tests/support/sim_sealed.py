"""The sealed segments and sidecars of a simulated node's disk, read as a stranger would read them."""

from __future__ import annotations

from pathlib import Path

from support.sim_node import SimNode

from storage.format import settled_path
from storage.sealed import NotSealed, SealedSegment
from wire.records import iterate_records


def segment_paths(world: SimNode) -> list[str]:
    """All segment files, by their ids."""
    return sorted(
        f"topics/{folder}/{name}"
        for folder in world.disk.list("topics")
        for name in world.disk.list(f"topics/{folder}")
        if name.endswith(".seg")
    )


def sidecars(world: SimNode) -> list[str]:
    """All files that a sidecar's name begins, unfinished ones included."""
    return sorted(
        f"topics/{folder}/{name}"
        for folder in world.disk.list("topics")
        for name in world.disk.list(f"topics/{folder}")
        if ".settled" in name
    )


def sealed_paths(world: SimNode) -> list[str]:
    found = []
    for path in segment_paths(world):
        try:
            with SealedSegment(world.disk, path):
                found.append(path)
        except NotSealed:
            continue
    return found


def all_settled(world: SimNode) -> bool:
    """Whether every sealed segment has its sidecar, and there is none besides."""
    return sidecars(world) == [settled_path(path) for path in sealed_paths(world)]


def committed_values(segment: SealedSegment, partition: int, start: int = 0) -> list[bytes]:
    """The values of a partition that its sidecar calls committed."""
    return [
        record.value or b""
        for batch in (segment.committed(partition, start) if partition in segment.partitions else ())
        for record in iterate_records(batch.data)
        if record.offset >= start
    ]


def committed_on_disk(world: SimNode, partition: int) -> list[bytes]:
    """As `committed_values`, over all sealed segments in the order of offsets."""
    found: list[tuple[int, list[bytes]]] = []
    for path in sealed_paths(world):
        with SealedSegment(world.disk, path) as segment:
            if partition in segment.partitions and segment.partitions[partition].runs:
                start = segment.partitions[partition].start_offset
                found.append((start, committed_values(segment, partition)))
    return [value for _, values in sorted(found) for value in values]


def export(world: SimNode, root: Path) -> Path:
    """Write the simulated disk to a real folder, as it stands."""

    def walk(folder: str) -> None:
        (root / folder).mkdir(parents=True, exist_ok=True)
        for name in world.disk.list(folder):
            path = f"{folder}/{name}" if folder else name
            try:
                (root / path).write_bytes(world.disk.content(path))
            except IsADirectoryError:
                walk(path)

    walk("")
    return root
