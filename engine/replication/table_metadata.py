"""What all replicas of a table agree on beside its columns, as text (`metadata`).

Source: ClickHouse's ReplicatedMergeTree. The text of a table made by chDB 4.4 (ClickHouse 26.9) and by
18.16 is written back byte for byte.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from engine.errors import Code, SqlError
from engine.replication.text import FormatReader, encode_bytes

MERGE_PARAMETERS_VERSION = 2


class MergingMode(enum.IntEnum):
    """What a merge does with rows of equal key; the number is what stands in the text."""

    ORDINARY = 0
    COLLAPSING = 1
    SUMMING = 2
    AGGREGATING = 3
    REPLACING = 5
    GRAPHITE = 6
    VERSIONED_COLLAPSING = 7
    COALESCING = 8


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """One table's metadata. Expressions are SQL, lists of expressions without parentheses; empty is absent.

    `primary_key` holds the sorting key where PRIMARY KEY is not given, and `sorting_key` is empty then.
    `partition_key` None marks a table of the old syntax (data format version 0), partitioned by month.
    `merge_parameters_version` 0 marks a text of a server before 24.1, which does not know the last four.
    """

    primary_key: str
    partition_key: str | None = ""
    sorting_key: str = ""
    sampling_expression: str = ""
    mode: MergingMode = MergingMode.ORDINARY
    sign_column: str = ""
    date_column: str = ""
    index_granularity: int = 8192
    index_granularity_bytes: int = 10 * 1024 * 1024
    ttl: str = ""
    indices: str = ""
    projections: str = ""
    constraints: str = ""
    merge_parameters_version: int = MERGE_PARAMETERS_VERSION
    version_column: str = ""
    is_deleted_column: str = ""
    columns_to_sum: str = ""
    graphite_hash: str = ""

    def to_bytes(self) -> bytes:
        lines = [
            "metadata format version: 1",
            f"date column: {self.date_column}",
            f"sampling expression: {self.sampling_expression}",
            f"index granularity: {self.index_granularity}",
            f"mode: {int(self.mode)}",
            f"sign column: {self.sign_column}",
            f"primary key: {self.primary_key}",
        ]
        if self.partition_key is not None:
            lines += ["data format version: 1", f"partition key: {self.partition_key}"]
        for prefix, value in (
            ("sorting key", self.sorting_key),
            ("ttl", self.ttl),
            ("indices", self.indices),
            ("projections", self.projections),
        ):
            if value:
                lines.append(f"{prefix}: {value}")
        if self.index_granularity_bytes:
            lines.append(f"granularity bytes: {self.index_granularity_bytes}")
        if self.constraints:
            lines.append(f"constraints: {self.constraints}")
        if self.merge_parameters_version:
            lines.append(f"merge parameters format version: {self.merge_parameters_version}")
            for prefix, value in (
                ("version column", self.version_column),
                ("is_deleted column", self.is_deleted_column),
                ("columns to sum", self.columns_to_sum),
                ("graphite hash", self.graphite_hash),
            ):
                if value:
                    lines.append(f"{prefix}: {value}")
        return encode_bytes("\n".join(lines) + "\n")

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = "") -> TableMetadata:
        """Raises MalformedEntry: 287 for an unknown version, 27 otherwise."""
        reader = FormatReader.of(data, where=where)

        def optional(prefix: str) -> str:
            return reader.line("", reader.to_line_end) if reader.accept(f"{prefix}: ") else ""

        reader.version("metadata format version: ", known=range(1, 2))
        date_column = reader.line("date column: ", reader.to_line_end)
        sampling = reader.line("sampling expression: ", reader.to_line_end)
        granularity = reader.line("index granularity: ", reader.unsigned)
        mode = _mode(reader, reader.line("mode: ", reader.unsigned))
        sign_column = reader.line("sign column: ", reader.to_line_end)
        primary_key = reader.line("primary key: ", reader.to_line_end)
        partition_key = None
        if not reader.at_end:
            reader.version("data format version: ", known=range(1, 2))
            partition_key = reader.line("partition key: ", reader.to_line_end)
        sorting_key, ttl = optional("sorting key"), optional("ttl")
        indices, projections = optional("indices"), optional("projections")
        granularity_bytes = 0
        if reader.accept("granularity bytes: "):
            granularity_bytes = reader.line("", reader.unsigned)
        constraints = optional("constraints")
        merge_parameters = 0
        if reader.accept("merge parameters format version: "):
            merge_parameters = reader.line("", reader.unsigned)
        metadata = cls(
            primary_key=primary_key,
            partition_key=partition_key,
            sorting_key=sorting_key,
            sampling_expression=sampling,
            mode=mode,
            sign_column=sign_column,
            date_column=date_column,
            index_granularity=granularity,
            index_granularity_bytes=granularity_bytes,
            ttl=ttl,
            indices=indices,
            projections=projections,
            constraints=constraints,
            merge_parameters_version=merge_parameters,
            version_column=optional("version column"),
            is_deleted_column=optional("is_deleted column"),
            columns_to_sum=optional("columns to sum"),
            graphite_hash=optional("graphite hash"),
        )
        reader.end()
        return metadata


def _mode(reader: FormatReader, number: int) -> MergingMode:
    try:
        return MergingMode(number)
    except ValueError:
        raise reader.error(f"unknown merging mode {number}") from None


class Weight(enum.Enum):
    """What a difference between a table and Keeper means."""

    IMMUTABLE = "can never be reconciled"
    ADOPTABLE = "is refused at CREATE, and taken over from Keeper at ATTACH"


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that differs: its name in the text, and both values as text."""

    field: str
    local: str
    stored: str
    weight: Weight


_IMMUTABLE = {
    "date column": "date_column",
    "index granularity": "index_granularity",
    "mode": "mode",
    "sign column": "sign_column",
    "primary key": "primary_key",
    "partition key expression": "partition_key",
}
_MERGE_PARAMETERS = {
    "version column": "version_column",
    "is_deleted column": "is_deleted_column",
    "columns to sum": "columns_to_sum",
    "graphite hash": "graphite_hash",
}
_ADOPTABLE = {
    "sampling expression": "sampling_expression",
    "sorting key": "sorting_key",
    "ttl": "ttl",
    "indices": "indices",
    "projections": "projections",
    "constraints": "constraints",
}


def differences(local: TableMetadata, stored: TableMetadata) -> tuple[Difference, ...]:
    """Where a table's own metadata and those in Keeper differ, immutable fields first."""
    immutable = dict(_IMMUTABLE)
    adoptable = dict(_ADOPTABLE)
    if local.merge_parameters_version and stored.merge_parameters_version:
        immutable |= _MERGE_PARAMETERS
    if stored.index_granularity_bytes:  # servers before 19.x did not write it
        adoptable["index granularity bytes"] = "index_granularity_bytes"
    found: list[Difference] = []
    for weight, fields in ((Weight.IMMUTABLE, immutable), (Weight.ADOPTABLE, adoptable)):
        for field, attribute in fields.items():
            ours, theirs = getattr(local, attribute), getattr(stored, attribute)
            if ours != theirs:
                found.append(Difference(field, _shown(ours), _shown(theirs), weight))
    return tuple(found)


def check_metadata(
    local: TableMetadata, stored: TableMetadata, *, table: str, allowed: frozenset[Weight]
) -> None:
    """Raises SqlError 342 METADATA_MISMATCH for the first difference that is not of an `allowed` weight.

    `table` is for the message. CREATE allows none; ATTACH allows `Weight.ADOPTABLE`.
    """
    for difference in differences(local, stored):
        if difference.weight not in allowed:
            raise SqlError(
                Code.METADATA_MISMATCH,
                f"Metadata of table {table} in ZooKeeper differs in {difference.field}. "
                f"Stored in ZooKeeper: {difference.stored}, local: {difference.local}.",
            )


def _shown(value: object) -> str:
    return "absent" if value is None else str(int(value)) if isinstance(value, int) else str(value)
