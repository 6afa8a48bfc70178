"""How two nodes make sure, at the begin of a stream, that both know the cluster's secret.

    initiator -> acceptor   hello       magic "sealogR" | version u8 | source u32 | target u32 | nonce 32
    acceptor -> initiator   challenge   version u8 | nonce 32 | HMAC(key, "acceptor"  | hello | nonce) 32
    initiator -> acceptor   proof       HMAC(key, "initiator" | hello | challenge) 32

Guarantees: each side goes on only after the other has shown the secret over both fresh nonces and both node ids, so
nothing recorded, mirrored or meant for another node passes. It says who speaks at the begin and hides nothing: what
travels after it is neither encrypted nor signed. Nonces are handed in, from a secure source.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Final, Literal

VERSION: Final = 1
NONCE_BYTES: Final = 32
_MAC_BYTES: Final = 32
_HELLO: Final = struct.Struct(f">7sBII{NONCE_BYTES}s")
_CHALLENGE: Final = struct.Struct(f">B{NONCE_BYTES}s{_MAC_BYTES}s")
_MAGIC: Final = b"sealogR"
HELLO_BYTES: Final = _HELLO.size
CHALLENGE_BYTES: Final = _CHALLENGE.size
PROOF_BYTES: Final = _MAC_BYTES


class HandshakeFailed(Exception):
    """The other side is not a node of this cluster, or not the one that was meant; close the stream."""


def _key(secret: bytes) -> bytes:
    return hmac.digest(secret, b"raftish streams 1", hashlib.sha256)


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"a nonce has {NONCE_BYTES} bytes")


class Initiator:
    """START -> hello() -> CHALLENGED -> prove(challenge) -> DONE"""

    def __init__(self, secret: bytes, node: int, peer: int, nonce: bytes) -> None:
        _check_nonce(nonce)
        self._key = _key(secret)
        self._hello = _HELLO.pack(_MAGIC, VERSION, node, peer, nonce)
        self._state: Literal["START", "CHALLENGED", "DONE"] = "START"

    def hello(self) -> bytes:
        if self._state != "START":
            raise AssertionError(f"a hello in {self._state}")
        self._state = "CHALLENGED"
        return self._hello

    def prove(self, challenge: bytes) -> bytes:
        """The proof to be sent; the acceptor is known to be of the cluster. Raises `HandshakeFailed`."""
        if self._state != "CHALLENGED":
            raise AssertionError(f"a challenge in {self._state}")
        self._state = "DONE"
        if len(challenge) != CHALLENGE_BYTES:
            raise HandshakeFailed(f"a challenge of {len(challenge)} bytes")
        version, nonce, mac = _CHALLENGE.unpack(challenge)
        if version != VERSION:
            raise HandshakeFailed(f"the other side speaks version {version}")
        expected = hmac.digest(self._key, b"acceptor" + self._hello + nonce, hashlib.sha256)
        if not hmac.compare_digest(mac, expected):
            raise HandshakeFailed("the other side does not know the cluster's secret")
        return hmac.digest(self._key, b"initiator" + self._hello + challenge, hashlib.sha256)


class Acceptor:
    """START -> challenge(hello) -> CHALLENGED -> accept(proof) -> DONE"""

    def __init__(self, secret: bytes, node: int, nonce: bytes) -> None:
        _check_nonce(nonce)
        self._key = _key(secret)
        self._node = node
        self._nonce = nonce
        self._peer = -1
        self._expected = b""
        self._state: Literal["START", "CHALLENGED", "DONE"] = "START"

    def challenge(self, hello: bytes) -> bytes:
        """The challenge to be sent. Raises `HandshakeFailed`."""
        if self._state != "START":
            raise AssertionError(f"a hello in {self._state}")
        if len(hello) != HELLO_BYTES:
            raise HandshakeFailed(f"a hello of {len(hello)} bytes")
        magic, version, source, target, _ = _HELLO.unpack(hello)
        if magic != _MAGIC or version != VERSION:
            raise HandshakeFailed("no hello of this version")
        if target != self._node or source == self._node:
            raise HandshakeFailed(f"a hello from {source} to {target}, this is {self._node}")
        mac = hmac.digest(self._key, b"acceptor" + hello + self._nonce, hashlib.sha256)
        challenge = _CHALLENGE.pack(VERSION, self._nonce, mac)
        self._peer = source
        self._expected = hmac.digest(self._key, b"initiator" + hello + challenge, hashlib.sha256)
        self._state = "CHALLENGED"
        return challenge

    def accept(self, proof: bytes) -> int:
        """The id of the node that proved itself. Raises `HandshakeFailed`."""
        if self._state != "CHALLENGED":
            raise AssertionError(f"a proof in {self._state}")
        self._state = "DONE"
        if not hmac.compare_digest(proof, self._expected):
            raise HandshakeFailed("the other side does not know the cluster's secret")
        return self._peer
