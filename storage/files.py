"""Folders of a range on disk: made so that they last, and cleared.

Guarantee: after `make_dir_durable`, or when every flush of `start_dir_chain` is done, the folder and all
above it survive a power cut. Files that this package did not make are never removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from storage.disk import Disk
from storage.format import (
    ANCESTORS_NAME,
    CHECKPOINT_SUFFIX,
    COMPACTED_NAME,
    LOG_STARTS_NAME,
    SEGMENT_SUFFIX,
    SETTLED_SUFFIX,
    TAKING_OVER_NAME,
    TEMPORARY_SUFFIX,
    parse_name,
)

_OF_THE_FOLDER = tuple(
    name + suffix
    for name in (LOG_STARTS_NAME, TAKING_OVER_NAME, COMPACTED_NAME, ANCESTORS_NAME)
    for suffix in ("", TEMPORARY_SUFFIX)
)
"""Files that go with their folder alone."""


def ancestors(directory: str) -> list[str]:
    """The folder itself and all above it, the disk's root ("") last."""
    found = [directory]
    while directory:
        directory = directory.rpartition("/")[0]
        found.append(directory)
    return found


def start_dir_chain(disk: Disk, directory: str, done: Callable[[OSError | None], None]) -> int:
    """Flush the folder and all above it in the background; `done` is called once per folder. How many.

    All of them always: that a parent exists does not mean that its name is on the device yet.
    """
    paths = ancestors(directory)
    for path in paths:
        disk.start_flush_dir(path, done)
    return len(paths)


def remove_orphans(
    disk: Disk, directory: str, kept: Iterable[tuple[int, int]], checkpointed: Iterable[int]
) -> list[str]:
    """Remove segments and sidecars that are not among `kept`, (segment id, generation) each, checkpoints of all but the
    segments in `checkpointed`, and what was being written.

    What was removed; the removal is durable. Raises OSError.
    """
    kept, checkpointed = set(kept), set(checkpointed)
    removed = []
    for name in disk.list(directory):
        parsed = parse_name(name)
        if parsed is None:
            continue
        if parsed.suffix in (SEGMENT_SUFFIX, SETTLED_SUFFIX):
            wanted = (parsed.segment_id, parsed.generation) in kept
        else:
            wanted = parsed.suffix == CHECKPOINT_SUFFIX and parsed.segment_id in checkpointed
        if not wanted:
            disk.remove(f"{directory}/{name}")
            removed.append(name)
    if removed:
        disk.flush_dir(directory)
    return removed


def delete_files(disk: Disk, directory: str, segment_id: int | None = None) -> None:
    """Remove the files of a segment, or of all, and, if nothing else is in it, the folder; durably. Raises
    OSError."""
    for name in disk.list(directory):
        parsed = parse_name(name)
        ours = parsed is not None and segment_id in (None, parsed.segment_id)
        if ours or (segment_id is None and name in _OF_THE_FOLDER):
            disk.remove(f"{directory}/{name}")
    if not disk.exists(directory):
        return
    if disk.list(directory):
        disk.flush_dir(directory)
        return
    disk.remove_dir(directory)
    disk.flush_dir(directory.rpartition("/")[0])
