"""What chDB would do with a Distributed table by itself, without the node, is refused.

In chDB such a table cannot be read and takes no rows. Engines and sources of chDB that name another table
would fail whenever chDB uses them, where nobody is told.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Sequence

from engine.distributed.definition import argument_name, engine_arguments
from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.distributed.definitions.dictionary_source import DICTIONARIES, HINT, reads_of_dictionary
from engine.node.distributed.definitions.kept_expressions import (
    CONSTRAINT,
    PROJECTION,
    TTL,
    kept_expression_refused,
)
from engine.node.distributed.registry.overlooked import OVERLOOKED
from engine.node.distributed.registry.tables import DistributedTables
from engine.node.statements.merged_tables import literal
from engine.node.statements.statement import Answer, Asked
from engine.sql import Statement, StatementKind
from engine.sql.cursor import Cursor
from engine.sql.kinds import AlterCommand

_K = StatementKind
_MUTATIONS = frozenset({_K.DELETE, _K.UPDATE})
_CREATES = frozenset({_K.CREATE_TABLE, _K.ATTACH_TABLE})
_ENGINES = frozenset({"Alias", "Buffer", "Merge"})
_KEPT = {
    AlterCommand.ADD_CONSTRAINT: CONSTRAINT,
    AlterCommand.MODIFY_CONSTRAINT: CONSTRAINT,
    AlterCommand.ADD_PROJECTION: PROJECTION,
    AlterCommand.MODIFY_PROJECTION: PROJECTION,
    AlterCommand.MODIFY_TTL: TTL,
}
_MERGE = re.compile(r"\bmerge\s*\(", re.IGNORECASE)
_BEFORE = ("FROM", "JOIN", ",", "(")


def concerns_guard(statement: Statement) -> bool:
    """Whether the guard has to see the statement."""
    is_made = statement.kind in _CREATES and statement.engine is not None and statement.engine in _ENGINES
    is_kept = statement.kind in DICTIONARIES or _kept_expression(statement) is not None
    return is_made or is_kept or is_mutation(statement) or OVERLOOKED in statement.tables


def _kept_expression(statement: Statement) -> str | None:
    """What chDB keeps the text of, to run it by itself later."""
    if statement.kind is _K.CREATE_FUNCTION:
        return "A function"
    return next((_KEPT[command] for command in statement.alter_commands if command in _KEPT), None)


def is_mutation(statement: Statement) -> bool:
    """Whether it changes rows that are there."""
    return statement.kind in _MUTATIONS or any(
        command in (AlterCommand.DELETE, AlterCommand.UPDATE) for command in statement.alter_commands
    )


class DistributedGuard:
    """Refuses, and answers nothing."""

    def __init__(
        self, tables: DistributedTables, reads_distributed: Callable[[str, str], Awaitable[bool]]
    ) -> None:
        """`reads_distributed`: whether a text, in a database, reads such tables, however indirectly."""
        self._tables = tables
        self._reads_distributed = reads_distributed

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if not concerns_guard(statement) or not (names := await self._tables.names()):
            return None
        if OVERLOOKED in statement.tables:
            raise SqlError(
                Code.ACCESS_DENIED,
                f"{OVERLOOKED} is what chDB reads in the place of a Distributed table: it stays as it is.",
            )
        if (what := _kept_expression(statement)) is not None:
            if await self._reads_distributed(asked.sql, asked.current_database):
                raise kept_expression_refused(what)
            return None
        if is_mutation(statement):
            if await self._reads_distributed(asked.sql, asked.current_database):
                raise SqlError(
                    Code.NOT_IMPLEMENTED,
                    "DELETE and UPDATE can read Distributed tables only in subqueries and behind IN.",
                    hint="Write what is read into a table of this node first, and read that.",
                )
            return None
        if statement.kind in DICTIONARIES:
            found = await self._read_by_dictionary(asked)
            what = "A dictionary"
            hint = HINT
        else:
            found = str(_named_by_engine(asked, names) or "")
            what = f"A table with engine {statement.engine}"
            hint = "Use the tables of the shards, or a materialized view."
        if found:
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"{what} cannot use a Distributed table ({found}): chDB can neither read it nor write "
                "to it by itself.",
                hint=hint,
            )
        return None

    async def _read_by_dictionary(self, asked: Asked) -> str:
        database, reads = reads_of_dictionary(asked.sql, asked.current_database)
        for text in reads:
            if await self._reads_distributed(text, database):
                return text
        return ""


def check_merge(sql: str, names: Collection[TableName], current_database: str) -> None:
    """Raises SqlError 48 for the table function merge() over Distributed tables."""
    if _MERGE.search(sql) is None:
        return
    cursor = Cursor(sql)
    for at, word in enumerate(cursor.words):
        if word != "MERGE" or cursor.words[at - 1] not in _BEFORE:
            continue
        cursor.at = at + 1
        found = _matched(engine_arguments(cursor), names, current_database)
        if found is not None:
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"merge() cannot read the Distributed table {found}.",
                hint="Name the tables, with UNION ALL between.",
            )


def _named_by_engine(asked: Asked, names: Collection[TableName]) -> TableName | None:
    cursor = Cursor(asked.sql)
    cursor.skip_to("ENGINE")
    cursor.at += 1
    cursor.accept("=")
    engine = cursor.identifier()
    arguments = engine_arguments(cursor)
    if engine == "Merge":
        is_written = len(arguments) > 2
        return _matched(arguments[:2], names, asked.current_database) if is_written else None
    if engine == "Alias" and len(arguments) == 1:
        arguments = ["''", *arguments]
    try:
        database, table = (argument_name(text, "", asked.current_database) for text in arguments[:2])
    except (SqlError, ValueError):
        return None
    name = TableName(database or asked.current_database, table)
    return name if name in names else None


def _matched(arguments: Sequence[str], names: Collection[TableName], current: str) -> TableName | None:
    """Of `merge(…)` and `Merge(…)`: a database, or REGEXP('…') for several, and an expression for tables."""
    if not arguments:
        return None
    try:
        pattern = re.compile(literal(arguments[-1], current))
    except re.error:
        return None  # chDB says so
    database = literal(arguments[-2], current) if len(arguments) > 1 else current
    return next(
        (n for n in sorted(names) if database in ("", n.database) and pattern.search(n.table) is not None),
        None,
    )
