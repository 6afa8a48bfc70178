"""What makes two states the same: all that decides what can be seen from here on, and nothing else.

Left out, since nothing within the bounds comes of it:

- *the order of batches in the metadata log.* A start makes a map of records of it, so it counts as three maps: what
  is on the device, what will be when the flush under way ends, what is written. A crash leaves one of them.
- *what a frame says of how far the log was durable*, while no flush of it has failed: a start tells damage from a torn
  end by it, and spares itself writing anew what the next flush covers anyway.
- *the time of day.* In a record it stands for "some time"; deadlines are further away than all timers that are left. Of
  timers, those that can still fire count, each with how far away it is.
- *the numbers of requests.*

A file whose flush has failed counts byte by byte.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import Any

import msgpack
from support.sim_disk import Folder, Inode, apply

from model.held_disk import HeldDisk
from model.world import CRASHES, Keep, World
from txn.metastore import frames

FIRST_MS = 1_700_000_000_000
LAST_MS = FIRST_MS + 100_000_000
"""Between these lies the world's time, and no other number of a record."""


def key(world: World) -> int:
    """The same for states that count as the same."""
    return hash(
        (
            frozenset(_files(world.disk)),
            tuple(sorted(world.left.items())),
            tuple((script.position, bool(script.waiting), tuple(script.heard)) for script in world.scripts),
            tuple(_partitions(world)),
            tuple(_transactions(world)),
            tuple(_timers(world)),
        )
    )


def crash_key(world: World, how: str) -> int:
    """The same for crashes after which all goes on alike: the disk that the start finds, what clients wait for, what
    readers have seen."""
    keep, _ = CRASHES[how]
    return hash(
        (
            how,
            frozenset(_left_by_crash(world.disk._root, "", keep)),
            tuple(sorted(world.left.items())),
            tuple((script.position, bool(script.waiting), tuple(script.heard)) for script in world.scripts),
            tuple(_partitions(world)),
        )
    )


# -- what is on the disk


def _left_by_crash(folder: Folder, path: str, keep: Keep) -> Iterator[Hashable]:
    """Of a killed process all is left as it is, what was flushed and what was not."""
    all_of_it = {None: None, "all": True, "none": False}[keep(path) if callable(keep) else keep]
    yield (
        path,
        all_of_it is not False and tuple(sorted(folder.cached)),
        all_of_it or tuple(sorted(folder.durable)),
    )
    for name, node in (folder.durable if all_of_it is False else folder.cached).items():
        child = f"{path}/{name}" if path else name
        if isinstance(node, Folder):
            yield from _left_by_crash(node, child, keep)
            continue
        mode = keep(child) if callable(keep) else keep
        if node.lost or mode is None:
            yield child, mode, _file(node, 0, child)
        else:
            durable, _, cached = _file(node, 0, child)
            yield child, cached if mode == "all" else durable


def _files(disk: HeldDisk) -> Iterator[Hashable]:
    yield from disk.held
    yield from _folder(disk, disk._root, "")


def _folder(disk: HeldDisk, folder: Folder, path: str) -> Iterator[Hashable]:
    if folder.pending:
        covered = disk.covered.get(("flush_dir", path), 0)
        soon = dict(folder.durable)
        for names in folder.pending[:covered]:
            soon.update({name: node for name, node in names.items() if node is not None})
        yield path, tuple(sorted(folder.durable)), tuple(sorted(soon)), tuple(sorted(folder.cached))
    for name, node in folder.cached.items():
        child = f"{path}/{name}" if path else name
        if isinstance(node, Folder):
            yield from _folder(disk, node, child)
        else:
            yield child, _file(node, disk.covered.get(("flush", child), 0), child)


def _file(node: Inode, covered: int, path: str) -> tuple[Hashable, ...]:
    """What is on the device, what the flush under way will bring there, what is written."""
    durable, cached = bytes(node.durable), bytes(node.cached)
    if node.lost:
        lost = tuple((at, None if data is None else bytes(data)) for at, data in node.lost)
        return durable, len(node.pending), covered, cached, lost
    soon = durable
    if covered:
        image = bytearray(durable)
        for at, data in node.pending[:covered]:
            apply(image, at, data)
        soon = bytes(image)
    if path.startswith("metadata/log-"):
        return _records(durable), _records(soon), _records(cached)
    return durable, soon, cached


@lru_cache(maxsize=100_000)
def _records(content: bytes) -> Hashable:
    """The map that a log file makes; its bytes, where they are no whole frames."""
    if len(content) < frames.HEADER_BYTES:
        return content
    _, number = frames.read_file_header("", content)
    reader = frames.FrameReader(number)
    records: dict[str, Hashable] = {}
    for frame in reader.feed(content[frames.HEADER_BYTES :]):
        if frame.kind == frames.BATCH:
            _, puts, deletes = msgpack.unpackb(frame.payload, strict_map_key=False)
            for name, value in zip(puts[::2], puts[1::2], strict=True):
                records[name] = _timeless(value)
            for name in deletes:
                records.pop(name, None)
    return content if reader.finish().dropped_bytes else frozenset(records.items())


def _timeless(value: Any) -> Hashable:
    if isinstance(value, dict):
        return tuple((name, _timeless(one)) for name, one in sorted(value.items()))
    if isinstance(value, list):
        return tuple(map(_timeless, value))
    if isinstance(value, int) and FIRST_MS <= value < LAST_MS:
        return "some time"
    return value  # type: ignore[no-any-return]


# -- what is in memory


def _partitions(world: World) -> Iterator[Hashable]:
    for partition in world.partitions():
        yield partition.high_watermark, partition.last_stable_offset, partition.end_offset


def _transactions(world: World) -> Iterator[Hashable]:
    """What goes on, beside the records that say so; and what settlement has yet to do, in its order."""
    for held in sorted(world.node.coordinator._ids, key=lambda held: held.name):
        state = held.open.state.value if held.open is not None else ""
        yield held.name, held.producer_id, held.epoch, held.busy, len(held.waiting), state
    for finished in world.node._settlement._queue:
        parts = [
            (partition.index, segment_id, write.first, write.last)
            for partition, segments in finished.writes.items()
            for segment_id, write in segments.items()
        ]
        yield finished.key, finished.has_header, finished.aborted, tuple(parts)


def _timers(world: World) -> Iterator[Hashable]:
    """Those that can still fire: a timer set later can only come before them. In the order in which they do."""
    scheduler = world.scheduler
    left = world.left.get("tick", 0)
    if left:
        alive = sorted(entry for entry in scheduler._timers if not entry[3].cancelled)
        for due_ms, _, _, timer in alive[:left]:
            yield timer.callback.__qualname__, due_ms - scheduler._now_ms
