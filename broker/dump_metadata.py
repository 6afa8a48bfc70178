"""What `sealog dump` shows of the metadata store's files, and what they say of a transaction's outcome."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack

from broker.dump_segment import Item, Outcomes, as_text, problem
from storage.disk import Disk
from storage.scan import ScannedEntry
from txn import keys
from txn.metastore import CorruptStore, MetaStoreError, Record, frames
from txn.metastore.files import Folder
from txn.metastore.loading import READ_BYTES, load


def dump_metadata_file(disk: Disk, path: str) -> Iterator[Item]:
    """The batches of a log file, or the records of a snapshot, in order."""
    file = disk.open_readonly(path)
    try:
        try:
            kind, number = frames.read_file_header(path, file.pread(frames.HEADER_BYTES, 0))
        except MetaStoreError as error:
            yield problem(path, 0, str(error))
            return
        yield {
            "kind": "metadata",
            "path": path,
            "file": "log" if kind == frames.LOG else "snapshot",
            "number": number,
        }
        reader = frames.FrameReader(number)
        position = frames.HEADER_BYTES
        while data := file.pread(READ_BYTES, position):
            for frame in reader.feed(data):
                try:
                    yield from _frame(frame)
                except (ValueError, TypeError) as error:
                    yield problem(path, frame.position, f"its content cannot be decoded: {error}")
            position += len(data)
        tail = reader.finish()
        if tail.dropped_bytes:
            reason = f"{tail.dropped_bytes} bytes are no batches: {tail.reason}"
            yield problem(
                path, tail.position, reason, damaged=kind == frames.SNAPSHOT or tail.claimed_lsn > 0
            )
    finally:
        file.close()


def _frame(frame: frames.Frame) -> Iterator[Item]:
    place = {"position": frame.position, "lsn": frame.lsn}
    if frame.kind == frames.BATCH:
        _, puts, deletes = _unpack(frame)
        items = iter(puts)
        for key, value in zip(items, items, strict=True):
            yield {"kind": "put", **place, "key": key, "value": plain(value)}
        for key in deletes:
            yield {"kind": "delete", **place, "key": key}
    elif frame.kind == frames.RECORDS:
        flat = _unpack(frame)
        for key, version, value in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
            yield {"kind": "put", **place, "lsn": version, "key": key, "value": plain(value)}


def _unpack(frame: frames.Frame) -> Any:
    return msgpack.unpackb(frame.payload, strict_map_key=False)


def plain(value: Any) -> Any:
    """The same with nothing that JSON cannot hold."""
    if isinstance(value, bytes):
        return as_text(value)
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def no_outcomes(entry: ScannedEntry, segment_id: int) -> str:
    return "unknown"


def outcomes_of(disk: Disk, folder: str) -> Outcomes:
    """What the store in this folder says; "unknown" of all where it cannot be read, or has changed meanwhile."""
    try:
        image = load(Folder(disk, folder))
    except (MetaStoreError, CorruptStore, OSError):
        image = None
    if image is None:
        return no_outcomes
    records = image.records
    aborted: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for key, record in records.items():
        if key.startswith(keys.ABORTED):
            segment_id, partition, first = keys.parse_aborted(key)
            last, producer_id = record.value
            aborted.setdefault((segment_id, partition, producer_id), []).append((first, last))

    def outcome(entry: ScannedEntry, segment_id: int) -> str:
        """As a reader is told (design, T8)."""
        header = entry.header
        resolved = records.get(keys.resolved(segment_id), Record({}, 0)).value
        if header.base_offset < resolved.get(entry.partition, 0):
            ranges = aborted.get((segment_id, entry.partition, header.producer_id), ())
            return "aborted" if any(a <= header.base_offset <= b for a, b in ranges) else "committed"
        found = records.get(keys.txn((header.producer_id, header.producer_epoch, entry.txn_seq)))
        return str(found.value["state"]).lower() if found is not None else "unknown"

    return outcome
