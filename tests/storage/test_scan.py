"""What a scan says of the end of the entries. Entries come from a real log, damage from here."""

from __future__ import annotations

import pytest
from range_model import DIRECTORY, SMALL, Owner
from support.sim_disk import SimDisk

from storage.format import (
    ENTRY_HEADER_BYTES,
    GUARDED_BYTES,
    HEADER_BLOCK_BYTES,
    HeaderBlock,
    encode_end_mark,
    segment_name,
)
from storage.scan import CHUNK_BYTES, ScannedEntry, Scanner

PATH = f"{DIRECTORY}/{segment_name(1)}"


def written(entries: int = 6, value: bytes = b"x" * 50) -> tuple[SimDisk, HeaderBlock, list[ScannedEntry]]:
    """A file with entries, each written and flushed before the next: every entry claims the ones before it."""
    owner = Owner(max_flush_ms=0.0)
    owner.create()
    for number in range(entries):
        owner.wait_durable(number % 3, owner.append(number % 3, value))
        owner.scheduler.run_until_idle()
    header = owner.log.active.header
    found = list(Scanner(owner.disk.open(PATH), header, HEADER_BLOCK_BYTES, len(owner.disk.content(PATH))))
    assert [entry.partition for entry in found] == [number % 3 for number in range(entries)]
    return owner.disk, header, found


def scan(disk: SimDisk, header: HeaderBlock) -> tuple[int, Scanner]:
    scanner = Scanner(disk.open(PATH), header, HEADER_BLOCK_BYTES, len(disk.content(PATH)))
    return sum(1 for _ in scanner), scanner


def test_clean_space_behind_the_entries() -> None:
    disk, header, found = written()
    count, scanner = scan(disk, header)
    rest = scanner.rest()
    assert (count, rest.dropped, rest.reason, rest.ended, rest.proof) == (6, 0, "", False, 0)
    assert rest.position == found[-1].end
    assert [entry.durable for entry in found] == [entry.position for entry in found]


def test_every_bit_of_an_entry_counts() -> None:
    disk, header, found = written(3)
    content = disk.content(PATH)
    middle = found[1]
    for position in range(middle.position, middle.end):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        disk.replace(PATH, bytes(damaged))
        count, scanner = scan(disk, header)
        assert count == 1
        rest = scanner.rest()
        assert rest.position == middle.position
        assert rest.reason
        # The last entry was written when the middle one was durable.
        assert rest.proof == found[2].position
        assert rest.claim == found[2].durable > middle.position


def test_damage_in_the_last_entry_is_proven_by_nobody() -> None:
    disk, header, found = written(3)
    disk.overwrite(PATH, found[2].position + 40, b"\xff\xff")
    count, scanner = scan(disk, header)
    rest = scanner.rest()
    assert (count, rest.proof) == (2, 0)
    assert 0 < rest.dropped <= found[2].end - found[2].position


def test_entry_cut_off_by_the_end_of_the_file() -> None:
    disk, header, found = written(3)
    for cut in (1, found[2].size, found[2].size + ENTRY_HEADER_BYTES - 1):
        disk.replace(PATH, disk.content(PATH)[: found[2].end - cut])
        count, scanner = scan(disk, header)
        assert count == 2
        assert scanner.rest().position == found[2].position


@pytest.mark.parametrize("kept", range(GUARDED_BYTES + 1))
def test_torn_end_mark_is_no_damage(kept: int) -> None:
    disk, header, found = written(3)
    end = found[2].end
    disk.overwrite(PATH, end, encode_end_mark(header, end)[:kept])
    count, scanner = scan(disk, header)
    rest = scanner.rest()
    assert count == 3
    # The mark's last bytes are zeros, so it may be whole before its end.
    assert rest.ended is (kept > 0)
    assert rest.reason == ""


def test_whole_end_mark_explains_all_behind_it() -> None:
    disk, header, found = written(3)
    end = found[2].end
    disk.overwrite(PATH, end, encode_end_mark(header, end) + b"half a footer")
    _, scanner = scan(disk, header)
    assert scanner.rest().ended
    # Something else there explains nothing.
    disk.overwrite(PATH, end, b"\0" * GUARDED_BYTES)
    _, scanner = scan(disk, header)
    rest = scanner.rest()
    assert not rest.ended
    assert rest.dropped


def test_entry_quoted_in_a_record_proves_nothing() -> None:
    """A record may hold a copy of any bytes of any file: a segment backed up into a topic, or malice."""
    disk, _, found = written(3)
    quoted = disk.content(PATH)[found[1].position : found[2].end]
    owner = Owner(max_flush_ms=0.0)
    owner.create()
    for value in (b"first", quoted, b"last"):
        owner.append(0, value)
        owner.scheduler.run_ready()
    entries = list(Scanner(owner.disk.open(PATH), owner.log.active.header, HEADER_BLOCK_BYTES, 1 << 30))
    assert len(entries) == 3
    owner.disk.overwrite(PATH, entries[1].position, b"\xff")
    count, scanner = scan(owner.disk, owner.log.active.header)
    assert (count, scanner.rest().proof) == (1, 0)


def test_proof_is_found_across_chunks_of_reading() -> None:
    owner = Owner(max_flush_ms=0.0, config=SMALL.__class__(segment_bytes=1 << 30, max_batch_bytes=8 << 20))
    owner.create()
    for size in (10, CHUNK_BYTES - 300, 10, 10):
        owner.wait_durable(0, owner.append(0, b"y" * size))
        owner.scheduler.run_until_idle()
    header = owner.log.active.header
    found = list(Scanner(owner.disk.open(PATH), header, HEADER_BLOCK_BYTES, 1 << 30))
    owner.disk.overwrite(PATH, found[0].position, b"\xff")
    count, scanner = scan(owner.disk, header)
    assert count == 0
    assert scanner.rest().proof == found[1].position
    assert scanner.rest().claim == found[3].durable
