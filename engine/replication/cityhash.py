"""CityHash128 as of version 1.0.2, the checksum of ClickHouse's compressed blocks.

Block headers of `compress=1` and `decompress=1` need it, and the hashes of a part's small files; no kept
library has this version. About 20 MB/s. Checked against the blocks in chDB's own data files
(`tests/unit/test_node_blocks.py`).
"""

from __future__ import annotations

import struct

_MASK = (1 << 64) - 1
_K0, _K1, _K2, _K3 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F, 0xC949D7C7509E6557
_MIX = 0x9DDFEA08EB382D69
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_WORDS16 = struct.Struct("<16Q")
_WORDS4 = struct.Struct("<4Q")


def _word(data: bytes, at: int) -> int:
    return int(_U64.unpack_from(data, at)[0])


def _rotate(value: int, by: int) -> int:
    value &= _MASK
    return (value >> by | value << (64 - by)) & _MASK


def _shift_mix(value: int) -> int:
    value &= _MASK
    return value ^ value >> 47


def _mix(low: int, high: int) -> int:
    """Two words into one."""
    a = _shift_mix((low ^ high) * _MIX)
    b = _shift_mix((high ^ a) * _MIX)
    return b * _MIX & _MASK


def _short(data: bytes, start: int, size: int) -> int:
    """Up to 16 bytes into one word."""
    if size > 8:
        a, b = _word(data, start), _word(data, start + size - 8)
        return _mix(a, _rotate(b + size, size)) ^ b
    if size >= 4:
        a = _U32.unpack_from(data, start)[0]
        return _mix(size + (a << 3), _U32.unpack_from(data, start + size - 4)[0])
    if size > 0:
        y = data[start] + (data[start + size // 2] << 8)
        z = size + (data[start + size - 1] << 2)
        return _shift_mix(y * _K2 ^ z * _K3) * _K2 & _MASK
    return _K2


def _weak(words: tuple[int, int, int, int], a: int, b: int) -> tuple[int, int]:
    """Four words and two seeds into two words."""
    first, second, third, fourth = words
    a += first
    b = _rotate(b + a + fourth, 21)
    c = a
    a += second + third
    b += _rotate(a, 44)
    return (a + fourth) & _MASK, (b + c) & _MASK


def _up_to_127(data: bytes, start: int, size: int, a: int, b: int) -> tuple[int, int]:
    if size <= 16:
        a = _shift_mix(a * _K1) * _K1 & _MASK
        c = (b * _K1 + _short(data, start, size)) & _MASK
        d = _shift_mix(a + (_word(data, start) if size >= 8 else c))
    else:
        c = _mix((_word(data, start + size - 8) + _K1) & _MASK, a)
        d = _mix((b + size) & _MASK, (c + _word(data, start + size - 16)) & _MASK)
        a = (a + d) & _MASK
        for at in range(start, start + size - 16, 16):
            a = (a ^ _shift_mix(_word(data, at) * _K1) * _K1 & _MASK) * _K1 & _MASK
            b ^= a
            c = (c ^ _shift_mix(_word(data, at + 8) * _K1) * _K1 & _MASK) * _K1 & _MASK
            d ^= c
    a = _mix(a, c)
    b = _mix(d, b)
    return a ^ b, _mix(b, a)


def _long(data: bytes, start: int, size: int, x: int, y: int) -> tuple[int, int]:
    z = size * _K1 & _MASK
    v0 = (_rotate(y ^ _K1, 49) * _K1 + _word(data, start)) & _MASK
    v1 = (_rotate(v0, 42) * _K1 + _word(data, start + 8)) & _MASK
    w0 = (_rotate(y + z, 35) * _K1 + x) & _MASK
    w1 = _rotate(x + _word(data, start + 88), 53) * _K1 & _MASK
    whole = size // 128 * 128
    for at in range(start, start + whole, 128):
        words = _WORDS16.unpack_from(data, at)
        for half in (words[:8], words[8:]):
            x = _rotate(x + y + v0 + half[2], 37) * _K1 & _MASK ^ w1
            y = _rotate(y + v1 + half[6], 42) * _K1 & _MASK ^ v0
            z = _rotate(z ^ w0, 33)
            v0, v1 = _weak(half[:4], v1 * _K1, x + w0)
            w0, w1 = _weak(half[4:], z + w1, y)
            x, z = z, x
    y = (y + _rotate(w0, 37) * _K0 + z) & _MASK
    x = (x + _rotate(v0 + z, 49) * _K0) & _MASK
    end = start + size
    for done in range(32, size - whole + 32, 32):
        y = (_rotate(y - x, 42) * _K0 + v1) & _MASK
        w0 = (w0 + _word(data, end - done + 16)) & _MASK
        x = (_rotate(x, 49) * _K0 + w0) & _MASK
        w0 = (w0 + v0) & _MASK
        v0, v1 = _weak(_WORDS4.unpack_from(data, end - done), v0, v1)
    x = _mix(x, v0)
    y = _mix(y, w0)
    return (_mix((x + v1) & _MASK, w1) + y) & _MASK, _mix((x + w1) & _MASK, (y + v1) & _MASK)


def city_hash_128(data: bytes) -> bytes:
    """The hash as 16 bytes, lower word first, as it stands before a compressed block."""
    size = len(data)
    if size >= 16:
        start, a, b = 16, _word(data, 0) ^ _K3, _word(data, 8)
    elif size >= 8:
        a, b = _word(data, 0) ^ (size * _K0 & _MASK), _word(data, size - 8) ^ _K1
        start, data, size = 0, b"", 0
    else:
        start, a, b = 0, _K0, _K1
    rest = size - start
    low, high = (_long if rest >= 128 else _up_to_127)(data, start, rest, a, b)
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")


def city_hash_128_with_seed(data: bytes, low: int, high: int) -> tuple[int, int]:
    """The hash with a seed of two words, as two words: how ClickHouse chains the blocks of a file."""
    size = len(data)
    return (_long if size >= 128 else _up_to_127)(data, 0, size, low, high)
