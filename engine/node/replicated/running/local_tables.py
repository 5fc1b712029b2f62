"""What chDB says of the tables on this node: their names by UUID, their definitions, what is detached."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from uuid import UUID

from engine.names import TableName, quote_identifier, quote_string
from engine.part_storage.hidden_settings import settings_of
from engine.part_storage.part_files import remove_tree
from engine.part_storage.table_state import staged_root
from engine.part_storage.workers import SCRATCH_DATABASE
from engine.storage import ChdbPool, ChdbSession
from engine.storage.errors import told
from engine.storage.metadata_files import uuids_on_disk
from engine.storage.scope import Scope

_NONE: Mapping[str, str] = MappingProxyType({})
_MERGE_TREES = (
    "MergeTree",
    "ReplacingMergeTree",
    "SummingMergeTree",
    "AggregatingMergeTree",
    "CollapsingMergeTree",
    "VersionedCollapsingMergeTree",
    "CoalescingMergeTree",
    "GraphiteMergeTree",
)


@dataclass(frozen=True, slots=True)
class LocalTable:
    """An attached table. `create_query` is chDB's own text, on one line."""

    uuid: UUID
    name: TableName
    engine: str
    create_query: str
    engine_full: str = ""
    data_paths: tuple[str, ...] = ()

    @property
    def is_merge_tree(self) -> bool:
        return self.engine in _MERGE_TREES


class LocalTables:
    """Asks chDB on threads of its own: clients' statements do not keep it waiting."""

    def __init__(self, pool: ChdbPool) -> None:
        self._path = pool.path
        self._threads = pool.reserve(2)
        self._dropping = pool.reserve(2)
        """A table is dropped when nobody reads it any more; nothing else is to wait for that."""

    def _session(self) -> ChdbSession:
        return ChdbSession(self._threads, one_shot=True)

    async def run(self, sql: str, *, settings: Mapping[str, str] | None = None) -> None:
        """Run a statement of the node's own. Raises SqlError."""
        await self._session().query(sql, format="Null", scope=Scope(settings=settings or {}))

    async def named(self, name: TableName) -> LocalTable | None:
        found = await self._look(
            f"database = {quote_string(name.database)} AND name = {quote_string(name.table)}"
        )
        return found[0] if found else None

    async def by_uuid(self, uuids: Sequence[UUID]) -> Mapping[UUID, LocalTable]:
        """Those of them that are attached."""
        if not uuids:
            return {}
        ids = ", ".join(f"'{uuid}'" for uuid in uuids)
        return {table.uuid: table for table in await self._look(f"uuid IN ({ids})")}

    async def with_settings(self, settings: Mapping[str, str]) -> Sequence[LocalTable]:
        """Those whose definition gives these settings these values, but for the node's own."""
        texts = " AND ".join(
            f"position(create_table_query, {quote_string(f'{name} = {value}')}) > 0"
            for name, value in settings.items()
        )
        return await self._look(f"database != {quote_string(SCRATCH_DATABASE)} AND {texts}")

    async def beginning_with(self, prefix: str) -> Sequence[LocalTable]:
        """Those whose names begin so, in any database."""
        return await self._look(f"startsWith(name, {quote_string(prefix)})")

    async def names_in(self, database: str) -> Sequence[str]:
        rows = await self.rows(f"SELECT name FROM system.tables WHERE database = {quote_string(database)}")
        return [name for (name,) in rows]

    async def size_bytes(self, name: TableName) -> int:
        """What it has on the disk or in memory; 0 for what is not there, or where nobody knows."""
        rows = await self.rows(
            f"SELECT total_bytes FROM system.tables WHERE database = {quote_string(name.database)} "
            f"AND name = {quote_string(name.table)}"
        )
        return int(rows[0][0] or 0) if rows else 0

    async def active_parts(self, name: TableName) -> Sequence[tuple[str, str]]:
        """Name and directory of each."""
        rows = await self.rows(f"SELECT name, path FROM system.parts WHERE active AND {_is(name)}")
        return [(part, path) for part, path in rows]

    async def is_changing_parts(self, name: TableName) -> bool:
        """Whether chDB merges or mutates parts of the table, or is going to mutate some."""
        rows = await self.rows(
            f"SELECT 1 FROM system.merges WHERE {_is(name)} UNION ALL "
            f"SELECT 1 FROM system.mutations WHERE NOT is_done AND NOT is_killed AND {_is(name)}"
        )
        return bool(rows)

    async def detached(self) -> Mapping[UUID, TableName]:
        rows = await self.rows("SELECT toString(uuid), database, table FROM system.detached_tables")
        return {UUID(uuid): TableName(database, table) for uuid, database, table in rows}

    async def defined(self) -> frozenset[UUID]:
        """All that are attached or detached, also those of databases that are detached. Raises OSError."""
        return await asyncio.to_thread(uuids_on_disk, self._path)

    async def dropped_definitions(self, name: TableName) -> Sequence[str]:
        """Texts of the tables of this name that UNDROP could bring back."""
        rows = await self.rows(
            "SELECT metadata_dropped_path FROM system.dropped_tables "
            f"WHERE database = {quote_string(name.database)} AND table = {quote_string(name.table)}"
        )
        files = [self._path / row[0] for row in rows]
        return [file.read_text("utf-8", "surrogateescape") for file in files if file.is_file()]

    async def last_dropped(self, name: TableName, uuid: str | None = None) -> UUID | None:
        """The table of this name, and of this UUID if one is given, that UNDROP would bring back."""
        where = f"database = {quote_string(name.database)} AND table = {quote_string(name.table)}"
        if uuid is not None:
            where += f" AND uuid = {quote_string(uuid)}"
        rows = await self.rows(
            "SELECT toString(uuid) FROM system.dropped_tables "
            f"WHERE {where} ORDER BY table_dropped_time DESC LIMIT 1"
        )
        return UUID(rows[0][0]) if rows else None

    async def dropped(self) -> set[UUID]:
        """All that UNDROP could bring back."""
        return {UUID(row[0]) for row in await self.rows("SELECT toString(uuid) FROM system.dropped_tables")}

    async def engine_of_database(self, database: str) -> str | None:
        rows = await self.rows(f"SELECT engine FROM system.databases WHERE name = {quote_string(database)}")
        return rows[0][0] if rows else None

    async def needed_elsewhere(self, database: str) -> Sequence[tuple[str, str, bool]]:
        """Tables of the database, what needs them in another one, and whether chDB heeds that by default."""
        rows = await self.rows(
            "SELECT database || '.' || name, other || '.' || needs, getSetting('check_table_dependencies') "
            "FROM system.tables "
            "ARRAY JOIN loading_dependent_database AS other, loading_dependent_table AS needs "
            f"WHERE database = {quote_string(database)} "
            f"AND other NOT IN (database, {quote_string(SCRATCH_DATABASE)})"
        )
        return [(name, other, bool(checks)) for name, other, checks in rows]

    async def settings_as_written(
        self, settings: Mapping[str, str], params: Mapping[str, str] = _NONE
    ) -> Mapping[str, str]:
        """Settings of a MergeTree table as chDB writes them down; values are literals, `params` those of the
        statement that they stand in. Raises its SqlError for what it does not take."""
        if not settings:
            return settings
        given = ", ".join(f"{quote_identifier(name)} = {value}" for name, value in settings.items())
        create = f"CREATE TEMPORARY TABLE t (k UInt8) ENGINE = MergeTree ORDER BY k SETTINGS {given}"
        session = ChdbSession(self._threads)
        try:
            await session.query(create, format="Null", params=params, multi=False)
            shown = await session.query("SHOW CREATE TEMPORARY TABLE t", format="TSVRaw")
        finally:
            await session.close()
        written = settings_of(shown.text)
        return {name: written[name] for name in settings}

    async def drop(self, name: TableName, uuid: UUID) -> None:
        """Drop the table of this UUID, if there is one, with all its data at once. Raises SqlError."""
        if uuid in await self.by_uuid([uuid]):
            await ChdbSession(self._dropping, one_shot=True).query(
                f"DROP TABLE IF EXISTS {name.quoted} SYNC SETTINGS max_table_size_to_drop = 0, "
                "max_partition_size_to_drop = 0, check_table_dependencies = 0, "
                "check_referential_table_dependencies = 0",
                format="Null",
            )

    async def forget(self, uuid: UUID) -> None:
        """Remove what a store kept beside a table that was dropped by a process that ended then."""
        await asyncio.to_thread(remove_tree, staged_root(self._path, str(uuid)))

    async def _look(self, where: str) -> list[LocalTable]:
        rows = await self.rows(
            "SELECT toString(uuid), database, name, engine, create_table_query, engine_full, data_paths "
            f"FROM system.tables WHERE {where}"
        )
        return [
            LocalTable(
                UUID(uuid),
                TableName(database, name),
                engine,
                told(query, f"{database}.{name}") if engine.endswith("MergeTree") else query,
                full,
                tuple(paths),
            )
            for uuid, database, name, engine, query, full, paths in rows
        ]

    async def rows(self, sql: str) -> list[list[Any]]:
        """The rows of a SELECT, values as JSON has them. Raises SqlError."""
        found = await self._session().query(sql, format="JSONCompactEachRow", is_harmless=True)
        return [json.loads(line.decode("utf-8", "surrogateescape")) for line in found.data.splitlines()]


def _is(name: TableName) -> str:
    return f"database = {quote_string(name.database)} AND table = {quote_string(name.table)}"
