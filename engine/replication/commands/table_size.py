"""How large a table may be before more rows are put into it: `max_table_size_rows`,
`max_table_size_bytes_compressed` and `max_table_size_bytes_uncompressed`, which are each replica's own.

What it gets from others, and what merges and mutations make of its rows, is taken whatever the limits say: a
replica that refused it would fall behind. Source: ClickHouse's MergeTreeData (TABLE_SIZE_LIMIT_EXCEEDED),
which does not count fetches either.
"""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.replication.replica.context import ReplicaContext


async def check_table_size(ctx: ReplicaContext) -> None:
    """Called before rows are put into the table, which may take it beyond a limit. Raises SqlError 1016."""
    settings = ctx.settings
    limits = {
        "max_table_size_rows": settings.max_table_size_rows,
        "max_table_size_bytes_compressed": settings.max_table_size_bytes_compressed,
        "max_table_size_bytes_uncompressed": settings.max_table_size_bytes_uncompressed,
    }
    if not any(limits.values()):
        return
    size = await ctx.store.size()
    sizes = (size.rows, size.compressed_bytes, size.uncompressed_bytes)
    for (name, limit), here in zip(limits.items(), sizes, strict=True):
        if here > limit > 0:
            raise SqlError(
                Code.TABLE_SIZE_LIMIT_EXCEEDED,
                f"Table size limit exceeded: table {ctx.name} has {here:,}, which is more than "
                f"{name} = {limit:,}.",
                hint="TRUNCATE and DROP PARTITION make room, ALTER TABLE … MODIFY SETTING another limit.",
            )
