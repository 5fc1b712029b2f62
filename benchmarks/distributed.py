"""Distributed tables: two engine nodes beside two real ClickHouse servers, two shards, same run.

    python -m benchmarks.distributed --rows 10000000 --rounds 3 --json distributed.json

Measured over HTTP on the first node, with the same rows on both sides:

- INSERT of a Native body into the Distributed table, foreground, and background until every row is on its
  shard;
- SELECT over all rows: count, GROUP BY with few and with many keys, top-N, a join of two Distributed tables.

A round asks each query five times, one system after the other; the order is shuffled by `--seed`. Shown are
medians. Answers of both sides are compared.
Without an installed clickhouse-server only the engine is measured.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import click

from benchmarks._running import run_benchmark
from benchmarks._table import Better, Report, Row, json_option, median
from engine.env import Env, SystemEnv
from engine.testing.clickhouse_server import RealCluster, find_server, make_cluster, plan_servers
from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import LocalCluster

CLUSTER = "pair"
COLUMNS = "(id UInt64, few UInt8, many UInt32, name String, value Float64)"
_NONE: Mapping[str, str] = {}
INSERT_ROWS = 1_000_000
TIMES_A_ROUND = 5
"""Each query: milliseconds vary more than a median of three evens out."""
GENERATED = (
    "SELECT number AS id, toUInt8(number % 10) AS few, toUInt32(intHash32(number) % 1000000) AS many, "
    "toString(number % 1000) AS name, number / 8 AS value FROM numbers({rows})"
)
QUERIES = {
    "count": "SELECT count() FROM all_rows",
    "count with a condition": "SELECT count() FROM all_rows WHERE many > 500000",
    "GROUP BY, 10 keys": "SELECT few, count(), sum(value), max(id) FROM all_rows GROUP BY few ORDER BY few",
    "GROUP BY, 1,000,000 keys": (
        "SELECT many, count() AS c FROM all_rows GROUP BY many ORDER BY c DESC, many LIMIT 5"
    ),
    "top 10": "SELECT id, name FROM all_rows ORDER BY value DESC, id LIMIT 10",
    "join": (
        "SELECT count(), sum(value) FROM all_rows ALL INNER JOIN "
        "(SELECT id FROM all_rows WHERE many < 50000) AS picked USING (id)"
    ),
}
"""A join of two Distributed tables is GLOBAL on real ClickHouse, which refuses it otherwise."""


@dataclass(frozen=True, slots=True)
class System:
    name: str
    urls: tuple[str, ...]
    http: aiohttp.ClientSession

    async def query(
        self, sql: str, *, node: int = 0, data: bytes = b"", settings: Mapping[str, str] = _NONE
    ) -> bytes:
        """Raises RuntimeError with the server's message."""
        params = {"query": sql, **settings}
        async with self.http.post(self.urls[node], params=params, data=data) as reply:
            body = await reply.read()
            if reply.status != 200:
                raise RuntimeError(f"{self.name}: {sql}: {body[:500]!r}")
            return body

    @property
    def is_real(self) -> bool:
        return self.name != "engine"


class Bench:
    def __init__(self, env: Env, rows: int) -> None:
        self.figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._env = env
        self._rows = rows

    async def prepare(self, system: System) -> None:
        """Tables on both nodes; the rows of both shards made where they stay."""
        for node in range(2):
            for name in ("rows", "inserted"):
                await system.query(f"CREATE TABLE {name} {COLUMNS} ENGINE = MergeTree ORDER BY id", node=node)
            await system.query(
                f"INSERT INTO rows SELECT * FROM ({GENERATED.format(rows=self._rows)}) WHERE id % 2 = {node}",
                node=node,
            )
            await system.query("OPTIMIZE TABLE rows FINAL", node=node)
        for name, table in (("all_rows", "rows"), ("all_inserted", "inserted")):
            await system.query(
                f"CREATE TABLE {name} {COLUMNS} ENGINE = Distributed({CLUSTER}, default, {table}, id)"
            )

    async def select(self, system: System, what: str) -> bytes:
        sql = QUERIES[what]
        if system.is_real:
            sql = sql.replace("ALL INNER JOIN", "GLOBAL ALL INNER JOIN")
        started_s = self._env.monotonic_s()
        answer = await system.query(sql)
        self._note(f"{what}, {self._rows:,} rows", system, (self._env.monotonic_s() - started_s) * 1000)
        return answer

    async def insert(self, system: System, body: bytes, mode: str) -> None:
        count = "SELECT count() FROM inserted"
        before = [int(await system.query(count, node=node)) for node in range(2)]
        sync = {"insert_distributed_sync": "1" if mode == "foreground" else "0"}
        started_s = self._env.monotonic_s()
        await system.query("INSERT INTO all_inserted FORMAT Native", data=body, settings=sync)
        while (
            sum([int(await system.query(count, node=node)) for node in range(2)]) < sum(before) + INSERT_ROWS
        ):
            await asyncio.sleep(0.005)
        took_s = self._env.monotonic_s() - started_s
        self._note(f"INSERT, {mode}, until all rows are there", system, INSERT_ROWS / took_s)

    def _note(self, what: str, system: System, value: float) -> None:
        self.figures[what][system.name].append(value)


async def run(
    *, rows: int, rounds: int, seed: int, with_real: bool, with_inserts: bool, directory: Path
) -> Report:
    env, rng, report = SystemEnv(), random.Random(seed), Report("distributed")
    async with AsyncExitStack() as stack:
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / "benchmark.xml"
        file.write_text(clusters_xml({CLUSTER: [["node01"], ["node02"]]}))
        ours = await stack.enter_async_context(
            LocalCluster(directory / "engine", cluster_file=file, is_durable=True, env=env)
        )
        http = await stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True), timeout=aiohttp.ClientTimeout(total=900)
            )
        )
        systems = [System("engine", tuple(ours.node(host).url for host in ours.hosts), http)]
        if with_real and find_server() is not None:
            specs = plan_servers(2, env=env)
            real = RealCluster(
                specs,
                clusters=[make_cluster(CLUSTER, [[spec.host_id] for spec in specs])],
                zookeeper=ours.zookeeper_config,
                directory=directory / "real",
                env=env,
            )
            await stack.enter_async_context(real)
            version = await real.servers[0].version()
            urls = tuple(server.spec.url for server in real.servers)
            systems.append(System(f"ClickHouse {version}", urls, http))
        bench = Bench(env, rows)
        for system in systems:
            await bench.prepare(system)
        body = await systems[0].query(f"{GENERATED.format(rows=INSERT_ROWS)} FORMAT Native")
        for _ in range(rounds):
            for what in [what for what in QUERIES for _ in range(TIMES_A_ROUND)]:
                answers = [await bench.select(system, what) for system in rng.sample(systems, len(systems))]
                if len(set(answers)) > 1:
                    raise RuntimeError(f"{what}: the answers differ: {answers}")
            for mode in ("foreground", "background") if with_inserts else ():
                for system in rng.sample(systems, len(systems)):
                    await bench.insert(system, body, mode)
        _add_rows(report, bench, systems)
    return report


def _add_rows(report: Report, bench: Bench, systems: Sequence[System]) -> None:
    peer = systems[-1].name if len(systems) > 1 else None
    for what, by_system in bench.figures.items():
        is_insert = what.startswith("INSERT")
        better = Better.HIGHER if is_insert else Better.LOWER
        theirs = median(by_system[peer]) if peer is not None else None
        row = Row(what, "rows/s" if is_insert else "ms", median(by_system["engine"]), better, theirs, peer)
        report.add(row)
        is_ahead = None if row.ratio is None else (row.ratio >= 1 if is_insert else row.ratio <= 1)
        report.aim(f"{what}: ahead", met=is_ahead)
    if peer is None:
        report.note("No clickhouse-server is installed or wanted: the engine was measured alone.")


@click.command(help=(__doc__ or "").split("\n", maxsplit=1)[0])
@click.option("--rows", default=10_000_000, show_default=True, help="In the table that is read.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--seed", default=1, show_default=True, help="Orders the systems.")
@click.option("--engine-only", is_flag=True, help="Leave real ClickHouse out.")
@click.option("--no-inserts", is_flag=True, help="Measure SELECT only.")
@json_option
def main(
    rows: int, rounds: int, seed: int, engine_only: bool, no_inserts: bool, json_file: Path | None
) -> None:
    with tempfile.TemporaryDirectory(prefix="oncluster-benchmark-") as temporary:
        report = run_benchmark(
            run(
                rows=rows,
                rounds=rounds,
                seed=seed,
                with_real=not engine_only,
                with_inserts=not no_inserts,
                directory=Path(temporary),
            )
        )
    report.finish(json_file)


if __name__ == "__main__":
    sys.exit(main())
