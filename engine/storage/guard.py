"""Statements that chDB must not be given, because in a node they would do more than on a server."""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.sql import Statement

_FILE_ENGINES = frozenset({"File", "Filesystem", "FileLog", "Executable", "ExecutablePool", "SQLite"})


def check_statement(statement: Statement) -> None:
    """Raises SqlError 358 for INTO OUTFILE, 497 for engines over files of the machine (table functions are
    refused by chDB's grants), 1 for SYSTEM SHUTDOWN and KILL, which would end the process at once."""
    if statement.into_outfile is not None:
        raise SqlError(358, "INTO OUTFILE is not allowed", name="INTO_OUTFILE_NOT_ALLOWED")
    if statement.engine in _FILE_ENGINES:
        raise SqlError(
            497, f"Engine {statement.engine} would read files of the node's machine", name="ACCESS_DENIED"
        )
    if statement.system_command.upper() in ("SHUTDOWN", "KILL"):
        raise SqlError(
            Code.UNSUPPORTED_METHOD,
            f"SYSTEM {statement.system_command.upper()} is not supported.",
            hint="Send the node's process SIGTERM.",
        )
