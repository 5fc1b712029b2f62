"""What two clusters are compared by, and the steps of switching from one to the other."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.names import TableName
from engine.operations.drift.model import ObjectName, PartDifference

WHOLE_TABLE = ""
"""In the place of a partition where the server cannot tell partitions apart."""


class DataDepth(enum.StrEnum):
    """How closely rows are compared."""

    COUNTS = "counts"
    """Rows of each partition: the server knows them without reading."""

    HASHES = "hashes"
    """And a sum of hashes of all rows of each partition: everything is read."""


@dataclass(frozen=True, slots=True)
class PartitionSum:
    """The rows of one partition over all shards. `row_hash` is the sum of the rows' 64-bit hashes, modulo
    2^64, None where it was not asked for; the order of rows does not matter."""

    rows: int
    row_hash: int | None = None

    def plus(self, other: PartitionSum) -> PartitionSum:
        if self.row_hash is None or other.row_hash is None:
            return PartitionSum(self.rows + other.rows)
        return PartitionSum(self.rows + other.rows, (self.row_hash + other.row_hash) % 2**64)

    def __str__(self) -> str:
        return f"{self.rows} rows" + ("" if self.row_hash is None else f", hash {self.row_hash:016x}")


PartitionSums = Mapping[str, PartitionSum]
"""By partition id, or WHOLE_TABLE."""


@dataclass(frozen=True, slots=True)
class TableData:
    """One table on one cluster. `error` says why its rows are not known."""

    table: TableName
    partitions: PartitionSums
    error: str = ""
    note: str = ""

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.partitions.values())


@dataclass(frozen=True, slots=True)
class SchemaDifference:
    """An object that the standby has not, or has in another form, on the hosts named."""

    object: ObjectName
    hosts: tuple[str, ...]
    parts: tuple[PartDifference, ...] = ()

    @property
    def what(self) -> str:
        where = ", ".join(self.hosts)
        if not self.parts:
            return f"{self.object} is not on {where} of the standby."
        return f"{self.object} differs on {where} of the standby: {'; '.join(map(str, self.parts[:3]))}."

    def to_json(self) -> dict[str, Any]:
        return {
            "object": str(self.object),
            "hosts": list(self.hosts),
            "what": self.what,
            "parts": [part.to_json() for part in self.parts],
        }


@dataclass(frozen=True, slots=True)
class DataDifference:
    """A partition that differs, or a table whose rows could not be compared."""

    table: TableName
    partition: str
    primary: str
    standby: str

    @property
    def what(self) -> str:
        where = f"{self.table}, partition {self.partition}" if self.partition else str(self.table)
        return f"{where}: {self.primary} on the primary, {self.standby} on the standby."

    def to_json(self) -> dict[str, Any]:
        return {
            "table": str(self.table),
            "partition": self.partition,
            "primary": self.primary,
            "standby": self.standby,
        }


@dataclass(frozen=True, slots=True)
class StandbyReport:
    """What the standby lacks. `notes` say what was not compared, and why."""

    primary: str
    standby: str
    depth: DataDepth
    objects: int
    tables: int
    rows: int
    schema: tuple[SchemaDifference, ...]
    data: tuple[DataDifference, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """Nothing is missing, and everything was looked at."""
        return not self.schema and not self.data and not self.problems

    @property
    def lines(self) -> list[str]:
        """Every difference and problem in a sentence."""
        return [*(s.what for s in self.schema), *(d.what for d in self.data), *self.problems]

    def to_json(self) -> dict[str, Any]:
        return {
            "primary": self.primary,
            "standby": self.standby,
            "is_equal": self.is_equal,
            "depth": self.depth.value,
            "objects": self.objects,
            "tables": self.tables,
            "rows": self.rows,
            "schema": [difference.to_json() for difference in self.schema],
            "data": [difference.to_json() for difference in self.data],
            "problems": list(self.problems),
            "notes": list(self.notes),
        }


class StepState(enum.StrEnum):
    """How a step of the switch stands."""

    DONE = "done"
    OPEN = "open"
    UNKNOWN = "not known"
    """It could not be looked at; nobody should go on."""
    BY_HAND = "by hand"
    """Nothing here can see it."""
    LATER = "later"
    """An earlier step is not done, so it was not looked at."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the switch: what has to be so, what is seen, and what to do about it."""

    number: int
    title: str
    state: StepState
    seen: str
    advice: str

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "title": self.title,
            "state": self.state.value,
            "seen": self.seen,
            "advice": self.advice,
        }
