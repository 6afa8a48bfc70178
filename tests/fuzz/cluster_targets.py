"""Targets of the cluster: what nodes say to each other, and what each of them keeps of the group's log."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import random
import struct
import zlib
from functools import cache

from crc32c import crc32c
from support.sim_disk import SimDisk
from support.sim_loop import SimScheduler

from broker.replication.hard_state import HardStateFile
from broker.replication.ops import BadChange, Code
from broker.replication.ops import decode as decode_changes
from broker.replication.ops import encode as encode_changes
from broker.replication.raft_log import SUFFIX, CorruptRaftLog, FileLog
from broker.replication.store import CHECKPOINT, FILES, Fatal, Store
from fuzz.mutations import mutated
from fuzz.target import Seeded, Target
from raftish import codec, membership
from raftish.codec import BadMessage, Frames
from raftish.datagram import MAX_BEATS, Gate, Sender, heartbeat_key
from raftish.entries import Entry, HardState, Kind
from raftish.handshake import Acceptor, HandshakeFailed, Initiator
from raftish.membership import Membership
from raftish.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Message,
    Note,
    PreVoteRequest,
    PreVoteResponse,
    SnapshotRequest,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

MEMBERS = Membership(frozenset({1, 2, 3}), frozenset({4}))
SECRET = b"the cluster's secret"

# -- what nodes say to each other


def _entries() -> tuple[Entry, ...]:
    return (
        Entry(3, 8, Kind.NOOP, b""),
        Entry(4, 9, Kind.NORMAL, b"payload" * 9),
        Entry(4, 10, Kind.MEMBERSHIP, membership.encode(MEMBERS)),
    )


MESSAGES: tuple[Message, ...] = (
    PreVoteRequest(1, 2, 5, 9, 4),
    PreVoteResponse(2, 1, 5, True),
    VoteRequest(1, 2, 5, 9, 4, False),
    VoteResponse(2, 1, 5, False),
    AppendRequest(1, 2, 5, 7, 3, 6, _entries()),
    AppendRequest(1, 2, 5, 7, 3, 6, ()),
    AppendResponse(2, 1, 5, True, 10, 0, 0),
    Heartbeat(1, 2, 5, 100, 6),
    HeartbeatResponse(2, 1, 5, 100),
    SnapshotRequest(1, 2, 5, 70, 4, MEMBERS),
    TimeoutNow(1, 2, 5),
    Note(1, 2, 5, b"a word"),
)


def _streams() -> list[bytes]:
    each = [codec.encode(group, message) for group, message in enumerate(MESSAGES)]
    return [*each, b"".join(each)]


def _frames(stream: bytes, size: int) -> list[bytes] | None:
    """None: the stream is refused."""
    reader = Frames(1 << 16)
    found: list[bytes] = []
    try:
        for at in range(0, len(stream), size):
            found += reader.feed(stream[at : at + size])
    except BadMessage:
        return None
    return found


def _check_stream(stream: bytes) -> None:
    """Cut anywhere, the same bytes are the same frames; each is refused, or is a message that is written the same."""
    frames = _frames(stream, len(stream) or 1)
    assert _frames(stream, 7) == frames
    for frame in frames or ():
        _check_message(frame)
        # The same behind a right checksum, which a change of a message's fields would not have.
        _check_message(struct.pack(">I", zlib.crc32(frame[4:])) + frame[4:])


def _check_message(frame: bytes) -> None:
    try:
        group, message = codec.decode(frame)
    except BadMessage:
        return
    assert codec.encode(group, message) == struct.pack(">I", len(frame)) + frame


def _datagrams() -> list[bytes]:
    beats = [(number, Heartbeat(1, 2, 5, 7, 100 + number)) for number in range(3)]
    answers = [(number, HeartbeatResponse(1, 2, 5, 7)) for number in range(3)]
    sender = Sender(SECRET, 1, 2, incarnation=9)
    return [*sender.pack(beats), *sender.pack([*beats, *answers]), *sender.pack([beats[0]] * MAX_BEATS)]


def _check_datagram(datagram: bytes) -> None:
    """Only what a holder of the secret made is let in, once; behind a right signature it is refused or read whole."""
    try:
        Gate(SECRET, 2).open(datagram)
    except BadMessage:
        pass
    else:
        assert datagram in _datagrams(), "a datagram that nobody made"
    body = datagram[:-16]
    signed = body + hmac.digest(heartbeat_key(SECRET), body, hashlib.sha256)[:16]
    gate = Gate(SECRET, 2)
    try:
        source, beats = gate.open(signed)
    except BadMessage:
        return
    incarnation, sequence = struct.unpack_from(">QQ", signed, 11)
    again = Sender(SECRET, source, 2, incarnation)
    again._sequence = sequence - 1
    assert again._pack(beats) == signed
    try:
        gate.open(signed)
    except BadMessage:
        return
    raise AssertionError("it was let in twice")


NONCES = bytes(range(32)), bytes(range(32, 64))


def _handshake() -> list[bytes]:
    initiator, acceptor = Initiator(SECRET, 1, 2, NONCES[0]), Acceptor(SECRET, 2, NONCES[1])
    hello = initiator.hello()
    challenge = acceptor.challenge(hello)
    return [hello + challenge + initiator.prove(challenge)]


def _check_handshake(said: bytes) -> None:
    """Any of the three things said, changed on its way, ends it on the side that hears it."""
    (true,) = _handshake()
    hello_end = len(Initiator(SECRET, 1, 2, NONCES[0]).hello())
    proof_start = len(true) - 32
    hello, challenge, proof = said[:hello_end], said[hello_end:proof_start], said[proof_start:]
    acceptor = Acceptor(SECRET, 2, NONCES[1])
    try:
        acceptor.challenge(hello)
        peer = acceptor.accept(proof)
    except HandshakeFailed:
        pass
    else:
        assert (hello, proof, peer) == (true[:hello_end], true[proof_start:], 1)
    initiator = Initiator(SECRET, 1, 2, NONCES[0])
    initiator.hello()
    try:
        assert initiator.prove(challenge) == true[proof_start:]
    except HandshakeFailed:
        assert challenge != true[hello_end:proof_start]
    else:
        assert challenge == true[hello_end:proof_start]


# -- changes of files, as entries carry them


def _changes() -> list[bytes]:
    return [
        encode_changes(
            [
                (Code.MAKE_DIR, "topics"),
                (Code.CREATE, "topics/a", 1),
                (Code.ALLOCATE, 1, 0, 4096),
                (Code.WRITE, 1, 0, b"bytes"),
                (Code.TRUNCATE, 1, 3),
                (Code.RENAME, "topics/a", "topics/b"),
                (Code.REMOVE, "topics/b"),
                (Code.REMOVE_DIR, "topics"),
                (Code.PEER, 3, "host:1"),
            ]
        ),
        encode_changes([]),
        encode_changes([(Code.WRITE, 1 << 40, 1 << 33, bytes(300))]),
    ]


def _check_changes(payload: bytes) -> None:
    """A list of changes that can be applied to files (or fails as files do), or BadChange."""
    try:
        changes = decode_changes(payload)
    except BadChange:
        return
    assert decode_changes(encode_changes(changes)) == changes
    store = Store(SimDisk())
    with contextlib.suppress(Fatal):
        # Where what it writes fits into this process.
        store.apply(
            1, 1, [one for one in changes if all(type(each) is not int or each < 1 << 20 for each in one)]
        )


# -- what a node keeps


def _names(error: Exception, file: str) -> None:
    """Whoever reads it knows which file is meant."""
    if file not in str(error):
        raise AssertionError("refused without the name of the file") from error


LOG = "log"


def _open_log(disk: SimDisk) -> FileLog:
    return FileLog(disk, SimScheduler(), LOG, part_bytes=1500, step_bytes=2000)


@cache
def _log_files(seed: int) -> tuple[dict[str, bytes], list[Entry]]:
    """A log of several files, and what is in it."""
    chance = random.Random(seed)
    disk = SimDisk()
    log = _open_log(disk)
    entries: list[Entry] = []
    for index in range(1, 40):
        kind = Kind.MEMBERSHIP if index % 11 == 0 else Kind.NORMAL
        payload = (
            membership.encode(MEMBERS) if kind is Kind.MEMBERSHIP else chance.randbytes(chance.randrange(200))
        )
        entries.append(Entry(1 + index // 10, index, kind, payload))
        log.write(None, [entries[-1]])
    log.flush()
    return {name: disk.content(f"{LOG}/{name}") for name in disk.list(LOG) if name.endswith(SUFFIX)}, entries


def _damage_log(chance: random.Random) -> None:
    """Refused, or what is left is what was there from the first entry on, up to a place in the last file."""
    files, entries = _log_files(chance.randrange(3))
    names = sorted(files)
    name = chance.choice([*names, names[-1]])
    others = [data[:2000].rstrip(b"\0") for data in files.values()]
    used = files[name].rstrip(b"\0")
    damaged = mutated(used, chance, others)
    if len(damaged) == len(used) or chance.random() < 0.5:
        damaged += files[name][len(used) :]
    disk = SimDisk()
    disk.make_dir(LOG)
    for one, data in files.items():
        disk.replace(f"{LOG}/{one}", damaged if one == name else data)
    try:
        log = _open_log(disk)
        found = _all_entries(log)
    except CorruptRaftLog as error:
        _names(error, LOG)
        return
    assert found == entries[: len(found)], "entries that nobody wrote"
    assert len(found) >= int(names[-1].partition(".")[0]) - 1, "only the last file may have lost something"
    # What was cut off does not come back, and the log goes on.
    log.write(None, [Entry(9, len(found) + 1, Kind.NORMAL, b"next")])
    log.flush()
    log.close()
    again = _all_entries(_open_log(disk))
    assert again == [*found, Entry(9, len(found) + 1, Kind.NORMAL, b"next")]


def _all_entries(log: FileLog) -> list[Entry]:
    found: list[Entry] = []
    while len(found) < log.last_index:
        found += log.entries(len(found) + 1, log.last_index, 4096)
    return found


STATES = "hard-state"
PLACE = 4096
STATE_BYTES = 28


@cache
def _state_files() -> list[tuple[bytes, HardState]]:
    """The two places of files after so many writes, and what counts in each."""
    found = []
    disk = SimDisk()
    disk.make_dir("raft")
    states = HardStateFile(disk, SimScheduler(), f"raft/{STATES}")
    for number in range(6):
        content = disk.content(f"raft/{STATES}")
        places = [content[at : at + STATE_BYTES] for at in (0, PLACE)]
        found.append((b"".join(one.ljust(STATE_BYTES, b"\0") for one in places), states.current))
        states.write_now(HardState(3 * number + 1, number or None))
    return found


def _damage_state(chance: random.Random) -> None:
    """A promise that was flushed is known, or the file is refused: never an earlier one, which allows another vote."""
    places, latest = chance.choice(_state_files())
    damaged = mutated(places, chance)
    disk = SimDisk()
    disk.make_dir("raft")
    content = damaged[:STATE_BYTES].ljust(PLACE, b"\0") + damaged[STATE_BYTES : 2 * STATE_BYTES]
    disk.replace(f"raft/{STATES}", content[: len(damaged)] if len(damaged) < STATE_BYTES else content)
    try:
        found = HardStateFile(disk, SimScheduler(), f"raft/{STATES}").current
    except Fatal as error:
        _names(error, STATES)
        return
    assert found == latest or not any(damaged), f"{found} in place of {latest}"


def _checkpoints() -> list[bytes]:
    found = []
    disk = SimDisk()
    store = Store(disk)
    for payload in ([], *(decode_changes(one) for one in _changes()[:1])):
        store.apply(len(found) + 1, 1, payload[:5])
        store.peers = {3: "host:1"}
        store.members = (1, MEMBERS) if found else None
        store.write_now()
        found.append(disk.content(CHECKPOINT))
    return found


def _check_checkpoint(data: bytes) -> None:
    """Refused by name, or read as it was written; behind a right checksum refused, or one that is written the same."""
    if data not in _made_checkpoints():
        assert _loaded(data) is None, "a damaged checkpoint was taken"
    store = _loaded(crc32c(data[4:]).to_bytes(4, "big") + data[4:])
    if store is not None:
        packed = store.capture().packed
        store.take(packed)
        assert store.capture().packed == packed


@cache
def _made_checkpoints() -> list[bytes]:
    return _checkpoints()


def _loaded(data: bytes) -> Store | None:
    disk = SimDisk()
    disk.make_dir(FILES)
    disk.replace(CHECKPOINT, data)
    try:
        return Store(disk)
    except Fatal as error:
        _names(error, CHECKPOINT)
        return None


TARGETS: tuple[Target, ...] = (
    Target("raft-messages", _streams, _check_stream),
    Target("raft-datagrams", _datagrams, _check_datagram),
    Target("raft-handshake", _handshake, _check_handshake),
    Target("raft-changes", _changes, _check_changes),
    Target("raft-checkpoint", _checkpoints, _check_checkpoint),
    Seeded("raft-log", _damage_log),
    Seeded("raft-hard-state", _damage_state),
)
