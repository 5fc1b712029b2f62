"""The registry of Distributed tables: by name, as chDB has the names now.

Statements of many kinds rename, detach and drop tables. Instead of following each, the registry asks chDB for
the names of its tables again after any statement that may have changed them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from uuid import UUID

from engine.distributed.definition import DistributedDefinition
from engine.errors import Code, SqlError
from engine.names import TableName, quote_identifier, quote_string
from engine.node.distributed.registry.catalog import DistributedCatalog, DistributedRecord
from engine.node.distributed.registry.name_changes import NameChanges
from engine.node.distributed.registry.table_gates import TableGates
from engine.node.replicated.running.local_tables import LocalTable, LocalTables
from engine.node.statements.statement import Asked
from engine.node.statements.temporary_tables import is_temporary

_MOST_REMEMBERED = 1000


@dataclass(frozen=True, slots=True)
class Column:
    """`kind` is chDB's `default_kind`: empty, DEFAULT, MATERIALIZED, ALIAS, EPHEMERAL."""

    name: str
    type: str
    kind: str = ""
    expression: str = ""

    @property
    def is_sent(self) -> bool:
        """Whether its values travel to the shards."""
        return self.kind in ("", "DEFAULT")


@dataclass(frozen=True, slots=True)
class DistributedTable:
    """One attached table, or the target of an INSERT INTO FUNCTION, whose name has no database.
    `create_query` is chDB's text, with the placeholder's engine."""

    uuid: UUID
    name: TableName
    definition: DistributedDefinition
    create_query: str
    columns: tuple[Column, ...] = ()

    @property
    def as_source(self) -> str:
        """SQL for something to SELECT from that has its columns, and no rows."""
        if self.name.database:
            return self.name.quoted
        structure = ", ".join(f"{quote_identifier(column.name)} {column.type}" for column in self.columns)
        return f"null({quote_string(structure)})"

    @property
    def sent_columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.is_sent)

    def with_materialized_sent(self) -> DistributedTable:
        """For `insert_allow_materialized_columns`: shards would make them anew, whatever the INSERT says."""
        kinds = {"MATERIALIZED": "DEFAULT"}
        columns = [replace(column, kind=kinds.get(column.kind, column.kind)) for column in self.columns]
        return replace(self, columns=tuple(columns))


class DistributedTables:
    """All Distributed tables of the node."""

    def __init__(self, catalog: DistributedCatalog, local: LocalTables) -> None:
        self.catalog = catalog
        self.local = local
        self.gates = TableGates()
        self.name_changes = NameChanges()
        self._by_name: Mapping[TableName, DistributedTable] = {}
        self._damaged: Mapping[TableName, UUID] = {}
        self._version = 0
        self._given: deque[tuple[int, frozenset[TableName]]] = deque(maxlen=_MOST_REMEMBERED)
        self._known_version = -1
        self._in_the_making: set[UUID] = set()
        self._lock = asyncio.Lock()

    @contextmanager
    def making(self, record: DistributedRecord) -> Iterator[None]:
        """The record is written first, and its table is made in the block: until then nobody else may take it
        for one whose table is gone. Raises OSError."""
        self._in_the_making.add(record.uuid)
        try:
            self.catalog.put(record)
            yield
        finally:
            self._in_the_making.discard(record.uuid)

    def records_made(self) -> Sequence[DistributedRecord]:
        """Without those whose tables are just being made."""
        return [record for record in self.catalog.all() if record.uuid not in self._in_the_making]

    def __len__(self) -> int:
        return len(self.catalog.all()) + len(self.catalog.damaged)

    @property
    def version(self) -> int:
        """Another one after every statement that may have changed names or columns."""
        return self._version

    def given_since(self, version: int) -> frozenset[TableName]:
        """The names that came to mean another table since `version` was the present one, or just may. One
        with an empty table stands for a whole database."""
        return self.name_changes.under_way.union(*(names for at, names in self._given if at > version))

    def note_given(self, names: Collection[TableName]) -> None:
        """They mean something else from now on."""
        self.changed()
        self._given.append((self._version, frozenset(names)))

    def changed(self) -> None:
        """A statement that may have changed names or columns is about to run, or has run."""
        self._version += 1

    async def find(self, name: TableName) -> DistributedTable | None:
        """The table of this whole name. Raises SqlError 246 for one whose definition cannot be read."""
        if not len(self):
            return None
        await self.name_changes.settled(name)
        table = (await self._current()).get(name)
        if table is None and (uuid := self._damaged.get(name)) is not None:
            error = self.catalog.damaged[uuid]
            raise SqlError(Code.CORRUPTED_DATA, f"{name} cannot be used. {error.message}", hint=error.hint)
        return table

    async def damaged(self) -> Mapping[TableName, UUID]:
        """Those whose definitions cannot be read."""
        if self.catalog.damaged:
            await self._current()
        return self._damaged

    async def find_for(self, asked: Asked, name: TableName) -> DistributedTable | None:
        """The table that `name` means in a statement."""
        table = await self.find(name.within(asked.current_database))
        return None if table is not None and await is_temporary(asked, name) else table

    async def names(self) -> Collection[TableName]:
        """Also of those whose definitions cannot be read."""
        if not len(self):
            return ()
        return {*await self._current(), *self._damaged}

    @asynccontextmanager
    async def to_write(self, asked: Asked, name: TableName) -> AsyncIterator[DistributedTable | None]:
        """As `find_for`, for an INSERT: what the name means stays inside the block."""
        table = await self.find_for(asked, name)
        while table is not None and not self.gates.enter(table.uuid):
            await self.gates.opened(table.uuid)
            table = await self.find_for(asked, name)
        try:
            yield table
        finally:
            if table is not None:
                self.gates.leave(table.uuid)

    async def all(self) -> Sequence[DistributedTable]:
        """In the order of their names."""
        if not self.catalog.all():
            return ()
        found = await self._current()
        return [found[name] for name in sorted(found)]

    async def _current(self) -> Mapping[TableName, DistributedTable]:
        async with self._lock:
            while self._known_version != self._version:
                version = self._version
                records, damaged = self.catalog.all(), tuple(self.catalog.damaged)
                uuids = [record.uuid for record in records]
                tables = await self.local.by_uuid([*uuids, *damaged])
                self._damaged = {tables[uuid].name: uuid for uuid in damaged if uuid in tables}
                columns = await self._columns(list(tables.values()))
                self._by_name = {
                    table.name: _table(record, table, columns.get(table.name, ()))
                    for record in records
                    if (table := tables.get(record.uuid)) is not None
                }
                self._known_version = version
            return self._by_name

    async def _columns(self, tables: Sequence[LocalTable]) -> Mapping[TableName, tuple[Column, ...]]:
        if not tables:
            return {}
        names = ", ".join(
            f"({quote_string(table.name.database)}, {quote_string(table.name.table)})" for table in tables
        )
        rows = await self.local.rows(
            "SELECT database, table, name, type, default_kind, default_expression FROM system.columns "
            f"WHERE (database, table) IN ({names}) ORDER BY database, table, position"
        )
        found: dict[TableName, list[Column]] = {}
        for database, table, *column in rows:
            found.setdefault(TableName(database, table), []).append(Column(*column))
        return {name: tuple(columns) for name, columns in found.items()}


def _table(record: DistributedRecord, table: LocalTable, columns: tuple[Column, ...]) -> DistributedTable:
    return DistributedTable(record.uuid, table.name, record.definition, table.create_query, columns)
