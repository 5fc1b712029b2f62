"""The rows of an INSERT as they came, for the views of a table that merges rows when they are inserted.

With `optimize_on_insert` engines such as ReplacingMergeTree merge rows of equal key before they write a part.
Views see the rows before that, as in ClickHouse: so they are written into a table that merges nothing, and
copied into the stage from there.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from engine.env import Env
from engine.names import TableName, quote_identifier, quote_string
from engine.node.statement import Asked
from engine.part_storage.workers import SCRATCH_DATABASE
from engine.replication.table_metadata import TableMetadata
from engine.storage import ChdbPool
from engine.storage.scope import Scope

_COPYING = {
    "insert_allow_materialized_columns": "1",  # one may be made of an EPHEMERAL column, which is gone
    "max_threads": "1",  # of equal rows the last one may win
    "max_insert_threads": "1",
    "async_insert": "0",
}


@asynccontextmanager
async def unmerged_rows(
    pool: ChdbPool, env: Env, like: TableName, *, partition_by: str = ""
) -> AsyncIterator[TableName]:
    """A table of the columns of `like`, while it is needed."""
    rows = TableName(SCRATCH_DATABASE, f"views_{env.new_uuid().hex}")
    await pool.query(f"CREATE DATABASE IF NOT EXISTS {SCRATCH_DATABASE} ENGINE = Memory")
    await pool.query(
        f"CREATE TABLE {rows.quoted} AS {like.quoted} ENGINE = MergeTree "
        f"PARTITION BY tuple({partition_by}) ORDER BY tuple() SETTINGS allow_nullable_key = 1"
    )
    try:
        yield rows
    finally:
        await pool.query(f"DROP TABLE IF EXISTS {rows.quoted} SYNC")


async def copy_rows(asked: Asked, rows: TableName, into: TableName, settings: Mapping[str, str]) -> None:
    """All of `rows` into a table with the same columns, which may merge them. Raises SqlError."""
    session = asked.session.clone()
    try:
        found = await session.query(
            "SELECT name FROM system.columns "
            f"WHERE database = {quote_string(rows.database)} AND table = {quote_string(rows.table)} "
            "AND default_kind NOT IN ('ALIAS', 'EPHEMERAL') ORDER BY position",
            format="JSONCompactEachRow",
        )
        columns = ", ".join(quote_identifier(json.loads(line)[0]) for line in found.text.splitlines())
        await session.query(
            f"INSERT INTO {into.quoted} ({columns}) SELECT {columns} FROM {rows.quoted}",
            format="Null",
            scope=Scope(settings={**settings, **_COPYING}),
        )
    finally:
        await session.close()


def partition_by(metadata: TableMetadata) -> str:
    """The partition key as a list of expressions."""
    if metadata.partition_key is None:
        return f"toYYYYMM({quote_identifier(metadata.date_column)})"
    return metadata.partition_key
