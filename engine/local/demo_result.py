"""What the demo shows at its end: migrations by hosts, the ledger, whether all schemas are equal, and what
each replica holds."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from engine.config.load import load_topology
from engine.env import Env
from engine.errors import NodeUnavailable
from engine.local.demo_etl import EtlResult, answer_table, rows_table
from engine.local.demo_flights import TABLE, ReplicaContent
from engine.local.state import StackState
from engine.migrations.ledger import Ledger
from engine.migrations.states import CellState, MigrationState
from engine.sql import parse_statement

_SCHEMA_QUERY = """
SELECT database, table, create_table_query FROM (
    SELECT
        database,
        name AS table,
        replaceRegexpOne(create_table_query, ' UUID \\'[^\\']*\\'', '') AS create_table_query
    FROM system.tables
    WHERE database NOT IN ('system', 'information_schema', 'INFORMATION_SCHEMA')
    UNION ALL
    SELECT name, '', engine FROM system.databases
    WHERE name NOT IN ('system', 'information_schema', 'INFORMATION_SCHEMA', 'default')
) ORDER BY database, table FORMAT TSVRaw
"""


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One row of the ledger: a statement of a migration on a host."""

    version: int
    title: str
    migration_state: str
    statement: int
    host: str
    state: str
    duration_ms: int | None
    code: int
    error: str
    entry: str
    token: str
    sql: str

    @property
    def done(self) -> bool:
        return self.state == CellState.DONE


@dataclass(frozen=True, slots=True)
class ClusterResult:
    """The ledger of one cluster."""

    cluster: str
    rows: tuple[LedgerLine, ...]

    @property
    def succeeded(self) -> bool:
        return bool(self.rows) and all(row.migration_state == MigrationState.APPLIED for row in self.rows)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted({row.host for row in self.rows}))


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Everything. `schemas` maps cluster → host → digest of every definition on that host; `data` is what
    each replica holds."""

    clusters: tuple[ClusterResult, ...]
    schemas: Mapping[str, Mapping[str, str]]
    answered: tuple[str, ...]
    seconds: float
    data: tuple[ReplicaContent, ...] = ()
    etl: EtlResult | None = None

    def taking(self, seconds: float) -> DemoResult:
        return replace(self, seconds=seconds)

    @property
    def same_schema(self) -> bool:
        return all(len(set(digests.values())) == 1 for digests in self.schemas.values())

    @property
    def same_data(self) -> bool:
        """Whether all replicas of each shard have the same parts."""
        shards = {content.shard for content in self.data}
        return len({(content.shard, content.digest) for content in self.data}) == len(shards)

    @property
    def succeeded(self) -> bool:
        applied = bool(self.clusters) and all(cluster.succeeded for cluster in self.clusters)
        loaded = self.etl is None or self.etl.succeeded
        return applied and self.same_schema and self.same_data and loaded

    def as_json(self) -> dict[str, Any]:
        return {
            "succeeded": self.succeeded,
            "seconds": round(self.seconds, 1),
            "same_schema": self.same_schema,
            "schemas": self.schemas,
            "same_data": self.same_data,
            "data": [asdict(content) for content in self.data],
            "etl": self.etl.as_json() if self.etl else None,
            "approved_by_the_demo": self.answered,
            "ledger": {cluster.cluster: [asdict(row) for row in cluster.rows] for cluster in self.clusters},
        }


def read_ledger(url: str, cluster: str, *, env: Env) -> ClusterResult:
    """The cluster's part of the ledger; without rows while nothing was written."""
    lines = []
    for record in Ledger(url, env=env).records(cluster).values():
        for row in record.rows:
            lines.append(
                LedgerLine(
                    version=record.version,
                    title=record.title,
                    migration_state=str(record.state),
                    statement=row.statement,
                    host=row.host.host,
                    state=str(row.state),
                    duration_ms=row.duration_ms,
                    code=row.code,
                    error=row.error,
                    entry=row.entry,
                    token=row.token,
                    sql=row.sql,
                )
            )
    return ClusterResult(cluster, tuple(lines))


async def read_schemas(state: StackState, clusters: Sequence[ClusterResult]) -> dict[str, dict[str, str]]:
    """Cluster → host → a digest of the databases that its migrations name, as they are on that host.

    Raises NodeUnavailable.
    """
    topology = load_topology(Path(state.config_file))
    definitions = {host: await _definitions(host, url) for host, url in state.nodes.items()}
    result: dict[str, dict[str, str]] = {}
    for cluster in clusters:
        databases = _databases(cluster)
        hosts = dict.fromkeys(replica.host for replica in topology.cluster(cluster.cluster).replicas)
        result[cluster.cluster] = {
            host: _digest([line for name in databases for line in definitions[host].get(name, [])])
            for host in hosts
            if host in definitions
        }
    return result


def _databases(cluster: ClusterResult) -> list[str]:
    """Every database that a statement of the ledger names as its object."""
    found: set[str] = set()
    for sql in {row.sql for row in cluster.rows}:
        statement = parse_statement(sql)
        found.update(table.database for table in statement.tables)
        found.add(statement.database or "")
    return sorted(found - {""})


async def _definitions(host: str, url: str) -> dict[str, list[str]]:
    """Database → its definitions on one host."""
    try:
        async with aiohttp.ClientSession() as session, session.post(url, data=_SCHEMA_QUERY) as answer:
            text = await answer.text()
            if answer.status != 200:
                raise NodeUnavailable(f"{host} did not tell its schema: {text[:500]}")
    except aiohttp.ClientError as error:
        raise NodeUnavailable(f"{host} does not answer at {url}: {error}") from error
    found: dict[str, list[str]] = defaultdict(list)
    for line in text.splitlines():
        found[line.split("\t")[0]].append(line)
    return found


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


# --- showing ----------------------------------------------------------------------------------------------


def show_result(result: DemoResult, console: Console) -> None:
    """Tables for a person."""
    for cluster in result.clusters:
        console.print()
        console.print(_matrix(cluster))
    for cluster in result.clusters:
        console.print(_ledger(cluster))
    for text in result.answered:
        console.print(Text(f"Approved by the demo in your place: {text}"))
    for name, digests in result.schemas.items():
        same = "the same" if len(set(digests.values())) == 1 else "NOT THE SAME"
        digest = ", ".join(sorted(set(digests.values())))
        console.print(Text(f"Schema of {name}: {same} on {len(digests)} hosts ({digest})"))
    if result.data:
        console.print()
        console.print(_replicas(result.data))
    if result.etl:
        console.print(rows_table(result.etl))
        console.print(answer_table(result.etl))
    word = _verdict(result)
    console.print(Text(f"{word} {result.seconds:.0f} s" if result.seconds else word, style="bold"))


def _verdict(result: DemoResult) -> str:
    """One sentence, which names what is wrong."""
    if result.etl and not result.etl.succeeded:
        return "NOT every replica has what Spark wrote."
    if not result.succeeded:
        return "NOT everything is applied."
    loaded = " and every replica has what Spark wrote" if result.etl else ""
    return f"Every migration is applied on every host{loaded}."


def _replicas(data: Sequence[ReplicaContent]) -> Table:
    """Rows and parts by replica; replicas of one shard have one digest."""
    table = Table(title=f"{TABLE}: rows and parts by replica", box=SIMPLE_HEAD, title_justify="left")
    # Spark writes to whichever replica answers: then there is nothing to say about where rows came in.
    were_inserted = any(content.inserted for content in data)
    columns = ["shard", "replica", *(["inserted here"] if were_inserted else []), "rows", "parts"]
    for column in (*columns, "hash of all parts"):
        table.add_column(column, justify="right" if column in ("inserted here", "rows", "parts") else "left")
    for content in data:
        inserted = [f"{content.inserted:,}" if content.inserted else "–"] if were_inserted else []
        cells = (str(content.shard), content.host, *inserted, f"{content.rows:,}", str(content.parts))
        table.add_row(*cells, content.digest)
    return table


def _matrix(cluster: ClusterResult) -> Table:
    """Migrations down, hosts across: state and the milliseconds of all its statements there."""
    hosts = cluster.hosts
    table = Table(
        title=f"{cluster.cluster}: milliseconds per migration and host", box=SIMPLE_HEAD, title_justify="left"
    )
    table.add_column("migration")
    table.add_column("state")
    for host in hosts:
        table.add_column(host, justify="right")
    for version in dict.fromkeys(row.version for row in cluster.rows):
        rows = [row for row in cluster.rows if row.version == version]
        cells = [_cell([row for row in rows if row.host == host]) for host in hosts]
        table.add_row(Text(f"{version:04d} {rows[0].title}"), Text(rows[0].migration_state), *cells)
    return table


def _cell(rows: Sequence[LedgerLine]) -> Text:
    if not rows:
        return Text("–", style="dim")
    odd = [row for row in rows if not row.done]
    if odd:
        return Text(odd[0].state + (f" {odd[0].code}" if odd[0].code else ""), style="red")
    return Text(f"✓ {sum(row.duration_ms or 0 for row in rows)}")


def _ledger(cluster: ClusterResult) -> Table:
    """One line per statement; `--json` has one row per statement and host, as the ledger has."""
    table = Table(title=f"{cluster.cluster}: the ledger", box=SIMPLE_HEAD, title_justify="left")
    for column in ("migration", "#", "entry", "hosts", "ms", "statement"):
        table.add_column(column, no_wrap=column != "statement", overflow="ellipsis")
    for key in dict.fromkeys((row.version, row.statement) for row in cluster.rows):
        rows = [row for row in cluster.rows if (row.version, row.statement) == key]
        counts: dict[str, int] = defaultdict(int)
        for row in rows:
            counts[row.state] += 1
        times = [row.duration_ms for row in rows if row.duration_ms is not None]
        spread = "" if not times else f"{min(times)}–{max(times)}"
        table.add_row(
            f"{key[0]:04d}",
            str(key[1]),
            rows[0].entry,
            ", ".join(f"{number} {state}" for state, number in counts.items()),
            spread,
            Text(" ".join(rows[0].sql.split())[:80]),
        )
    return table
