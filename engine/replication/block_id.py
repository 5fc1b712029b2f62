"""Block ids: what makes an insert the same insert (`blocks/`, `deduplication_hashes/`).

    <partition id>_<low half>_<high half>        of a SipHash-128

The hash is of the part's data (`hash of files`, see `part_checksums`) or of the token the user gave.
Source: ClickHouse's ReplicatedMergeTree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engine.errors import MalformedEntry
from engine.replication.part_name import is_partition_id
from engine.siphash import siphash128

_BLOCK_ID = re.compile(r"([0-9A-Za-z-]+)_(0|[1-9][0-9]{0,19})_(0|[1-9][0-9]{0,19})\Z", re.ASCII)
_MAX_UINT64 = 2**64 - 1


@dataclass(frozen=True, slots=True, order=True)
class BlockId:
    """One insert's identity in one partition. `str()` is the znode's name."""

    partition_id: str
    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.partition_id}_{self.low}_{self.high}"

    @classmethod
    def of_token(cls, partition_id: str, token: str) -> BlockId:
        """From `insert_deduplication_token`, as servers from 22.1 on without unified hashes."""
        return cls.of_bytes(partition_id, token.encode("utf-8", "surrogateescape"))

    @classmethod
    def of_bytes(cls, partition_id: str, data: bytes) -> BlockId:
        """From whatever identifies the insert."""
        if not is_partition_id(partition_id):
            raise ValueError(f"{partition_id!r} is no partition id")
        return cls(partition_id, *siphash128(data))

    @classmethod
    def parse(cls, text: str, *, where: str = "") -> BlockId:
        """Raises MalformedEntry."""
        match = _BLOCK_ID.match(text)
        if not match or not is_partition_id(match.group(1)):
            raise MalformedEntry(f"Not a block id: {text[:200]!r}", where=where)
        block_id = cls(match.group(1), int(match.group(2)), int(match.group(3)))
        if max(block_id.low, block_id.high) > _MAX_UINT64:
            raise MalformedEntry(f"Not a block id: {text[:200]!r}", where=where)
        return block_id
