"""SipHash-2-4 with a zero key and a result of 128 bits, as ClickHouse hashes columns, parts and block ids.

Pure Python: about 1 µs per byte. It hashes names and checksums, never rows. The same function in SQL is
`sipHash128`.
"""

from __future__ import annotations

import struct

_MASK = (1 << 64) - 1


def siphash128(data: bytes) -> tuple[int, int]:
    """The low and the high half. In files and znodes they stand in this order, each little-endian."""
    v0, v1 = 0x736F6D6570736575, 0x646F72616E646F6D
    v2, v3 = 0x6C7967656E657261, 0x7465646279746573
    whole = len(data) & ~7
    tail = int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56
    for word in (*struct.unpack_from(f"<{whole // 8}Q", data), tail):
        v3 ^= word
        v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, 2)
        v0 ^= word
    v2 ^= 0xFF
    v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, 4)
    return v0 ^ v1, v2 ^ v3


def siphash128_bytes(data: bytes) -> bytes:
    """The 16 bytes as they stand in files and znodes."""
    return struct.pack("<QQ", *siphash128(data))


def _rounds(v0: int, v1: int, v2: int, v3: int, count: int) -> tuple[int, int, int, int]:
    for _ in range(count):
        v0 = (v0 + v1) & _MASK
        v2 = (v2 + v3) & _MASK
        v1 = (v1 << 13 & _MASK | v1 >> 51) ^ v0
        v3 = (v3 << 16 & _MASK | v3 >> 48) ^ v2
        v0 = v0 << 32 & _MASK | v0 >> 32
        v2 = (v2 + v1) & _MASK
        v0 = (v0 + v3) & _MASK
        v1 = (v1 << 17 & _MASK | v1 >> 47) ^ v2
        v3 = (v3 << 21 & _MASK | v3 >> 43) ^ v0
        v2 = v2 << 32 & _MASK | v2 >> 32
    return v0, v1, v2, v3
