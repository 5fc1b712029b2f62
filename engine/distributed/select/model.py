"""What the planner of distributed SELECTs is told of tables and shards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.names import TableName, quote_identifier, quote_string

SHARD_NUMBER = "_shard_num"
SHARD_NUMBER_TYPE = "UInt32"
ALIAS = "__table1"


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """`is_hidden`: `*` leaves it out (MATERIALIZED, ALIAS and virtual columns). `value` is SQL for it on a
    shard, where that is not a column of the shard's table."""

    name: str
    type: str
    is_hidden: bool = False
    value: str = ""


ALIAS_PLACE = "\x00alias\x00"
"""Stands in a column's value for what the shard's table is called."""
SHARD_PLACE = "\x00shard\x00"
"""Stands for the number of the shard in the texts of a RemoteSelect."""
SHARDS_PLACE = "\x00shards\x00"
"""Stands for how many shards there are."""
OF_SHARDS = SourceColumn(SHARD_NUMBER, SHARD_NUMBER_TYPE, True, SHARD_PLACE)
_NAME_TYPE = "LowCardinality(String)"
_OF_PARTS = {
    "_part": _NAME_TYPE,
    "_part_index": "UInt64",
    "_part_uuid": "UUID",
    "_part_offset": "UInt64",
    "_part_starting_offset": "UInt64",
    "_part_granule_offset": "UInt64",
    "_part_data_version": "UInt64",
    "_partition_id": _NAME_TYPE,
    "_sample_factor": "Float64",
    "_row_exists": "UInt8",
    "_block_number": "UInt64",
    "_block_offset": "UInt64",
    "_disk_name": _NAME_TYPE,
}
"""Of tables of the MergeTree family. Source: MergeTreeData::createVirtuals."""


def virtual_columns(name: TableName | None = None) -> tuple[SourceColumn, ...]:
    """Those of a Distributed table of this name, or without one, of a shard's own table."""
    of_table = [
        SourceColumn(column, _NAME_TYPE, True, f"CAST({quote_string(text)}, '{_NAME_TYPE}')" if text else "")
        for column, text in (
            ("_database", name.database if name else ""),
            ("_table", name.table if name else ""),
        )
    ]
    of_parts = [SourceColumn(column, type_, True) for column, type_ in _OF_PARTS.items()]
    return (OF_SHARDS, *of_table, *of_parts)


TABLE_PLACE = "\x00table\x00"
"""Stands for the table in a RemoteSelect's block."""
READ_WITH_PLACE = "\x00read with\x00"
"""Stands behind it for FINAL, SAMPLE and PREWHERE."""


@dataclass(frozen=True, slots=True)
class OtherTable:
    """Another Distributed table in a RemoteSelect's block: its number in the statement, and all it has."""

    slot: int
    read: RemoteSelect
    modifiers: str = ""
    is_local: bool = False
    """On every shard it is that shard's own table."""

    @staticmethod
    def places(slot: int) -> tuple[str, str]:
        """What stands in the block for the table, and for FINAL and SAMPLE behind its alias."""
        return f"\x00other {slot}\x00", f"\x00modifiers {slot}\x00"

    def text(self, table: str) -> str:
        """What is read where the table is called `table`."""
        read = self.read
        return read.source.replace(TABLE_PLACE, table).replace(READ_WITH_PLACE, read.read_with) or table


ROWS_PLACE = "\x01rows\x01"
"""Stands for the rows of shards in what is made of them here."""


@dataclass(frozen=True, slots=True)
class OfEach:
    """What is made here of the rows of each shard by itself: a SELECT from `ROWS_PLACE`, and its columns. If
    it has totals, those of the first shard count, as in ClickHouse: this node's own, if there is one."""

    select: str
    columns: tuple[SourceColumn, ...]


@dataclass(frozen=True, slots=True)
class RemoteSelect:
    """What one shard is asked. `columns` are the expressions and names of the result, in order.

    `tail` is what stands behind the table: alias, FINAL, SAMPLE, WHERE and so on. A result without columns
    does not exist in SQL, so there is at least one.
    """

    columns: tuple[tuple[str, SourceColumn], ...]
    tail: str = ""
    is_distinct: bool = False
    pruned_by: tuple[str, ...] = field(default=())
    """Conditions that hold for every row of the result, for choosing shards."""
    has_one_row: bool = False
    """The result is one row of values of bounded size, whatever the table holds."""
    is_sum: bool = False
    """With `has_one_row`: the results of several shards are put together by adding them up."""
    block: str = ""
    """A whole query with `TABLE_PLACE` and the places of `others`, which gives the columns."""
    others: tuple[OtherTable, ...] = ()
    source: str = ""
    """A subquery with `TABLE_PLACE` and `READ_WITH_PLACE`, which is read instead of the table."""
    read_with: str = ""
    """FINAL, SAMPLE and PREWHERE for `READ_WITH_PLACE`."""
    of_each: OfEach | None = None

    def sql(
        self, table: str, *, shard_number: int, shards: int = 0, others: Mapping[int, str] | None = None
    ) -> str:
        """The text for a shard, one of so many, where the table is called `table`. `others` are the texts of
        those tables; a subquery has the modifiers already."""
        expressions = ", ".join(f"{text} AS {quote_identifier(column.name)}" for text, column in self.columns)
        distinct = "DISTINCT " if self.is_distinct else ""
        if self.source:
            table = self.source.replace(TABLE_PLACE, table).replace(READ_WITH_PLACE, self.read_with)
        source = f"({self.block})" if self.block else f"{table}{self.tail}"
        for other in self.others:
            place, modifiers = other.places(other.slot)
            text = (others or {})[other.slot]
            source = source.replace(place, text)
            source = source.replace(modifiers, "" if text.startswith("(") else other.modifiers)
        source = source.replace(TABLE_PLACE, table)
        sql = f"SELECT {distinct}{expressions} FROM {source}"
        sql = sql.replace(SHARDS_PLACE, f"toUInt32({shards})")
        return sql.replace(SHARD_PLACE, f"toUInt32({shard_number})")

    @property
    def result(self) -> tuple[SourceColumn, ...]:
        """The columns that the statement reads."""
        return self.of_each.columns if self.of_each else tuple(column for _, column in self.columns)

    @property
    def structure(self) -> str:
        """Names and types as `url()` and `null()` take them."""
        return structure_of(tuple(column for _, column in self.columns))


IS_CHECKED = re.compile(
    r"FixedString\(\d{3,}\)|Variant\(|Nullable\(Tuple\(|\bTime(?:64\(|\b)|LowCardinality\((?!(?:Nullable\()?(?:String\)|FixedString\())"
)
"""A type that chDB may refuse where a user says it: in CREATE, CAST, and the structure of `url()`."""
_IS_NULLABLE = re.compile(r"(?:SimpleAggregateFunction\(\w+, )?Nullable\(")


class TooLong(Exception):
    """The text for a shard is longer than a URL may be. A shorter one has to do."""


class ShardSource(Protocol):
    """How the shards of one table are read."""

    async def table_expression(self, select: RemoteSelect, sources: Sequence[ShardSource] = ()) -> str:
        """A subquery, in brackets, that gives the rows of all shards that are needed. `sources` are those of
        all places of the statement, which `select.others` names.

        Raises TooLong where `select` cannot be sent, SqlError where shards cannot be reached.
        """
        ...


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A Distributed table, or a table function that reads a cluster."""

    columns: Sequence[SourceColumn]
    source: ShardSource
    is_merged: bool = False
    """It reads several tables, and FINAL, SAMPLE and PREWHERE are for each of them."""
    virtuals: Sequence[SourceColumn] = (OF_SHARDS,)
    """Columns that it has where the statement names them."""


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


def structure_of(columns: Sequence[SourceColumn]) -> str:
    """As table functions take it. A type says that it is not Nullable where it can: with the setting
    `data_type_default_nullable` it would be."""
    return ", ".join(
        f"{quote_identifier(column.name)} {column.type}"
        + ("" if _IS_NULLABLE.match(column.type) else " NOT NULL")
        for column in columns
    )


def of_each_shard(select: RemoteSelect, part: str) -> str:
    """A SELECT of what the statement gets of the rows of one shard, which `part` reads."""
    if select.of_each is None:
        return part
    return f"SELECT * FROM ({select.of_each.select.replace(ROWS_PLACE, f'({part})')})"


def union_all(parts: Sequence[str], structure: Sequence[SourceColumn]) -> str:
    """The rows of `parts`, each a SELECT; of none, no rows."""
    if not parts:
        return f"(SELECT * FROM null({quote_string(structure_of(structure))}))"
    return "(" + " UNION ALL ".join(parts) + ")"
