"""Kafka's compressions, with a bound on what they may unpack to.

Guarantee: `decompress` never holds more than `max_bytes` of output, whatever the data claims or hides: a bomb
is a KafkaError(CORRUPT_MESSAGE), like data that is damaged. What `compress` writes, every client reads.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import cramjam

from wire.batch import (
    COMPRESSION_GZIP,
    COMPRESSION_LZ4,
    COMPRESSION_NONE,
    COMPRESSION_SNAPPY,
    COMPRESSION_ZSTD,
)
from wire.errors import ErrorCode, KafkaError

_STREAMS: Final[dict[int, Any]] = {
    COMPRESSION_GZIP: cramjam.gzip,
    COMPRESSION_LZ4: cramjam.lz4,
    COMPRESSION_ZSTD: cramjam.zstd,
}
_FIRST_OUTPUT: Final = 64 * 1024
# How the library says that the output buffer was too small, the only error worth a larger one.
_OUTPUT_FULL: Final = "failed to write whole buffer"

# snappy-java's stream format, which the Java client writes: this header, then length-prefixed raw blocks.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_SIZE: Final = 16
_XERIAL_VERSIONS: Final = struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_SIZE: Final = 32 * 1024
_LENGTH: Final = struct.Struct(">i")


def decompress(compression: int, data: bytes | memoryview, max_bytes: int) -> bytes:
    """Unpack the records section of a batch.

    Raises KafkaError: CORRUPT_MESSAGE for damaged data and for more than `max_bytes` of output,
    UNSUPPORTED_COMPRESSION_TYPE for an unknown number.
    """
    if compression == COMPRESSION_NONE:
        return bytes(data)
    if compression == COMPRESSION_SNAPPY:
        return _decompress_snappy(bytes(data), max_bytes)
    codec = _STREAMS.get(compression)
    if codec is None:
        raise KafkaError(ErrorCode.unsupported_compression_type, f"compression type {compression}")
    size = min(max(_FIRST_OUTPUT, 4 * len(data)), max_bytes)
    while True:
        # The output size is ours, never the data's: growing by steps costs a third more work at the most.
        output = bytearray(size)
        try:
            written = codec.decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise _corrupt(f"records do not decompress: {error}") from None
            if size >= max_bytes:
                raise _too_large(max_bytes) from None
            size = min(size * 4, max_bytes)
            continue
        return bytes(memoryview(output)[:written])


def _decompress_snappy(data: bytes, max_bytes: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _decompress_snappy_block(data, max_bytes)
    position = _XERIAL_HEADER_SIZE
    if len(data) < position:
        raise _corrupt("snappy stream header cut off")
    blocks: list[bytes] = []
    left = max_bytes
    while position < len(data):
        if len(data) - position < _LENGTH.size:
            raise _corrupt("snappy block length cut off")
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        if not 0 <= length <= len(data) - position:
            raise _corrupt(f"snappy block of {length} bytes with {len(data) - position} left")
        block = _decompress_snappy_block(data[position : position + length], left)
        left -= len(block)
        blocks.append(block)
        position += length
    return b"".join(blocks)


def _decompress_snappy_block(data: bytes, max_bytes: int) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(data) > max_bytes:
            raise _too_large(max_bytes)
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise _corrupt(f"records do not decompress: {error}") from None


def compress(compression: int, data: bytes) -> bytes:
    """Pack a records section. ValueError for an unknown compression."""
    if compression == COMPRESSION_NONE:
        return data
    if compression == COMPRESSION_GZIP:
        return bytes(cramjam.gzip.compress(data))
    if compression == COMPRESSION_SNAPPY:
        return _compress_snappy(data)
    if compression == COMPRESSION_LZ4:
        # The Java client refuses frames whose blocks depend on each other.
        lz4 = cramjam.lz4.Compressor(block_linked=False)
        lz4.compress(data)
        return bytes(lz4.finish())
    if compression == COMPRESSION_ZSTD:
        return bytes(cramjam.zstd.compress(data))
    raise ValueError(f"unknown compression type {compression}")


def _compress_snappy(data: bytes) -> bytes:
    out = bytearray(_XERIAL_MAGIC + _XERIAL_VERSIONS)
    for start in range(0, len(data), _XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_SIZE]))
        out += _LENGTH.pack(len(block)) + block
    return bytes(out)


def _too_large(max_bytes: int) -> KafkaError:
    return _corrupt(f"records decompress to more than {max_bytes} bytes")


def _corrupt(message: str) -> KafkaError:
    return KafkaError(ErrorCode.corrupt_message, message)
