"""CityHash128 as of version 1.0.2: the checksum of ClickHouse's compressed blocks and of a part's files.

The package `clickhouse-cityhash` has this version. Checked against the blocks in chDB's own data files
(`tests/node/test_pieces.py`).
"""

from __future__ import annotations

import struct

from clickhouse_cityhash.cityhash import CityHash128

_MASK = (1 << 64) - 1
_K3 = 0xC949D7C7509E6557
_TWO_WORDS = struct.Struct("<QQ")


def city_hash_128(data: bytes) -> bytes:
    """The hash as 16 bytes, lower word first, as it stands before a compressed block."""
    words: int = CityHash128(data)  # the lower word is the upper half of this number
    return _TWO_WORDS.pack(words >> 64, words & _MASK)


def city_hash_128_with_seed(data: bytes, low: int, high: int) -> tuple[int, int]:
    """The hash with a seed of two words, as two words: how ClickHouse chains the blocks of a file.

    The package's function of this name passes over the seed. But of 16 bytes and more CityHash128 makes the
    first two words, one of them XOR a constant, the seed of the rest.
    """
    words: int = CityHash128(_TWO_WORDS.pack(low ^ _K3, high) + data)
    return words >> 64, words & _MASK
