"""The rule of `engine.migrations.lint` about Replicated databases. Pure.

Such a database has a log of its own for statements on its tables, and refuses them ON CLUSTER (80): every
host would hand the statement to all replicas. Migrations go through ON CLUSTER. The databases themselves are
made that way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engine.errors import Code
from engine.migrations.files import ScriptStatement
from engine.migrations.lint_statements import Note
from engine.sql import StatementKind, parse_statement

_ENGINE = "Replicated"
_NO_DDL = frozenset({StatementKind.SYSTEM, StatementKind.OPTIMIZE, StatementKind.GRANT, StatementKind.REVOKE})
"""They take ON CLUSTER there as everywhere."""


def replicated_databases(statements: Iterable[ScriptStatement]) -> frozenset[str]:
    """Those that the folder makes."""
    parsed = (parse_statement(statement.sql) for statement in statements)
    return frozenset(
        found.database or ""
        for found in parsed
        if found.kind is StatementKind.CREATE_DATABASE and found.engine == _ENGINE
    )


def check_database(statement: ScriptStatement, replicated: frozenset[str]) -> Iterator[Note]:
    """A statement on an object of one of them."""
    if not replicated:
        return
    parsed = parse_statement(statement.sql)
    if parsed.kind in _NO_DDL or not parsed.takes_on_cluster:
        return
    default = statement.options.database or "default"
    named = {table.database or default for table in parsed.tables}
    for database in sorted(named & replicated):
        message = (
            f"{database} is a Replicated database: it refuses {parsed.kind} ON CLUSTER, on every host. Send "
            "the statement to one of its servers, without ON CLUSTER: all replicas carry it out"
        )
        yield "replicated-database", message, int(Code.INCORRECT_QUERY)
