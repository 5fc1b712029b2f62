"""ON CLUSTER end to end and the draining of a queue: engine nodes beside real ClickHouse, same run, same
ZooKeeper.

    python -m benchmarks.ddl --rounds 40 --json ddl.json

Measured:

- CREATE and DROP of a table ON CLUSTER over HTTP, from request to the last host's row, on 2, 4 and 6 nodes;
- draining: 200 entries (100 times CREATE, DROP) appear at once in the queue of six live nodes, until every
  host has an outcome for every entry;
- backlog: the same 200 entries, on one node that was down while the others drained them, from the start of
  its process, and from its first outcome to its last (ZooKeeper's clock);
- the processor time that the nodes took for it, which a busy machine changes less than the time on the clock;
- the floor: the same 200 statements on chDB alone, in six processes at once, without a queue.

A round runs everything once, in an order shuffled by `--seed`, so that what else the machine does hits both
sides. Shown are medians. Entries of the drains are written by the benchmark itself, for both sides alike, in
one transaction: entry text version 1 and empty `active` and `finished`, as an initiator makes them.

Without an installed clickhouse-server only the engine is measured.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
from asyncio.subprocess import Process
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import aiohttp
import click
from rich.progress import Progress

from benchmarks._bare_chdb import bare_processes, run_statements
from benchmarks._clusters import (
    NODES,
    SIZES,
    System,
    engine_cluster,
    engine_system,
    processor_time_s,
    real_cluster,
    real_system,
)
from benchmarks._running import run_benchmark
from benchmarks._table import Better, Report, Row, json_option, median
from engine.ddl.entry import DDLLogEntry
from engine.env import Env, SystemEnv
from engine.keeper import zookeeper
from engine.keeper.base import Create, CreateMode, Keeper, Remove, WatchEvent
from engine.names import HostId

COLUMNS = "(id UInt64, name String DEFAULT 'x', day Date)"
ENGINES = {"MergeTree": "MergeTree PARTITION BY toYYYYMM(day) ORDER BY id", "Memory": "Memory"}
BETTER_THAN = 0.25
FLAT_WITHIN = 1.25

Figures = dict[tuple[str, str], list[float]]
"""(name of the system, what was measured) → one value per round, in milliseconds."""


class Bench:
    """The measurements, on whatever system they are given."""

    def __init__(self, keeper: Keeper, http: aiohttp.ClientSession, *, env: Env, table_engine: str) -> None:
        self.figures: Figures = defaultdict(list)
        self._keeper = keeper
        self._http = http
        self._env = env
        self._engine = ENGINES[table_engine]
        self._number = 0

    async def bare(self, processes: Sequence[Process], entries: int) -> None:
        """What the drain takes on chDB alone."""
        started_s = self._env.monotonic_s()
        used_ms = await run_statements(processes, self._number + 1, entries)
        self._number += entries // 2
        what = f"{entries} statements on chDB alone, {len(processes)} processes"
        self.figures["engine", what].append((self._env.monotonic_s() - started_s) * 1000)
        self.figures["engine", f"{what}, processor time"].append(used_ms)

    async def statements(self, system: System, cluster: str) -> None:
        """One CREATE and one DROP ON CLUSTER, over HTTP on the first node."""
        self._number += 1
        table = f"default.s{self._number}"
        size = SIZES[cluster]
        used_s = system.processor_time_s()
        started_s = self._env.monotonic_s()
        created = await system.query(
            self._http, f"CREATE TABLE {table} ON CLUSTER {cluster} {COLUMNS} ENGINE = {self._engine}"
        )
        between_s = self._env.monotonic_s()
        dropped = await system.query(self._http, f"DROP TABLE {table} ON CLUSTER {cluster}")
        ended_s = self._env.monotonic_s()
        for answer in (created, dropped):
            if len(answer.splitlines()) != size:
                raise RuntimeError(f"{system.name} answered {answer!r}: not one row for each of {size} hosts")
        self._note(system, f"CREATE, {size} nodes", between_s - started_s)
        self._note(system, f"DROP, {size} nodes", ended_s - between_s)
        self._note(system, f"CREATE + DROP, {size} nodes", ended_s - started_s)
        self._note(system, f"CREATE + DROP, {size} nodes, processor time", system.processor_time_s() - used_s)

    async def drain(self, system: System, entries: int) -> None:
        """All nodes live."""
        used_s, keeper_used_s = system.processor_time_s(), processor_time_s(system.zookeeper_pid())
        started_s = self._env.monotonic_s()
        names = await self._enqueue(system, entries)
        await self._wait(system, names, system.hosts)
        what = f"drain {entries} entries, {NODES} live nodes"
        self._note(system, what, self._env.monotonic_s() - started_s)
        self._note(system, f"{what}, processor time", system.processor_time_s() - used_s)
        keeper_s = processor_time_s(system.zookeeper_pid()) - keeper_used_s
        self._note(system, f"{what}, ZooKeeper's processor time", keeper_s)
        await self._forget(system, names)

    async def backlog(self, system: System, entries: int, *, node: int) -> None:
        """`node` was down while the others drained the queue, and comes back."""
        late = system.hosts[node]
        await system.stop(node)
        names = await self._enqueue(system, entries)
        await self._wait(system, names, [host for host in system.hosts if host != late])
        started_s = self._env.monotonic_s()
        await system.start(node)
        ready_s = self._env.monotonic_s()
        await self._wait(system, names, [late])
        ended_s = self._env.monotonic_s()
        stats = await self._keeper.exists_many([system.queue.finished(name, late) for name in names])
        times_ms = [stat.ctime_ms for stat in stats if stat is not None]
        what = f"backlog of {entries} entries, one node"
        self._note(system, f"{what}, with its start", ended_s - started_s)
        self._note(system, f"{what}, its start alone", ready_s - started_s)
        self._note(system, f"{what}, first to last outcome", (max(times_ms) - min(times_ms)) / 1000)
        await self._forget(system, names)

    def _note(self, system: System, what: str, seconds: float) -> None:
        self.figures[system.name, what].append(seconds * 1000)

    async def _enqueue(self, system: System, count: int) -> list[str]:
        """Queue `count` entries in one transaction; returns their names, in order.

        The benchmark is the queue's only writer now, so that the next number can be told: the number of
        children ever made, which ZooKeeper shows as changes (children made and removed). If it were not, the
        children would have no parent and nothing at all would be queued.
        """
        stat = await self._keeper.exists(system.queue.root)
        assert stat is not None, f"{system.queue.root} is missing"
        next_number = (stat.cversion + stat.num_children) // 2
        names, ops = [], []
        for i in range(count):
            self._number += i % 2 == 0
            table = f"default.d{self._number}"
            create = f"CREATE TABLE {table} ON CLUSTER six {COLUMNS} ENGINE = {self._engine}"
            sql = create if i % 2 == 0 else f"DROP TABLE {table} ON CLUSTER six"
            name = f"query-{next_number + i:010d}"
            data = DDLLogEntry(1, sql, system.hosts, initiator=str(system.hosts[0])).to_bytes()
            ops.append(Create(system.queue.entry_prefix, data, CreateMode.PERSISTENT_SEQUENTIAL))
            ops += [Create(system.queue.active(name)), Create(system.queue.finished(name))]
            names.append(name)
        await self._keeper.multi(ops)
        return names

    async def _wait(self, system: System, names: Sequence[str], hosts: Sequence[HostId]) -> None:
        """Until each of `hosts` has an outcome for each entry; raises RuntimeError if one is not success.

        The last entry is looked at first, because most nodes work in the queue's order: while they work the
        benchmark waits for watches of one directory.
        """
        wanted = {str(host) for host in hosts}
        for name in reversed(names):
            while True:
                changed = asyncio.Event()
                wake = partial(_wake, changed=changed)
                there = await self._keeper.children(system.queue.finished(name), watch=wake)
                if wanted <= set(there.names):
                    break
                await asyncio.wait_for(changed.wait(), timeout=120)
        paths = [system.queue.finished(name, host) for name in names for host in hosts]
        for path, node in zip(paths, await self._keeper.get_many(paths), strict=True):
            if isinstance(node, Exception) or node.data != b"0\n":
                raise RuntimeError(f"{path}: {node}")

    async def _forget(self, system: System, names: Sequence[str]) -> None:
        """Remove finished entries, so that every round finds an equally long queue."""
        for name in names:
            ops = []
            for path in await self._below(system.queue.entry(name)):
                ops.append(Remove(path))
            await self._keeper.multi(ops)

    async def _below(self, path: str) -> list[str]:
        """`path` and everything below it, children first."""
        found = []
        for child in (await self._keeper.children(path)).names:
            found += await self._below(f"{path}/{child}")
        return [*found, path]


def _wake(event: WatchEvent, changed: asyncio.Event) -> None:
    changed.set()


def add_rows(report: Report, figures: Figures, peer: str | None) -> None:
    """The table's rows in the order of measurement, and what was wanted."""
    medians = {
        # Processor time is counted in ticks, which a mean evens out.
        (system, what): statistics.fmean(values) if what.endswith("processor time") else median(values)
        for (system, what), values in figures.items()
    }
    for system, what in sorted(figures, key=lambda key: _order(key[1])):
        if system == "engine":
            other = medians.get((peer, what)) if peer else None
            report.add(
                Row(
                    what,
                    "ms",
                    medians[system, what],
                    Better.LOWER,
                    other,
                    peer if other is not None else None,
                )
            )
    rows = {row.name: row for row in report.rows}
    most = rows[f"CREATE + DROP, {NODES} nodes"]
    report.aim(
        f"CREATE + DROP on {NODES} nodes takes at most a quarter of real ClickHouse's time",
        met=None if most.ratio is None else most.ratio <= BETTER_THAN,
    )
    for row in report.rows:
        if row.name.endswith(("live nodes", "outcome")):
            report.aim(f"{row.name}: no slower", met=None if row.ratio is None else row.ratio <= 1)
    few = rows["CREATE + DROP, 2 nodes"].ours
    flat = most.ours / few if most.ours and few else None
    report.aim(
        f"the same time from 2 to {NODES} nodes (within {FLAT_WITHIN - 1:.0%}; here × {flat:.2f})",
        met=None if flat is None else flat <= FLAT_WITHIN,
    )
    if peer is None:
        report.note("No clickhouse-server is installed or wanted: the engine was measured alone.")


def _order(what: str) -> tuple[int, int, str]:
    """Statements first, by number of nodes; the others as they were measured."""
    parts = ("CREATE + DROP", "CREATE", "DROP", "drain", "backlog", "")
    part = next(i for i, start in enumerate(parts) if what.startswith(start))
    size = next((size for size in SIZES.values() if f"{size} nodes" in what), 0)
    return (0 if part < 3 else part, size, what)


async def run(
    *, rounds: int, drains: int, entries: int, seed: int, with_real: bool, table_engine: str, directory: Path
) -> Report:
    env = SystemEnv()
    report = Report("ddl")
    rng = random.Random(seed)
    async with AsyncExitStack() as stack:
        ours = await stack.enter_async_context(engine_cluster(directory, env=env))
        systems = [engine_system(ours)]
        real = real_cluster(directory, zookeeper=ours.zookeeper_config, env=env) if with_real else None
        if real is not None:
            await stack.enter_async_context(real)
            systems.append(await real_system(real, zookeeper_pid=systems[0].zookeeper_pid))
        keeper = await zookeeper.connect(ours.zookeeper_config, env)
        stack.push_async_callback(keeper.close)
        # A new connection for each request: real servers close idle ones after three seconds.
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        )
        bench = Bench(keeper, http, env=env, table_engine=table_engine)
        progress = stack.enter_context(Progress(transient=True))
        step = progress.add_task("rounds", total=3 + rounds + 2 * drains)
        for number in range(-3, rounds):
            if number == 0:
                bench.figures.clear()  # the rounds before were to warm up
            steps = [(system, cluster) for system in systems for cluster in SIZES]
            rng.shuffle(steps)
            for system, cluster in steps:
                await bench.statements(system, cluster)
            progress.advance(step)
        create = f"CREATE TABLE {{table}} {COLUMNS} ENGINE = {ENGINES[table_engine]}"
        async with bare_processes(directory, NODES, create) as processes:
            for _ in range(drains):
                for system in rng.sample(systems, len(systems)):
                    await bench.drain(system, entries)
                await bench.bare(processes, entries)
                progress.advance(step)
        for _ in range(drains):
            for system in rng.sample(systems, len(systems)):
                await bench.backlog(system, entries, node=NODES - 1)
            progress.advance(step)
        add_rows(report, bench.figures, systems[1].name if real is not None else None)
        return report


@click.command(help=(__doc__ or "").split("\n", maxsplit=1)[0])
@click.option(
    "--rounds", default=30, show_default=True, help="Rounds of CREATE and DROP on 2, 4 and 6 nodes."
)
@click.option("--drains", default=5, show_default=True, help="Rounds of draining, and of the backlog.")
@click.option("--entries", default=200, show_default=True, help="Entries in a drain.")
@click.option("--seed", default=1, show_default=True, help="Orders the steps of a round.")
@click.option("--table-engine", type=click.Choice(list(ENGINES)), default="MergeTree", show_default=True)
@click.option("--engine-only", is_flag=True, help="Leave real ClickHouse out.")
@click.option("--directory", type=click.Path(path_type=Path), help="Keep data and logs here.")
@json_option
def main(
    rounds: int,
    drains: int,
    entries: int,
    seed: int,
    table_engine: str,
    engine_only: bool,
    directory: Path | None,
    json_file: Path | None,
) -> None:
    with tempfile.TemporaryDirectory(prefix="oncluster-benchmark-") as temporary:
        report = run_benchmark(
            run(
                rounds=rounds,
                drains=drains,
                entries=entries,
                seed=seed,
                with_real=not engine_only,
                table_engine=table_engine,
                directory=directory or Path(temporary),
            )
        )
    report.finish(json_file)


if __name__ == "__main__":
    sys.exit(main())
