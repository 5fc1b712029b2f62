"""Whether a table of a Replicated database may be dropped, renamed or detached, before that is committed."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import Code, SqlError
from engine.names import quote_string
from engine.node.databases.local_database import LocalDatabase, not_loaded
from engine.node.replicated.definitions.dependents import REFERENTIAL, check_referred
from engine.node.replicated.definitions.if_empty import check_empty, is_if_empty
from engine.node.statements.asked_settings import flag, number, settings_of
from engine.node.statements.statement import Asked
from engine.sql import Statement
from engine.storage.layout import SCRATCH_DATABASE


async def check_droppable(
    database: LocalDatabase, asked: Asked, statement: Statement, inner: Sequence[str]
) -> None:
    """Raises SqlError for what chDB would refuse: it is too late when that is committed. `inner` are
    tables that go along."""
    if is_if_empty(asked.sql):
        await check_empty(database.shell.local, statement.tables[0])
    name = statement.tables[0]
    given = settings_of(asked)
    if flag(given, REFERENTIAL, False):
        await check_referred(asked, name)
    names = ", ".join(map(quote_string, (name.table, *inner)))
    rows = await database.shell.local.rows(
        "SELECT name, total_bytes, loading_dependent_database, loading_dependent_table, "
        "getSetting('check_table_dependencies'), getSetting('max_table_size_to_drop') FROM system.tables "
        f"WHERE database = {quote_string(name.database or database.name)} AND name IN ({names})"
    )
    if name.table not in (row[0] for row in rows):
        raise not_loaded(name)
    for own, total, databases, tables, checks, most in rows:
        limit = int(number(given, "max_table_size_to_drop", float(most)))
        is_drop = statement.kind.value.startswith("DROP ")
        if is_drop and total and limit and int(total) > limit:
            raise SqlError(
                Code.TABLE_SIZE_EXCEEDS_MAX_DROP_SIZE_LIMIT,
                f"Table {name} was not dropped: its size ({total} bytes) is greater than "
                f"max_table_size_to_drop ({limit} bytes).",
                hint="SETTINGS max_table_size_to_drop = 0 behind the statement allows it.",
            )
        needs = [f"{d}.{t}" for d, t in zip(databases, tables, strict=True) if d != SCRATCH_DATABASE]
        if own == name.table and needs and flag(given, "check_table_dependencies", bool(checks)):
            others = ", ".join(needs)
            raise SqlError(
                Code.HAVE_DEPENDENT_OBJECTS,
                f"Cannot drop or rename {name}, because some tables depend on it: {others}.",
            )
