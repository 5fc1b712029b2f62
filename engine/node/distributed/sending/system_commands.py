"""SYSTEM FLUSH DISTRIBUTED, STOP and START DISTRIBUTED SENDS, RESTORE and DROP BROKEN DISTRIBUTED FILES.

The last two are this project's own, see `engine.distributed.broken_files`; they need a table.
"""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.node.distributed.registry.tables import DistributedTables
from engine.node.distributed.sending.spools import Spools
from engine.node.replicated.running.statements import done
from engine.node.statements.statement import Answer, Asked
from engine.sql import Statement, StatementKind

_RESTORE = "RESTORE BROKEN DISTRIBUTED FILES"
_DROP = "DROP BROKEN DISTRIBUTED FILES"
_COMMANDS = ("FLUSH DISTRIBUTED", "STOP DISTRIBUTED SENDS", "START DISTRIBUTED SENDS", _RESTORE, _DROP)


class DistributedSystemStatements:
    """Handles the commands above; a table that is not Distributed is refused."""

    def __init__(self, tables: DistributedTables, spools: Spools) -> None:
        self._tables = tables
        self._spools = spools

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        command = statement.system_command
        if statement.kind is not StatementKind.SYSTEM or command not in _COMMANDS:
            return None
        if not statement.tables:
            if command in (_RESTORE, _DROP):
                raise SqlError(Code.SYNTAX_ERROR, f"Syntax error: SYSTEM {command} needs a table")
            if command.startswith("STOP"):
                self._spools.block_all()
            elif command.startswith("START"):
                self._spools.unblock_all()
            else:
                for each in await self._tables.all():
                    await self._spools.flush(each)
            return done(asked)
        name = statement.tables[0]
        table = await self._tables.find_for(asked, name)
        if table is None:
            raise SqlError(
                Code.BAD_ARGUMENTS,
                f"Table {name} is not distributed",
                hint="SYSTEM … DISTRIBUTED is about tables with engine Distributed of this node.",
            )
        if command == _RESTORE:
            await self._spools.restore_broken(table)
        elif command == _DROP:
            await self._spools.drop_broken(table)
        elif command.startswith("FLUSH"):
            await self._spools.flush(table)
        elif command.startswith("STOP"):
            self._spools.block(table)
        else:
            self._spools.unblock(table)
        return done(asked)
