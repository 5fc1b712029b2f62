"""Real ClickHouse servers beside our own code, in one queue, over one real ZooKeeper.

Every test gets its own servers and its own queue; ZooKeeper is shared by the tests of a file.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.config.model import Cluster, DistributedDdl, Topology, ZooKeeper
from engine.ddl.client import DDLQueueClient
from engine.ddl.initiator import PreparedStatement, prepare
from engine.env import SystemEnv
from engine.keeper import zookeeper
from engine.keeper.base import Keeper
from engine.keeper.embedded import EmbeddedZooKeeper
from engine.names import HostId
from engine.testing.clickhouse_server import (
    RealClickHouse,
    RealCluster,
    ServerSpec,
    find_server,
    make_cluster,
    plan_servers,
)

ENV = SystemEnv()
NO_SERVER = "no clickhouse-server is installed (Debian: the package clickhouse-server)"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that start servers are slow, and skipped with a reason where there is nothing to start."""
    missing = pytest.mark.skip(reason=NO_SERVER) if find_server() is None else None
    for item in items:
        if "interop" in item.path.parts and "start_real" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
            if missing is not None:
                item.add_marker(missing)


@dataclass(slots=True)
class RealQueue:
    """Real servers, the queue they work, and a session of ours with ZooKeeper."""

    servers: tuple[RealClickHouse, ...]
    clusters: tuple[Cluster, ...]
    queue: DistributedDdl
    zookeeper: ZooKeeper
    keeper: Keeper
    foreign: tuple[HostId, ...] = ()
    """Hosts of the clusters that are ours to play."""
    entries: list[str] = field(default_factory=list)

    @property
    def first(self) -> RealClickHouse:
        return self.servers[0]

    @property
    def hosts(self) -> tuple[HostId, ...]:
        return tuple(server.host_id for server in self.servers)

    @property
    def topology(self) -> Topology:
        return Topology({cluster.name: cluster for cluster in self.clusters}, {})

    @property
    def client(self) -> DDLQueueClient:
        return DDLQueueClient(self.keeper, ENV, self.queue.paths)

    def prepared(
        self, sql: str, *, token: str, settings: Mapping[str, str] | None = None
    ) -> PreparedStatement:
        """Our initiator's entry for `sql`, in the version that 18.16 reads."""
        return prepare(
            sql,
            topology=self.topology,
            queue=self.queue,
            current_database="default",
            settings=settings or {},
            initiator=None,
            token=token,
            entry_version=1,
        )

    async def submit(self, sql: str, *, token: str) -> str:
        """Enqueue `sql` as our client does; returns the entry's name."""
        return (await self.client.submit(self.prepared(sql, token=token))).entry

    async def tables(self, server: RealClickHouse, database: str = "default") -> list[str]:
        answer = await server.query(
            f"SELECT name FROM system.tables WHERE database = '{database}' ORDER BY name"
        )
        return answer.split()

    async def all_workers_answer(self) -> None:
        """Fails unless every real server executes one more statement, which a dead DDL worker would not."""
        answer = await self.first.query(
            f"CREATE DATABASE IF NOT EXISTS alive ON CLUSTER {self.clusters[0].name}",
            settings={"distributed_ddl_task_timeout": "30"},
        )
        assert len(answer.splitlines()) == len(self.clusters[0].host_ids)
        assert [server.spec.name for server in self.servers if not server.has_ddl_worker] == []


StartReal = Callable[..., Awaitable[RealQueue]]


@pytest.fixture(scope="module")
def zookeeper_config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    server = EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"), is_durable=False, env=ENV)
    server.start_blocking()
    yield server.config
    server.stop_blocking()


@pytest.fixture
async def start_real(zookeeper_config: ZooKeeper, tmp_path: Path) -> AsyncIterator[StartReal]:
    """Starts real servers in one cluster `all`. Its arguments: how many in each shard; `foreign`: how many
    more hosts, which nobody starts, join the last shard."""
    async with AsyncExitStack() as stack:

        async def start(
            *shards: int, foreign: int = 0, queue: DistributedDdl | None = None, log_level: str = "warning"
        ) -> RealQueue:
            specs = plan_servers(sum(shards), env=ENV, shards=len(shards))
            others = tuple(spec.host_id for spec in plan_servers(foreign, env=ENV)) if foreign else ()
            cluster = make_cluster("all", _split(specs, shards, others))
            chosen = queue or DistributedDdl(path=f"/interop/{ENV.new_uuid()}/ddl")
            real = RealCluster(
                specs,
                clusters=[cluster],
                zookeeper=zookeeper_config,
                directory=tmp_path,
                env=ENV,
                queue=chosen,
                log_level=log_level,
            )
            await stack.enter_async_context(real)
            keeper = await zookeeper.connect(zookeeper_config, ENV)
            stack.push_async_callback(keeper.close)
            return RealQueue(real.servers, (cluster,), chosen, zookeeper_config, keeper, others)

        yield start


def _split(
    specs: Sequence[ServerSpec], shards: Sequence[int], foreign: Sequence[HostId]
) -> list[list[HostId]]:
    hosts = iter(spec.host_id for spec in specs)
    rows = [[next(hosts) for _ in range(count)] for count in shards]
    rows[-1] += foreign
    return rows
