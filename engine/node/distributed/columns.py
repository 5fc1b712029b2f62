"""Which columns a Distributed table, or a table function, has for a SELECT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.distributed.select import SourceColumn
from engine.errors import Code, OnclusterError, SqlError
from engine.names import quote_string
from engine.node.distributed.peer_health import PeerHealth
from engine.node.distributed.shard_reader import ShardReader
from engine.node.distributed.table_functions import TableFunction
from engine.node.distributed.tables import DistributedTable
from engine.node.replicated.waiting import flag

_HIDDEN = ("MATERIALIZED", "ALIAS")


async def columns_elsewhere(
    health: PeerHealth, call: TableFunction, reader: ShardReader
) -> Sequence[SourceColumn]:
    """The columns of a table that is known only where it is: asked of the first replica that says."""
    failures = []
    for shard in reader.shards:
        for peer in shard.peers:
            name = peer.table(call.table.database, call.table.table)
            try:
                rows = await health.client(peer).query_rows(f"DESCRIBE TABLE {name}")
            except OnclusterError as error:
                failures.append(f"{peer.name}: {str(error).partition(chr(10))[0][:300]}")
                continue
            described = [(*map(str, row), "", "", "")[:3] for row in rows.rows]
            return [
                SourceColumn(name, type_, is_hidden=kind in _HIDDEN)
                for name, type_, kind in described
                if kind != "EPHEMERAL"
            ]
    raise SqlError(
        Code.ALL_CONNECTION_TRIES_FAILED,
        f"No replica says which columns {call.table} has. Log: {'; '.join(failures)}",
    )


def elsewhere(table: DistributedTable) -> str:
    """The table in a statement on another node."""
    definition = table.definition
    if not definition.database:
        return table.name.quoted
    arguments = (definition.cluster, definition.database, definition.table)
    return f"cluster({', '.join(map(quote_string, arguments))})"


def columns_of(table: DistributedTable, settings: Mapping[str, str]) -> Sequence[SourceColumn]:
    shown = {kind for kind in _HIDDEN if flag(settings, f"asterisk_include_{kind.lower()}_columns", False)}
    return [
        SourceColumn(column.name, column.type, column.kind in _HIDDEN and column.kind not in shown)
        for column in sorted(table.columns, key=lambda one: "ALIAS" in shown and one.kind == "ALIAS")
        if column.kind != "EPHEMERAL"
    ]
