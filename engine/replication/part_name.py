"""Names of data parts and of ranges of parts, and which part contains which.

    <partition id>_<first block>_<last block>_<level>[_<mutation>]

Names arrive from peers and from Keeper and become directory names: they are parsed by grammar, and what
`str()` gives back is what was parsed, so that a name can be neither a path nor two spellings of one part.

Source: ClickHouse's MergeTreePartInfo.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from engine.errors import Code, SqlError

MAX_LEVEL = 999_999_999
MAX_BLOCK_NUMBER = 999_999_999
LEGACY_MAX_LEVEL = 4_294_967_295
"""The level of drop ranges in REPLACE_RANGE entries of old servers; a range that has it keeps it."""

_MAX_INT64 = 2**63 - 1
_MAX_PARTITION_ID_CHARS = (
    128  # a hash is 32, a tuple of eight 64-bit numbers is 160 at most and 40 in practice
)
_PATCH_PREFIX = "patch-"
_NUMBER = r"(0|[1-9][0-9]{0,18})"
_PARTITION_ID = re.compile(r"[0-9A-Za-z-]+\Z", re.ASCII)
_NAME = re.compile(rf"([0-9A-Za-z-]+)_{_NUMBER}_{_NUMBER}_{_NUMBER}(?:_([1-9][0-9]{{0,18}}))?\Z", re.ASCII)
_OLD_NAME = re.compile(
    rf"([0-9]{{8}})_([0-9]{{8}})_{_NUMBER}_{_NUMBER}_{_NUMBER}(?:_([1-9][0-9]{{0,18}}))?\Z", re.ASCII
)


def is_partition_id(text: str) -> bool:
    """Whether `text` may stand in a part's name and in a path."""
    return len(text) <= _MAX_PARTITION_ID_CHARS and _PARTITION_ID.match(text) is not None


def is_patch_partition(partition_id: str) -> bool:
    """Whether parts of this partition are patch parts, of which newer servers make some."""
    return partition_id.startswith(_PATCH_PREFIX)


class PartName(NamedTuple):
    """A part, or a range that stands for all parts inside it.

    `min_block` to `max_block`, both included, are block numbers of the inserts in it; `level` is how often
    it was merged; `mutation` is the number of the last mutation applied, 0 if none was. The order is by
    partition, then by blocks. A named tuple, because a replica sorts parts and looks them up in sets all
    the time, and of a dataclass that is slow.
    """

    partition_id: str
    min_block: int
    max_block: int
    level: int
    mutation: int = 0

    def __str__(self) -> str:
        name = f"{self.partition_id}_{self.min_block}_{self.max_block}_{self.level}"
        return f"{name}_{self.mutation}" if self.mutation else name

    @classmethod
    def parse(cls, text: str) -> PartName:
        """Raises SqlError 233 BAD_DATA_PART_NAME for anything but a part's name."""
        return _parsed(text)

    @classmethod
    def try_parse(cls, text: str) -> PartName | None:
        """As `parse`, and None where that raises."""
        try:
            return cls.parse(text)
        except SqlError:
            return None

    @property
    def data_version(self) -> int:
        """What a mutation's number is compared with: the mutation applies to parts with a smaller one."""
        return self.mutation or self.min_block

    @property
    def is_range(self) -> bool:
        """Whether this is no part but a range (of a DROP, DETACH or REPLACE), known by its level."""
        return self.level in (MAX_LEVEL, LEGACY_MAX_LEVEL)

    @property
    def patched_partition(self) -> str:
        """Of a patch part, the partition whose rows it changes (see `replica.patches`); else empty."""
        if not is_patch_partition(self.partition_id):
            return ""
        return self.partition_id.removeprefix(_PATCH_PREFIX).partition("-")[2]

    @property
    def blocks(self) -> int:
        """How many block numbers the range spans."""
        return self.max_block - self.min_block + 1

    def contains(self, other: PartName) -> bool:
        """Whether this part holds all of `other`, or is the same.

        A wider range needs a higher level: `all_0_5_2` does not contain `all_0_4_2`, because no merge made
        the first from the second.
        """
        return (
            self.partition_id == other.partition_id
            and self.min_block <= other.min_block
            and self.max_block >= other.max_block
            and self.level >= other.level
            and self.mutation >= other.mutation
            and (
                self.level > other.level
                or self.is_range
                or (self.min_block == other.min_block and self.max_block == other.max_block)
            )
        )

    def intersects(self, other: PartName) -> bool:
        """Whether the two have a block number in common."""
        return (
            self.partition_id == other.partition_id
            and self.min_block <= other.max_block
            and other.min_block <= self.max_block
        )

    def mutated(self, version: int) -> PartName:
        """The part that mutation `version` makes of this one. Raises ValueError if that is an older one."""
        if version <= self.data_version:
            raise ValueError(f"{self} has data version {self.data_version}; mutation {version} is older")
        return self._replace(mutation=version)


@dataclass(frozen=True, slots=True)
class OldSyntaxName:
    """The name of a part of a table without PARTITION BY clause, of format version 0: by month, with dates.

    `min_date` and `max_date` are YYYYMMDD; the partition id is the month of the first.
    """

    part: PartName
    min_date: str
    max_date: str

    def __str__(self) -> str:
        return f"{self.min_date}_{self.max_date}" + str(self.part)[len(self.part.partition_id) :]

    @classmethod
    def parse(cls, text: str) -> OldSyntaxName:
        """Raises SqlError 233 BAD_DATA_PART_NAME, also for dates of two months."""
        match = _OLD_NAME.match(text)
        if not match or match.group(1)[:6] != match.group(2)[:6] or match.group(1) > match.group(2):
            raise _bad_name(text)
        part = PartName(match.group(1)[:6], *_numbers(match.groups()[2:]))
        return cls(_checked(part, text), match.group(1), match.group(2))


def inserted(partition_id: str, block_number: int, level: int = 0) -> PartName:
    """The part of a fresh insert. It has level 1 if its rows of equal key were merged on the way."""
    return _checked(PartName(partition_id, block_number, block_number, level))


def merged(sources: Iterable[PartName]) -> PartName:
    """The part that a merge of `sources` makes. One source is merged with itself.

    Raises ValueError for no source, sources of several partitions, out of order or overlapping.
    """
    parts = tuple(sources)
    if not parts:
        raise ValueError("a merge needs a source")
    for left, right in itertools.pairwise(parts):
        if left.partition_id != right.partition_id or left.max_block >= right.min_block:
            raise ValueError(f"{left} and {right} are not neighbours in one partition")
    level = max(part.level for part in parts) + 1
    mutation = max(part.mutation for part in parts)
    return PartName(parts[0].partition_id, parts[0].min_block, parts[-1].max_block, level, mutation)


def drop_range(partition_id: str, delimiter: int) -> PartName | None:
    """The range of everything in a partition inserted before block number `delimiter`, which the caller has
    allocated and holds. None when nothing can be there.
    """
    if delimiter <= 0:
        return None
    return PartName(partition_id, 0, delimiter - 1, MAX_LEVEL, MAX_BLOCK_NUMBER)


@functools.lru_cache(maxsize=10_000)
def _parsed(text: str) -> PartName:
    """Kept, because the parts of a replica are listed again and again."""
    match = _NAME.match(text)
    if not match or len(match.group(1)) > _MAX_PARTITION_ID_CHARS:
        raise _bad_name(text)
    return _checked(PartName(match.group(1), *_numbers(match.groups()[1:])), text)


def _numbers(texts: tuple[str | None, ...]) -> tuple[int, ...]:
    return tuple(int(text or "0") for text in texts)


def _checked(part: PartName, text: str | None = None) -> PartName:
    if (
        part.min_block > part.max_block
        or max(part.max_block, part.mutation) > _MAX_INT64
        or part.level > LEGACY_MAX_LEVEL
        or not is_partition_id(part.partition_id)
    ):
        raise _bad_name(str(part) if text is None else text)
    return part


def _bad_name(text: str) -> SqlError:
    shown = text if len(text) <= 200 else f"{text[:200]}…"
    return SqlError(Code.BAD_DATA_PART_NAME, f"Unexpected part name: {shown!r}")
