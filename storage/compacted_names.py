"""Which files count in a replicated range's folder, where compaction has written segments anew: the file `compacted`.

A broker on its own has that in its layout; a replica's folder has none. A segment that is not named here is the file
that its range wrote, generation 0. Guarantee: the file changes as one, by its name; what it says is believed only if
its CRC holds.

    compacted    CRC32C, then msgpack: [[segment id, generation, when it was first compacted or nil, marks], ...]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgpack
from crc32c import crc32c

from storage.disk import Disk, File
from storage.format import COMPACTED_NAME, TEMPORARY_SUFFIX, CorruptLog, unpack

Done = Callable[[OSError | None], None]

_CRC_BYTES: Final = 4


class Compacted(NamedTuple):
    """What compaction has made of one segment."""

    generation: int
    """Of the file that counts. 0: there was nothing to take from what its range wrote."""
    cleaned_ms: int | None
    """When it was first compacted here; None: it came from another replica as it is."""
    tombstones: bool
    """It holds marks of deletion still."""


Names = dict[int, Compacted]
"""By segment id."""


def read_names(disk: Disk, directory: str) -> Names:
    """Nothing where nothing was compacted. Raises CorruptLog, OSError."""
    found = read_checked(disk, directory, COMPACTED_NAME)
    if found is None:
        return {}
    return {segment_id: Compacted(*rest) for segment_id, *rest in found}


def generation_of(names: Mapping[int, Compacted], segment_id: int) -> int:
    one = names.get(segment_id)
    return one.generation if one is not None else 0


def packed_names(names: Mapping[int, Compacted]) -> bytes:
    return packed([[segment_id, *one] for segment_id, one in sorted(names.items())])


# Small files that change as one.


def packed(content: Any) -> bytes:
    """With its CRC."""
    body: bytes = msgpack.packb(content)
    return crc32c(body).to_bytes(_CRC_BYTES, "big") + body


def read_checked(disk: Disk, directory: str, name: str) -> Any:
    """What `packed` made; None where there is no such file. Raises CorruptLog, OSError."""
    path = f"{directory}/{name}" if directory else name
    if not disk.exists(path):
        return None
    file = disk.open_readonly(path)
    try:
        data = file.pread(file.size(), 0)
    finally:
        file.close()
    if len(data) <= _CRC_BYTES or crc32c(data[_CRC_BYTES:]) != int.from_bytes(data[:_CRC_BYTES], "big"):
        raise CorruptLog(path, 0, "this list of segments is damaged")
    return unpack(data[_CRC_BYTES:])


def write_aside(disk: Disk, directory: str, name: str, data: bytes, done: Done) -> None:
    """Write the file under its temporary name: `done(None)` when its content is durable. Never blocks; an error changes
    nothing. Raises OSError."""
    file = _open_aside(disk, directory, name)

    def flushed(error: OSError | None) -> None:
        file.close()
        done(error)

    try:
        file.pwritev((data,), 0)
        disk.start_flush(file, flushed)
    except OSError:
        file.close()
        raise


def name_durably(disk: Disk, directory: str, name: str, done: Done) -> None:
    """What `write_aside` wrote gets its name: `done(None)` when that is durable. Never blocks; on an error nobody knows
    which file a start would find. Raises OSError."""
    path = f"{directory}/{name}"
    disk.rename(path + TEMPORARY_SUFFIX, path)
    disk.start_flush_dir(directory, done)


def write_names_now(disk: Disk, directory: str, names: Mapping[int, Compacted]) -> None:
    """The file, or its absence, is durable when the folder is flushed. Blocks. Raises OSError."""
    path = f"{directory}/{COMPACTED_NAME}"
    if not names:
        if disk.exists(path):
            disk.remove(path)
        return
    file = _open_aside(disk, directory, COMPACTED_NAME)
    try:
        file.pwritev((packed_names(names),), 0)
        file.flush()
    finally:
        file.close()
    disk.rename(path + TEMPORARY_SUFFIX, path)


def _open_aside(disk: Disk, directory: str, name: str) -> File:
    path = f"{directory}/{name}{TEMPORARY_SUFFIX}"
    if disk.exists(path):
        disk.remove(path)  # of an attempt that was cut short
    return disk.open(path, create=True)
