"""Opening a store's folder: what a crash left is put in order, and a fresh folder gets its first file.

Guarantees that after it everything kept is durable, and that a crash in the midst of it does no harm: the
next opening comes to the same state. A folder that cannot be trusted is refused before anything in it is
changed.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.disk import File
from txn.metastore import frames
from txn.metastore.files import Folder
from txn.metastore.loading import READ_BYTES, Image, TornTail, load
from txn.metastore.log import LogFile


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening found and did."""

    created: bool
    """There was no store: an empty one was made."""
    lsn: int
    """Of the last batch kept."""
    records: int
    snapshot_lsn: int
    """Of the last batch that the snapshot holds; 0 without a snapshot."""
    batches: int
    """Batches replayed from the log."""
    torn: TornTail | None
    """The unfinished end of the log that was cut off, if there was one. Nothing durable was in it."""
    removed: tuple[str, ...]
    """Files removed: unfinished, older than the snapshot, or behind the torn end."""


@dataclass(frozen=True, slots=True)
class Recovered:
    image: Image
    current: LogFile
    report: RecoveryReport


def recover(folder: Folder, durable_lsn: int = 0) -> Recovered:
    """Raises `CorruptStore`, `UnknownFormat`, OSError. `durable_lsn`: see `load`."""
    image = load(folder, durable_lsn)
    created = image is None
    # What a killed process renamed may not be durable yet: make it so before anything is removed or relied
    # on.
    folder.make()
    folder.disk.flush_dir(folder.path)
    if image is None:
        image = Image(log_ends={1: frames.HEADER_BYTES})
    removed = _remove_leftovers(folder, image)
    if created:
        path = folder.log_path(1)
        file = folder.create(path, frames.LOG, 1)
        try:
            file.flush()
        finally:
            file.close()
        folder.finish(path)
    if created or removed:
        folder.disk.flush_dir(folder.path)
    current = _flush_logs(folder, image)
    report = RecoveryReport(
        created=created,
        lsn=image.lsn,
        records=len(image.records),
        snapshot_lsn=image.snapshot_lsn,
        batches=image.batches,
        torn=image.torn,
        removed=tuple(removed),
    )
    return Recovered(image, current, report)


def _remove_leftovers(folder: Folder, image: Image) -> list[str]:
    disk = folder.disk
    listing = folder.list()
    removed = []
    # Last first and each for good before the next: a gap among the log files would look like a loss.
    for number in reversed(image.cut):
        removed.append(folder.log_path(number))
        disk.remove(removed[-1])
        disk.flush_dir(folder.path)
    left_over = list(listing.unfinished)
    left_over += [folder.snapshot_path(n) for n in listing.snapshots if n < image.snapshot_number]
    left_over += [folder.log_path(n) for n in listing.logs if n < image.snapshot_number]
    for path in left_over:
        disk.remove(path)
    return removed + left_over


def _flush_logs(folder: Folder, image: Image) -> LogFile:
    """Flush what was read: a killed process leaves bytes that were written and never flushed.

    What no flush is known to have covered is written anew before: where a flush has failed, the kernel may hold pages
    for clean that never reached the device, and the next flush of the file would succeed without them.
    """
    *before, last = image.log_ends
    for number in before:
        file = folder.disk.open(folder.log_path(number))
        try:
            _rewrite(file, _unknown_from(image, number), image.log_ends[number])
            file.flush()
        finally:
            file.close()
    end = image.log_ends[last]
    file = folder.disk.open(folder.log_path(last))
    try:
        if image.torn is not None:
            file.truncate(end)
        _rewrite(file, _unknown_from(image, last), end)
        file.flush()
        return LogFile(last, file, end, allocated=file.size(), last_lsn=image.lsn)
    except OSError:
        file.close()
        raise


def _unknown_from(image: Image, number: int) -> int:
    """From where on a log file may hold what was never flushed."""
    known_number, known_position = image.known_end
    if number == known_number:
        return known_position
    return frames.HEADER_BYTES if number > known_number else image.log_ends[number]


def _rewrite(file: File, start: int, end: int) -> None:
    """Write these bytes as they are."""
    for at in range(start, end, READ_BYTES):
        file.pwritev([file.pread(min(READ_BYTES, end - at), at)], at)
