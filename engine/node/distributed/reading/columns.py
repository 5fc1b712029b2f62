"""Which columns a Distributed table, or a table function, has for a SELECT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.client import QueryRows
from engine.distributed.peers import PeerShard
from engine.distributed.select import SourceColumn
from engine.errors import Code, OnclusterError, SqlError
from engine.names import quote_identifier, quote_string
from engine.node.distributed.functions.read_place import ReadPlace
from engine.node.distributed.peers.peer_health import PeerHealth
from engine.node.distributed.reading.alias_columns import value_on_shard
from engine.node.distributed.reading.failover import GONE, received_from
from engine.node.distributed.registry.tables import DistributedTable
from engine.node.statements.asked_settings import flag

_HIDDEN = ("MATERIALIZED", "ALIAS")


async def described_elsewhere(health: PeerHealth, place: ReadPlace, shards: Sequence[PeerShard]) -> QueryRows:
    """DESCRIBE of what is known only where it is, asked of the first replica that says; this node first.

    Raises SqlError: what the first replica said that has it and refuses, else 279.
    """
    failures: list[str] = []
    refusal: SqlError | None = None
    peers = [peer for shard in shards for peer in shard.peers]
    for peer in sorted(peers, key=lambda one: not one.is_local):
        sql = f"DESCRIBE TABLE {place.text(peer)}"
        try:
            return await health.client(peer).query_rows(sql, settings=place.parameters)
        except OnclusterError as error:
            failures.append(f"{peer.name.readable}: {str(error).partition(chr(10))[0][:300]}")
            if refusal is None and isinstance(error, SqlError) and error.code not in GONE:
                refusal = received_from(peer, error)
    if refusal is not None:
        raise refusal
    raise SqlError(
        Code.ALL_CONNECTION_TRIES_FAILED,
        f"No replica says which columns {place} has. Log: {'; '.join(failures)}",
    )


def described_rows(answer: QueryRows) -> Sequence[tuple[str, str, str, str]]:
    """Names, types, kinds and default expressions."""
    rows = ((*map(str, row), "", "") for row in answer.rows)
    return [(name, type_, kind, expression) for name, type_, kind, expression, *_ in rows]


def listed_for_create(answer: QueryRows) -> str:
    """What a CREATE TABLE of a table like that has in its brackets."""
    return ", ".join(
        f"{quote_identifier(name)} {type_} {kind} {expression}"
        for name, type_, kind, expression in described_rows(answer)
    )


async def columns_elsewhere(
    health: PeerHealth, place: ReadPlace, shards: Sequence[PeerShard]
) -> Sequence[SourceColumn]:
    """Raises as `described_elsewhere`."""
    answer = await described_elsewhere(health, place, shards)
    return [
        SourceColumn(name, type_, is_hidden=kind in _HIDDEN)
        for name, type_, kind, _ in sorted(described_rows(answer), key=lambda row: row[2] == "ALIAS")
        if kind != "EPHEMERAL"
    ]


def elsewhere(table: DistributedTable) -> str:
    """The table in a statement on another node."""
    definition = table.definition
    if not definition.database:
        return table.name.quoted
    arguments = (definition.cluster, definition.database, definition.table)
    return f"cluster({', '.join(map(quote_string, arguments))})"


def columns_of(table: DistributedTable, settings: Mapping[str, str]) -> Sequence[SourceColumn]:
    shown = {kind for kind in _HIDDEN if flag(settings, f"asterisk_include_{kind.lower()}_columns", False)}
    by_name = {column.name: column for column in table.columns}
    return [
        SourceColumn(
            column.name,
            column.type,
            column.kind in _HIDDEN and column.kind not in shown,
            value_on_shard(column, by_name),
        )
        for column in sorted(table.columns, key=lambda one: one.kind == "ALIAS")
        if column.kind != "EPHEMERAL"
    ]
