"""Bits flip in what was flushed long ago: the start or who reads it notices, and nothing wrong is served as right."""

from __future__ import annotations

import random
from typing import Any

from tests.history import FinalEnds, FinalOffset, FinalRead
from tests.simulation.machine import Machine
from tests.support.sim_disk import Folder, SimDisk

OLD_SHARE = 0.6
"""What lies in this share of a file from its beginning is followed by what says that it was durable."""


def flip_bits(machine: Machine, rng: random.Random) -> str:
    """Up to three bits of one file, on the device and in the cache. Says where."""
    disk = machine.disk
    path = rng.choice(sorted(_files(disk._root, "")))
    used = len(disk.content(path).rstrip(b"\0"))
    end = max(
        1,
        used
        if rng.random() < 0.3 and path.endswith(".seg") and _is_sealed(disk, path)
        else int(used * OLD_SHARE),
    )
    position = rng.randrange(end)
    flipped = disk.content(path)[position] if used else 0
    for _ in range(rng.choice((1, 1, 3))):
        flipped ^= 1 << rng.randrange(8)
    if used:
        disk.overwrite(path, position, bytes([flipped]))
    return f"{path} at {position} of {used}"


def _files(folder: Folder, path: str) -> list[str]:
    found: list[str] = []
    for name, node in folder.cached.items():
        child = f"{path}/{name}" if path else name
        if isinstance(node, Folder):
            found += _files(node, child)
        elif node.durable:
            found.append(child)
    return found


def _is_sealed(disk: SimDisk, path: str) -> bool:
    """A file that nobody has open for writing."""
    return not any(file.path == path and file._writable for file in disk.open_files)


def compare(before: list[Any], after: list[Any], leave_out: tuple[str, ...]) -> list[str]:
    """What is wrong in the second reading and nobody was told of; errors and what was not read are no wrong."""
    known = {_key(event): event for event in before}
    found = []
    for event in after:
        old = known.get(_key(event))
        if event.topic in leave_out or old is None:
            continue
        if isinstance(event, FinalRead):
            expected = tuple(record for record in old.records if record[0] < event.position)
            if tuple(record for record in event.records if record[0] < old.position) != expected:
                found.append(f"{_key(event)}: other records up to {event.position} than before")
        elif isinstance(event, FinalOffset):
            if event.error is None and event.offset != old.offset:
                found.append(f"{_key(event)}: offset {event.offset}, it was {old.offset}")
        elif event != old:
            found.append(f"{event}, it was {old}")
    return found


def _key(event: FinalRead | FinalEnds | FinalOffset) -> tuple[Any, ...]:
    if isinstance(event, FinalRead):
        return "read", event.topic, event.partition, event.committed
    if isinstance(event, FinalEnds):
        return "ends", event.topic, event.partition
    return "offset", event.group, event.topic, event.partition
