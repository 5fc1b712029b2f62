"""SYSTEM commands about replicated tables.

A command that names a table is ours if the table is replicated here, and chDB's otherwise. STOP and START
without a table concern every table: they are done here for the replicated ones and by chDB for the rest.
RESTART REPLICAS and DROP REPLICA are always ours: chDB has no replicas.

Source: ClickHouse's InterpreterSystemQuery.
"""

from __future__ import annotations

import asyncio
import enum
import json
from dataclasses import dataclass

from engine.errors import Code, SqlError
from engine.names import TableName, quote_string
from engine.node.keeper_access import KeeperAccess
from engine.node.keeper_path import path_in_own_keeper
from engine.node.replicated.running.catalog import TableState
from engine.node.replicated.running.runtime import ReplicatedTables, RunningTable
from engine.node.replicated.running.statements import done
from engine.node.statements.asked_settings import number, settings_of
from engine.node.statements.statement import Answer, Asked
from engine.part_storage.workers import SCRATCH_DATABASE
from engine.replication.commands.drop import Dropped, drop_dead_replica, wait_until_dropped
from engine.replication.commands.restore import attach_restored
from engine.replication.commands.sync import SyncMode, sync_replica
from engine.replication.paths import TablePaths
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.switches import Activity
from engine.sql import Statement, StatementKind
from engine.sql.cursor import Cursor
from engine.sql.parse import draft_of

_KEEPER_WAIT_S = 10.0
_ACTIVE_WAIT_S = 30.0
_RESTART_WAIT_S = 10.0
_SESSION_END_S = 60.0
"""Twice as long as a session outlives its process, usually."""
_HARMLESS = frozenset(
    {
        "LOAD PRIMARY KEY",
        "PREWARM MARK CACHE",
        "PREWARM PRIMARY INDEX CACHE",
        "UNLOAD PRIMARY KEY",
        "WAIT LOADING PARTS",
    }
)
"""They concern what chDB keeps in memory of a table."""
_OF_A_REPLICA = frozenset({"RESTART REPLICA", "RESTORE REPLICA", "SYNC REPLICA"})
_ABOUT_A_TABLE = _HARMLESS | _OF_A_REPLICA
_OF_CHDB = frozenset({Activity.MERGES, Activity.TTL_MERGES, Activity.MOVES})
"""What tables that are not replicated do, too."""
_ACTIVITIES = {activity.value: activity for activity in Activity}


class SystemStatements:
    """Implements ReplicatedStatements."""

    def __init__(self, tables: ReplicatedTables, keeper: KeeperAccess | None) -> None:
        self._tables = tables
        self._keeper = keeper

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if statement.kind is not StatementKind.SYSTEM:
            return None
        command = statement.system_command
        verb, _, what = command.partition(" ")
        if verb in ("STOP", "START") and what in _ACTIVITIES:
            return await self._switch(asked, statement, verb, _ACTIVITIES[what])
        if command == "RESTART REPLICAS":
            await asyncio.gather(*(_restart(table) for table in self._tables.all() if _is_made(table)))
            return done(asked)
        if command == "DROP REPLICA":
            await self._drop_replica(asked, parse_drop_replica(asked.sql))
            return done(asked)
        if command not in _ABOUT_A_TABLE or not statement.tables:
            return None
        table = self._tables.find_for(asked, statement.tables[0])
        if table is None:
            if (
                command in _OF_A_REPLICA
            ):  # chDB has one that is being made, and says that it is not replicated
                self._tables.find_to_write(statement.tables[0].within(asked.current_database))
            return None
        if command in _OF_A_REPLICA and not _is_made(table):
            raise SqlError(
                Code.TABLE_IS_READ_ONLY,
                f"Table {table.name} is in readonly mode: {table.ctx.why_readonly}",
                hint="That goes on by itself when Keeper can be reached.",
            )
        match command:
            case "RESTART REPLICA":
                await _restart(table)
            case "RESTORE REPLICA":
                await _restore(table)
            case "SYNC REPLICA":
                await _sync(asked, table.ctx)
            case _:
                await asked.session.query(asked.sql, scope=asked.scope, multi=False)
        return done(asked)

    # -- STOP and START ------------------------------------------------------------------------------------

    async def _switch(
        self, asked: Asked, statement: Statement, verb: str, activity: Activity
    ) -> Answer | None:
        if not statement.tables:
            if "VOLUME" in Cursor(asked.sql).words:
                return None
            for table in self._tables.all():
                _set(table.ctx, verb, activity)
            if verb == "STOP" and self._tables.all() and activity in _OF_CHDB:
                await self._stop_plain(asked, activity)
                return done(asked)
            return None
        named = self._tables.find_for(asked, statement.tables[0])
        if named is None:
            return None
        _set(named.ctx, verb, activity)
        return done(asked)

    async def _stop_plain(self, asked: Asked, activity: Activity) -> None:
        """In chDB only the tables that are not replicated: it has to go on with what we make in it."""
        result = await asked.session.clone().query(
            "SELECT database, name FROM system.tables WHERE endsWith(engine, 'MergeTree') "
            f"AND database NOT IN ('system', {quote_string(SCRATCH_DATABASE)})",
            format="JSONCompactEachRow",
        )
        for line in result.data.splitlines():
            name = TableName(*json.loads(line))
            if self._tables.find(name) is None:
                await asked.session.clone().query(f"SYSTEM STOP {activity.value} {name.quoted}", multi=False)

    # -- DROP REPLICA --------------------------------------------------------------------------------------

    async def _drop_replica(self, asked: Asked, target: DropReplica) -> None:
        match target.scope:
            case Scope.TABLE:
                found = self._tables.find_for(asked, target.table or TableName("", ""))
                if found is None:
                    raise SqlError(
                        Code.BAD_ARGUMENTS, f"Table {target.table} is not replicated, can't drop replica"
                    )
                await self._drop_of(found, target.replica)
            case Scope.PATH:
                await self._drop_at(TablePaths(path_in_own_keeper(target.path).rstrip("/")), target.replica)
            case Scope.DATABASE | Scope.EVERYTHING:
                tables = [
                    table
                    for table in self._tables.all()
                    if target.scope is Scope.EVERYTHING or table.ctx.name.database == target.database
                ]
                for table in tables:
                    if table.ctx.replica == target.replica:
                        raise _own_replica(table.ctx)
                for table in tables:
                    await self._drop_of(table, target.replica)

    async def _drop_of(self, table: RunningTable, replica: str) -> None:
        if table.ctx.replica == replica:
            raise _own_replica(table.ctx)
        await self._drop_at(table.ctx.paths, replica)

    async def _drop_at(self, paths: TablePaths, replica: str) -> None:
        if self._keeper is None:
            raise SqlError(Code.NO_ZOOKEEPER, "There is no Zookeeper configuration in server config")
        local = [t.ctx.replica for t in self._tables.all() if t.ctx.paths.root == paths.root]
        keeper = await self._keeper.get(timeout_s=_KEEPER_WAIT_S)
        if await drop_dead_replica(keeper, paths, replica, local_replicas=local) is Dropped.TABLE:
            await wait_until_dropped(keeper, paths, timeout_s=_SESSION_END_S)


class Scope(enum.Enum):
    """Whose replica is dropped."""

    EVERYTHING = "all replicated tables of this node"
    DATABASE = "those of a database"
    TABLE = "one table"
    PATH = "the table at a path in Keeper"


@dataclass(frozen=True, slots=True)
class DropReplica:
    replica: str
    scope: Scope
    table: TableName | None = None
    database: str = ""
    path: str = ""


def parse_drop_replica(sql: str) -> DropReplica:
    """`SYSTEM DROP REPLICA 'r' [FROM TABLE t | FROM DATABASE d | FROM ZKPATH '/p']`. Raises SqlError 62."""
    d = draft_of(sql)
    c = Cursor(sql)
    c.at = 3
    if d.cluster_span is not None:
        c.at = next(i for i, token in enumerate(c.tokens) if token.start >= d.cluster_span[1])
    replica = c.identifier_or_string()
    if not replica:
        raise _syntax("the name of a replica")
    if c.at_end:
        return DropReplica(replica, Scope.EVERYTHING)
    if c.accept("FROM", "TABLE") and d.refs:
        return DropReplica(replica, Scope.TABLE, table=d.refs[0].name)
    if c.accept("FROM", "DATABASE") and (database := c.identifier()) is not None:
        return DropReplica(replica, Scope.DATABASE, database=database)
    if c.accept("FROM", "ZKPATH") and (path := c.identifier_or_string()):
        return DropReplica(replica, Scope.PATH, path=path)
    raise _syntax("FROM TABLE, FROM DATABASE or FROM ZKPATH")


def parse_sync_mode(sql: str) -> tuple[SyncMode, tuple[str, ...]]:
    """What stands behind the table of SYNC REPLICA: the mode, and the replicas of LIGHTWEIGHT FROM.

    Raises SqlError 62.
    """
    d = draft_of(sql)
    end = max(d.refs[0].end, d.cluster_span[1] if d.cluster_span else 0)
    c = Cursor(sql)
    c.at = next((i for i, token in enumerate(c.tokens) if token.start >= end), len(c.tokens))
    c.accept("IF", "EXISTS")
    sources: list[str] = []
    mode = SyncMode.DEFAULT
    if c.accept("STRICT"):
        mode = SyncMode.STRICT
    elif c.accept("PULL"):
        mode = SyncMode.PULL
    elif c.accept("LIGHTWEIGHT"):
        mode = SyncMode.LIGHTWEIGHT
        if c.accept("FROM"):
            while (name := c.identifier_or_string()) is not None:
                sources.append(name)
                if not c.accept(","):
                    break
            if not sources:
                raise _syntax("the names of replicas")
    if not c.at_end:
        raise _syntax("STRICT, LIGHTWEIGHT, PULL or the end of the query")
    return mode, tuple(sources)


def _is_made(table: RunningTable) -> bool:
    """What is in Keeper in the place of the replica of any other may be somebody else's."""
    return table.record.state not in (TableState.CREATING, TableState.CONVERTING)


async def _restart(table: RunningTable) -> None:
    """As in ClickHouse it is given a moment to become writable, and is not waited for without Keeper."""
    await table.replica.restart()
    await table.replica.wait_until_active(timeout_s=_RESTART_WAIT_S)


async def _restore(table: RunningTable) -> None:
    """Keeper has lost the replica: make it again, start it, and give it its parts."""
    ctx = table.ctx
    await table.replica.restore(table.uuid)
    if not await table.replica.wait_until_active(timeout_s=_ACTIVE_WAIT_S):
        raise SqlError(
            Code.TABLE_IS_READ_ONLY,
            f"Table {ctx.name} is restored in Keeper and not active yet: {ctx.why_readonly}",
            hint="It becomes active by itself; its parts are attached then.",
        )
    await attach_restored(ctx)


async def _sync(asked: Asked, ctx: ReplicaContext) -> None:
    mode, sources = parse_sync_mode(asked.sql)
    timeout_s = number(settings_of(asked), "receive_timeout", 300.0)
    await sync_replica(ctx, mode, timeout_s, sources=sources)


def _set(ctx: ReplicaContext, verb: str, activity: Activity) -> None:
    if verb == "STOP":
        ctx.switches.stop(activity)
        if activity is Activity.FETCHES:
            ctx.fetches.stop()
        ctx.mutation_news.announce()  # merges and mutations under way look whether they are stopped
    else:
        ctx.switches.start(activity)
    for signal in (ctx.queue_changed, ctx.merge_wanted, ctx.log_changed):
        signal.set()


def _own_replica(ctx: ReplicaContext) -> SqlError:
    return SqlError(
        Code.TABLE_WAS_NOT_DROPPED,
        f"We can't drop local replica {ctx.replica} of table {ctx.name}, please use `DROP TABLE` if you want "
        "to clean the data and drop this replica",
    )


def _syntax(expected: str) -> SqlError:
    return SqlError(Code.SYNTAX_ERROR, f"Syntax error: {expected} is expected")
