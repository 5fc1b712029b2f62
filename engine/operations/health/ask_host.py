"""Asks one host for its facts: one statement for each system table, all at once, whatever its version.

First its version, then which columns its system tables have: servers since 18.16 lack many of today's. What
is not there, or not permitted, is said in `not_said` and keeps nothing else from being asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.client import NodeClient
from engine.env import Env
from engine.errors import Code, NodeUnavailable, OnclusterError, ReplyLost, SqlError
from engine.names import HostId, TableName, quote_identifier, quote_string
from engine.operations.health.facts import (
    ClockFacts,
    ConfigurationFacts,
    DetachedFacts,
    DiskFacts,
    Gap,
    HostFacts,
    MutationFacts,
    NotSaid,
    QueueEntryFacts,
    ReplicaFacts,
    Silence,
    SpoolFacts,
)
from engine.operations.site import Site

Row = Mapping[str, Any]

MAX_ROWS = 10_000
"""Of one system table of one host: more trouble than that nobody reads."""
_NO_ENTRY = frozenset(
    {
        Code.UNKNOWN_USER,
        Code.WRONG_PASSWORD,
        Code.REQUIRED_PASSWORD,
        Code.AUTHENTICATION_FAILED,
        Code.ACCESS_DENIED,
    }
)
_GAPS: Mapping[int | None, Gap] = {Code.ACCESS_DENIED: Gap.DENIED, Code.QUOTA_EXCEEDED: Gap.OVER_QUOTA}
_TABLES = (
    *("replicas", "replication_queue", "mutations", "distribution_queue", "disks", "detached_parts"),
    *("clusters", "macros", "detached_tables"),
)
_NUMBER = "toInt64(toUInt64({}))"
_UNIX = "toInt64(toUInt32({}))"
"""Times as Unix seconds: a server writes them in its own time zone otherwise."""


@dataclass(slots=True)
class _Asking:
    """One host being asked."""

    site: Site
    host: HostId
    columns: Mapping[str, Collection[str]] = field(default_factory=dict)
    not_said: list[NotSaid] = field(default_factory=list)

    async def rows(
        self, table: str, wanted: Mapping[str, str], *, where: str = "", needed: Sequence[str] = ()
    ) -> list[Row]:
        """The rows of a system table. `wanted` maps columns to expressions over them (`{}`); columns that the
        server lacks are left out. Whatever goes wrong is noted, and there are no rows then."""
        known = self.columns.get(table, ())
        missing = [column for column in needed if column not in known]
        if not known or missing:
            self.missing(f"system.{table}", missing if known else ())
            return []
        chosen = [
            f"{expression.format(quote_identifier(column))} AS {quote_identifier(f'_{column}')}"
            for column, expression in wanted.items()
            if column in known
        ]
        sql = f"SELECT {', '.join(chosen)} FROM system.{table} {where} LIMIT {MAX_ROWS}"

        async def read(client: NodeClient) -> list[Row]:
            return [
                {name[1:]: value for name, value in row.items()}
                for row in (await client.query_rows(sql)).dicts()
            ]

        answer = await self.site.ask(self.host, read)
        if isinstance(answer, OnclusterError):
            self.failed(f"system.{table}", answer, grant=f"SELECT ON system.{table}")
            return []
        return answer

    def missing(self, what: str, columns: Sequence[str]) -> None:
        lacks = (
            f"it has no column {', '.join(columns)}" if columns else "it is not there, or not for this user"
        )
        self.not_said.append(NotSaid(what, lacks, Gap.ABSENT))

    def failed(self, what: str, error: OnclusterError, *, grant: str) -> None:
        code = error.code if isinstance(error, SqlError) else None
        gap = _GAPS.get(code, Gap.FAILED)
        self.not_said.append(NotSaid(what, str(error), gap, grant if gap is Gap.DENIED else ""))


async def ask_host(site: Site, host: HostId, *, path: str = "") -> HostFacts:
    """All facts of one host; with `path` only of the replicated tables at that path of Keeper, without disks,
    spools and clock. Raises nothing: what went wrong stands in the facts."""
    version = await site.ask(host, lambda client: client.version())
    if isinstance(version, OnclusterError):
        return HostFacts(host, _silence(version), str(version), knows_replicas=False)
    if not version:
        return HostFacts(host, Silence.GARBAGE, "It does not say what version it is.", knows_replicas=False)
    asking = _Asking(site, host)
    columns = await site.ask(host, _columns)
    if isinstance(columns, OnclusterError):
        asking.failed("system.columns", columns, grant="SELECT ON system.columns")
        return HostFacts(host, version=version, not_said=tuple(asking.not_said), knows_replicas=False)
    asking.columns = columns
    if path:
        replicas = await _replicas(asking, f"WHERE zookeeper_path = {quote_string(path)}")
        tables = [replica.table for replica in replicas]
        queue, mutations = await asyncio.gather(_queue(asking, tables), _mutations(asking, tables))
        return _facts(asking, version, replicas=replicas, queue=queue, mutations=mutations)
    (
        (replicas, queue, mutations),
        (spools, disks, detached),
        (detached_tables, clock, configuration),
    ) = await asyncio.gather(
        asyncio.gather(_replicas(asking), _queue(asking), _mutations(asking)),
        asyncio.gather(_spools(asking), _disks(asking), _detached(asking)),
        asyncio.gather(_detached_tables(asking), _clock(asking, version), _configuration(asking)),
    )
    return _facts(
        asking,
        version,
        replicas=replicas,
        queue=queue,
        mutations=mutations,
        spools=spools,
        disks=disks,
        detached=detached,
        detached_tables=detached_tables,
        clock=clock,
        configuration=configuration,
    )


def _facts(asking: _Asking, version: tuple[int, ...], **found: Any) -> HostFacts:
    knows = not any(gap.what == "system.replicas" for gap in asking.not_said)
    facts = HostFacts(asking.host, version=version, not_said=tuple(asking.not_said), knows_replicas=knows)
    return replace(facts, **found)


def _silence(error: OnclusterError) -> Silence:
    match error:
        case SqlError(code=code) if code in _NO_ENTRY:
            return Silence.REFUSED
        case SqlError(code=Code.UNKNOWN_EXCEPTION) | ValueError():
            return Silence.GARBAGE
        case NodeUnavailable() if "not ClickHouse's" in error.message:
            return Silence.GARBAGE
        case NodeUnavailable() | ReplyLost():
            return Silence.DOWN
        case _:
            return Silence.FAILING


async def _columns(client: NodeClient) -> dict[str, set[str]]:
    names = ", ".join(map(quote_string, _TABLES))
    rows = await client.query_rows(
        f"SELECT table, name FROM system.columns WHERE database = 'system' AND table IN ({names})"
    )
    columns: dict[str, set[str]] = {}
    for table, name in rows.rows:
        columns.setdefault(str(table), set()).add(str(name))
    return columns


# --- one function for each system table --------------------------------------------------------------------


async def _replicas(asking: _Asking, where: str = "") -> tuple[ReplicaFacts, ...]:
    wanted = {
        **dict.fromkeys(("database", "table", "zookeeper_path", "replica_name", "zookeeper_name"), "{}"),
        **dict.fromkeys(
            (
                "is_readonly",
                "is_session_expired",
                "future_parts",
                "parts_to_check",
                "queue_size",
                "inserts_in_queue",
                "absolute_delay",
            ),
            _NUMBER,
        ),
        "queue_oldest_time": _UNIX,
        "readonly_duration": "toInt64(ifNull({}, -1))",
        "last_queue_update_exception": "{}",
    }
    rows = await asking.rows(
        "replicas", wanted, where=where, needed=("database", "table", "zookeeper_path", "replica_name")
    )
    reasons = await _readonly_reasons(asking) if any(row.get("is_readonly") for row in rows) else {}
    return tuple(
        ReplicaFacts(
            table=TableName(row["database"], row["table"]),
            path=row["zookeeper_path"].rstrip("/"),
            name=row["replica_name"],
            keeper_name=row.get("zookeeper_name", ""),
            is_readonly=bool(row.get("is_readonly", 0)),
            is_session_expired=bool(row.get("is_session_expired", 0)),
            readonly_s=None if (readonly_s := row.get("readonly_duration", -1)) < 0 else readonly_s,
            readonly_reason=reasons.get((row["zookeeper_path"], row["replica_name"]), ""),
            future_parts=row.get("future_parts", 0),
            parts_to_check=row.get("parts_to_check", 0),
            queue_size=row.get("queue_size", 0),
            inserts_in_queue=row.get("inserts_in_queue", 0),
            queue_oldest_s=row.get("queue_oldest_time", 0),
            absolute_delay_s=row.get("absolute_delay", 0),
            pull_error=row.get("last_queue_update_exception", ""),
        )
        for row in rows
    )


async def _readonly_reasons(asking: _Asking) -> dict[tuple[str, str], str]:
    """By path and name, where the server says it. Asked of tables that are read-only alone: for this column a
    server asks Keeper."""
    if "zookeeper_exception" not in asking.columns["replicas"]:
        return {}
    sql = "SELECT zookeeper_path, replica_name, zookeeper_exception FROM system.replicas WHERE is_readonly"
    found = await asking.site.ask(asking.host, lambda client: client.query_rows(sql))
    return {} if isinstance(found, OnclusterError) else {(path, name): why for path, name, why in found.rows}


async def _queue(asking: _Asking, tables: Sequence[TableName] | None = None) -> tuple[QueueEntryFacts, ...]:
    """Entries that failed, and the oldest of the others."""
    wanted = {
        **dict.fromkeys(
            ("database", "table", "node_name", "type", "new_part_name", "last_exception", "postpone_reason"),
            "{}",
        ),
        "create_time": _UNIX,
        **dict.fromkeys(("num_tries", "is_currently_executing"), _NUMBER),
    }
    where = f"{_of_tables(tables)} ORDER BY last_exception = '', create_time"
    rows = await asking.rows("replication_queue", wanted, where=where, needed=("database", "last_exception"))
    return tuple(
        QueueEntryFacts(
            table=TableName(row["database"], row["table"]),
            node_name=row.get("node_name", ""),
            type=row.get("type", ""),
            part=row.get("new_part_name", ""),
            created_s=row.get("create_time", 0),
            tries=row.get("num_tries", 0),
            exception=row.get("last_exception", ""),
            postpone_reason=row.get("postpone_reason", ""),
            is_executing=bool(row.get("is_currently_executing", 0)),
        )
        for row in rows
    )


async def _mutations(asking: _Asking, tables: Sequence[TableName] | None = None) -> tuple[MutationFacts, ...]:
    wanted = {
        **dict.fromkeys(
            ("database", "table", "mutation_id", "command", "latest_failed_part", "latest_fail_reason"), "{}"
        ),
        "create_time": _UNIX,
        "parts_to_do": "toInt64({})",
    }
    where = f"{_of_tables(tables)} {'AND' if tables is not None else 'WHERE'} NOT is_done"
    rows = await asking.rows("mutations", wanted, where=where, needed=("mutation_id", "is_done"))
    return tuple(
        MutationFacts(
            table=TableName(row["database"], row["table"]),
            mutation_id=row["mutation_id"],
            command=row.get("command", ""),
            created_s=row.get("create_time", 0),
            parts_to_do=row.get("parts_to_do", -1),
            failed_part=row.get("latest_failed_part", ""),
            fail_reason=row.get("latest_fail_reason", ""),
        )
        for row in rows
    )


async def _spools(asking: _Asking) -> tuple[SpoolFacts, ...]:
    wanted = {
        **dict.fromkeys(("database", "table", "data_path", "last_exception"), "{}"),
        **dict.fromkeys(
            ("data_files", "data_compressed_bytes", "broken_data_files", "error_count", "is_blocked"), _NUMBER
        ),
    }
    rows = await asking.rows("distribution_queue", wanted, needed=("database", "table", "data_path"))
    return tuple(
        SpoolFacts(
            table=TableName(row["database"], row["table"]),
            data_path=row["data_path"],
            files=row.get("data_files", 0),
            size_bytes=row.get("data_compressed_bytes", 0),
            broken_files=row.get("broken_data_files", 0),
            errors=row.get("error_count", 0),
            exception=row.get("last_exception", ""),
            is_blocked=bool(row.get("is_blocked", 0)),
        )
        for row in rows
    )


async def _disks(asking: _Asking) -> tuple[DiskFacts, ...]:
    wanted = {"name": "{}", "path": "{}", "free_space": "{}", "total_space": "{}"}
    rows = await asking.rows("disks", wanted, needed=tuple(wanted))
    return tuple(
        DiskFacts(row["name"], row["path"], row["free_space"], row["total_space"])
        for row in rows
        # Object storage has no end, and says the largest number that it can.
        if 0 < row["total_space"] < 2**62
    )


async def _detached_tables(asking: _Asking) -> frozenset[TableName]:
    if "detached_tables" not in asking.columns:
        return frozenset()
    rows = await asking.rows("detached_tables", {"database": "{}", "table": "{}"})
    return frozenset(TableName(row["database"], row["table"]) for row in rows)


async def _detached(asking: _Asking) -> tuple[DetachedFacts, ...]:
    """What was detached by a person or for another reason is not our business."""
    wanted = {
        "database": "{}",
        "table": "{}",
        "name": "toInt64(count({}))",
        "modification_time": "toInt64(toUInt32(max({})))",
    }
    rows = await asking.rows(
        "detached_parts",
        wanted,
        where="WHERE ifNull(reason, '') LIKE 'broken%' GROUP BY database, table",
        needed=("database", "table", "reason"),
    )
    return tuple(
        DetachedFacts(
            TableName(row["database"], row["table"]), row.get("name", 0), row.get("modification_time", 0)
        )
        for row in rows
    )


async def _configuration(asking: _Asking) -> ConfigurationFacts:
    replicas, macros = await asyncio.gather(
        asking.rows(
            "clusters",
            {"shard_num": _NUMBER, "host_name": "{}", "port": _NUMBER, "is_local": _NUMBER},
            where=f"WHERE cluster = {quote_string(asking.site.cluster)} ORDER BY shard_num, replica_num",
            needed=("cluster", "shard_num", "replica_num", "host_name", "port"),
        ),
        asking.rows("macros", {"macro": "{}", "substitution": "{}"}, needed=("macro", "substitution")),
    )
    shards: dict[int, tuple[HostId, ...]] = {}
    itself: set[HostId] = set()
    for row in replicas:
        at, host = row["shard_num"], HostId(row["host_name"], row["port"])
        shards[at] = (*shards.get(at, ()), host)
        if row.get("is_local"):
            itself.add(host)
    silent = {gap.what for gap in asking.not_said}
    return ConfigurationFacts(
        shards=None if "system.clusters" in silent else shards,
        itself=None if "system.clusters" in silent else frozenset(itself),
        macros=None if "system.macros" in silent else {row["macro"]: row["substitution"] for row in macros},
    )


async def _clock(asking: _Asking, version: tuple[int, ...]) -> ClockFacts | None:
    has_milliseconds = version >= (20, 5)
    sql = (
        "SELECT toUnixTimestamp64Milli(now64(3))"
        if has_milliseconds
        else "SELECT toInt64(toUInt32(now())) * 1000 + 500"
    )
    env = asking.site.env
    offset = await asking.site.ask(asking.host, lambda client: _offset_ms(client, sql, env))
    if isinstance(offset, OnclusterError):
        asking.failed("its clock", offset, grant="")
        return None
    return offset if has_milliseconds else replace(offset, error_ms=offset.error_ms + 500)


async def _offset_ms(client: NodeClient, sql: str, env: Env) -> ClockFacts:
    began_s = env.now_s()
    theirs_ms = float((await client.query_rows(sql)).scalar)
    ended_s = env.now_s()
    return ClockFacts(theirs_ms - (began_s + ended_s) * 500, abs(ended_s - began_s) * 500)


def _of_tables(tables: Sequence[TableName] | None) -> str:
    if tables is None:
        return ""
    names = [f"({quote_string(name.database)}, {quote_string(name.table)})" for name in tables]
    return f"WHERE (database, table) IN ({', '.join([*names, _NO_TABLE])})"


_NO_TABLE = "('', '')"
"""A list of tuples may not be empty."""
