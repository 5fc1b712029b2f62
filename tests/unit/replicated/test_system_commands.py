"""SYSTEM commands about tables that are not attached."""

from __future__ import annotations

from typing import cast

import pytest

from engine.config.model import User
from engine.errors import SqlError
from engine.names import TableName
from engine.node.replicated.running.runtime import ReplicatedTables
from engine.node.replicated.system_commands import SystemStatements
from engine.node.statements.statement import Asked
from engine.sql import parse_statement
from engine.storage import ChdbSession


@pytest.mark.parametrize("command", ["SYNC REPLICA", "RESTART REPLICA", "RESTORE REPLICA"])
async def test_a_replicated_table_that_is_being_made_is_said_to_be_and_no_other_one(command: str) -> None:
    """chDB, which has it already, would say that it is not replicated."""
    tables = ReplicatedTables()
    tables.recorded = lambda: [TableName("d", "made")]
    commands = SystemStatements(tables, None)

    async def ask(table: str) -> object:
        sql = f"SYSTEM {command} d.{table}"
        asked = Asked(sql, User("u"), cast(ChdbSession, _Session()))
        return await commands.run(asked, parse_statement(sql))

    with pytest.raises(SqlError, match="If it is being created") as refused:
        await ask("made")
    assert refused.value.code == 60
    assert await ask("other") is None, "that is chDB's to answer"


class _Session:
    """Of a client that named no database."""

    database = "default"
