"""Data folders with one of everything, made by a simulated node; damage to their files; and what a start makes of it.

The rule: a folder that was stopped cleanly or flushed long ago holds nothing that a crash could have taken. So a start
on a damaged copy must refuse with a message, or serve exactly what was there, or answer an error where the damage lies.
It may cut what no later write proves to be durable: of a killed node, whose last writes nothing followed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from support.sim_admin import delete_records
from support.sim_disk import SimDisk
from support.sim_groups import Member, commit_offsets, committed
from support.sim_layout import seal
from support.sim_loop import SimScheduler
from support.sim_node import SimNode, batch
from support.sim_producer import Producer, create_topic, fetch_one, list_offset, produce_fields

from broker.config import BrokerConfig
from broker.data_folder import ForeignFolder
from broker.node import Node, StartReport
from storage.format import CorruptLog
from txn.metastore import MetaStoreError
from txn.recovery import LostCommit
from wire.apis import ApiKey
from wire.batch import BATCH_HEADER_SIZE, BatchHeader, check_crc, parse_header
from wire.errors import ErrorCode, KafkaError
from wire.records import Record, build_batch, iterate_records

SETTINGS: dict[str, Any] = {
    "segment_bytes": 1 << 16,
    "snapshot_log_bytes": 1 << 14,
    "compaction_interval_ms": 1_000,
    "retention_check_interval_ms": 3_600_000,
}

REFUSALS = (ForeignFolder, CorruptLog, MetaStoreError, LostCommit, KafkaError, OSError)
"""What `sealog serve` turns into a message and an exit code."""

Files = dict[str, bytes]
Read = dict[tuple[str, int, bool], list[tuple[int, bytes | None]]]
"""(topic, partition, committed) -> [offset, value]."""


@dataclass(frozen=True, slots=True)
class Image:
    """The files of a data folder, and what a reader finds in them."""

    name: str
    files: Files
    truth: Truth = field(repr=False)
    boot: str = "boot-0"
    """The kernel boot that it is started under; the files were written under boot-0."""
    tail_may_go: bool = False
    """It was killed right after the last write, so that damage at the end looks like a torn one."""
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Truth:
    records: Read
    starts: dict[tuple[str, int], int]
    offsets: dict[tuple[str, int], int]


class FolderNode(SimNode):
    """A node on given files, started under the kernel boot that wrote them (`boot`) or another."""

    def __init__(self, files: Files, *, boot: str = "boot-0", **settings: Any) -> None:
        self.scheduler = SimScheduler()
        self.disk = SimDisk(self.scheduler, flush_delay_ms=0.0)
        for path in files:
            if "/" in path:
                self.disk.make_dir(path.rpartition("/")[0])
        for path, data in files.items():
            self.disk.replace(path, data)
        self.config = BrokerConfig(**SETTINGS | settings)
        self._random = random.Random(1)
        self._seed = 1
        self.boot_id = boot
        self.node: Node
        self.report: StartReport
        self.start()


def files_of(disk: SimDisk, folder: str = "") -> Files:
    found: Files = {}
    for name in disk.list(folder):
        path = f"{folder}/{name}" if folder else name
        try:
            found |= files_of(disk, path)
        except NotADirectoryError:
            found[path] = _without_reserve(disk.content(path))
    return found


def _without_reserve(data: bytes) -> bytes:
    """Less of what was only reserved: as good, and quicker to read."""
    used = len(data.rstrip(b"\0"))
    return data[: max(used, min(len(data), used + 8192))]


# -- making


def _plain(world: SimNode, topic: str, partition: int, *values: bytes) -> None:
    answer = world.client().ask(ApiKey.PRODUCE, 9, **produce_fields(topic, {partition: batch(*values)}))
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none


def _fill(world: SimNode) -> Producer:
    """One of everything: a topic with rolls, a split, deleted records and three kinds of transactions; a compacted
    one; offsets and members of groups; a snapshot of the store. Returns a producer whose transaction is open."""
    client = world.client()
    create_topic(client, "t", 4)
    create_topic(client, "c", 1, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
    for number in range(12):
        for partition in range(4):
            _plain(world, "t", partition, *(b"%d:%d:%d" % (partition, number, n) for n in range(3)))
    done = Producer(client, "done")
    done.init()
    for number in range(6):
        done.send("t", {0: [b"txn %d" % number], 2: [b"txn %d" % number, b"more"]})
        done.commit_offsets("g", {("in", 0): number})
        done.end(number % 3 != 2)
    for number in range(10):
        _plain(world, "t", number % 4, bytes([number]) * 14_000)
    seal(world)
    _split_ranges(world)
    for number in range(8):
        done.send("t", {1: [b"after %d" % number], 3: [b"after %d" % number]})
        done.end(number % 3 != 1)
        commit_offsets(client, "simple", {("t", number % 4): number})
    delete_records(client, "t", {1: 5})
    Member(client, "classic", "t").settle()
    _compacted(world)
    world.scheduler.advance(5_000)
    for number in range(5):
        _plain(world, "t", number % 4, b"last %d" % number)
    still = Producer(client, "open", timeout_ms=900_000)
    still.init()
    still.send("t", {0: [b"open"], 3: [b"open", b"open"]})
    world.scheduler.advance(5_000)
    return still


def _split_ranges(world: SimNode) -> None:
    topic = world.node.topics.get("t")
    assert topic is not None
    answers: list[object] = []
    world.node.layouts.split(topic, (2,), answers.append)
    world.scheduler.run_until(lambda: bool(answers))


def _compacted(world: SimNode) -> None:
    for number in range(30):
        data = build_batch([Record(b"key %d" % (number % 4), b"value %d" % number, timestamp=1)])
        answer = world.client().ask(ApiKey.PRODUCE, 9, **produce_fields("c", {0: data}))
        assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
        if number == 20:
            seal(world, topic="c")
    world.scheduler.advance(10_000)


def _image(name: str, world: SimNode, **options: Any) -> Image:
    files = files_of(world.disk)
    settings = options.get("settings", {})
    return Image(
        name, files, read_all(FolderNode(files, boot=options.get("boot", "boot-0"), **settings)), **options
    )


def _stopped(world: SimNode) -> SimNode:
    stopped: list[Exception | None] = []
    world.node.stop(stopped.append)
    world.scheduler.run_until(lambda: bool(stopped))
    assert stopped == [None]
    return world


def _world(**settings: Any) -> SimNode:
    return SimNode(seed=3, flush_delay_ms=0.0, **SETTINGS | settings)


def build_images() -> list[Image]:
    """The same folder as a clean stop, a kill and a power cut after a quiet time, and a kill in the midst leave it; and
    one with a checkpoint."""
    clean, killed, busy = _world(), _world(), _world()
    for world in (clean, killed, busy):
        _fill(world)
    for number in range(4):
        _plain(busy, "t", number, b"just now")
    large = {"segment_bytes": 1 << 22}
    checkpointed = _world(**large)
    create_topic(checkpointed.client(), "t", 2)
    for number in range(80):
        _plain(checkpointed, "t", number % 2, bytes([number]) * 14_000)
    _stopped(clean)
    _stopped(checkpointed)
    images = [
        _image("clean", clean),
        _image("killed", killed),
        _image("power cut", killed, boot="boot-1"),
        _image("busy", busy, tail_may_go=True),
        _image("checkpointed", checkpointed, settings=large),
    ]
    assert any(path.endswith(".ckpt") for path in images[-1].files)
    assert any(path.endswith(".1.seg") for path in images[0].files), "nothing was compacted"
    return images


# -- reading


class Unreadable(Exception):
    """A reader heard of it: an error in the answer, or a batch whose checksum its client refuses."""


def _read(world: FolderNode, topic: str, partition: int, committed: bool) -> list[tuple[int, bytes | None]]:
    """Offsets and values from the log start to the end that this reader may see."""
    client = world.client()
    found: list[tuple[int, bytes | None]] = []
    position = list_offset(client, topic, partition, at=-2)
    end = list_offset(client, topic, partition, committed=committed)
    while position < end:
        one = fetch_one(client, topic, position, partition, committed=committed)
        if one.error_code is not ErrorCode.none:
            raise Unreadable(f"{one.error_code.name} at {position}")
        assert one.records, f"{topic}-{partition}: nothing at {position} below {end}: a reader would be stuck"
        for data, header in _batches(bytes(one.records)):
            try:
                check_crc(data, header)
                records = [] if header.is_control else list(iterate_records(data))
            except KafkaError as error:
                raise Unreadable(error.message) from error
            found += [(record.offset, record.value) for record in records if record.offset >= position]
            position = header.last_offset + 1
    return found


def _batches(records: bytes) -> Iterator[tuple[bytes, BatchHeader]]:
    while len(records) >= BATCH_HEADER_SIZE:
        try:
            header = parse_header(records)
        except KafkaError as error:
            raise Unreadable(error.message) from error
        yield records[: header.size_bytes], header
        records = records[header.size_bytes :]


def read_all(world: FolderNode) -> Truth:
    """Everything that clients can find out. Raises Unreadable where they hear of damage."""
    records: Read = {}
    starts: dict[tuple[str, int], int] = {}
    for topic in world.node.topics:
        for index in range(len(topic.partitions)):
            starts[topic.name, index] = list_offset(world.client(), topic.name, index, at=-2)
            for committed_only in (True, False):
                records[topic.name, index, committed_only] = _read(world, topic.name, index, committed_only)
    client = world.client()
    return Truth(records, starts, committed(client, "g") | committed(client, "simple"))


# -- judging


class SilentDamage(AssertionError):
    """What clients see is not what was there, and nobody was told."""


def outcome(image: Image, files: Files) -> str:
    """What a start on these files, a damaged copy of the image's, does: refused, served, unreadable or cut.

    Raises SilentDamage; anything else that it raises is a fault as well: a start that crashes without a message.
    """
    try:
        world = FolderNode(files, boot=image.boot, **image.settings)
    except REFUSALS as error:
        return "refused" if str(error).strip() else "refused without a message"
    try:
        found = read_all(world)
    except Unreadable:
        return "unreadable"
    truth = image.truth
    if found == truth:
        return "served"
    if image.tail_may_go and world.report.ranges and any(one.cuts for one in world.report.ranges):
        _check_cut(found, truth)
        return "cut"
    raise SilentDamage(_difference(found, truth))


def _check_cut(found: Truth, truth: Truth) -> None:
    """Only the ends are missing, of all readers alike."""
    if (found.starts, found.offsets) != (
        truth.starts,
        truth.offsets,
    ) or found.records.keys() != truth.records.keys():
        raise SilentDamage(_difference(found, truth))
    for (topic, partition, committed_only), there in truth.records.items():
        got = found.records[topic, partition, committed_only]
        end = max((offset + 1 for offset, _ in found.records[topic, partition, False]), default=0)
        if got != [one for one in there if one[0] < end]:
            raise SilentDamage(_difference(found, truth))


def _difference(found: Truth, truth: Truth) -> str:
    lines = [f"log starts {found.starts}, not {truth.starts}"] if found.starts != truth.starts else []
    if found.offsets != truth.offsets:
        lines.append(f"offsets {found.offsets}, not {truth.offsets}")
    for at in sorted(truth.records.keys() | found.records.keys()):
        there, got = truth.records.get(at), found.records.get(at)
        if there != got:
            lines.append(f"{at}: {len(got or [])} records instead of {len(there or [])}")
    return "; ".join(lines) or "nothing differs"


# -- damaging


def _at_used(data: bytes, chance: random.Random) -> int:
    """A position among the bytes that say something, mostly: files end in zeros that were only reserved."""
    used = len(data.rstrip(b"\0")) or 1
    return chance.randrange(used if chance.random() < 0.95 else len(data) or 1)


def _flip(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    if out:
        out[_at_used(data, chance)] ^= 1 << chance.randrange(8)
    return bytes(out)


def _zeros(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    at = _at_used(data, chance) // 512 * 512
    size = min(512 * chance.randint(1, 8), max(0, len(out) - at))
    out[at : at + size] = bytes(size)
    return bytes(out)


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: _at_used(data, chance)]


def _duplicated(data: bytes, chance: random.Random) -> bytes:
    """A stretch stands twice, over what was behind it."""
    out = bytearray(data)
    at = _at_used(data, chance)
    piece = out[at : at + chance.choice((64, 512, 4096))]
    out[at + len(piece) : at + 2 * len(piece)] = piece
    return bytes(out)


def _shifted(data: bytes, chance: random.Random) -> bytes:
    at = _at_used(data, chance)
    return data[:at] + bytes(chance.choice((1, 7, 512))) + data[at:]


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip,
    _flip,
    _zeros,
    _cut,
    _duplicated,
    _shifted,
)


def damaged(image: Image, chance: random.Random) -> tuple[Files, str]:
    """A copy with one file damaged, gone, or replaced by another; and what was done."""
    files = dict(image.files)
    path = chance.choice(sorted(path for path in files if path != "lock"))
    how = chance.random()
    if how < 0.06:
        del files[path]
        return files, f"{path} is gone"
    if how < 0.12:
        folder, kind = path.rpartition("/")[0], path.rpartition(".")[2]
        others = sorted(p for p in files if p != path and (p.startswith(folder) or p.endswith(kind)))
        if others:
            other = chance.choice(others)
            files[path] = files[other]
            return files, f"{path} has the bytes of {other}"
    damage = chance.choice(DAMAGES)
    files[path] = damage(files[path], chance)
    return files, f"{damage.__name__[1:]} in {path}"
