"""What Keeper knows of a part (`parts/<part>`): a hash of its columns, and the digest of its files.

Source: ClickHouse's ReplicatedMergeTree. 18.16 keeps the same in two children, `columns` and `checksums`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from engine.replication.part_checksums import HASH_BYTES, PartDigest
from engine.replication.varint import BinaryReader
from engine.siphash import siphash128_bytes

_MAX_CACHED_BYTES = 16 << 10
_HEADER = b"part header format version: 1\n"


@dataclass(frozen=True, slots=True)
class PartHeader:
    """`columns_hash` is the SipHash-128 (16 bytes) of the part's columns as text, see `columns.Columns`."""

    columns_hash: bytes
    digest: PartDigest

    @classmethod
    def of(cls, columns: bytes, digest: PartDigest) -> PartHeader:
        """`columns` is the text of the part's `columns.txt`."""
        return cls(_columns_hash(columns), digest)

    def to_bytes(self) -> bytes:
        return _HEADER + self.columns_hash + self.digest.body()

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = "") -> PartHeader:
        """Raises MalformedEntry."""
        reader = BinaryReader(data, where=where)
        reader.expect(_HEADER)
        return cls(reader.take(HASH_BYTES), PartDigest.read(reader))


def _columns_hash(columns: bytes) -> bytes:
    return _of_small(columns) if len(columns) <= _MAX_CACHED_BYTES else siphash128_bytes(columns)


@functools.lru_cache(maxsize=64)
def _of_small(columns: bytes) -> bytes:
    """All parts of a table have the same columns, until the next ALTER."""
    return siphash128_bytes(columns)
