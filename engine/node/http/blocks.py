"""ClickHouse's own compression: `compress=1` for results, `decompress=1` for request bodies.

A block is: CityHash128 of all that follows (16 bytes), method (1 byte: 0x82 LZ4, 0x90 ZSTD, 0x02 none), size
of the block with these 9 bytes and without the hash (UInt32), size decompressed (UInt32), data.
Little-endian. Sizes are bounded before anything is read.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator

import lz4.block
import zstandard

from engine.errors import Code, SqlError
from engine.replication.cityhash import city_hash_128

_LZ4, _ZSTD, _NONE = 0x82, 0x90, 0x02
_HEADER = struct.Struct("<BII")
_HASH_BYTES = 16
_UNKNOWN_SIZE = -1
"""Of a ZSTD frame that does not say how much is in it."""
MAX_BLOCK_BYTES = 0x40000000
"""ClickHouse's limit, 1 GiB."""


def compress_block(data: bytes) -> bytes:
    """One LZ4 block. `data` should be about 1 MiB or less."""
    packed: bytes = lz4.block.compress(data, store_size=False)
    body = _HEADER.pack(_LZ4, len(packed) + _HEADER.size, len(data)) + packed
    return city_hash_128(body) + body


def decompress_block(block: bytes) -> bytes:
    """The inverse, of one whole block with its hash. Raises SqlError 40, 89 or 271."""
    digest, body = block[:_HASH_BYTES], block[_HASH_BYTES:]
    if city_hash_128(body) != digest:
        raise SqlError(Code.CHECKSUM_DOESNT_MATCH, "Checksum doesn't match: corrupted data.")
    method, _, size = _HEADER.unpack_from(body)
    packed = body[_HEADER.size :]
    try:
        match method:
            case 0x82:
                data = bytes(lz4.block.decompress(packed, uncompressed_size=size))
            case 0x90:
                # The decompressor would take a size from the frame, which nobody has bounded, before ours.
                if zstandard.frame_content_size(packed) not in (size, _UNKNOWN_SIZE):
                    raise _cannot_decompress(f"the frame has another size than {size}")
                data = zstandard.ZstdDecompressor().decompress(packed, max_output_size=size)
            case 0x02:
                data = packed
            case _:
                raise SqlError(Code.UNKNOWN_COMPRESSION_METHOD, f"Unknown compression method: {method}")
    except (lz4.block.LZ4BlockError, zstandard.ZstdError) as error:
        raise _cannot_decompress(str(error)) from None
    if len(data) != size:
        raise _cannot_decompress(f"{len(data)} bytes came out, not {size}")
    return data


def _cannot_decompress(why: str) -> SqlError:
    return SqlError(Code.CANNOT_DECOMPRESS, f"Cannot decompress: {why}")


async def decompressed(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of a stream of blocks. Raises SqlError 33 where it ends within one, 39 for absurd sizes."""
    buffer = bytearray()
    header_bytes = _HASH_BYTES + _HEADER.size
    async for chunk in chunks:
        buffer += chunk
        while len(buffer) >= header_bytes:
            _, size, whole_size = _HEADER.unpack_from(buffer, _HASH_BYTES)
            if not _HEADER.size <= size <= MAX_BLOCK_BYTES or whole_size > MAX_BLOCK_BYTES:
                raise SqlError(
                    Code.TOO_LARGE_SIZE_COMPRESSED,
                    f"Too large size_compressed_without_checksum: {size}. Most likely corrupted data.",
                )
            if len(buffer) < _HASH_BYTES + size:
                break
            block = bytes(buffer[: _HASH_BYTES + size])
            del buffer[: _HASH_BYTES + size]
            yield decompress_block(block)
    if buffer:
        raise SqlError(
            Code.CANNOT_READ_ALL_DATA,
            f"Cannot read all data: a compressed block ends after {len(buffer)} bytes",
        )
