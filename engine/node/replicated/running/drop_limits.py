"""Large tables and partitions are not dropped by mistake: `max_table_size_to_drop` and
`max_partition_size_to_drop`, of the statement, the request or the session; 0 for no limit.

DROP TABLE is chDB's, which looks itself. CREATE OR REPLACE drops a table by the node's own hand, so it is
looked at here. Source: ClickHouse's Context::checkCanBeDropped.
"""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.replicated.running.local_tables import LocalTables
from engine.node.statements.asked_settings import number, settings_of
from engine.node.statements.statement import Asked
from engine.replication.part_name import PartName
from engine.replication.replica.context import ReplicaContext

_DEFAULT_BYTES = 50_000_000_000


def check_partition(ctx: ReplicaContext, asked: Asked, partition_id: str) -> None:
    """Raises SqlError 359."""
    size_bytes = sum(
        part.size_bytes for name, part in ctx.store.active.items() if name.partition_id == partition_id
    )
    _check(f"Partition {partition_id} of {ctx.name}", size_bytes, "max_partition_size_to_drop", asked)


def check_part(ctx: ReplicaContext, asked: Asked, name: PartName) -> None:
    """Raises SqlError 359."""
    part = ctx.store.active.get(name)
    if part is not None:
        _check(f"Part {name} of {ctx.name}", part.size_bytes, "max_partition_size_to_drop", asked)


def check_table(ctx: ReplicaContext, asked: Asked) -> None:
    """Raises SqlError 359."""
    size_bytes = sum(part.size_bytes for part in ctx.store.active.values())
    _check(f"Table {ctx.name}", size_bytes, "max_table_size_to_drop", asked)


async def check_replaced(local: LocalTables, asked: Asked, name: TableName) -> None:
    """Of the table of this name, whatever its engine, if there is one. Raises SqlError 359."""
    _check(f"Table {name}", await local.size_bytes(name), "max_table_size_to_drop", asked)


def _check(what: str, size_bytes: int, setting: str, asked: Asked) -> None:
    limit_bytes = int(number(settings_of(asked), setting, _DEFAULT_BYTES))
    if limit_bytes and size_bytes > limit_bytes:
        raise SqlError(
            Code.TABLE_SIZE_EXCEEDS_MAX_DROP_SIZE_LIMIT,
            f"{what} was not dropped: its size ({size_bytes} bytes) is greater than {setting} "
            f"({limit_bytes} bytes).",
            hint=f"SETTINGS {setting} = 0 behind the statement allows it.",
        )
