"""The last of the handlers: what nobody handles and chDB must not do to a replicated table is refused.

chDB knows nothing of Keeper: an ALTER that it ran would change one replica and no other.
"""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.node.replicated.runtime import ReplicatedTables
from engine.node.statement import Answer, Asked
from engine.sql import Statement, StatementKind

_K = StatementKind
_READS_OR_NAMES = frozenset(
    {_K.GRANT, _K.REVOKE, _K.BACKUP, _K.CREATE_TABLE, _K.CREATE_VIEW, _K.CREATE_MATERIALIZED_VIEW}
)


class ReplicatedGuard:
    """Implements `ReplicatedStatements`; it answers nothing. Register it last."""

    def __init__(self, tables: ReplicatedTables) -> None:
        self._tables = tables

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        """Raises SqlError 48."""
        if statement.kind is _K.PARALLEL_WITH and self._tables.all():
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                "PARALLEL WITH is not supported on a node that has replicated tables.",
                hint="Send the statements one by one.",
            )
        if statement.is_query or statement.kind in _READS_OR_NAMES:
            return None
        for name in (*statement.tables, *statement.targets):
            table = self._tables.find_for(asked, name)
            if table is not None:
                raise SqlError(
                    Code.NOT_IMPLEMENTED,
                    f"{statement.kind} is not supported for the replicated table {table.name}.",
                )
        return None
