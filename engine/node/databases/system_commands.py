"""SYSTEM SYNC, DROP and RESTORE DATABASE REPLICA.

Source: ClickHouse's InterpreterSystemQuery.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import Code, SqlError
from engine.node.databases.running import ReplicatedDatabases, RunningDatabase
from engine.node.replicated.running.statements import done
from engine.node.statements.asked_settings import number, settings_of
from engine.node.statements.statement import Answer, Asked
from engine.sql import Statement
from engine.sql.cursor import Cursor

_SYNC = "SYNC DATABASE REPLICA"
_RESTORE = "RESTORE DATABASE REPLICA"
_DROP = "DROP DATABASE REPLICA"
_RECEIVE_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class DropText:
    """What SYSTEM DROP DATABASE REPLICA says. Neither `database` nor `path`: all databases of this node."""

    replica: str
    shard: str | None = None
    database: str | None = None
    path: str | None = None
    with_tables: bool = False

    @property
    def full_name(self) -> str:
        """Without a shard the replica's name is the full one."""
        return self.replica if self.shard is None else f"{self.shard}|{self.replica}"


def parse_drop(sql: str) -> DropText:
    """Raises SqlError 62."""
    cursor = Cursor(sql)
    cursor.accept("SYSTEM", "DROP", "DATABASE", "REPLICA")
    replica = cursor.identifier_or_string()
    if replica is None:
        raise _syntax(cursor)
    shard = database = path = None
    if cursor.accept("FROM", "SHARD"):
        shard = cursor.identifier_or_string()
    if cursor.accept("FROM", "DATABASE"):
        database = cursor.identifier()
    elif cursor.accept("FROM", "ZKPATH"):
        path = cursor.identifier_or_string()
    with_tables = cursor.accept("WITH", "TABLES")
    if cursor.accept("FORMAT"):
        cursor.identifier()
    if not cursor.at_end:
        raise _syntax(cursor)
    return DropText(replica, shard, database, path, with_tables)


def _syntax(cursor: Cursor) -> SqlError:
    return SqlError(
        Code.SYNTAX_ERROR,
        f"Syntax error at '{cursor.token.text}'",
        hint="SYSTEM DROP DATABASE REPLICA 'r' [FROM SHARD 's'] [FROM DATABASE d | FROM ZKPATH '/p'] "
        "[WITH TABLES]",
    )


class DatabaseCommands:
    """`run` what it `takes`."""

    def __init__(self, databases: ReplicatedDatabases) -> None:
        self._databases = databases

    def takes(self, statement: Statement) -> bool:
        return statement.system_command in (_SYNC, _RESTORE, _DROP)

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        match statement.system_command:
            case command if command == _SYNC:
                await self._sync(asked, statement)
            case command if command == _RESTORE:
                await self._named(statement).core.restore()
            case command if command == _DROP:
                await self._drop(parse_drop(asked.sql))
            case _:
                return None
        return done(asked)

    def _named(self, statement: Statement) -> RunningDatabase:
        database = self._databases.find(statement.database)
        if database is None:
            raise SqlError(
                Code.BAD_ARGUMENTS,
                f"SYSTEM {statement.system_command} is for Replicated databases, and {statement.database} is "
                "none of this node",
            )
        return database

    async def _sync(self, asked: Asked, statement: Statement) -> None:
        database = self._named(statement)
        words = Cursor(asked.sql).words
        timeout_s = number(settings_of(asked), "receive_timeout", _RECEIVE_TIMEOUT_S)
        await database.core.sync(strict="STRICT" in words[4:], timeout_s=timeout_s)

    async def _drop(self, text: DropText) -> None:
        databases = self._databases
        if text.path is not None:
            await databases.drop_replica_at(text.path, text.full_name, with_tables=text.with_tables)
            return
        if text.database is not None:
            database = databases.find(text.database)
            if database is None:
                raise SqlError(
                    Code.BAD_ARGUMENTS,
                    f"Database {text.database} is not Replicated, cannot drop replica",
                )
            await databases.drop_replica_of(database, text.full_name, with_tables=text.with_tables)
            return
        for database in databases.all():
            await databases.drop_replica_of(
                database, text.full_name, with_tables=text.with_tables, if_there=True
            )
