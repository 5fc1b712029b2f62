"""DROP, DETACH, ATTACH, RENAME, EXCHANGE, UNDROP, TRUNCATE DATABASE where replicated tables are concerned.

Safety argument. DROP is that of `lifecycle`. RENAME and EXCHANGE are chDB's, at one moment; a table is known
by its UUID, so a crash behind them leaves nothing wrong: the next start takes chDB's names over, and `host`
in Keeper is written anew at each activation. DETACH stops the replica first: parts do not change while nobody
sees them. A view that has a table of its own is dropped with it: chDB drops the table first, so a crash
leaves a view that reads nothing, and that the statement, repeated, drops. A statement that chDB refuses
leaves the tables as they were.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from engine.errors import Code, KeeperUnavailable, OnclusterError, SqlError
from engine.names import TableName, quote_identifier, quote_string
from engine.node.replicated.definitions.dependents import REFERENTIAL, check_database
from engine.node.replicated.definitions.if_empty import check_empty, is_if_empty
from engine.node.replicated.definitions.own_tables import own_table
from engine.node.replicated.definitions.table_names import renaming
from engine.node.replicated.definitions.truncate_all import Run, is_truncate_all, truncate_all
from engine.node.replicated.running.catalog import TableRecord, TableState
from engine.node.replicated.running.lifecycle import Leaves, TableLifecycle
from engine.node.replicated.running.runtime import RunningTable
from engine.node.replicated.running.statements import done
from engine.node.statements.statement import Answer, Asked
from engine.part_storage.hidden_settings import HIDDEN_SETTINGS
from engine.sql import Statement, StatementKind, tokenize
from engine.sql.settings_clauses import settings_of_text

_K = StatementKind
_KEEPER_WAIT_S = 5.0
_MARKS = ("max_bytes_to_merge_at_max_space_in_pool", "max_bytes_to_merge_at_min_space_in_pool")
"""Hidden settings that every replicated table has, and hardly any other."""


class DropRenameStatements:
    """Implements `ReplicatedStatements`."""

    def __init__(self, life: TableLifecycle, run: Run) -> None:
        self._life = life
        self._run = run

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        match statement.kind:
            case _K.DROP_TABLE | _K.DROP_VIEW | _K.DETACH_TABLE:
                is_ours = await self._on_tables(asked, statement)
            case _K.ATTACH_TABLE:
                is_ours = await self._attach(asked, statement)
            case _K.RENAME_TABLE | _K.EXCHANGE_TABLES:
                is_ours = await self._rename(asked, statement)
            case _K.DROP_DATABASE:
                is_ours = await self._drop_database(asked, statement)
            case _K.DETACH_DATABASE:
                is_ours = await self._detach_database(asked, statement)
            case _K.ATTACH_DATABASE:
                is_ours = await self._attach_database(asked, statement)
            case _K.RENAME_DATABASE:
                is_ours = await self._rename_database(asked, statement)
            case _K.TRUNCATE_DATABASE if is_truncate_all(asked.sql):
                is_ours = await self._truncate_all(asked, statement)
            case _K.TRUNCATE_DATABASE:
                is_ours = await self._drop_database(asked, statement)
            case _K.UNDROP_TABLE:
                is_ours = await self._undrop(asked, statement)
            case _:
                is_ours = False
        return done(asked) if is_ours else None

    # -- DROP, DETACH TABLE ---------------------------------------------------------------------------------

    async def _on_tables(self, asked: Asked, statement: Statement) -> bool:
        """One or several tables; those that are not replicated are chDB's, one by one."""
        names = [table.within(asked.current_database) for table in statement.tables]
        own = await self._own_tables(names) if statement.kind is not _K.DETACH_TABLE else {}
        if statement.temporary or not (own or any(self._record(name) for name in names)):
            return False
        words = _words(asked.sql)
        async with self._life.names.hold([*names, *(record.name for record in own.values())]):
            for name in names:
                if is_if_empty(asked.sql):
                    await check_empty(self._life.local, name)
                await self._on_table(asked, statement, name, words, own.get(name))
        return True

    async def _own_tables(self, names: Iterable[TableName]) -> Mapping[TableName, TableRecord]:
        """By the names of views, their own tables."""
        found = {name: await own_table(self._life, name) for name in names}
        return {name: record for name, record in found.items() if record is not None}

    async def _on_table(
        self,
        asked: Asked,
        statement: Statement,
        name: TableName,
        words: Sequence[str],
        own: TableRecord | None,
    ) -> None:
        """`own` is a view's own table, which goes with the view."""
        record = own or self._record(name)
        flags = [word for word in ("PERMANENTLY", "SYNC") if word in words]
        if ("NO", "DELAY") in itertools.pairwise(words):
            flags.append("SYNC")
        if_exists = "IF EXISTS " if statement.if_exists else ""
        if is_if_empty(asked.sql):  # rows may have come since it was looked
            if_exists += "IF EMPTY "
        sql = f"{statement.kind.value} {if_exists}{name.quoted} {' '.join(flags)}"
        if settings := settings_of_text(asked.sql):
            sql += " SETTINGS " + ", ".join(
                f"{quote_identifier(n)} = {quote_string(v)}" for n, v in settings.items()
            )
        if record is None:
            await self._in_chdb(asked, sql)
            return
        table = self._life.tables.by_uuid(record.uuid)
        if statement.kind is not _K.DETACH_TABLE:
            if table is None and own is None:
                await self._in_chdb(asked, sql)
                return
            await self._require_keeper(name)
            leaves = Leaves.NOTHING if "SYNC" in flags or own is not None else Leaves.DATA
            await self._life.drop(record, lambda: self._in_chdb(asked, sql), leaves=leaves)
        elif table is not None:
            await self._detach(asked, [table], sql)
        else:
            await self._in_chdb(asked, sql)  # DETACH … PERMANENTLY of a detached table

    async def _require_keeper(self, name: TableName) -> None:
        try:
            await self._life.holder.get(timeout_s=_KEEPER_WAIT_S)
        except KeeperUnavailable as error:
            raise SqlError(
                Code.TABLE_IS_READ_ONLY,
                f"Can't drop readonly replicated table {name} (need to drop data in ZooKeeper as well): "
                f"{error.message}",
                hint="Nothing was dropped; try again when Keeper can be reached.",
            ) from error

    async def _detach(self, asked: Asked, tables: Iterable[RunningTable], sql: str) -> None:
        tables = list(tables)
        for table in tables:
            await self._life.detach(table)
        try:
            await self._in_chdb(asked, sql)
        except SqlError:
            for table in tables:
                await self._life.reattach(table.uuid)
            raise

    # -- ATTACH ----------------------------------------------------------------------------------------------

    async def _attach(self, asked: Asked, statement: Statement) -> bool:
        name = statement.tables[0].within(asked.current_database)
        record = self._record(name)
        if record is None:
            return False
        async with self._life.names.hold([name]):
            # Of one that is attached chDB says so (57), or nothing (IF NOT EXISTS).
            await self._in_chdb(asked, asked.sql)
            await self._life.reattach(record.uuid)
        return True

    # -- RENAME, EXCHANGE ------------------------------------------------------------------------------------

    async def _rename(self, asked: Asked, statement: Statement) -> bool:
        names = [table.within(asked.current_database) for table in statement.tables]
        if not any(self._life.tables.find(name) for name in names):
            return False
        async with self._life.names.hold(names):
            for database in sorted({name.database for name in names}):
                engine = await self._life.local.engine_of_database(database)
                if engine is not None and engine != "Atomic":
                    raise SqlError(
                        Code.NOT_IMPLEMENTED,
                        f"Replicated tables need a database with engine Atomic; {database} has {engine}.",
                    )
            for name in names:
                if self._life.tables.find(name) is None:  # perhaps the new name of one
                    await self._life.check_new_name(name)
            async with renaming(self._life, map(self._life.tables.find, sorted(set(names))), names):
                await self._in_chdb(asked, asked.sql)
        return True

    async def _rename_database(self, asked: Asked, statement: Statement) -> bool:
        databases = [statement.database or "", statement.new_database or ""]
        async with self._life.names.hold_databases(databases):
            tables = self._of_database(databases[0])
            if not tables:
                return False
            names = [TableName(databases[1], table.name.table) for table in tables]
            async with renaming(self._life, tables, names):
                await self._in_chdb(asked, asked.sql)
        return True

    # -- databases -------------------------------------------------------------------------------------------

    async def _drop_database(self, asked: Asked, statement: Statement) -> bool:
        """DROP DATABASE, and TRUNCATE DATABASE, after which it is there, without the tables that it had."""
        database = statement.database or ""
        words = _words(asked.sql)
        sync = " SYNC" if "SYNC" in words else ""
        async with self._life.names.hold_databases([database]):
            records = [r for r in self._life.catalog.all() if r.name.database == database and _is_present(r)]
            if not records or ("IF", "EMPTY") in itertools.pairwise(words):
                return False
            await self._require_keeper(records[0].name)
            await check_database(asked, self._life.local, database)
            for record in records:
                if self._life.tables.by_uuid(record.uuid) is not None:
                    sql = (
                        f"DROP TABLE {record.name.quoted}{sync} SETTINGS check_table_dependencies = 0, "
                        f"{REFERENTIAL} = 0"
                    )
                    drop = partial(self._in_chdb, asked, sql)
                    leaves = Leaves.NOTHING if sync else Leaves.DATA
                    await self._life.drop(record, drop, leaves=leaves)
            await self._in_chdb(asked, asked.sql)
            stay = await self._life.local.defined() if statement.kind is _K.TRUNCATE_DATABASE else ()
            for record in records:
                if self._life.catalog.get(record.uuid) == record and record.uuid not in stay:
                    await self._life.dropped_by_chdb(record)  # it was detached
        return True

    async def _detach_database(self, asked: Asked, statement: Statement) -> bool:
        database = statement.database or ""
        async with self._life.names.hold_databases([database]):
            tables = self._of_database(database)
            if not tables:
                return False
            await self._detach(asked, tables, asked.sql)
        return True

    async def _attach_database(self, asked: Asked, statement: Statement) -> bool:
        database = statement.database or ""
        async with self._life.names.hold_databases([database]):
            records = [record for record in self._life.catalog.all() if record.name.database == database]
            if not records:
                return False
            await self._in_chdb(asked, asked.sql)
            not_loaded: list[OnclusterError] = []
            for record in records:
                try:
                    await self._life.reattach(record.uuid)
                except OnclusterError as error:
                    not_loaded.append(error)
        if not_loaded:
            raise not_loaded[0]
        return True

    async def _truncate_all(self, asked: Asked, statement: Statement) -> bool:
        if not self._of_database(statement.database or ""):
            return False
        await truncate_all(self._life.local, asked, statement, self._run)
        return True

    # -- UNDROP ----------------------------------------------------------------------------------------------

    async def _undrop(self, asked: Asked, statement: Statement) -> bool:
        """Of a table of which nothing is kept (`undrop` does the others). Refused: its replica in Keeper is
        gone, and as a plain table it would never merge."""
        name = statement.tables[0].within(asked.current_database)
        for text in await self._life.local.dropped_definitions(name):
            if all(f"{setting} = {HIDDEN_SETTINGS[setting]}" in text for setting in _MARKS):
                raise SqlError(
                    Code.NOT_IMPLEMENTED,
                    f"UNDROP is not supported for the replicated table {name}.",
                    hint="CREATE TABLE makes a new replica, which fetches its data from the others.",
                )
        return False

    # -- helpers ---------------------------------------------------------------------------------------------

    def _record(self, name: TableName) -> TableRecord | None:
        """Of the table that runs under this name, else of one that is detached."""
        table = self._life.tables.find(name)
        return self._life.catalog.named(name) if table is None else table.record

    def _of_database(self, database: str) -> list[RunningTable]:
        return [table for table in self._life.tables.all() if table.name.database == database]

    async def _in_chdb(self, asked: Asked, sql: str) -> None:
        await asked.session.query(sql, format="Null", params=asked.params, scope=asked.scope, multi=False)


def _words(sql: str) -> list[str]:
    return [token.text.upper() for token in tokenize(sql) if token.is_significant]


def _is_present(record: TableRecord) -> bool:
    return record.state is not TableState.DROPPING
