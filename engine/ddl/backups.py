"""BACKUP and RESTORE ON CLUSTER, which this queue neither sends nor carries out.

ClickHouse's own are not statements that each host runs for itself: the initiator numbers the backup, and the
hosts agree in Keeper, stage by stage, on who writes which file. Run singly each host would write the same
files at the same place, over those of the others.
"""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.sql import Statement, StatementKind


def refuse_backups(statement: Statement) -> None:
    """Raises SqlError 48."""
    if statement.kind in (StatementKind.BACKUP, StatementKind.RESTORE):
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            f"{statement.kind.value} ON CLUSTER is not supported: hosts would overwrite each other's files",
            hint="Run it on each server by itself, with a destination of its own.",
        )
