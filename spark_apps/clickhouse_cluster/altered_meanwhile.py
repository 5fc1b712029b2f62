"""A partition that came into a plain table while somebody altered that.

Nothing on a server keeps ATTACH PARTITION … FROM and an ALTER of columns apart: the parts may come in behind
the ALTER with the columns from before it. The server takes them for parts that the ALTER has been at: a
column that was renamed is empty in them, and the next ALTER removes its values.

Safety. Only what has columns that the table does not have is dropped again, only when it is all that was
attached, byte for byte, and came with a block behind those that were there; the rows are still staged. Parts
that the ALTER was at are whole, and stay. Everything else is for a person to look at.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence

from engine.errors import Code, SqlError
from engine.names import quote_string
from spark_apps.clickhouse_cluster import staging
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.staging import Part, last_block
from spark_apps.clickhouse_cluster.target import Target

_LOOKS = 60
_BETWEEN_LOOKS_S = 0.5


class End(enum.Enum):
    """How the attached partition ended."""

    WHOLE = enum.auto()
    TAKEN_BACK = enum.auto()
    UNSURE = enum.auto()


def settle(server: Server, target: Target, partition_id: str, *, block: int, attached: Sequence[Part]) -> End:
    """`block` is the greatest number that the partition had before. Waits up to half a minute for an ALTER
    that is under way. Raises SqlError."""
    before: tuple[list[Part], int] | None = None
    for look in range(_LOOKS):
        came = _came(server, target, partition_id, block)
        outdated = _outdated(server, target, came)
        if outdated == 0:
            return End.WHOLE
        # An ALTER may begin or end between two questions: only what was the same before and after counts.
        is_last = look + 1 == _LOOKS
        if is_last or before == (came, outdated):
            if outdated != len(came) or _digests(came) != _digests(attached):
                return End.UNSURE
            dropped = _drop(server, target, came)
            if dropped:
                return End.TAKEN_BACK if dropped == len(came) else End.UNSURE
        is_altered = _is_being_altered(server, target)
        before = None if is_altered else (came, outdated)
        if is_altered and not is_last:
            time.sleep(_BETWEEN_LOOKS_S)
    return End.UNSURE


def _drop(server: Server, target: Target, parts: Sequence[Part]) -> int:
    """How many were dropped before one was no longer there. Raises SqlError."""
    for number, part in enumerate(parts):
        sql = f"ALTER TABLE {target.table.quoted} DROP PART {quote_string(part.name)}"
        try:
            server.execute(sql)
        except SqlError as error:
            if error.code != Code.NO_SUCH_DATA_PART:
                raise
            return number
    return len(parts)


def _came(server: Server, target: Target, partition_id: str, block: int) -> list[Part]:
    parts = staging.parts(server, target).get(partition_id, [])
    return [part for part in parts if last_block([part]) > block]


def _outdated(server: Server, target: Target, parts: Sequence[Part]) -> int:
    """How many have a column that the table has not, or has in another type."""
    table = f"database = {quote_string(target.table.database)} AND table = {quote_string(target.table.table)}"
    names = ", ".join(quote_string(part.name) for part in parts)
    if not names:
        return 0
    (row,) = server.rows(
        f"SELECT toString(uniqExact(name)) AS n FROM system.parts_columns WHERE {table} AND active "
        f"AND name IN ({names}) AND (column, type) NOT IN "
        f"(SELECT name, type FROM system.columns WHERE {table})"
    )
    return int(row["n"])


def _is_being_altered(server: Server, target: Target) -> bool:
    (row,) = server.rows(
        "SELECT toString(count()) AS n FROM system.mutations WHERE NOT is_done "
        f"AND database = {quote_string(target.table.database)} AND table = {quote_string(target.table.table)}"
    )
    return int(row["n"]) > 0


def _digests(parts: Sequence[Part]) -> list[str]:
    return sorted(part.digest for part in parts)
