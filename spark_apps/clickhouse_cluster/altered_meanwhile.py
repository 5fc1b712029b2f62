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
    for look in range(_LOOKS):
        came = _came(server, target, partition_id, block)
        if _outdated(server, target, came) == 0:
            return End.WHOLE
        if not _is_being_altered(server, target):
            break
        if look + 1 < _LOOKS:
            time.sleep(_BETWEEN_LOOKS_S)
    came = _came(server, target, partition_id, block)
    if _outdated(server, target, came) != len(came) or _digests(came) != _digests(attached):
        return End.UNSURE
    for part in came:
        sql = f"ALTER TABLE {target.table.quoted} DROP PART {quote_string(part.name)}"
        try:
            server.execute(sql)
        except SqlError as error:
            if error.code != Code.NO_SUCH_DATA_PART:
                raise
            return End.UNSURE
    return End.TAKEN_BACK


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
