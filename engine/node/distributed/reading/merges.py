"""`merge()` and tables of engine Merge that read Distributed tables, however indirectly.

Such a table is read as one source: of each member the columns that the whole has, with its own types, and
what a member lacks as chDB fills it in: ALIAS columns from their expression, all others with defaults.
`_table` and `_database` say which member a row is from. Members that chDB can read by itself stay its own.

Source: StorageMerge.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from engine.distributed.select import RemoteSelect, ShardSource, SourceColumn, SourceTable
from engine.distributed.select.model import ALIAS_PLACE, READ_WITH_PLACE, TABLE_PLACE, union_all
from engine.errors import Code, SqlError
from engine.names import TableName, quote_identifier, quote_string
from engine.node.distributed.reading.declared_types import as_declared
from engine.node.distributed.reading.shard_reader import ShardReader
from engine.node.distributed.reading.table_filters import table_filters
from engine.node.distributed.reading.views import OF_CHDB, DistributedViews
from engine.node.distributed.registry.tables import DistributedTables
from engine.node.replicated.running.local_tables import LocalTables
from engine.node.statements.merged_tables import Merge, merge_calls, merge_of_engine, merged_tables

_MAX_DEPTH = 20
_FINAL = re.compile(r"\s*FINAL\b", re.IGNORECASE)
_WITH_FINAL = re.compile(r"(?:Replacing|Summing|Aggregating|Collapsing|Coalescing|Graphite)")
_NAME_TYPE = "LowCardinality(String)"
_views_around: ContextVar[frozenset[TableName]] = ContextVar("views_around", default=frozenset())
_VIEWS = ("View", "MaterializedView")


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    type: str
    kind: str = ""
    expression: str = ""


@dataclass(frozen=True, slots=True)
class _Member:
    """`reader` is None for what chDB reads by itself, `text`."""

    name: TableName
    columns: Mapping[str, str]
    text: str
    reader: ShardSource | None = None
    engine: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Expressions of ALIAS columns that are the Distributed table's own: its shards have none."""

    def source(self, columns: Sequence[_Column]) -> str:
        """A subquery over the member that has the columns of the whole."""
        items = [self._item(column) for column in columns]
        if not isinstance(self.reader, MergeReader) and self.engine != "Merge":
            of_member = (("_database", self.name.database), ("_table", self.name.table))
            items += [f"CAST({quote_string(value)}, '{_NAME_TYPE}') AS {name}" for name, value in of_member]
        else:
            items += ["_database", "_table"]
        return f"(SELECT {', '.join(items)} FROM {TABLE_PLACE}{READ_WITH_PLACE})"

    def _item(self, column: _Column) -> str:
        name = quote_identifier(column.name)
        if column.name not in self.columns:
            value = column.expression if column.kind == "ALIAS" else ""
            return f"{value or f'defaultValueOfTypeName({quote_string(column.type)})'} AS {name}"
        if column.name in self.aliases:
            return f"CAST({self.aliases[column.name]}, {quote_string(column.type)}) AS {name}"
        if self.columns[column.name] == column.type:
            return name
        return f"CAST({name}, {quote_string(column.type)}) AS {name}"


@dataclass(slots=True)
class MergeReader:
    """Implements `ShardSource` for all members."""

    members: Sequence[_Member]
    columns: Sequence[_Column]
    readers: list[ShardReader] = field(default_factory=list)
    """Those of Distributed tables among the members, however deep."""

    @property
    def names(self) -> frozenset[str]:
        """What the members are called, however deep, without databases."""
        inner = [one.reader.names for one in self.members if isinstance(one.reader, MergeReader)]
        return frozenset(one.name.table for one in self.members).union(*inner)

    async def table_expression(self, select: RemoteSelect, sources: Sequence[ShardSource] = ()) -> str:
        names = ", ".join(quote_identifier(column.name) for _, column in select.columns)
        parts = []
        for member in sorted(self.members, key=lambda one: one.reader is None):  # other nodes are asked first
            source = select.source.replace(TABLE_PLACE + READ_WITH_PLACE, member.source(self.columns))
            read = replace(select, source=source)
            if member.reader is not None:
                text = await member.reader.table_expression(read, sources)
            else:
                read = read if _WITH_FINAL.match(member.engine) else _without_final(read)
                text = f"({as_declared(read).sql(member.text, shard_number=0)})"
            parts.append(f"SELECT {names} FROM {text}")
        return union_all(parts, [column for _, column in select.columns])


class Merges:
    """Finds what is merged, and what of it is Distributed."""

    def __init__(self, tables: DistributedTables, local: LocalTables, views: DistributedViews) -> None:
        self._tables = tables
        self._local = local
        self._views = views
        self._generation = -1
        self._before: dict[TableName, Merge | None] = {}
        views.reads_merged = self.reads

    async def reads(self, select: str, database: str) -> bool:
        """Whether a SELECT reads something merged that reads a Distributed table."""
        merges = [call.merge for call in merge_calls(select)]
        names = [n.within(database) for n in self._views.names_in(select)]
        merges += [one for one in (await self.named(names)).values() if one is not None]
        return any([await self._is_distributed(one, database, 0) for one in merges])

    async def named(self, names: Sequence[TableName]) -> Mapping[TableName, Merge | None]:
        """The tables of engine Merge."""
        if self._generation != self._views.generation:
            self._before.clear()
        self._generation = generation = self._views.generation
        asked = [name for name in names if name not in self._before and name.database not in OF_CHDB]
        if asked:
            wanted = ", ".join(f"({quote_string(n.database)}, {quote_string(n.table)})" for n in asked)
            rows = await self._local.rows(
                "SELECT database, name, engine_full FROM system.tables "
                f"WHERE engine = 'Merge' AND (database, name) IN ({wanted})"
            )
            found: dict[TableName, Merge | None] = dict.fromkeys(asked)
            for database, name, engine in rows:
                own = TableName(database, name)
                found[own] = merge_of_engine(engine, own)
            if generation == self._views.generation:
                self._before.update(found)
            return {name: found.get(name, self._before.get(name)) for name in names}
        return {name: self._before.get(name) for name in names}

    async def source(
        self,
        merge: Merge,
        database: str,
        *,
        reader_of: Callable[[TableName], Awaitable[tuple[ShardReader, Sequence[SourceColumn]] | None]],
        rewritten: Callable[[str], Awaitable[str]],
        described: Callable[[str], Awaitable[Sequence[tuple[str, str, str, str]]]],
        depth: int = 0,
    ) -> SourceTable | None:
        """None if chDB can read it by itself. `database` is the current one; `reader_of` gives the reader
        and the columns of a Distributed table; `rewritten` makes a SELECT one that chDB can run; `described`
        gives names, types, kinds and expressions of the columns of a table or function."""
        if not await self._is_distributed(merge, database, 0):
            return None
        if depth > _MAX_DEPTH:
            raise SqlError(Code.NOT_IMPLEMENTED, f"More than {_MAX_DEPTH} Merge tables within each other")
        of_whole = merge.own.quoted if merge.own else f"merge({', '.join(merge.arguments)})"
        columns = [_Column(*row) for row in await described(of_whole) if row[2] != "EPHEMERAL"]
        members: list[_Member] = []
        readers: list[ShardReader] = []
        for one in await merged_tables(self._local, merge, database):
            name, engine, engine_full = one.name, one.engine, one.engine_full
            if (found := await reader_of(name)) is not None:
                reader, of_member = found
                readers.append(reader)
                types = {column.name: column.type for column in of_member}
                aliases = {c.name: c.value.replace(f"{ALIAS_PLACE}.", "") for c in of_member if c.value}
                members.append(_Member(name, types, "", reader, aliases=aliases))
                continue
            types = {column: type_ for column, type_, *_ in await described(name.quoted)}
            text = name.quoted
            if engine == "Merge":
                inner = await self.source(
                    merge_of_engine(engine_full, name),
                    database,
                    reader_of=reader_of,
                    rewritten=rewritten,
                    described=described,
                    depth=depth + 1,
                )
                if inner is not None and isinstance(inner.source, MergeReader):
                    readers += inner.source.readers
                    members.append(_Member(name, types, "", inner.source))
                    continue
            elif engine in _VIEWS:
                text = await rewritten(f"SELECT * FROM {name.quoted}")
                text = f"({text})"
            members.append(_Member(name, types, text, engine=engine))
        hidden = [SourceColumn(name, _NAME_TYPE, is_hidden=True) for name in ("_database", "_table")]
        listed = [SourceColumn(c.name, c.type, c.kind in ("MATERIALIZED", "ALIAS")) for c in columns]
        return SourceTable([*listed, *hidden], MergeReader(members, columns, readers), is_merged=True)

    async def _is_distributed(self, merge: Merge, database: str, depth: int) -> bool:
        if depth > _MAX_DEPTH:
            return False
        for one in await merged_tables(self._local, merge, database):
            if await self._tables.find(one.name) is not None:
                return True
            if one.engine in _VIEWS and await self._is_distributed_view(one.name):
                return True
            if one.engine == "Merge":
                inner = merge_of_engine(one.engine_full, one.name)
                if await self._is_distributed(inner, database, depth + 1):
                    return True
        return False

    async def _is_distributed_view(self, name: TableName) -> bool:
        """A view may read what it is a member of; reading it is an error of chDB's then."""
        around = _views_around.get()
        if name in around:
            return False
        token = _views_around.set(around | {name})
        try:
            return await self._views.reads_distributed(name)
        finally:
            _views_around.reset(token)


def check_filters_of_members(settings: Mapping[str, str], table: SourceTable) -> None:
    """Raises SqlError 48 for a filter of what is merged: some of that chDB would filter by itself."""
    members = table.source.names if isinstance(table.source, MergeReader) else frozenset()
    for name in table_filters(settings):
        if name.rpartition(".")[2] in members:
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"additional_table_filters cannot have a condition for {name}, which merge() or a table of "
                "engine Merge reads beside Distributed tables.",
                hint="Filter what merges them, by its name or alias, or write the condition into WHERE.",
            )


def _without_final(select: RemoteSelect) -> RemoteSelect:
    """chDB leaves FINAL out for members that cannot have it."""
    return replace(select, read_with=_FINAL.sub("", select.read_with, count=1))
