"""The last of the handlers: what nobody handles and chDB must not do to a replicated table is refused.

chDB knows nothing of Keeper: an ALTER that it ran would change one replica and no other. The same goes for
what reaches a replicated table through a materialized view, which passes commands on to its target.
"""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.replicated.rows.views import ViewGraph
from engine.node.replicated.running.runtime import ReplicatedTables, RunningTable
from engine.node.statements.statement import Answer, Asked
from engine.sql import AlterCommand, Statement, StatementKind

_K = StatementKind
_A = AlterCommand
_READS_OR_NAMES = frozenset(
    {
        *(_K.GRANT, _K.REVOKE, _K.BACKUP, _K.CREATE_TABLE, _K.CREATE_VIEW, _K.CREATE_MATERIALIZED_VIEW),
        *(_K.CREATE_ROW_POLICY, _K.ALTER_ROW_POLICY, _K.DROP_ROW_POLICY),
        *(_K.CREATE_MASKING_POLICY, _K.ALTER_MASKING_POLICY, _K.DROP_MASKING_POLICY),
    }
)
_PASSED_ON = frozenset({_K.ALTER_TABLE, _K.OPTIMIZE, _K.TRUNCATE_TABLE, _K.DELETE, _K.UPDATE})
_OF_THE_VIEW = frozenset(
    {
        _A.MODIFY_QUERY,
        _A.MODIFY_REFRESH,
        _A.MODIFY_SQL_SECURITY,
        _A.MODIFY_COMMENT,
        _A.COMMENT_COLUMN,
        _A.REFRESH,
    }
)


class ReplicatedGuard:
    """Implements `ReplicatedStatements`; it answers nothing. Register it last."""

    def __init__(self, tables: ReplicatedTables, views: ViewGraph) -> None:
        self._tables = tables
        self._views = views

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        """Raises SqlError 48, and 60 for a replicated table that is being attached or detached."""
        if not self._tables.has_any or statement.is_query or statement.kind is _K.INSERT:
            return None
        if statement.kind is _K.PARALLEL_WITH:
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                "PARALLEL WITH is not supported here: any of its statements may be about a replicated one.",
                hint="Send the statements one by one.",
            )
        if statement.kind in _READS_OR_NAMES:
            return None
        if statement.kind is _K.RESTORE and not statement.tables:
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                "RESTORE of databases is not supported here: some of their tables may be replicated ones.",
                hint="Restore the tables that are not by name.",
            )
        for name in _changed(statement):
            table = self._tables.find_for(asked, name)
            if table is not None:
                raise _unsupported(str(statement.kind), table)
            if statement.kind in _PASSED_ON:
                self._tables.find_to_write(name.within(asked.current_database))
            # TRUNCATE of a view that writes TO a table does nothing in ClickHouse either.
            if statement.kind in _PASSED_ON - {_K.TRUNCATE_TABLE} and not _OF_THE_VIEW.issuperset(
                statement.alter_commands or [_A.OTHER]
            ):
                await self._check_view(asked, statement, name)
        return None

    async def _check_view(self, asked: Asked, statement: Statement, name: TableName) -> None:
        whole = name.within(asked.current_database)
        target = await self._views.target_of(whole)
        table = None if target is None else self._tables.find_to_write(target)
        if table is not None:
            raise _unsupported(f"{statement.kind} through the view {whole}", table)


def _changed(statement: Statement) -> tuple[TableName, ...]:
    """The tables that the statement changes: other tables of REPLACE and ATTACH PARTITION FROM are read."""
    if statement.kind is _K.ALTER_TABLE and _A.MOVE_PARTITION_TO_TABLE not in statement.alter_commands:
        return statement.tables
    return (*statement.tables, *statement.targets)


def _unsupported(what: str, table: RunningTable) -> SqlError:
    return SqlError(Code.NOT_IMPLEMENTED, f"{what} is not supported for the replicated table {table.name}.")
