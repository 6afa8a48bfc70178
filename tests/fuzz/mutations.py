"""Changes of bytes by a seed: what a bad disk, a bad client or a bad copy does to them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

INTERESTING = (
    b"\0",
    b"\xff",
    b"\x7f\xff",
    b"\x80\0",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff\x0f",
    b"\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\x80\0\0\0\0\0\0\0",
    bytes(8),
)
"""Numbers at the edges of the protocol's types, zeros, and varints that are too long."""

Change = Callable[[bytearray, random.Random], None]


def flip_bit(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    data[at] ^= 1 << chance.randrange(8)


def set_number(data: bytearray, chance: random.Random) -> None:
    value = chance.choice(INTERESTING)
    at = chance.randrange(len(data))
    data[at : at + len(value)] = value


def nudge(data: bytearray, chance: random.Random) -> None:
    """One more or one less: counts and lengths that are nearly right."""
    at = chance.randrange(len(data))
    data[at] = (data[at] + chance.choice((-2, -1, 1, 2))) & 0xFF


def cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def remove(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    del data[at : at + chance.randint(1, 16)]


def duplicate(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    data[at:at] = data[at : at + chance.choice((1, 4, 16, 64))]


def insert(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data) + 1)
    data[at:at] = chance.choice((*INTERESTING, chance.randbytes(chance.randint(1, 8))))


def zero(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    size = min(chance.choice((1, 8, 512)), len(data) - at)
    data[at : at + size] = bytes(size)


CHANGES: tuple[Change, ...] = (flip_bit, set_number, nudge, cut, remove, duplicate, insert, zero)


def mutated(data: bytes, chance: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """`data` with one to four changes, sometimes spliced with another input first."""
    out = bytearray(data)
    if others and chance.random() < 0.1:
        other = chance.choice(others)
        out[chance.randrange(len(out) + 1) :] = other[chance.randrange(len(other) + 1) :]
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        if out:
            chance.choice(CHANGES)(out, chance)
    return bytes(out)
