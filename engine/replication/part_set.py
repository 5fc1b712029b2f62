"""A set of parts of which none contains another: the active parts of a replica, or the parts it will have.
And which of any parts contain others.

Source: ClickHouse's ActiveDataPartSet.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from engine.errors import Code, Corrupt
from engine.replication.part_name import PartName

_BY_MIN_BLOCK = attrgetter("min_block")


@dataclass(frozen=True, slots=True)
class Added:
    """What `add` did: `replaced` are the parts that the new one covers and that left the set."""

    replaced: tuple[PartName, ...]


@dataclass(frozen=True, slots=True)
class Covered:
    """What `add` found: `by` is in the set and contains (or is) the part, which was not added."""

    by: PartName


class PartsIntersect(Corrupt):
    """Two parts share block numbers and neither contains the other: no history of merges leads there."""

    default_code = Code.LOGICAL_ERROR

    def __init__(self, part: PartName, other: PartName) -> None:
        super().__init__(f"Part {part} intersects part {other}, and neither contains the other.")
        self.part = part
        self.other = other


class ActivePartSet:
    """Parts by partition, in the order of their blocks; ranges never overlap.

    Looking up is O(log n) in the parts of the partition; adding and removing moves a list.
    """

    __slots__ = ("_partitions", "_size")

    def __init__(self, parts: Iterable[PartName] = ()) -> None:
        """Raises PartsIntersect. Covered parts are left out, in whatever order they come."""
        self._partitions: dict[str, list[PartName]] = {}
        self._size = 0
        for part in parts:
            self.add(part)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[PartName]:
        for partition_id in sorted(self._partitions):
            yield from self._partitions[partition_id]

    def __contains__(self, part: PartName) -> bool:
        return self.get_containing(part) == part

    @property
    def partition_ids(self) -> tuple[str, ...]:
        return tuple(sorted(self._partitions))

    def in_partition(self, partition_id: str) -> tuple[PartName, ...]:
        return tuple(self._partitions.get(partition_id, ()))

    def copy(self) -> ActivePartSet:
        """A set of its own with the same parts."""
        twin = ActivePartSet()
        twin._partitions = {partition_id: list(parts) for partition_id, parts in self._partitions.items()}
        twin._size = self._size
        return twin

    def add(self, part: PartName) -> Added | Covered:
        """Put `part` in the place of all it contains, unless a part contains it.

        Raises PartsIntersect, and has changed nothing then.
        """
        parts = self._partitions.get(part.partition_id, [])
        start, end = self._overlap(parts, part)
        for other in parts[start:end]:
            if other.contains(part):
                return Covered(other)
            if not part.contains(other):
                raise PartsIntersect(part, other)
        replaced = tuple(parts[start:end])
        parts[start:end] = [part]
        self._partitions[part.partition_id] = parts
        self._size += 1 - len(replaced)
        return Added(replaced)

    def remove(self, part: PartName) -> bool:
        """Take out exactly this part; False if it is not in the set."""
        parts = self._partitions.get(part.partition_id, [])
        at = bisect.bisect_left(parts, part.min_block, key=_BY_MIN_BLOCK)
        if at == len(parts) or parts[at] != part:
            return False
        self._cut(part.partition_id, at, at + 1)
        return True

    def remove_covered_by(self, part: PartName) -> tuple[PartName, ...]:
        """Take out and return all parts that `part` (usually a drop range) contains."""
        removed = self.parts_covered_by(part)
        for each in removed:
            self.remove(each)
        return removed

    def get_containing(self, part: PartName) -> PartName | None:
        """The part that contains `part` or is it."""
        parts = self._partitions.get(part.partition_id, [])
        at = bisect.bisect_right(parts, part.min_block, key=_BY_MIN_BLOCK) - 1
        return parts[at] if at >= 0 and parts[at].contains(part) else None

    def parts_covered_by(self, part: PartName) -> tuple[PartName, ...]:
        """All parts that `part` contains, itself included."""
        return tuple(other for other in self.intersecting(part) if part.contains(other))

    def intersecting(self, part: PartName) -> tuple[PartName, ...]:
        """All parts with a block number of `part`'s."""
        parts = self._partitions.get(part.partition_id, [])
        start, end = self._overlap(parts, part)
        return tuple(parts[start:end])

    def _cut(self, partition_id: str, start: int, end: int) -> None:
        parts = self._partitions[partition_id]
        del parts[start:end]
        self._size -= end - start
        if not parts:
            del self._partitions[partition_id]

    @staticmethod
    def _overlap(parts: list[PartName], part: PartName) -> tuple[int, int]:
        """Bounds of the parts that intersect `part`; ranges are disjoint, so they are neighbours."""
        end = bisect.bisect_right(parts, part.max_block, key=_BY_MIN_BLOCK)
        start = bisect.bisect_left(parts, part.min_block, 0, end, key=_BY_MIN_BLOCK)
        if start and parts[start - 1].max_block >= part.min_block:
            start -= 1
        return start, end


def containing(names: Iterable[PartName], part: PartName) -> PartName | None:
    """One of `names` that contains `part`, or is it."""
    partition_id = part.partition_id  # most names are of others, and a call costs ten times as much
    return next((name for name in names if name.partition_id == partition_id and name.contains(part)), None)


def covered(names: Iterable[PartName]) -> list[PartName]:
    """Those of `names` that another one contains, in order. They may intersect as they like."""
    outer: list[PartName] = []
    """Those before, from the widest on, that may contain what comes."""
    found: list[PartName] = []
    for name in sorted(set(names), key=_widest_first):
        while outer and not (
            outer[-1].partition_id == name.partition_id and outer[-1].max_block >= name.min_block
        ):
            outer.pop()
        if containing(outer, name) is not None:
            found.append(name)
        outer.append(name)
    return sorted(found)


def _widest_first(name: PartName) -> tuple[str, int, int, int, int]:
    return name.partition_id, name.min_block, -name.max_block, -name.level, -name.mutation
