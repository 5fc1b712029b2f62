"""What plans, runs and `engine.migrations.lint` say about statements in Replicated databases. Pure.

Such a database has a log of its own for statements on its tables, and refuses them ON CLUSTER (80): every
host would hand the statement to all replicas. Migrations go through ON CLUSTER. The databases themselves are
made that way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from engine.errors import Code, SqlError
from engine.migrations.errors import Problem
from engine.migrations.files import ScriptStatement
from engine.migrations.lint_statements import Note
from engine.migrations.model import RunRequest
from engine.migrations.selection import Selected
from engine.migrations.statements import Surroundings
from engine.sql import StatementKind, parse_statement

_ENGINE = "Replicated"
_RULE = "replicated-database"
_OF_ALL_NAMED = ("RENAME ", "EXCHANGE ", "DROP ", "DETACH ")
"""Kinds that change every table they name; others change the first, and may read from the rest."""
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


def check_database(
    statement: ScriptStatement, replicated: Set[str], *, current_database: str = "default"
) -> Iterator[Note]:
    """A statement on an object of one of them."""
    if not replicated:
        return
    parsed = parse_statement(statement.sql)
    if parsed.kind in _NO_DDL or not parsed.takes_on_cluster:
        return
    default = statement.options.database or current_database
    changed = parsed.tables if parsed.kind.value.startswith(_OF_ALL_NAMED) else parsed.tables[:1]
    named = {table.database or default for table in changed}
    for database in sorted(named & replicated):
        message = (
            f"{database} is a Replicated database: it refuses {parsed.kind} ON CLUSTER, on every host. Send "
            "the statement to one of its servers, without ON CLUSTER: all replicas carry it out"
        )
        yield _RULE, message, int(Code.INCORRECT_QUERY)


def refused_by_databases(
    selected: Sequence[Selected], request: RunRequest, surroundings: Surroundings, found: Set[str]
) -> list[Problem]:
    """What a run would enqueue and every host would refuse. `found`: the Replicated databases that hosts of
    the cluster have now; what the run itself makes and drops is followed from there.

    Statements for other clusters are not judged: their hosts were not asked.
    """
    replicated = set(found)
    problems: list[Problem] = []
    for item in selected:
        for statement in item.script.statements:
            parsed = parse_statement(statement.sql)
            try:
                cluster = surroundings.cluster_of(statement, parsed)
            except SqlError:
                continue  # refused for that already
            if cluster != surroundings.cluster:
                continue
            match parsed.kind:
                case StatementKind.CREATE_DATABASE if parsed.engine == _ENGINE:
                    replicated.add(parsed.database or "")
                case StatementKind.DROP_DATABASE:
                    replicated.discard(parsed.database or "")
                case _ if statement.options.allows(_RULE) is not None:
                    pass  # somebody knows better, such as of a mutation that real servers take
                case _ if item.will_send(
                    statement, retry_failed=request.leniency.retry_failed, run_id=request.run_id
                ):
                    problems += [
                        Problem(str(item.script.path), statement.line, rule, message, code)
                        for rule, message, code in check_database(
                            statement, replicated, current_database=request.database
                        )
                    ]
                case _:
                    pass
    return problems
