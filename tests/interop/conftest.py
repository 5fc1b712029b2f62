"""Real ClickHouse servers beside our own code, in one queue, over one real ZooKeeper.

Every test gets its own servers and its own queue; ZooKeeper is shared by the tests of a file.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from engine.client import NodeClient
from engine.config.model import DistributedDdl, ZooKeeper
from engine.ddl.identity import NodeIdentity, SystemResolver
from engine.ddl.intents import SqliteIntentStore
from engine.ddl.worker import DDLWorker
from engine.errors import NodeUnavailable, ReplyLost
from engine.keeper import opening, zookeeper
from engine.keeper.embedded import EmbeddedZooKeeper
from engine.names import HostId
from engine.testing.clickhouse_config import ClickHouseConfig
from engine.testing.clickhouse_server import (
    RealCluster,
    ServerSpec,
    find_server,
    make_cluster,
    plan_servers,
)
from engine.testing.processes import ChildProcess
from tests.interop.cluster import ENV, ModelExecutor, RealQueue
from tests.warm import warm

NO_SERVER = "no clickhouse-server is installed (Debian: the package clickhouse-server)"


REAL_CLUSTERS = pytest.StashKey[list[RealCluster]]()
"""The real servers of a test, so that their crashes are known when it fails."""


class RealServerCrashed(Exception):
    """A server of 2018 got a segmentation fault (seen once, at its own first statement)."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that start servers are extended ones, and skipped with a reason where there is nothing to start.

    A test whose real server crashed says nothing about us: it runs again, twice at most, and visibly.
    """
    missing = pytest.mark.skip(reason=NO_SERVER) if find_server() is None else None
    for item in items:
        if "interop" in item.path.parts:
            item.add_marker(pytest.mark.flaky(reruns=2, only_rerun=[RealServerCrashed.__name__]))
        if "interop" in item.path.parts and "start_real" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.extended)
            if missing is not None:
                item.add_marker(missing)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """The failure of a test whose real server crashed has that name."""
    try:
        return (yield)
    except Exception as error:
        crashed = [
            server
            for cluster in pyfuncitem.stash.get(REAL_CLUSTERS, [])
            for server in cluster.servers
            if server.has_crashed
        ]
        if not crashed:
            raise
        raise RealServerCrashed("\n".join(server.log_tail() for server in crashed)) from error


StartReal = Callable[..., Awaitable[RealQueue]]


@pytest.fixture(scope="module")
def zookeeper_config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    server = EmbeddedZooKeeper(
        tmp_path_factory.mktemp("zookeeper"), is_durable=False, ends_with_parent=True, env=ENV
    )
    server.start_blocking()
    yield server.config
    server.stop_blocking()


@pytest.fixture
async def start_real(
    request: pytest.FixtureRequest, zookeeper_config: ZooKeeper, tmp_path: Path
) -> AsyncIterator[StartReal]:
    """Starts real servers in one cluster `all`. Its arguments: how many in each shard; `foreign`: how many
    more hosts, which nobody starts, join the last shard."""
    clusters = request.node.stash[REAL_CLUSTERS] = []
    async with AsyncExitStack() as stack:

        async def start(
            *shards: int,
            foreign: int = 0,
            queue: DistributedDdl | None = None,
            internal_replication: bool = True,
        ) -> RealQueue:
            specs = plan_servers(sum(shards), env=ENV, shards=len(shards))
            foreign_specs = plan_servers(foreign, env=ENV, prefix="ours") if foreign else ()
            others = [spec.host_id for spec in foreign_specs]
            cluster = make_cluster(
                "all", _split(specs, shards, others), internal_replication=internal_replication
            )
            chosen = queue or DistributedDdl(path=f"/interop/{ENV.new_uuid()}/ddl")
            real = RealCluster(
                specs,
                clusters=[cluster],
                zookeeper=zookeeper_config,
                directory=tmp_path,
                env=ENV,
                queue=chosen,
            )
            clusters.append(real)
            await stack.enter_async_context(real)
            keeper = await zookeeper.connect(zookeeper_config, ENV)
            stack.push_async_callback(keeper.close)
            return RealQueue(real.servers, (cluster,), chosen, zookeeper_config, keeper, foreign_specs)

        yield start


StartWorker = Callable[[RealQueue, ModelExecutor], Awaitable[DDLWorker]]


@pytest.fixture
async def start_worker(tmp_path: Path) -> AsyncIterator[StartWorker]:
    """Starts our worker as the first foreign host of a queue; all are stopped in the end."""
    running: list[tuple[DDLWorker, asyncio.Task[None], SqliteIntentStore]] = []

    async def start(real: RealQueue, executor: ModelExecutor) -> DDLWorker:
        host = real.foreign[0].host_id
        intents = SqliteIntentStore(tmp_path / f"intents{len(running)}.db")
        worker = DDLWorker(
            factory=opening.factory(real.zookeeper, ENV),
            env=ENV,
            executor=executor,
            intents=intents,
            identity=NodeIdentity(host.host, host.port, uuid.uuid4()),
            topology=lambda: real.topology,
            queue=real.queue,
            resolver=SystemResolver(),
        )
        running.append((worker, asyncio.create_task(worker.run()), intents))
        return worker

    yield start
    for worker, task, intents in running:
        worker.stop()
        await task
        await worker.drain()
        await intents.close()


StartNode = Callable[[RealQueue], Awaitable[NodeClient]]


@pytest.fixture
async def start_node(tmp_path: Path) -> AsyncIterator[StartNode]:
    """Starts an engine node, as a process, with the configuration of a real server in its place."""
    async with AsyncExitStack() as stack:

        async def start(real: RealQueue) -> NodeClient:
            spec = real.foreign[0]
            directory = tmp_path / spec.name
            shared = ClickHouseConfig(real.clusters, real.zookeeper, real.queue, "information")
            shared.write(spec, directory)
            process = ChildProcess(
                spec.name,
                [sys.executable, "-m", "engine.cli", "node", "--config", directory / "config.xml"],
                log_file=directory / "node.log",
                cwd=directory,
                launch=warm,
            )
            process.start()
            stack.push_async_callback(process.stop)
            client = await stack.enter_async_context(NodeClient(spec.url))
            while True:
                try:
                    await client.ping()
                    return client
                except (NodeUnavailable, ReplyLost):
                    assert process.is_running, process.log_tail()
                    await ENV.sleep(0.05)

        yield start


def _split(
    specs: Sequence[ServerSpec], shards: Sequence[int], foreign: Sequence[HostId]
) -> list[list[HostId]]:
    hosts = iter(spec.host_id for spec in specs)
    rows = [[next(hosts) for _ in range(count)] for count in shards]
    rows[-1] += foreign
    return rows
