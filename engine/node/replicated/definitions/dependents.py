"""A table that others need is not dropped, nor detached.

A DROP of a Replicated database's table is committed for all replicas before chDB carries it out, and of a
database some tables go before others: neither could be taken back. So what chDB would refuse is looked for
before. For `check_referential_table_dependencies` it knows who refers to a
table, and tells nobody: it is asked by a RENAME into a database of another engine, which it looks at in the
same way, and cannot do.

Source: ClickHouse's InterpreterRenameQuery::executeToTables, DatabaseAtomic::renameTable.
"""

from __future__ import annotations

from dataclasses import replace

from engine.errors import Code, SqlError
from engine.names import TableName, quote_identifier
from engine.node.replicated.running.local_tables import LocalTables
from engine.node.statements.asked_settings import flag, settings_of
from engine.node.statements.statement import Asked
from engine.storage.layout import SCRATCH_DATABASE

REFERENTIAL = "check_referential_table_dependencies"
_NOWHERE = TableName(SCRATCH_DATABASE, "nowhere")


async def check_referred(asked: Asked, table: TableName) -> None:
    """Raises SqlError 630."""
    session = asked.session.clone()
    await session.query(f"CREATE DATABASE IF NOT EXISTS {SCRATCH_DATABASE} ENGINE = Memory", format="Null")
    try:
        await session.query(
            f"RENAME TABLE {table.quoted} TO {_NOWHERE.quoted}",
            format="Null",
            scope=replace(asked.scope, settings={**asked.settings, REFERENTIAL: "1"}),
        )
    except SqlError as error:
        if error.code == Code.HAVE_DEPENDENT_OBJECTS:
            raise


async def check_database(asked: Asked, local: LocalTables, database: str) -> None:
    """Of DROP DATABASE: what needs a table in the same database goes with it. Raises SqlError 630."""
    given = settings_of(asked)
    for name, other, checks in await local.needed_elsewhere(database):
        if flag(given, "check_table_dependencies", checks):
            raise SqlError(
                Code.HAVE_DEPENDENT_OBJECTS,
                f"Cannot drop or rename {name}, because some tables depend on it: {other}.",
            )
    if not flag(given, REFERENTIAL, False):
        return
    own = (f"{database}.", f"{quote_identifier(database)}.")
    for table in await local.names_in(database):
        try:
            await check_referred(asked, TableName(database, table))
        except SqlError as error:
            others = error.message.rpartition("depend on it: ")[2].split(", ")
            if not all(other.startswith(own) for other in others):
                raise
