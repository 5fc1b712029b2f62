"""`system.replicas` and `system.replication_queue` of this node's replicated tables.

Keeper is asked only for the columns that need it, and only if the statement names one of them (or `*`):
monitoring that counts the queue goes on while Keeper is away. Rows are those that chDB's tables of these
names would have; the columns are chDB's own.

Source: ClickHouse's StorageSystemReplicas, StorageSystemReplicationQueue.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence

from engine.env import Env
from engine.errors import OnclusterError
from engine.names import TableName, quote_string
from engine.node.replicated.parts.detached_view import DetachedPartsView
from engine.node.replicated.parts.parts_view import MutationsView, PartsView
from engine.node.replicated.running.runtime import ReplicatedTables, RunningTable
from engine.node.statements.statement import Asked
from engine.node.system.system_tables import Row, SystemTable, SystemView
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.queue.view import (
    KeeperStatus,
    keeper_status,
    local_status,
    queue_rows,
)
from engine.sql import Token, name_of

_KEEPER_WAIT_S = 5.0
"""Who watches a cluster wants an answer most of all while something is wrong."""
_FROM_KEEPER = frozenset(
    {
        "log_max_index",
        "log_pointer",
        "total_replicas",
        "active_replicas",
        "lost_part_count",
        "zookeeper_exception",
        "replica_is_active",
    }
)


def replicated_system_tables(tables: ReplicatedTables, env: Env) -> list[SystemTable | SystemView]:
    """All of them, for `SystemTables`."""
    return [
        ReplicasTable(tables, env),
        ReplicationQueueTable(tables),
        PartsView(tables),
        PartsView(tables, "parts_columns"),
        MutationsView(tables),
        DetachedPartsView(tables),
    ]


class ReplicasTable:
    """Implements SystemTable."""

    name = "replicas"
    columns = ""

    def __init__(self, tables: ReplicatedTables, env: Env) -> None:
        self._tables = tables
        self._env = env

    async def rows(self, asked: Asked, tokens: list[Token]) -> Iterable[Row]:
        tables = self._tables.all()
        engines = await _engines(asked, tables)
        found: Sequence[KeeperStatus] = [KeeperStatus()] * len(tables)
        if asks_keeper(tokens):
            found = await asyncio.gather(*(_in_keeper(table.ctx) for table in tables))
        return [
            self._row(table, engines.get(table.ctx.name, ""), in_keeper)
            for table, in_keeper in zip(tables, found, strict=True)
        ]

    def _row(self, table: RunningTable, engine: str, in_keeper: KeeperStatus) -> Row:
        status = local_status(table.ctx)
        since_s = status.readonly_since_s if status.is_readonly else 0.0
        active = in_keeper.replica_is_active or {}
        return {
            "database": table.ctx.name.database,
            "table": table.ctx.name.table,
            "uuid": str(table.uuid),
            "engine": engine,
            "is_leader": int(status.is_leader),
            "can_become_leader": int(status.can_become_leader),
            "is_readonly": int(status.is_readonly),
            "readonly_start_time": int(since_s) if since_s else None,
            "is_session_expired": int(status.is_session_expired),
            "future_parts": status.future_parts,
            "parts_to_check": status.parts_to_check,
            "zookeeper_name": "default",
            "zookeeper_path": status.zookeeper_path,
            "replica_name": status.replica_name,
            "replica_path": status.replica_path,
            "columns_version": status.columns_version,
            "queue_size": status.queue_size,
            "inserts_in_queue": status.inserts_in_queue,
            "merges_in_queue": status.merges_in_queue,
            "part_mutations_in_queue": status.part_mutations_in_queue,
            "queue_oldest_time": int(status.queue_oldest_time_s),
            "inserts_oldest_time": int(status.inserts_oldest_time_s),
            "merges_oldest_time": int(status.merges_oldest_time_s),
            "part_mutations_oldest_time": int(status.part_mutations_oldest_time_s),
            "oldest_part_to_get": status.oldest_part_to_get,
            "oldest_part_to_merge_to": status.oldest_part_to_merge_to,
            "oldest_part_to_mutate_to": status.oldest_part_to_mutate_to,
            "log_max_index": in_keeper.log_max_index,
            "log_pointer": in_keeper.log_pointer,
            "last_queue_update": int(status.last_queue_update_s),
            "absolute_delay": int(status.absolute_delay_s),
            "total_replicas": in_keeper.total_replicas,
            "active_replicas": in_keeper.active_replicas,
            "lost_part_count": in_keeper.lost_part_count,
            "last_queue_update_exception": status.last_queue_update_exception,
            "zookeeper_exception": in_keeper.exception,
            "replica_is_active": {name: int(is_active) for name, is_active in active.items()},
            "readonly_duration": max(0, int(self._env.now_s() - since_s)) if since_s else None,
        }


class ReplicationQueueTable:
    """Implements SystemTable."""

    name = "replication_queue"
    columns = ""

    def __init__(self, tables: ReplicatedTables) -> None:
        self._tables = tables

    async def rows(self, asked: Asked, tokens: list[Token]) -> Iterable[Row]:
        return [row for table in self._tables.all() for row in _queue_of(table.ctx)]


def _queue_of(ctx: ReplicaContext) -> list[Row]:
    return [
        {
            "database": ctx.name.database,
            "table": ctx.name.table,
            "replica_name": ctx.replica,
            "position": row.position,
            "node_name": row.node_name,
            "type": row.type,
            "create_time": int(row.create_time_s),
            "required_quorum": row.required_quorum,
            "source_replica": row.source_replica,
            "new_part_name": row.new_part_name,
            "parts_to_merge": list(row.parts_to_merge),
            "is_detach": int(row.is_detach),
            "is_currently_executing": int(row.is_currently_executing),
            "num_tries": row.num_tries,
            "last_exception": row.last_exception,
            "last_exception_time": int(row.last_exception_time_s),
            "last_attempt_time": int(row.last_attempt_time_s),
            "num_postponed": row.num_postponed,
            "postpone_reason": row.postpone_reason,
            "last_postpone_time": int(row.last_postpone_time_s),
            "merge_type": row.merge_type,
        }
        for row in queue_rows(ctx)
    ]


def asks_keeper(tokens: Iterable[Token]) -> bool:
    """Whether a statement names a column that only Keeper knows, or all columns.

    `count(*)` counts rows; the star in it is no column. A star behind a number multiplies.
    """
    before = ""
    brackets = ""
    for token in tokens:
        if name_of(token) in _FROM_KEEPER:
            return True
        is_column = token.text == "*" and before not in (")", "]") and not before.isdigit()
        if is_column and not (before == "(" and brackets.upper() == "COUNT"):
            return True
        if token.text == "(":
            brackets = before
        before = token.text
    return False


async def _in_keeper(ctx: ReplicaContext) -> KeeperStatus:
    keeper = ctx.holder.current
    if keeper is None:
        return KeeperStatus(exception=ctx.why_readonly)
    try:
        async with asyncio.timeout(_KEEPER_WAIT_S):
            return await keeper_status(ctx, keeper)
    except OnclusterError as error:
        return KeeperStatus(exception=str(error))
    except TimeoutError:
        return KeeperStatus(exception=f"Keeper has not answered within {_KEEPER_WAIT_S:g} seconds")


async def _engines(asked: Asked, tables: Sequence[RunningTable]) -> Mapping[TableName, str]:
    """As a user wrote them."""
    if not tables:
        return {}
    names = sorted({table.ctx.name.database for table in tables})
    result = await asked.session.clone().query(
        "SELECT database, name, engine FROM system.tables WHERE database IN "
        f"({', '.join(map(quote_string, names))}) AND endsWith(engine, 'MergeTree')",
        format="JSONCompactEachRow",
    )
    rows = [json.loads(line) for line in result.data.splitlines()]
    return {TableName(database, name): f"Replicated{engine}" for database, name, engine in rows}
