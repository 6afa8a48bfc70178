"""What is fuzzed: for each target the inputs to begin with, and a check that raises where something is wrong.

A target takes bytes that are changes of its corpus (`from_bytes`), or makes its own inputs by a seed (`from_seed`).
What a check lets pass is part of the contract of what it calls: the errors in its docstring, and no others.
"""

from __future__ import annotations

import random
import struct
from functools import cache

from support.sim_disk import SimDisk

from fuzz import cluster_targets, data_folder, random_requests, sessions
from fuzz.target import Seeded, Target
from storage.cache import SegmentCache
from storage.check import check_directory
from storage.compaction_records import decode
from storage.format import CorruptLog
from storage.segment import Segment
from txn.metastore import CorruptStore, UnknownFormat
from txn.metastore.files import Folder
from txn.metastore.loading import load
from wire import codec, private_api
from wire.apis import APIS
from wire.batch import check_crc, parse_header, validate_produced
from wire.connection import Connection, ProtocolError
from wire.errors import KafkaError
from wire.framing import FrameError
from wire.guard import MalformedRequest
from wire.header import parse_request_header
from wire.records import Record, build_batch, iterate_records

LARGEST_RECORDS = 1 << 20


# -- the wire


@cache
def _frames() -> list[bytes]:
    """One request of every version, with its length."""
    chance = random.Random(1)
    found: dict[tuple[int, int], bytes] = {}
    for number in range(6000):
        key, version, frame = random_requests.request(chance, number)
        found.setdefault((key, version), frame)
    return list(found.values())


def _check_frames(data: bytes) -> None:
    """Cut anywhere, the same bytes are the same requests, and what is kept is bounded by what came."""
    whole = _received(data, len(data) or 1)
    for size in (1, 7):
        assert _received(data, size) == whole, f"in pieces of {size} bytes"


def _received(data: bytes, size: int) -> list[tuple[int, int, int, bytes]]:
    connection = Connection(max_frame_bytes=1 << 16)
    found = []
    try:
        for at in range(0, len(data), size):
            found += [
                (one.api_key, one.api_version, one.correlation_id, bytes(one.body))
                for one in connection.receive(data[at : at + size])
            ]
            assert connection.buffered_bytes <= len(data)
    except (FrameError, ProtocolError):
        # In one piece, the requests before the bad one are lost with it: the connection is closed.
        return []
    return found


def _check_request(data: bytes) -> None:
    """A request is decoded whole or refused; what is decoded can be written, and is then the same."""
    frame = memoryview(data)[4:]
    try:
        header = parse_request_header(frame)
        body = frame[header.size_bytes :]
        if not APIS[header.api_key].serves(header.api_version):
            return  # ApiVersions of tomorrow, whose body nobody reads
        message = codec.decode_request(header.api_key, header.api_version, body)
    except (ProtocolError, MalformedRequest) as error:
        if "bytes read of" in str(error):
            raise AssertionError("guard and decoder disagree") from error
        return
    if APIS[header.api_key].is_private:
        again = private_api.encode_request(header.api_key, 0, "", message)
    else:
        again = codec.encode_request(header.api_key, header.api_version, 0, None, message)
    second = memoryview(again)[4:]
    body = second[parse_request_header(second).size_bytes :]
    assert codec.decode_request(header.api_key, header.api_version, body) == message


# -- batches


def _batches() -> list[bytes]:
    records = [
        Record(b"key", b"value" * 20, (("header", b"x"), ("", None)), timestamp=1000 + number)
        for number in range(5)
    ]
    made = [build_batch(records, compression=number) for number in range(5)]
    made.append(build_batch(records[:1], producer_id=7, producer_epoch=1, base_sequence=3, attributes=0x10))
    made.append(build_batch([Record(None, None)]))
    return made


def _check_batch(data: bytes) -> None:
    """What passes as a producer's batch is one whole batch, whose counts and checksum agree."""
    try:
        header = validate_produced(data)
    except KafkaError:
        return
    assert header.size_bytes == len(data)
    assert header.record_count == header.last_offset_delta + 1
    check_crc(data, header)


def _with_right_checksum(data: bytes) -> bytes:
    """So that a change of a header's field is met by the checks behind the checksum."""
    from crc32c import crc32c

    if len(data) < 61:
        return data
    data = data[:8] + struct.pack(">i", len(data) - 12) + data[12:]
    return data[:17] + struct.pack(">I", crc32c(memoryview(data)[21:])) + data[21:]


def _check_sealed_batch(data: bytes) -> None:
    _check_batch(_with_right_checksum(data))


def _check_records(data: bytes) -> None:
    """Records are read, or CORRUPT_MESSAGE says no; never more of them, or more bytes, than the batch may hold."""
    data = _with_right_checksum(data)
    try:
        header = parse_header(data)
        size = count = 0
        for record in iterate_records(data, max_bytes=LARGEST_RECORDS):
            count += 1
            size += len(record.key or b"") + len(record.value or b"")
            assert header.base_offset <= record.offset <= header.last_offset
    except KafkaError:
        return
    assert count == header.record_count
    assert size <= LARGEST_RECORDS + len(data)


def _check_compaction_records(data: bytes) -> None:
    """The library's reader gives as many records as the batch has, the same as ours, or CORRUPT_MESSAGE says no."""
    data = _with_right_checksum(data)
    try:
        header = parse_header(data)
        records = list(decode(data))
    except KafkaError:
        return
    assert len(records) == header.record_count
    try:
        ours = list(iterate_records(data))
    except KafkaError:
        return
    assert records == ours


# -- files


@cache
def _image() -> data_folder.Image:
    return data_folder.build_images()[0]


def _files(folder: str, ending: str = "") -> list[bytes]:
    return [
        data for path, data in _image().files.items() if path.startswith(folder) and path.endswith(ending)
    ]


def _check_segment(data: bytes) -> None:
    """A segment file is opened, inspected and judged, or CorruptLog says where it is damaged."""
    name = f"{7:020d}.seg"
    disk = SimDisk()
    disk.make_dir("d")
    disk.replace(f"d/{name}", data)
    check_directory(disk)
    if len(data) >= 32:
        # Under the number that its header says, so that more than the header is looked at.
        number = int.from_bytes(data[28:36], "big") % 10**19
        disk = SimDisk()
        disk.make_dir("d")
        disk.replace(f"d/{number:020d}.seg", data)
        for finding in check_directory(disk):
            assert finding.status == "ok" or finding.detail
        try:
            segment = Segment.open(disk, "d", number, SegmentCache(), readonly=True)
            for index in segment.indexes.values():
                segment.load(index)
            if segment.state == "SEALED":
                segment.load_producers()
        except CorruptLog:
            pass


def _check_store(data: bytes) -> None:
    """A store's only file, as log and as snapshot: read up to what is torn, or refused by name."""
    for name in ("log-0000000001", "log-0000000002", "snapshot-0000000002"):
        disk = SimDisk()
        disk.make_dir("m")
        disk.replace(f"m/{name}", data)
        if name.startswith("snapshot"):
            disk.replace("m/log-0000000002", _files("metadata/log-")[0][:4096])
        try:
            image = load(Folder(disk, "m"))
        except (CorruptStore, UnknownFormat) as error:
            if "m/" not in str(error):
                raise AssertionError("refused without the name of the file") from error
        else:
            assert image is not None


# -- the whole


@cache
def _images() -> list[data_folder.Image]:
    return data_folder.build_images()


def _damage_folder(chance: random.Random) -> None:
    image = chance.choice(_images())
    files, what = data_folder.damaged(image, chance)
    try:
        data_folder.outcome(image, files)
    except Exception as error:
        raise AssertionError(f"the {image.name} folder, {what}") from error


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("frames", _frames, _check_frames),
        Target("requests", _frames, _check_request),
        Target("batch", _batches, _check_batch),
        Target("sealed-batch", _batches, _check_sealed_batch),
        Target("records", _batches, _check_records),
        Target("compaction-records", _batches, _check_compaction_records),
        Target("segment", lambda: _files("topics/", ".seg"), _check_segment),
        Target("metadata", lambda: _files("metadata/"), _check_store),
        Seeded("sessions", sessions.run),
        Seeded("folder", _damage_folder),
        *cluster_targets.TARGETS,
    )
}
