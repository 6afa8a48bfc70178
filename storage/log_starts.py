"""Where a topic's partitions begin, in a file of its folder: DeleteRecords and retention hid what lies below.

A reader of files alone (`storage.sealed`) would show it otherwise. The truth is the owner's, in its metadata; this is
its latest copy, replaced as a whole a moment after that. Guarantees: it has its name only when it is whole and on the
device; it decodes only if its CRC holds; it names the topic's id, so that it counts for no other topic's segments.

    header    32 bytes: magic, version, body size, body CRC, CRC of all that in the last 4
    body      msgpack [topic id, {partition: first offset}]
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgpack
from crc32c import crc32c

from storage.disk import Disk, File
from storage.format import LOG_STARTS_NAME, TEMPORARY_SUFFIX, CorruptLog, UnknownFormat

LOG_STARTS_VERSION: Final = 1
_MAGIC: Final = b"SEALOGLS"
# magic, version, body size, body CRC
_HEADER: Final = struct.Struct(">8sH2xII")
_HEADER_BYTES: Final = 32
_CRC: Final = struct.Struct(">I")


class LogStarts(NamedTuple):
    """First offsets by partition; a partition that is not named begins at 0."""

    topic_id: uuid.UUID
    offsets: dict[int, int]


def encode_log_starts(topic_id: uuid.UUID, offsets: Mapping[int, int]) -> bytes:
    body: bytes = msgpack.packb([topic_id.bytes, dict(sorted(offsets.items()))])
    header = _HEADER.pack(_MAGIC, LOG_STARTS_VERSION, len(body), crc32c(body))
    header += bytes(_HEADER_BYTES - _CRC.size - len(header))
    return header + _CRC.pack(crc32c(header)) + body


def decode_log_starts(data: bytes, path: str) -> LogStarts:
    """Raises CorruptLog, UnknownFormat."""
    if len(data) < _HEADER_BYTES or data[:8] != _MAGIC:
        raise CorruptLog(path, 0, "this is no file of log starts")
    header = data[: _HEADER_BYTES - _CRC.size]
    _, version, size, body_crc = _HEADER.unpack_from(data)
    body = data[_HEADER_BYTES:]
    if (
        _CRC.unpack_from(data, len(header))[0] != crc32c(header)
        or len(body) != size
        or crc32c(body) != body_crc
    ):
        raise CorruptLog(path, 0, "the log starts are damaged")
    if version != LOG_STARTS_VERSION:
        raise UnknownFormat(
            path, 0, f"format version {version} is unknown, this program reads {LOG_STARTS_VERSION}"
        )
    topic_id, offsets = msgpack.unpackb(body, strict_map_key=False)
    return LogStarts(uuid.UUID(bytes=topic_id), offsets)


def log_starts_path(directory: str) -> str:
    return f"{directory}/{LOG_STARTS_NAME}" if directory else LOG_STARTS_NAME


def begin_writing(disk: Disk, directory: str, data: bytes) -> File:
    """The file under its temporary name, to be flushed and renamed by the caller. Raises OSError."""
    path = log_starts_path(directory) + TEMPORARY_SUFFIX
    if disk.exists(path):
        disk.remove(path)  # of a writer that was cut short
    file = disk.open(path, create=True)
    try:
        file.pwritev((data,), 0)
    except BaseException:
        file.close()
        raise
    return file


def read_log_starts(disk: Disk, directory: str) -> LogStarts | None:
    """None where there is none: nothing was deleted. Raises CorruptLog, UnknownFormat, OSError."""
    path = log_starts_path(directory)
    try:
        file = disk.open_readonly(path)
    except FileNotFoundError:
        return None
    try:
        return decode_log_starts(file.pread(file.size(), 0), path)
    finally:
        file.close()
