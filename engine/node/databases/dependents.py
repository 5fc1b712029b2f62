"""`check_referential_table_dependencies`: a table that others refer to is not dropped, nor detached.

Which they are chDB knows and tells nobody. The DROP is committed for all replicas before chDB carries it out,
and could not be taken back then. So chDB is asked before, by a RENAME that it looks at in the same way and
cannot do: into a database of another engine.

Source: ClickHouse's InterpreterRenameQuery::executeToTables, DatabaseAtomic::renameTable.
"""

from __future__ import annotations

from dataclasses import replace

from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.statement import Asked
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
