"""`table_readonly`, a setting of a table: whoever asks this replica to change what is in it is refused.

chDB refuses INSERTs, ALTERs of columns and mutations, which it is asked first. What goes into Keeper without
being asked would stand in this replica's queue, and be done on the others. Source: ClickHouse's
MergeTreeData::assertNotReadonly.
"""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.replication.replica.context import ReplicaContext


async def check_writable(ctx: ReplicaContext) -> None:
    """Raises SqlError 774."""
    try:
        settings = dict((await ctx.store.definition()).settings)
    except SqlError as error:
        if error.code == Code.NO_ELEMENTS_IN_CONFIG:  # of a GraphiteMergeTree, whose rules stand elsewhere
            return
        raise
    if settings.get("table_readonly", "0") not in ("0", "false"):
        raise SqlError(
            Code.TABLE_IS_PERMANENTLY_READ_ONLY,
            f"Table {ctx.name} is in readonly mode.",
            hint="ALTER TABLE … MODIFY SETTING table_readonly = 0 allows changes.",
        )
