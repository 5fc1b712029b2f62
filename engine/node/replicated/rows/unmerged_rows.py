"""The rows of an INSERT as they came, for views: written into a table that merges nothing, and copied from
there into the one that they are for.

With `optimize_on_insert` engines such as ReplacingMergeTree merge rows of equal key before they write a part.
Views see the rows before that, as in ClickHouse. A replicated table has stages of its own for them
(`unmerged_stage`); the table made here is for a plain one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from engine.env import Env
from engine.errors import Code, SqlError
from engine.names import TableName, quote_identifier
from engine.node.statements.statement import Asked
from engine.part_storage.insert_stage import stored_columns_query
from engine.part_storage.workers import LIKE_ONE_THAT_IS_THERE, SCRATCH_DATABASE
from engine.sql.unsorted import unsorted_engine
from engine.storage import ChdbPool
from engine.storage.scope import Scope

log = logging.getLogger(__name__)

_COPYING = {
    "insert_allow_materialized_columns": "1",  # one may be made of an EPHEMERAL column, which is gone
    "max_threads": "1",  # of equal rows the last one may win
    "max_insert_threads": "1",
    "async_insert": "0",
}


@asynccontextmanager
async def unmerged_rows(pool: ChdbPool, env: Env, like: TableName) -> AsyncIterator[TableName]:
    """A table of the columns of `like`, while it is needed."""
    rows = TableName(SCRATCH_DATABASE, f"views_{env.new_uuid().hex}")
    create = f"CREATE TABLE {rows.quoted} AS {like.quoted} ENGINE = {unsorted_engine()}"
    try:
        await pool.query(create, settings=LIKE_ONE_THAT_IS_THERE)
    except SqlError as error:
        if error.code != Code.UNKNOWN_DATABASE:
            raise
        await pool.query(f"CREATE DATABASE IF NOT EXISTS {SCRATCH_DATABASE} ENGINE = Memory")
        await pool.query(create, settings=LIKE_ONE_THAT_IS_THERE)
    try:
        yield rows
    finally:
        pool.finish_later(_drop(pool, rows))  # its files are nothing that an INSERT has to wait for


async def _drop(pool: ChdbPool, rows: TableName) -> None:
    try:
        await pool.query(f"DROP TABLE IF EXISTS {rows.quoted} SYNC")
    except SqlError as error:
        log.warning("replicated.unmerged_rows_left table=%s error=%s", rows, error)


async def copy_rows(
    asked: Asked,
    rows: TableName,
    into: TableName,
    settings: Mapping[str, str],
    columns: Sequence[str],
    condition: str = "1",
) -> None:
    """Those of `rows` that are meant into a table with the same columns, which may merge them. Raises
    SqlError."""
    names = ", ".join(map(quote_identifier, columns))
    await asked.session.clone().query(
        f"INSERT INTO {into.quoted} ({names}) SELECT {names} FROM {rows.quoted} WHERE {condition}",
        format="Null",
        scope=Scope(settings={**settings, **_COPYING}),
        is_harmless=True,
    )


async def stored_columns(pool: ChdbPool, table: TableName) -> Sequence[str]:
    """The names of those that rows have on the disk."""
    found = await pool.query(stored_columns_query(table), format="JSONCompactEachRow")
    return [json.loads(line)[0] for line in found.text.splitlines()]
