"""The heartbeats of all groups between two nodes, in one datagram.

    magic "sR" | version u8 | source u32 | target u32 | incarnation u64 | sequence u64 | count u16 |
    count x (group u64 | kind u8 | term u64 | round u64 | commit u64) | the first 16 bytes of an HMAC-SHA256 of all that

`kind` is 1 for a heartbeat, 2 for its answer (commit 0). Guarantees of `Gate`: a datagram counts only if a holder of
the secret made it for this node, and only once. `incarnation` grows with every start of the sender; a receiver that
has just started knows none yet and may take in old ones until the first new one comes. That shows it an old leader's
term or round, which mean nothing to a group that is past them, and otherwise only keeps it waiting.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from typing import Final

from raftish.codec import BadMessage
from raftish.messages import Heartbeat, HeartbeatResponse

VERSION: Final = 1
MAX_DATAGRAM_BYTES: Final = 1400
"""Whole in one Ethernet frame; what does not fit goes into another datagram."""
_HEADER: Final = struct.Struct(">2sBIIQQH")
_BEAT: Final = struct.Struct(">QBQQQ")
_MAGIC: Final = b"sR"
_MAC_BYTES: Final = 16
MAX_BEATS: Final = (MAX_DATAGRAM_BYTES - _HEADER.size - _MAC_BYTES) // _BEAT.size
WINDOW: Final = 64

Beat = tuple[int, Heartbeat | HeartbeatResponse]
"""(group, message)"""


def heartbeat_key(secret: bytes) -> bytes:
    """For datagrams alone, so that nothing signed for another purpose passes for one."""
    return hmac.digest(secret, b"raftish heartbeats 1", hashlib.sha256)


class Sender:
    """To one node. `incarnation` must be higher than in any earlier life of this node."""

    def __init__(self, secret: bytes, node: int, peer: int, incarnation: int) -> None:
        self._key = heartbeat_key(secret)
        self._node = node
        self._peer = peer
        self._incarnation = incarnation
        self._sequence = 0

    def pack(self, beats: Sequence[Beat]) -> list[bytes]:
        """As few datagrams as hold them."""
        return [self._pack(beats[at : at + MAX_BEATS]) for at in range(0, len(beats), MAX_BEATS)]

    def _pack(self, beats: Sequence[Beat]) -> bytes:
        self._sequence += 1
        parts = [
            _HEADER.pack(
                _MAGIC, VERSION, self._node, self._peer, self._incarnation, self._sequence, len(beats)
            )
        ]
        for group, beat in beats:
            if isinstance(beat, Heartbeat):
                parts.append(_BEAT.pack(group, 1, beat.term, beat.round, beat.commit))
            else:
                parts.append(_BEAT.pack(group, 2, beat.term, beat.round, 0))
        body = b"".join(parts)
        return body + hmac.digest(self._key, body, hashlib.sha256)[:_MAC_BYTES]


class Gate:
    """Lets in what other nodes sent to this one."""

    def __init__(self, secret: bytes, node: int) -> None:
        self._key = heartbeat_key(secret)
        self._node = node
        self._peers: dict[int, tuple[int, int, int]] = {}
        """node -> (incarnation, highest sequence, bits of the WINDOW below it that came)"""

    def open(self, datagram: bytes) -> tuple[int, list[Beat]]:
        """(source, beats). Raises `BadMessage` for what is false, damaged, for another, or was seen before."""
        if not _HEADER.size + _MAC_BYTES <= len(datagram) <= MAX_DATAGRAM_BYTES:
            raise BadMessage(f"a datagram of {len(datagram)} bytes")
        body, mac = datagram[:-_MAC_BYTES], datagram[-_MAC_BYTES:]
        if not hmac.compare_digest(mac, hmac.digest(self._key, body, hashlib.sha256)[:_MAC_BYTES]):
            raise BadMessage("a datagram that is not of this cluster")
        magic, version, source, target, incarnation, sequence, count = _HEADER.unpack_from(body)
        if magic != _MAGIC or version != VERSION:
            raise BadMessage(f"a datagram of version {version}")
        if target != self._node or source == self._node:
            raise BadMessage(f"a datagram from {source} to {target}")
        if len(body) != _HEADER.size + count * _BEAT.size:
            raise BadMessage(f"{count} heartbeats in {len(body)} bytes")
        beats = [self._beat(body, _HEADER.size + at * _BEAT.size, source) for at in range(count)]
        self._admit(source, incarnation, sequence)
        return source, beats

    def _beat(self, body: bytes, at: int, source: int) -> Beat:
        group, kind, term, round_, commit = _BEAT.unpack_from(body, at)
        if kind == 1:
            return group, Heartbeat(source, self._node, term, round_, commit)
        if kind == 2 and not commit:
            return group, HeartbeatResponse(source, self._node, term, round_)
        raise BadMessage(f"a heartbeat of kind {kind}, commit {commit}")

    def _admit(self, source: int, incarnation: int, sequence: int) -> None:
        known, highest, bits = self._peers.get(source, (-1, 0, 0))
        if incarnation < known:
            raise BadMessage(f"a datagram of an earlier life of node {source}")
        if incarnation > known:
            highest = bits = 0
        if sequence > highest:
            ahead = min(sequence - highest, WINDOW + 1)
            bits = ((bits << 1 | 1) << (ahead - 1)) & ((1 << WINDOW) - 1)
            highest = sequence
        else:
            behind = highest - sequence
            if not 1 <= behind <= WINDOW or bits >> (behind - 1) & 1:
                raise BadMessage(f"a datagram of node {source} that came before, or too late")
            bits |= 1 << (behind - 1)
        self._peers[source] = (incarnation, highest, bits)
