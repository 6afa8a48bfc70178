"""Reading a segment from its bytes alone: entry by entry, until something is no entry.

Guarantee: an entry that comes out is whole (both CRCs hold) and is what its header says; where the scan
stops, it says whether clean space, an unfinished footer or something torn lies there, and whether a valid
entry further on proves that the place had been durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from storage.disk import File
from storage.format import (
    BARE_FLAGS,
    END_FLAG,
    ENTRY,
    ENTRY_HEADER_BYTES,
    ENTRY_MAGIC,
    HeaderBlock,
    decode_bare,
    encode_end_mark,
    entry_is_valid,
)
from storage.zeros import used_bytes
from wire.batch import BATCH_HEADER_SIZE, BatchHeader, check_crc, parse_header
from wire.errors import KafkaError

CHUNK_BYTES: Final = 4 << 20
_MAGIC_BYTES: Final = ENTRY_MAGIC.to_bytes(2, "big")
_MAGIC_AT: Final = 4


class ScannedEntry(NamedTuple):
    """An entry as found. `size` is that of the batch, without the entry's header."""

    position: int
    partition: int
    term: int
    txn_seq: int
    durable: int
    """What the writer knew to be durable in this file; 0 says: not even all of the parents."""
    size: int
    header: BatchHeader

    @property
    def end(self) -> int:
        return self.position + ENTRY_HEADER_BYTES + self.size


class BareEntry(NamedTuple):
    """An entry of no partition (replicated ranges). `size` is that of its body, without the entry's header."""

    position: int
    flag: int
    term: int
    durable: int
    size: int
    payload: bytes

    @property
    def end(self) -> int:
        return self.position + ENTRY_HEADER_BYTES + self.size


class Rest(NamedTuple):
    """What lies where the entries end, at `position`."""

    position: int
    dropped: int
    """Bytes from there to the last one that is not zero."""
    reason: str
    """Empty when there is nothing (zeros or the end of the file); else why it is no entry."""
    ended: bool
    """The file was complete: an end mark stands here, whole or torn, and at most the rest of a footer behind
    it."""
    proof: int
    """The position of a valid entry beyond that says this place was durable; 0 without one."""
    claim: int
    """The highest durable position that any entry beyond claims."""


class Scanner:
    """Walks the entries of one file from `position` up to `limit`. After the iteration `position` is where
    they end, and `rest()` looks at what is there."""

    def __init__(self, file: File, header: HeaderBlock, position: int, limit: int) -> None:
        self.position = position
        self.reason = ""
        self.ended = False
        self._file = file
        self._header = header
        self._salt = header.salt
        self._guarded_bytes = header.guarded_bytes
        self._limit = limit
        self._chunk = memoryview(b"")
        self._chunk_at = position

    def __iter__(self) -> Iterator[ScannedEntry]:
        for entry in self.all():
            if isinstance(entry, ScannedEntry):
                yield entry

    def all(self) -> Iterator[ScannedEntry | BareEntry]:
        """With those of no partition."""
        while (entry := self._next()) is not None:
            yield entry
            self.position = entry.end

    def _bytes(self, position: int, size: int) -> memoryview:
        """`size` bytes at `position`, fewer at the limit."""
        start = position - self._chunk_at
        if start < 0 or start + size > len(self._chunk):
            want = min(max(size, CHUNK_BYTES), self._limit - position)
            self._chunk = memoryview(self._file.pread(want, position)) if want > 0 else memoryview(b"")
            self._chunk_at = position
            start = 0
        return self._chunk[start : start + size]

    def _next(self) -> ScannedEntry | BareEntry | None:
        position = self.position
        guarded = self._bytes(position, self._guarded_bytes)
        if len(guarded) < self._guarded_bytes or not entry_is_valid(guarded, self._salt, position):
            self.reason = "no valid entry header"
            return None
        _, _, flags, size, partition, term, txn_seq, durable = ENTRY.unpack_from(guarded, 0)
        if flags in BARE_FLAGS:
            payload = decode_bare(self._bytes(position + ENTRY_HEADER_BYTES, size))
            if payload is None:
                self.reason = "an entry of no partition is damaged"
                return None
            return BareEntry(position, flags, term, durable, size, payload)
        if flags:
            self.ended = flags == END_FLAG
            self.reason = f"an entry with flags {flags}"
            return None
        if size < BATCH_HEADER_SIZE:
            self.reason = f"an entry of {size} bytes is too small for a batch"
            return None
        batch = self._bytes(position + ENTRY_HEADER_BYTES, size)
        if len(batch) < size:
            self.reason = "the entry runs past the end of the file"
            return None
        try:
            header = parse_header(batch)
            if header.size_bytes != size or header.leader_epoch != term:
                self.reason = "the entry and its batch contradict each other"
                return None
            check_crc(batch, header)
        except KafkaError as error:
            self.reason = f"the batch is damaged ({error.message})"
            return None
        return ScannedEntry(position, partition, term, txn_seq, durable, size, header)

    def rest(self) -> Rest:
        """Look at everything from where the entries end. Reads the whole rest of the file."""
        last_byte = self.position
        proof = claim = 0
        at = self.position
        while at < self._limit:
            # Chunks overlap, so that a header across the border is found whole in one of them.
            data = self._file.pread(min(CHUNK_BYTES, self._limit - at), at)
            used = used_bytes(data)
            if used:
                last_byte = max(last_byte, at + used)
                for found, durable in self._claims(data, at):
                    if durable > self.position and not proof:
                        proof = found
                    claim = max(claim, durable)
            if not data or at + len(data) >= self._limit:
                break
            at += len(data) - (self._guarded_bytes - 1)
        dropped = last_byte - self.position
        ended = self.ended or (dropped > 0 and self._is_torn_end_mark(dropped))
        reason = self.reason if dropped and not ended else ""
        return Rest(self.position, dropped, reason, ended, proof, claim)

    def _is_torn_end_mark(self, dropped: int) -> bool:
        """Whether all there is are some bytes of the end mark that belongs here."""
        expected = encode_end_mark(self._header, self.position)
        found = bytes(self._bytes(self.position, len(expected)))
        return dropped <= len(expected) and all(
            byte in (0, wanted) for byte, wanted in zip(found, expected, strict=False)
        )

    def _claims(self, data: bytes, at: int) -> Iterator[tuple[int, int]]:
        """(position, durable position claimed) of every valid entry header that starts in these bytes."""
        view = memoryview(data)
        size = self._guarded_bytes
        found = data.find(_MAGIC_BYTES)
        while found >= 0:
            start = found - _MAGIC_AT
            if start >= 0 and start + size <= len(data) and at + start > self.position:
                guarded = view[start : start + size]
                if entry_is_valid(guarded, self._salt, at + start):
                    yield at + start, ENTRY.unpack_from(guarded, 0)[7]
            found = data.find(_MAGIC_BYTES, found + 1)
