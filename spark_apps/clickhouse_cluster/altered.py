"""Staged rows of a table that was altered after their load was decided.

A server refuses the parts of a staging table that has another structure than the table. The rows are then
written once more, by the server itself, into a staging table of the structure that the table has now, as if
the ALTER had come when the load was done: what the table has no more is left out, what is new gets its
default, other types are converted.

Safety. This makes other parts of the same rows: other hashes, other sizes. What an earlier run moved is known
by the hashes of the parts that it had, which its intents say (`moves`). A run that was left behind has a
table of the old structure, which is refused, or one of these, which is dropped first.

What this never does: guess that a column has got another name. A column that is gone beside one that is new
ends the run, and nothing of that shard is moved.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.errors import Code, SqlError
from engine.names import TableName
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.target import Column, Target, column_list, columns_of

HAD_OTHER_COLUMNS = (
    "The table was altered after the load was decided. Give it the columns that it had, run the load again, "
    "and alter the table then."
)
_REFUSALS = (Code.INCOMPATIBLE_COLUMNS, Code.BAD_ARGUMENTS)
_NO_PARTITION = "'none'"
_SETTINGS = {
    "max_partitions_per_insert_block": "0",
    "optimize_on_insert": "0",
    "max_threads": "1",
    "max_insert_threads": "1",
}


def is_refusal(error: SqlError) -> bool:
    """Whether it may say that a table has another structure."""
    return error.code in _REFUSALS


def refusal_of(server: Server, target: Target, staged: TableName) -> SqlError | None:
    """Why the table would take no part of `staged`, if it would not: the server compares them by moving a
    partition that is not there. Raises SqlError 60 where `staged` is gone."""
    sql = f"ALTER TABLE {target.table.quoted} ATTACH PARTITION ID {_NO_PARTITION} FROM {staged.quoted}"
    try:
        server.execute(sql)
    except SqlError as error:
        if error.code == Code.UNKNOWN_TABLE:
            raise
        return error
    return None


def write_again(server: Server, target: Target, table: TableName, sources: Iterable[TableName]) -> None:
    """The rows of `sources` into `table`, which has the structure that `target` has now. Raises SqlError."""
    for source in sources:
        had = columns_of(server, source)
        common = column_list(_common(server, target, had))
        sql = f"INSERT INTO {table.quoted} ({common}) SELECT {common} FROM {source.quoted}"
        server.execute(sql, settings=_SETTINGS)


def _common(server: Server, target: Target, had: Iterable[Column]) -> list[str]:
    """Names of the columns that rows have and had. Raises SqlError."""
    old = [column.name for column in had if column.is_stored_as_given]
    new = [column.name for column in target.columns if column.is_stored_as_given]
    gone, added = sorted(set(old) - set(new)), sorted(set(new) - set(old))
    if gone and added:
        raise SqlError(
            Code.INCOMPATIBLE_COLUMNS,
            f"{server}: {target.table} was altered since the load was decided: {', '.join(gone)} is gone, "
            f"{', '.join(added)} is new. Nobody can tell whether that is the same under another name.",
            hint=HAD_OTHER_COLUMNS,
        )
    return [name for name in old if name in new]
