"""Whether what Spark wrote is where it belongs: every replica of every shard is asked.

It reads only. A replica that is behind is given time; one that holds other rows, or does not answer, fails
the check in the end, with all shards and replicas in the message. Then the Distributed table is asked, which
must give the sum.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from engine.client import NodeClient
from engine.config.model import Cluster
from engine.env import Env
from engine.errors import Corrupt, NodeUnavailable, ReplyLost, SqlError
from engine.etl.report import LoadReport, TableReport
from engine.names import HostId, http_url, quote_identifier

PATIENCE_S = 60.0
_POLL_S = 0.25


def host_names(cluster: Cluster) -> dict[HostId, str]:
    """What each host is called here: its name, with the port where several have that name."""
    hosts = set(cluster.host_ids)
    times = Counter(host.host for host in hosts)
    return {host: host.host if times[host.host] == 1 else host.readable for host in hosts}


def any_host(cluster: Cluster) -> str:
    """One of them, by that name."""
    return host_names(cluster)[cluster.host_ids[0]]


class Counts(Protocol):
    """Runs a query that has one number as its result, on the host of that name (`host_names`).
    `engine.client.NodeClient` is wrapped into one."""

    async def count(self, host: str, sql: str) -> int: ...


class LoadCheckFailed(Corrupt):
    """Rows are missing, or there are too many; `check` has every replica."""

    def __init__(self, message: str, check: LoadCheck, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.check = check


@dataclass(frozen=True, slots=True)
class ReplicaRows:
    """`rows` is None when the replica could not be asked, see `error`. Shard 0: the Distributed table."""

    table: str
    shard: int
    host: str
    expected: int
    rows: int | None
    exact: bool = True
    error: str = ""

    @property
    def is_right(self) -> bool:
        if self.rows is None:
            return False
        return self.rows == self.expected if self.exact else self.rows >= self.expected

    def __str__(self) -> str:
        where = f"shard {self.shard}, {self.host}" if self.shard else f"over {self.host}"
        found = f"{self.rows:,} rows" if self.rows is not None else self.error
        wanted = f"{'' if self.exact else 'at least '}{self.expected:,} expected"
        return f"{self.table} {where}: {found}, {wanted}"


@dataclass(frozen=True, slots=True)
class LoadCheck:
    """Every table on every replica, tables and shards in order."""

    replicas: tuple[ReplicaRows, ...]
    problems: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.problems and all(replica.is_right for replica in self.replicas)

    @property
    def wrong(self) -> tuple[ReplicaRows, ...]:
        return tuple(replica for replica in self.replicas if not replica.is_right)

    def require_passed(self) -> None:
        """Raises LoadCheckFailed that names all that is wrong."""
        if not self.passed:
            lines = [*self.problems, *map(str, self.wrong)]
            raise LoadCheckFailed(
                "The rows are not where they belong:\n" + "\n".join(f"  {line}" for line in lines),
                self,
                hint="Load again with mode overwrite under another id (--job-id; in Airflow a new run), or "
                "look at the replicas that are named.",
            )

    def to_json(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "problems": list(self.problems),
            "replicas": [
                {
                    "table": item.table,
                    "shard": item.shard,
                    "host": item.host,
                    "expected": item.expected,
                    "rows": item.rows,
                    "exact": item.exact,
                    "error": item.error,
                }
                for item in self.replicas
            ],
        }


async def check_load(
    report: LoadReport, cluster: Cluster, counts: Counts, *, env: Env, patience_s: float = PATIENCE_S
) -> LoadCheck:
    """Ask until everything is right, or for `patience_s`; returns the last answers.

    Raises nothing for wrong rows: call `require_passed`.
    """
    deadline_s = env.monotonic_s() + patience_s
    while True:
        check = await _look(report, cluster, counts)
        # Counts that contradict themselves, or a shard that Spark does not know, no waiting will cure.
        if check.passed or check.problems or env.monotonic_s() >= deadline_s:
            return check
        await env.sleep(_POLL_S)


async def _look(report: LoadReport, cluster: Cluster, counts: Counts) -> LoadCheck:
    problems = [*report.problems]
    work = []
    numbers = {shard.number for shard in cluster.shards}
    names = host_names(cluster)
    for table in report.tables:
        if strangers := sorted(set(table.rows_per_shard) - numbers):
            problems.append(f"{table.table}: {cluster.name} has no shard {', '.join(map(str, strangers))}")
        for shard in cluster.shards:
            # A shard that the report does not know has no rows of a table that is divided, but all of others.
            unknown = table.rows if table.is_on_each_shard_in_full else 0
            expected = table.rows_per_shard.get(shard.number, unknown)
            for replica in shard.replicas:
                name = names[replica.host_id]
                work.append(_ask(counts, table, table.local, shard.number, name, expected))
        if not table.is_on_each_shard_in_full:
            work.append(_ask(counts, table, table.table, 0, any_host(cluster), table.rows))
    return LoadCheck(tuple(await asyncio.gather(*work)), tuple(problems))


async def _ask(
    counts: Counts, table: TableReport, name: str, shard: int, host: str, expected: int
) -> ReplicaRows:
    where = f" WHERE {table.where}" if table.where else ""
    rows, error = None, ""
    try:
        rows = await counts.count(host, f"SELECT count() FROM {quoted(name)}{where}")
    except (NodeUnavailable, ReplyLost, SqlError) as failure:
        error = failure.message
    return ReplicaRows(name, shard, host, expected, rows, table.exact, error)


def quoted(name: str) -> str:
    """`database.table` with both parts quoted."""
    return ".".join(quote_identifier(part) for part in name.split(".", 1))


class HttpCounts:
    """Asks nodes over HTTP, each through one client. Use as an asynchronous context manager."""

    def __init__(self, urls: Mapping[str, str], *, user: str = "default", password: str = "") -> None:
        self._urls = urls
        self._user = user
        self._password = password
        self._clients: dict[str, NodeClient] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> HttpCounts:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def count(self, host: str, sql: str) -> int:
        """Raises NodeUnavailable (also for a host without an address), ReplyLost, SqlError."""
        if host not in self._urls:
            raise NodeUnavailable(f"The address of {host} is not known.")
        client = self._clients.get(host)
        if client is None:
            client = NodeClient(self._urls[host], user=self._user, password=self._password, timeout_s=60.0)
            self._clients[host] = await self._stack.enter_async_context(client)
        return int((await client.query_rows(sql)).scalar)


def urls_of(cluster: Cluster) -> dict[str, str]:
    """Where each host of a cluster is asked, by its name, as the configuration says."""
    names = host_names(cluster)
    return {
        names[replica.host_id]: http_url("https" if replica.secure else "http", *replica.http_address)
        for replica in cluster.replicas
    }


def table_of(rows: Sequence[ReplicaRows]) -> str:
    """For a log: one line for each table and replica."""
    return "\n".join(f"{'ok   ' if row.is_right else 'WRONG'} {row}" for row in rows)
