"""What operating a cluster costs: cleanup, health checks, backups of Keeper, the cluster page.

    python -m benchmarks.operations --json operations.json
    python -m benchmarks.operations --only cleanup

Each measurement is a function with `@measure("name", "what it is")` that gets a `Stand` and adds rows and
aims to its report. They run one after the other, each with a folder and, if it asks for one, a ZooKeeper of
its own. There is no peer to compare with: what these do is done by hand elsewhere. Figures are of one machine
that may do other things at the same time; aims that are missed are said and are no error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks._running import run_benchmark
from benchmarks._table import Report, Row, json_option
from engine.config.model import Cluster, DistributedDdl, NodeConfig, Replica, Shard, Topology, ZooKeeper
from engine.ddl.entry import DDLLogEntry
from engine.env import Env, SystemEnv
from engine.keeper import zookeeper
from engine.keeper.base import Create, CreateMode, Keeper
from engine.keeper.embedded import EmbeddedZooKeeper
from engine.keeper.recipes import create_ancestors
from engine.names import entry_name
from engine.operations.act import ActState
from engine.operations.carrying_out import carry_out
from engine.operations.cleanup import CleanupKind, cleanup_performer, plan_cleanup
from engine.operations.records import Records
from engine.operations.site import Site
from engine.ports import free_ports

Measure = Callable[["Stand"], Awaitable[None]]
MEASURES: dict[str, tuple[str, Measure]] = {}
"""Name → what it measures, and how. Filled by `measure`."""


def measure(name: str, what: str) -> Callable[[Measure], Measure]:
    """Register a measurement under a name for `--only`."""

    def register(function: Measure) -> Measure:
        MEASURES[name] = (what, function)
        return function

    return register


@dataclass(slots=True)
class Stand:
    """What a measurement works with. `report` takes its rows."""

    report: Report
    directory: Path
    env: Env
    stack: AsyncExitStack
    scale: float = 1.0

    def scaled(self, number: int) -> int:
        """`number` of things, fewer with `--scale`."""
        return max(1, int(number * self.scale))

    async def zookeeper(self) -> ZooKeeper:
        """A ZooKeeper of its own, with its log forced to disk, until the measurement is over."""
        [port] = free_ports(1)
        server = EmbeddedZooKeeper(self.directory / "zookeeper", client_port=port, env=self.env)
        await server.start()
        self.stack.push_async_callback(server.stop)
        return ZooKeeper(hosts=(("127.0.0.1", port),))

    async def keeper(self, config: ZooKeeper) -> Keeper:
        """A session, closed when the measurement is over."""
        session = await zookeeper.connect(config, self.env)
        self.stack.push_async_callback(session.close)
        return session

    def add(self, what: str, seconds: float, *, aim_s: float | None = None) -> None:
        """A row in seconds, and whether it is as fast as was wanted."""
        self.report.add(Row(what, "s", seconds))
        if aim_s is not None:
            self.report.aim(f"{what}: under {aim_s:g} s", met=seconds < aim_s)


# --- cleanup ----------------------------------------------------------------------------------------------

HOSTS = 6


@measure("cleanup", "1,000 finished entries of the DDL queue: planned, recorded, removed")
async def cleanup(stand: Stand) -> None:
    count = stand.scaled(1000)
    place = await stand.zookeeper()
    keeper = await stand.keeper(place)
    site = _site(stand, place, keeper)
    await _finished_entries(site, count + 1)
    started_s = stand.env.monotonic_s()
    plan = await plan_cleanup(site, kinds=[CleanupKind.DDL])
    planned_s = stand.env.monotonic_s()
    report = await carry_out(site, plan, cleanup_performer(site), run_id="bench")
    ended_s = stand.env.monotonic_s()
    left = len((await keeper.children(site.queue.paths.root)).names)
    if report.count(ActState.DONE) != len(plan.acts) or left != 2:
        raise RuntimeError(f"{left} entries are left: {report.to_json()}")
    stand.add(f"cleanup of {count:,} entries, {HOSTS} hosts", ended_s - started_s, aim_s=10)
    stand.add(f"cleanup of {count:,} entries, {HOSTS} hosts: the plan alone", planned_s - started_s)


def _site(stand: Stand, place: ZooKeeper, keeper: Keeper) -> Site:
    replicas = tuple(Replica(f"node{number:02}", 9000) for number in range(1, HOSTS + 1))
    config = NodeConfig(
        path="unused",
        topology=Topology({"c": Cluster("c", (Shard(1, replicas),))}),
        queues=(dataclasses.replace(DistributedDdl(), max_tasks_in_queue=1),),
        zookeeper=place,
    )
    records = Records(stand.directory / "records.db", env=stand.env)
    return Site("c", config, records, stand.env, "benchmark", keeper_or_none=keeper)


async def _finished_entries(site: Site, count: int) -> None:
    keeper, paths = site.keeper, site.queue.paths
    await create_ancestors(keeper, paths.entry("x"))
    entry = DDLLogEntry(1, "CREATE TABLE d.t ON CLUSTER c (a UInt8) ENGINE = Memory", site.hosts).to_bytes()

    async def one(number: int) -> None:
        name = entry_name(number)
        done = [Create(paths.finished(name, host), b"0\n") for host in site.hosts]
        prefix = Create(paths.entry_prefix, entry, CreateMode.PERSISTENT_SEQUENTIAL)
        await keeper.multi([prefix, Create(paths.active(name)), Create(paths.finished(name)), *done])

    for number in range(count):
        await one(number)


# --- the command ------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _stand(report: Report, name: str, scale: float) -> AsyncIterator[Stand]:
    with tempfile.TemporaryDirectory(prefix=f"bench-{name}-") as directory:
        async with AsyncExitStack() as stack:
            yield Stand(report, Path(directory), SystemEnv(), stack, scale)


async def run(names: tuple[str, ...], scale: float) -> Report:
    """Run these measurements, all by default. One that cannot run is a note."""
    report = Report("operations")
    for name in names or tuple(MEASURES):
        what, function = MEASURES[name]
        click.echo(f"{name}: {what}", err=True)
        async with _stand(report, name, scale) as stand:
            await function(stand)
    return report


@click.command()
@click.option("--only", "names", multiple=True, type=str, help="Only this measurement; several times.")
@click.option("--scale", type=click.FloatRange(0.001, 100), default=1.0, help="Less than 1 for a quick look.")
@json_option
def main(names: tuple[str, ...], scale: float, json_file: Path | None) -> None:
    """What operating a cluster costs."""
    unknown = [name for name in names if name not in MEASURES]
    if unknown:
        raise click.UsageError(f"No measurement {unknown[0]!r}. There are: {', '.join(MEASURES)}.")
    run_benchmark(run(names, scale)).finish(json_file)


# Each registers its measurements; they import this module, so it has to be complete.
from benchmarks import _operations_health, _operations_keeper_backup, _operations_page  # noqa: E402, F401 - see above

if __name__ == "__main__":
    from benchmarks import operations

    operations.main()  # the module that the other measurements registered with
