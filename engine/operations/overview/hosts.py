"""Asking one server how it is: replicas, what their queues hang on, mutations, spool.

Four statements at once, each of columns that every ClickHouse since 18.16 has, or of all there are. A table
that a server does not have is a note. Columns that would make a server ask Keeper are left out: the picture
is wanted most of all while Keeper is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from engine.client.node_client import NodeClient
from engine.errors import Code, OnclusterError, SqlError
from engine.operations.overview.model import (
    Answer,
    HostView,
    Mutation,
    QueueTask,
    ReplicatedTable,
    SpoolRow,
)
from engine.sql import redact, redact_prose

_REPLICAS = (
    "SELECT database, table, is_readonly, is_session_expired, queue_size, inserts_in_queue, absolute_delay "
    "FROM system.replicas ORDER BY absolute_delay DESC, queue_size DESC, database, table LIMIT 1000"
)
_QUEUE = (
    "SELECT database, table, type, new_part_name, toUnixTimestamp(create_time) AS since_s, num_tries, "
    "last_exception, postpone_reason FROM system.replication_queue "
    "WHERE notEmpty(last_exception) OR notEmpty(postpone_reason) ORDER BY create_time LIMIT 20"
)
_MUTATIONS = (
    "SELECT *, toUnixTimestamp(create_time) AS since_s FROM system.mutations "
    "WHERE is_done = 0 ORDER BY create_time LIMIT 20"
)
_SPOOL = "SELECT * FROM system.distribution_queue LIMIT 200"
_NOT_THERE = (Code.UNKNOWN_TABLE, Code.UNKNOWN_IDENTIFIER, Code.NO_SUCH_COLUMN_IN_TABLE)
_LONGEST_TEXT = 2000

Row = Mapping[str, Any]


async def look_at_host(host: str, client: NodeClient) -> HostView:
    """Raises what the first question, for the version, raises: the others' errors are notes."""
    facts = (await client.query_rows("SELECT version() AS version, uptime() AS uptime")).dicts()[0]
    replicas, queue, mutations, spool = await asyncio.gather(
        *(_rows(client, sql) for sql in (_REPLICAS, _QUEUE, _MUTATIONS, _SPOOL))
    )
    answers = {"replicas": replicas, "replication_queue": queue, "mutations": mutations}
    answers["distribution_queue"] = spool
    return HostView(
        host,
        Answer.UP,
        version=str(facts["version"]),
        uptime_s=int(facts["uptime"]),
        tables=tuple(map(_replica, _known(replicas))),
        queue_tasks=tuple(map(_queue_task, _known(queue))),
        mutations=tuple(map(_mutation, _known(mutations))),
        spool=tuple(filter(_holds_something, map(_spool_row, _known(spool)))),
        notes=tuple(
            f"system.{table}: {_note(answer)}"
            for table, answer in answers.items()
            if isinstance(answer, OnclusterError)
        ),
    )


def host_is_down(host: str, error: OnclusterError) -> HostView:
    """The view of a server that gave no answer."""
    return HostView(host, Answer.DOWN, error=_text(error.message))


async def _rows(client: NodeClient, sql: str) -> list[dict[str, Any]] | OnclusterError:
    try:
        return (await client.query_rows(sql)).dicts()
    except OnclusterError as error:
        return error


def _known(answer: list[dict[str, Any]] | OnclusterError) -> list[dict[str, Any]]:
    return [] if isinstance(answer, OnclusterError) else answer


def _note(error: OnclusterError) -> str:
    if isinstance(error, SqlError) and error.code in _NOT_THERE:
        return "this server does not have it"
    return _text(error.message)


def _text(value: object) -> str:
    """Errors quote statements, and those may hold secrets."""
    return redact_prose(str(value or ""))[:_LONGEST_TEXT]


def _table(row: Row) -> str:
    return f"{row['database']}.{row['table']}"


def _replica(row: Row) -> ReplicatedTable:
    return ReplicatedTable(
        _table(row),
        is_readonly=bool(row["is_readonly"]),
        is_session_expired=bool(row["is_session_expired"]),
        queue_size=int(row["queue_size"]),
        inserts_in_queue=int(row["inserts_in_queue"]),
        absolute_delay_s=int(row["absolute_delay"]),
    )


def _queue_task(row: Row) -> QueueTask:
    return QueueTask(
        _table(row),
        type=str(row["type"]),
        part=str(row["new_part_name"]),
        since_ms=int(row["since_s"]) * 1000,
        tries=int(row["num_tries"]),
        last_exception=_text(row["last_exception"]),
        postpone_reason=_text(row["postpone_reason"]),
    )


def _mutation(row: Row) -> Mutation:
    return Mutation(
        _table(row),
        mutation_id=str(row["mutation_id"]),
        command=redact(str(row["command"] or ""))[:_LONGEST_TEXT],
        since_ms=int(row["since_s"]) * 1000,
        parts_to_do=int(row.get("parts_to_do") or 0),
        fail_reason=_text(row.get("latest_fail_reason")),
    )


def _spool_row(row: Row) -> SpoolRow:
    return SpoolRow(
        _table(row),
        files=int(row.get("data_files") or 0),
        size_bytes=int(row.get("data_compressed_bytes") or 0),
        broken_files=int(row.get("broken_data_files") or 0),
        errors=int(row.get("error_count") or 0),
        is_blocked=bool(row.get("is_blocked")),
        last_exception=_text(row.get("last_exception")),
    )


def _holds_something(row: SpoolRow) -> bool:
    """An empty spool has one row for each shard and table, and nothing to tell."""
    return bool(row.files or row.broken_files or row.is_blocked or row.last_exception)
