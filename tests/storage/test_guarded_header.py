"""Every bit of a batch's header is guarded by its entry; files of version 1 guard less, and are read and continued.

Version 1 guards what the batch's own CRC leaves out: what it covers is then checked where a file is scanned, and by
clients, but not on the way to them.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable

import pytest
from range_model import DIRECTORY, Owner, make_batch
from replica_model import create as create_replica
from support.sim_disk import SimDisk
from support.sim_loop import SimScheduler

from storage.cache import SegmentCache
from storage.compacted_file import CompactedFile
from storage.format import ENTRY_HEADER_BYTES, HEADER_BLOCK_BYTES, CorruptLog, segment_name
from storage.layout import SegmentInfo
from storage.numbering import NOOP, Entry
from storage.partition import PartitionLog
from storage.producers import ProducerBudget, ProducerStates
from storage.range_reader import RangeReader
from storage.scan import Scanner
from storage.segment import Segment
from wire.batch import BATCH_HEADER_SIZE, parse_header
from wire.errors import ErrorCode, KafkaError

BITS = BATCH_HEADER_SIZE * 8

# Segments 1 and 2, sealed, and 3, active, as the program of before has written them: 7 batches, in turns to partitions
# 0 and 1; cut behind its last entry.
FILES = {
    1: (
        "c-jkgb@cIf4|Zo@WMIhWk&a_vaA0U)0E1N!3M2!kfta!T{L>7EQ7{Td!6+C7qhJ(_f>AIEM!_f;1*2dT3=MFjg|jVd4X@18<"
        "zTKiT7Mr11dx^6gXEZ2y|rF}EXw=>M*l|vAjMK3g0Czwr!-Z;fT8ZAZyb_UjA&M6V_3D*fAM{CtTJTaIJ{d2kFTyFi9xLDUB"
        "T@}j#WksCt3Fu0<B`i9>ju<cw>MODWI<bF(?c`_ysdW7)HZDwg9U9gh`WTGB7ZmWq!eQ=Gs}ovU8i(*E>v{#K<s{k%18?%9w"
        "ptaM`(-{+14q;N-J{`xwt1xVqjg7(D9Z76NhrC>1~)D!3nLr1=SnM!ds2{4W@-0KO4^YX"
    ),
    2: (
        "c-jkgb@cIf4|Zo@WMItak&a_vaA0U)0E1N!ih&7AGeR(9_xYz83`l^HVHAvlQ7{Td!6+C7qhJ(_f>AIEM!_f;1%nn;Tra#fS"
        "wt!2>2fgF8_~zd03b1Y5Y04?YqBA-4D$;Z{T~H@6ia~!zOuxe(o_XwhAiWBZX~PFh7JU>p$sOtRZr5RO31OwgrW5Q?ONQv61"
        "aw8)%T-^n8~rqlz}HkjR|NKjzJJXN36oIA(d<aAO_Mem{G%n3GP$|hHFqY$m(G9gh`WTGB7cpWq!e!eO9pSobI3U)QOWAnPx"
        "IFf&`h)Tste+ckZl~_6eXU<K(k~`xwt1xVqjg7(D9Z76P&mlnNjY72FRr()_);eh0o(V=!+;Jpip&enJ"
    ),
    3: (
        "c-jkgb@cIf4|Zo@WMItak&a_vaA0U)0E1N!ih&tQGeR(9_xYz83`l^9VHAvlQ7{Td!6+C7qhJ(_f>AIEM!_f;1%nnCE!`#Yv"
        "48oLr^~@yZ=`-cIslCU*n{Ml4l8BNLXmj^qyM7-kYXti!B>`;Q<|z^#sC0vcOo<"
    ),
}
LAYOUT = [
    SegmentInfo(1, 0, 1, "SEALED"),
    SegmentInfo(2, 0, 1, "SEALED", (1,)),
    SegmentInfo(3, 0, 1, "ACTIVE", (2,)),
]


def of_the_first_version() -> Owner:
    owner = Owner(partitions=2, max_flush_ms=0.0, max_publish_ms=0.0)
    owner.disk.make_dir("topics")
    owner.disk.make_dir(DIRECTORY)
    for folder in ("", "topics", DIRECTORY):
        owner.disk.flush_dir(folder)
    for segment_id, packed in FILES.items():
        owner.disk.replace(path(segment_id), zlib.decompress(base64.b85decode(packed)))
    owner.layout = list(LAYOUT)
    owner.term, owner.next_segment_id = 1, 3
    return owner


def path(segment_id: int) -> str:
    return f"{DIRECTORY}/{segment_name(segment_id)}"


def values(log: RangeReader, partition: int) -> list[bytes]:
    limit = log.partition(partition).high_watermark
    found = log.read(partition, 0, limit_offset=limit, max_bytes=1 << 20)
    return [bytes(batch.data[-8:-1]) for batch in found.batches]


def settle(owner: Owner) -> None:
    owner.scheduler.run_until_idle()


def test_files_of_the_first_version_are_opened_and_continued() -> None:
    owner = of_the_first_version()
    owner.open()
    assert [segment.header.version for segment in owner.log.segments] == [1, 1, 1]
    assert [segment.state for segment in owner.log.segments] == ["SEALED", "SEALED", "WRITABLE"]
    old = [b"value %d" % number for number in range(7)]
    assert (values(owner.log, 0), values(owner.log, 1)) == (old[::2], old[1::2])
    for number in range(7, 12):
        header, batch = make_batch(b"value %d" % (number % 10))
        owner.log.append(number % 2, header, batch)
        settle(owner)
    owner.log.roll(lambda error: None)
    settle(owner)
    header, batch = make_batch(b"in a new file")
    owner.log.append(0, header, batch)
    settle(owner)
    assert [segment.header.version for segment in owner.log.segments] == [1, 1, 1, 2]
    assert owner.log.segments[2].state == "SEALED"
    before = values(owner.log, 0), values(owner.log, 1)
    assert [len(one) for one in before] == [4 + 2 + 1, 3 + 3]
    owner.power_cut(1)
    owner.open()
    assert (values(owner.log, 0), values(owner.log, 1)) == before


def test_an_active_file_of_the_first_version_is_continued_by_its_own_rule() -> None:
    """Else a program of before, or a scan by the file's version, would take the new entries for damage."""
    owner = of_the_first_version()
    owner.open()
    header, batch = make_batch(b"value 7")
    owner.log.append(1, header, batch)
    settle(owner)
    segment = owner.log.active
    entries = list(Scanner(segment.file(), segment.header, HEADER_BLOCK_BYTES, segment.end))
    assert len(entries) == 2
    assert entries[-1].end == segment.end
    owner.power_cut(1)
    owner.open()
    assert values(owner.log, 1)[-1] == b"value 7"


@pytest.mark.parametrize("segment_id", [1, 3])
def test_the_first_versions_own_rule_holds_in_its_files(segment_id: int) -> None:
    owner = of_the_first_version()
    owner.open()
    segment = owner.log.segments[segment_id - 1]
    index = next(index for index in segment.indexes.values() if index.runs)
    segment.load(index)
    start = index.positions[0] + ENTRY_HEADER_BYTES
    for bit in range(BITS):
        with flipped(owner.disk, segment.path, start, bit):
            noticed = is_damaged(lambda: values(owner.log, index.partition))
            assert noticed == (bit < 21 * 8), bit


class flipped:
    """One bit of a file, for as long as it lasts."""

    def __init__(self, disk: SimDisk, at: str, start: int, bit: int) -> None:
        self._disk, self._path, self._position = disk, at, start + bit // 8
        self._good = disk.content(at)[self._position]
        self._bad = self._good ^ 1 << bit % 8

    def __enter__(self) -> None:
        self._disk.overwrite(self._path, self._position, bytes([self._bad]))

    def __exit__(self, *_: object) -> None:
        self._disk.overwrite(self._path, self._position, bytes([self._good]))


def is_damaged(read: Callable[[], object]) -> bool:
    try:
        read()
    except KafkaError as error:
        return error.code is ErrorCode.kafka_storage_error
    return False


def three_batches() -> Owner:
    """Each flushed before the next, so each is claimed by those behind it."""
    owner = Owner(partitions=2, max_flush_ms=0.0, max_publish_ms=0.0)
    owner.create()
    for value in (b"value 0", b"value 1", b"value 2"):
        owner.wait_durable(0, owner.append(0, value, producer_id=7, transactional=True, txn_seq=3))
        settle(owner)
    return owner


def second(segment: Segment) -> int:
    """Where the second batch begins."""
    entries = list(Scanner(segment.file(), segment.header, HEADER_BLOCK_BYTES, segment.end))
    return entries[1].position + ENTRY_HEADER_BYTES


@pytest.mark.parametrize("sealed", [False, True])
def test_a_flipped_bit_of_a_batchs_header_is_noticed_on_read(sealed: bool) -> None:
    owner = three_batches()
    if sealed:
        owner.log.roll(lambda error: None)
        settle(owner)
        owner.power_cut(1)
        owner.open()
    segment = owner.log.segments[0]
    assert (segment.state == "SEALED") == sealed
    start = second(segment)
    assert values(owner.log, 0) == [b"value 0", b"value 1", b"value 2"]
    for bit in range(BITS):
        with flipped(owner.disk, segment.path, start, bit):
            assert is_damaged(lambda: values(owner.log, 0)), bit


def test_a_flipped_bit_of_a_batchs_header_is_noticed_at_a_start() -> None:
    owner = three_batches()
    segment = owner.log.active
    start = second(segment)
    owner.power_cut(1, keep="all")
    for bit in range(BITS):
        with flipped(owner.disk, segment.path, start, bit), pytest.raises(CorruptLog, match="was durable"):
            owner.open()
    owner.recover()


def test_a_flipped_bit_is_noticed_though_the_batchs_own_crc_fits_again() -> None:
    """Somebody, or something, that makes a batch anew in place: the entry says that it is not what was written."""
    owner = three_batches()
    segment = owner.log.active
    start = second(segment)
    content = owner.disk.content(segment.path)
    entry = content[start : start + parse_header(content[start:]).size_bytes]
    _, other = make_batch(b"value 1", producer_id=7, base_sequence=2, transactional=True)
    forged = entry[:16] + other[16:]
    assert len(forged) == len(entry)
    owner.disk.overwrite(segment.path, start, forged)
    assert is_damaged(lambda: values(owner.log, 0))


def test_what_compaction_writes_is_guarded_as_well() -> None:
    owner = of_the_first_version()
    owner.open()
    old = owner.log.segments[0]
    writer = CompactedFile(owner.disk, DIRECTORY, [old])
    writer.copy(old)
    writer.finish("t", [])
    new = Segment.open(owner.disk, DIRECTORY, old.segment_id, SegmentCache(), generation=1)
    assert (old.header.version, new.header.version) == (1, 2)
    (entry, *_) = Scanner(new.file(), new.header, HEADER_BLOCK_BYTES, new.end)
    log = PartitionLog(entry.partition, 0, ProducerStates(ProducerBudget(10, 10)))
    log.add_index(new.indexes[entry.partition])
    log.end_offset = log.high_watermark = new.indexes[entry.partition].end_offset
    compacted = RangeReader(entry.partition, entry.partition, owner.config, [log])
    found = values(compacted, entry.partition)
    assert found == values(owner.log, entry.partition)[: len(found)] != []
    for bit in range(BITS):
        with flipped(owner.disk, new.path, entry.position + ENTRY_HEADER_BYTES, bit):
            assert is_damaged(lambda: values(compacted, entry.partition)), bit


def test_a_replicas_entries_are_guarded_as_well() -> None:
    scheduler = SimScheduler()
    disk = SimDisk(scheduler)
    replica = create_replica(disk, scheduler)
    replica.write(None, [Entry(1, 1, NOOP, b"")])
    taken: list[bytes] = []

    def propose(payloads: object) -> int:
        taken.extend(payloads)  # type: ignore[call-overload]
        return 2

    replica.begin_leading(1, propose)
    for value in (b"value 0", b"value 1", b"value 2"):
        replica.append(0, *make_batch(value))
    scheduler.run_ready()
    replica.write(None, [Entry(1, 2 + at, 0, payload) for at, payload in enumerate(taken)])
    replica.commit_to(4)
    segment = replica.active
    entries = list(Scanner(segment.file(), segment.header, HEADER_BLOCK_BYTES, segment.end))
    assert values(replica, 0) == [b"value 0", b"value 1", b"value 2"]
    for bit in range(BITS):
        with flipped(disk, segment.path, entries[1].position + ENTRY_HEADER_BYTES, bit):
            assert is_damaged(lambda: values(replica, 0)), bit
            with pytest.raises(CorruptLog, match="entry 3 is damaged"):
                replica.entries(3, 3, 1000)
