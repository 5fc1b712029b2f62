"""Replicated tables on two replicas: engine nodes beside real ClickHouse, same run, same ZooKeeper.

    python -m benchmarks.replication --rounds 5 --json replication.json

Measured, on one replica of two unless it says otherwise:

- inserts of 100,000 rows through HTTP, one after the other: rows per second until the last is acknowledged;
- inserts of one row: the time of each;
- lag: from the acknowledgement of an insert on one replica until the row is seen on the other;
- OPTIMIZE FINAL of 20 parts, until it is answered and until both replicas have one part;
- catch-up: a replica that was stopped while 200 inserts went to the other, from when it answers again until
  it has all rows;
- memory: of an idle node, and what a streamed insert of 1 GiB adds to it at most;
- the processor time of the replica that is asked, of inserts (until both have the rows) and of OPTIMIZE
  (until both have one part), which a busy machine changes less than the time on the clock;
- the floor: the processor time of the same inserts and of the same merge on chDB alone, the time on the clock
  of that merge in two such processes at once, and of a start of nothing but Python, aiohttp and chDB.

A round runs everything once, on both sides in shuffled order, each time in a table of its own. Shown are
medians. Without an installed clickhouse-server only the engine is measured.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from asyncio.subprocess import Process
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import click
from rich.progress import Progress

from benchmarks._bare_inserts import bare_process, took
from benchmarks._bare_start import make_table, start_ms
from benchmarks._replicas import (
    WIDE_COLUMNS,
    Pair,
    block,
    engine_pair,
    pair_of_engines,
    pair_of_servers,
    real_pair,
    rows_of,
    wide_rows,
)
from benchmarks._running import run_benchmark
from benchmarks._table import Better, Report, Row, json_option, median
from engine.env import Env, SystemEnv

MIB = 1 << 20
ENGINE = "engine"
IDLE_LIMIT_MIB = 400
STREAM_LIMIT_MIB = 500
NO_MERGES = (
    "SETTINGS max_bytes_to_merge_at_max_space_in_pool = 1, max_bytes_to_merge_at_min_space_in_pool = 1"
)
"""For the parts that OPTIMIZE shall find: nobody merges them before."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    blocks: int = 10
    block_rows: int = 100_000
    single_rows: int = 40
    lags: int = 20
    parts: int = 20
    part_rows: int = 10_000
    missed: int = 200
    stream_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class Measure:
    """A row of the table."""

    name: str
    unit: str
    better: Better = Better.LOWER
    has_aim: bool = True


@dataclass(frozen=True, slots=True)
class Floor:
    """What measures without a node: processes with chDB alone, one for each replica, and a directory with a
    table for a start."""

    processes: Sequence[Process]
    directory: Path


class Bench:
    """The measurements, on whatever pair they are given."""

    def __init__(self, *, env: Env, rng: random.Random, sizes: Sizes) -> None:
        self.figures: dict[Measure, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._env = env
        self._rng = rng
        self._sizes = sizes
        self._number = 0

    async def blocks(self, pair: Pair) -> None:
        table, sizes = await self._table(pair), self._sizes
        data = [block(n * sizes.block_rows, sizes.block_rows, self._rng) for n in range(sizes.blocks)]
        started_s, used_ms = self._env.monotonic_s(), pair.processor_ms(0)
        for rows in data:
            await pair.query(f"INSERT INTO default.{table} FORMAT TabSeparated", data=rows)
        ended_s = self._env.monotonic_s()
        await self._until_all_there(pair, table, sizes.blocks * sizes.block_rows)
        self._note_used(pair, f"insert of {sizes.block_rows:,} rows", used_ms, sizes.blocks)
        what = Measure(f"inserts of {sizes.block_rows:,} rows", "rows/s", Better.HIGHER)
        self._note(pair, what, sizes.blocks * sizes.block_rows / (ended_s - started_s))
        what = Measure(f"{sizes.blocks} inserts of {sizes.block_rows:,} rows, until both have them", "ms")
        self._note(pair, what, (self._env.monotonic_s() - started_s) * 1000)
        await pair.drop(table)

    async def single_rows(self, pair: Pair) -> None:
        table = await self._table(pair)
        times_ms, used_ms = [], pair.processor_ms(0)
        for number in range(self._sizes.single_rows):
            started_s = self._env.monotonic_s()
            await self._insert_row(pair, table, number)
            times_ms.append((self._env.monotonic_s() - started_s) * 1000)
        self._note(pair, Measure("insert of one row", "ms"), median(times_ms) or 0.0)
        await self._until_all_there(pair, table, self._sizes.single_rows)
        self._note_used(pair, "insert of one row", used_ms, self._sizes.single_rows)
        await pair.drop(table)

    async def lag(self, pair: Pair) -> None:
        table = await self._table(pair)
        times_ms = []
        for number in range(self._sizes.lags):
            await self._insert_row(pair, table, number)
            started_s = self._env.monotonic_s()
            await self._until_all_there(pair, table, number + 1)
            times_ms.append((self._env.monotonic_s() - started_s) * 1000)
        self._note(pair, Measure("lag, acknowledged here until seen there", "ms"), median(times_ms) or 0.0)
        await pair.drop(table)

    async def optimize(self, pair: Pair) -> None:
        sizes = self._sizes
        table = await self._table(pair, settings=NO_MERGES)
        for number in range(sizes.parts):
            rows = block(number * sizes.part_rows, sizes.part_rows, self._rng)
            await pair.query(f"INSERT INTO default.{table} FORMAT TabSeparated", data=rows)
        await self._until_all_there(pair, table, sizes.parts * sizes.part_rows)
        found = await pair.parts(table, replica=0)
        if found != sizes.parts:
            raise RuntimeError(f"{pair.name}: {found} parts and not {sizes.parts}: something merges them")
        started_s, used_ms = self._env.monotonic_s(), pair.processor_ms(0)
        await pair.query(f"OPTIMIZE TABLE default.{table} FINAL")
        answered_s = self._env.monotonic_s()
        for replica in range(2):
            await pair.until(partial(self._has_parts, pair, table, 1, replica))
        what = f"OPTIMIZE FINAL of {sizes.parts} parts of {sizes.part_rows:,} rows"
        self._note(pair, Measure(what, "ms"), (answered_s - started_s) * 1000)
        self._note(
            pair, Measure(f"{what}, on both replicas", "ms"), (self._env.monotonic_s() - started_s) * 1000
        )
        self._note_used(pair, f"OPTIMIZE FINAL of {sizes.parts} parts", used_ms, 1)
        await pair.drop(table)

    async def catch_up(self, pair: Pair) -> None:
        table, missed = await self._table(pair), self._sizes.missed
        await pair.stop(1)
        for number in range(missed):
            await self._insert_row(pair, table, number)
        started_s = self._env.monotonic_s()
        await pair.start(1)
        ready_s = self._env.monotonic_s()
        await self._until_all_there(pair, table, missed)
        ended_s = self._env.monotonic_s()
        what = f"catch-up with {missed} inserts"
        self._note(pair, Measure(f"{what}, once it answers", "ms"), (ended_s - ready_s) * 1000)
        self._note(pair, Measure(f"{what}, with its start", "ms"), (ended_s - started_s) * 1000)
        await pair.drop(table)

    async def stream(self, pair: Pair) -> None:
        size_bytes = self._sizes.stream_bytes
        table = await self._table(pair, columns=WIDE_COLUMNS)
        before = pair.memory_bytes(0)
        started_s = self._env.monotonic_s()
        async with pair.peak_memory(0) as peak:
            data = wide_rows(size_bytes, lambda _: None)
            await pair.query(f"INSERT INTO default.{table} FORMAT RowBinary", data=data)
        ended_s = self._env.monotonic_s()
        if await pair.rows(table, replica=0) != rows_of(size_bytes):
            raise RuntimeError(f"{pair.name}: rows are missing after a streamed insert")
        size = f"{size_bytes / MIB:,.0f} MiB"
        self._note(
            pair, Measure(f"memory added by a streamed insert of {size}", "MiB"), (peak[0] - before) / MIB
        )
        speed = Measure(f"a streamed insert of {size}", "MiB/s", Better.HIGHER)
        self._note(pair, speed, size_bytes / MIB / (ended_s - started_s))
        await pair.drop(table)

    async def floor(self, floor: Floor, step: str) -> None:
        """What a step takes without a node, if that is to be told."""
        sizes, first = self._sizes, floor.processes[0]
        if step == "blocks":
            used = await took(first, "blocks", sizes.blocks, sizes.block_rows)
            self._note_floor(f"insert of {sizes.block_rows:,} rows", used.processor_ms)
        elif step == "single_rows":
            used = await took(first, "single", sizes.single_rows, 1)
            self._note_floor("insert of one row", used.processor_ms)
        elif step == "optimize":
            merges = [took(each, "merge", sizes.parts, sizes.part_rows) for each in floor.processes]
            both = await asyncio.gather(*merges)
            what = f"OPTIMIZE FINAL of {sizes.parts} parts"
            self._note_floor(what, both[0].processor_ms)
            measure = Measure(f"{what}, on chDB alone, both replicas at once", "ms", has_aim=False)
            self.figures[measure][ENGINE].append(max(each.clock_ms for each in both))
        elif step == "catch_up":
            measure = Measure("a start of Python, aiohttp and chDB alone", "ms", has_aim=False)
            self.figures[measure][ENGINE].append(await start_ms(floor.directory, rows=sizes.missed))

    def _note_floor(self, what: str, used_ms: float) -> None:
        measure = Measure(f"{what}, on chDB alone, processor time", "ms", has_aim=False)
        self.figures[measure][ENGINE].append(used_ms)

    def idle_memory(self, pair: Pair) -> None:
        self._note(pair, Measure("memory of an idle node", "MiB"), pair.memory_bytes(0) / MIB)

    async def _table(self, pair: Pair, *, settings: str = "", columns: str = "") -> str:
        self._number += 1
        table = f"t{self._number}"
        if columns:
            await pair.create(table, settings=settings, columns=columns)
        else:
            await pair.create(table, settings=settings)
        return table

    async def _insert_row(self, pair: Pair, table: str, number: int) -> None:
        row = f"{number}\t2013-01-01\tN14228\t0.5\n".encode()
        await pair.query(f"INSERT INTO default.{table} FORMAT TabSeparated", data=row)

    async def _until_all_there(self, pair: Pair, table: str, rows: int) -> None:
        await pair.until(partial(self._has_rows, pair, table, rows))

    async def _has_rows(self, pair: Pair, table: str, rows: int) -> bool:
        return await pair.rows(table, replica=1) == rows

    async def _has_parts(self, pair: Pair, table: str, parts: int, replica: int) -> bool:
        return await pair.parts(table, replica=replica) == parts

    def _note_used(self, pair: Pair, what: str, before_ms: float, count: int) -> None:
        """The processor time of replica 0 since `before_ms`, of which there were `count`."""
        measure = Measure(f"{what}, processor time", "ms", has_aim=False)
        self._note(pair, measure, (pair.processor_ms(0) - before_ms) / count)

    def _note(self, pair: Pair, what: Measure, value: float) -> None:
        self.figures[what][pair.name].append(value)


def add_rows(report: Report, bench: Bench, peer: str | None) -> None:
    """Medians, in the order of measurement, and what was wanted."""
    for what, by_system in bench.figures.items():
        ours = median(by_system[ENGINE])
        theirs = median(by_system[peer]) if peer is not None else None
        row = Row(what.name, what.unit, ours, what.better, theirs, peer)
        report.add(row)
        if not what.has_aim:
            continue
        if what.unit != "MiB":
            is_ahead = None
            if row.ratio is not None:
                is_ahead = row.ratio >= 1 if what.better is Better.HIGHER else row.ratio <= 1
            report.aim(f"{what.name}: ahead", met=is_ahead)
        elif ours is not None:
            limit = IDLE_LIMIT_MIB if "idle" in what.name else STREAM_LIMIT_MIB
            report.aim(f"{what.name}: below {limit} MiB", met=ours < limit)
    if peer is None:
        report.note("No clickhouse-server is installed or wanted: the engine was measured alone.")


Step = Callable[[Pair], Awaitable[None]]


async def run(
    *, rounds: int, seed: int, sizes: Sizes, with_real: bool, with_engine: bool, only: str, directory: Path
) -> Report:
    env, rng, report = SystemEnv(), random.Random(seed), Report("replication")
    async with AsyncExitStack() as stack:
        ours = await stack.enter_async_context(engine_pair(directory, env=env))
        real = real_pair(directory, zookeeper=ours.zookeeper_config, env=env) if with_real else None
        # A new connection for each request: real servers close idle ones after three seconds.
        http = await stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True), timeout=aiohttp.ClientTimeout(total=600)
            )
        )
        pairs = [pair_of_engines(ours, http)] if with_engine else []
        if real is not None:
            await stack.enter_async_context(real)
            pairs.append(await pair_of_servers(real, http))
        floor = Floor(
            processes=[
                await stack.enter_async_context(bare_process(directory / f"bare{number}"))
                for number in range(2)
            ],
            directory=await make_table(directory / "bare_start", rows=sizes.missed),
        )
        bench = Bench(env=env, rng=rng, sizes=sizes)
        for pair in pairs:
            bench.idle_memory(pair)
        steps: list[Step] = [bench.blocks, bench.single_rows, bench.lag, bench.optimize, bench.catch_up]
        steps = [step for step in steps if only in getattr(step, "__name__", "")]
        progress = stack.enter_context(Progress(transient=True))
        task = progress.add_task("rounds", total=(rounds * len(steps) + 1) * len(pairs))
        for _ in range(rounds):
            for step in steps:
                for pair in rng.sample(pairs, len(pairs)):
                    await step(pair)
                    progress.advance(task)
                await bench.floor(floor, getattr(step, "__name__", ""))
        if only in "stream":
            for pair in pairs:
                await bench.stream(pair)
                progress.advance(task)
        add_rows(report, bench, pairs[-1].name if real is not None else None)
        return report


@click.command(help=(__doc__ or "").split("\n", maxsplit=1)[0])
@click.option("--rounds", default=5, show_default=True)
@click.option("--seed", default=1, show_default=True, help="Orders the steps, and makes the rows.")
@click.option("--stream-mib", default=1024, show_default=True, help="Size of the streamed insert.")
@click.option("--only", default="", help="Only the measurement of this name: blocks, lag, stream, …")
@click.option("--engine-only", is_flag=True, help="Leave real ClickHouse out.")
@click.option("--real-only", is_flag=True, help="Leave the engine out.")
@click.option("--directory", type=click.Path(path_type=Path), help="Keep data and logs here.")
@json_option
def main(
    rounds: int,
    seed: int,
    stream_mib: int,
    only: str,
    engine_only: bool,
    real_only: bool,
    directory: Path | None,
    json_file: Path | None,
) -> None:
    with tempfile.TemporaryDirectory(prefix="oncluster-benchmark-") as temporary:
        report = run_benchmark(
            run(
                rounds=rounds,
                seed=seed,
                sizes=Sizes(stream_bytes=stream_mib * MIB),
                with_real=not engine_only,
                with_engine=not real_only,
                only=only,
                directory=directory or Path(temporary),
            )
        )
    report.finish(json_file)


if __name__ == "__main__":
    sys.exit(main())
