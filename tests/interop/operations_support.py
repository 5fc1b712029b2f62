"""A cluster of real servers, of engine nodes, or of both in one queue, as operations see it.

Shard 1 has the real servers, shard 2 the nodes: a replicated table has replicas of one kind, because a server
of 2018 cannot read the parts that a node writes.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from engine.client import NodeClient
from engine.config.load import load_node_config
from engine.config.model import Cluster, DistributedDdl, ZooKeeper
from engine.ddl.client import DDLQueueClient
from engine.ddl.entry import DEFAULT_VERSION
from engine.errors import NodeUnavailable, ReplyLost
from engine.keeper import zookeeper
from engine.operations.records import Records
from engine.operations.site import Site
from engine.testing.clickhouse_config import ClickHouseConfig, ServerSpec
from engine.testing.clickhouse_server import RealCluster, make_cluster, plan_servers
from engine.testing.processes import ChildProcess
from tests.interop.cluster import ENV
from tests.warm import warm

OPERATOR = "test"


class Kind(enum.Enum):
    """Who is in the cluster."""

    REAL = "real servers"
    NODES = "engine nodes"
    MIXED = "both"


@dataclass(slots=True)
class Stand:
    """What is running, and a site for it. `processes` are by host."""

    site: Site
    directory: Path
    real: tuple[ServerSpec, ...]
    nodes: tuple[ServerSpec, ...]
    processes: dict[str, ChildProcess]
    clusters: tuple[Cluster, ...]
    zookeeper: ZooKeeper

    @property
    def specs(self) -> tuple[ServerSpec, ...]:
        return (*self.real, *self.nodes)

    @property
    def queue(self) -> DistributedDdl:
        return self.site.queue

    @property
    def ledger_url(self) -> str:
        return self.site.ledger_url

    @property
    def ddl(self) -> DDLQueueClient:
        return DDLQueueClient(self.site.keeper, ENV, self.queue.paths)

    @property
    def entry_version(self) -> int:
        """What the oldest of them reads."""
        return 1 if self.real else DEFAULT_VERSION

    @property
    def config_file(self) -> Path:
        """A server's own configuration file."""
        return self.directory / self.specs[0].name / "config.xml"

    def arguments(self) -> list[str]:
        """For commands: the configuration, and where HTTP is, as all of them are on one address."""
        at = [f"{spec.host_id.readable}={spec.url.rstrip('/')}" for spec in self.specs]
        return ["--config", str(self.config_file), *(word for each in at for word in ("--node", each))]

    async def query(self, spec: ServerSpec, sql: str) -> str:
        return await self.site.client(spec.host_id).query_text(sql)

    async def eventually(self, spec: ServerSpec, sql: str, wanted: str) -> None:
        deadline_s = ENV.monotonic_s() + 120
        while (answer := await self.query(spec, sql)) != wanted:
            assert ENV.monotonic_s() < deadline_s, (spec.name, answer)
            await ENV.sleep(0.05)

    async def wait_until_up(self, spec: ServerSpec) -> None:
        deadline_s = ENV.monotonic_s() + 120
        while True:
            try:
                await self.site.client(spec.host_id).ping()
                return
            except (NodeUnavailable, ReplyLost):
                process = self.processes[spec.name]
                assert process.is_running and ENV.monotonic_s() < deadline_s, process.log_tail()
                await ENV.sleep(0.05)


@asynccontextmanager
async def running(
    kind: Kind, zookeeper_config: ZooKeeper, directory: Path, real_clusters: list[RealCluster]
) -> AsyncIterator[Stand]:
    """Two real servers, two nodes, or one more of both; everything is stopped in the end.

    Real servers are also put into `real_clusters`.
    """
    count_of_real = {Kind.REAL: 2, Kind.NODES: 0, Kind.MIXED: 2}[kind]
    count_of_nodes = {Kind.REAL: 0, Kind.NODES: 2, Kind.MIXED: 1}[kind]
    real = plan_servers(count_of_real, env=ENV) if count_of_real else ()
    nodes = plan_servers(count_of_nodes, env=ENV, prefix="node") if count_of_nodes else ()
    nodes = tuple(replace(spec, macros={**spec.macros, "shard": "02"}) for spec in nodes)
    shards = [_hosts(specs) for specs in (real, nodes) if specs]
    # 18.16 alters plain tables in the first, and replicated ones in the second.
    clusters = (
        make_cluster("all", shards, internal_replication=False),
        make_cluster("replicated", shards, internal_replication=True),
    )
    queue = DistributedDdl(path=f"/interop/{ENV.new_uuid()}/ddl")
    async with AsyncExitStack() as stack:
        processes: dict[str, ChildProcess] = {}
        if real:
            servers = RealCluster(
                real, clusters=clusters, zookeeper=zookeeper_config, directory=directory, env=ENV, queue=queue
            )
            real_clusters.append(servers)
            await stack.enter_async_context(servers)
            processes |= {server.spec.name: server.process for server in servers.servers}
        for spec in nodes:
            place = directory / spec.name
            ClickHouseConfig(clusters, zookeeper_config, queue, "information").write(spec, place)
            process = processes[spec.name] = ChildProcess(
                spec.name,
                [sys.executable, "-m", "engine.cli", "node", "--config", place / "config.xml"],
                log_file=place / "node.log",
                cwd=place,
                launch=warm,
            )
            process.start()
            stack.push_async_callback(process.stop)
        keeper = await zookeeper.connect(zookeeper_config, ENV)
        stack.push_async_callback(keeper.close)
        ledger = str(directory / "ledger.db")
        site = Site(
            "all",
            load_node_config(directory / (*real, *nodes)[0].name / "config.xml"),
            Records(ledger, env=ENV),
            ENV,
            OPERATOR,
            ledger_url=ledger,
            keeper_or_none=keeper,
            clients={
                spec.host_id: await stack.enter_async_context(NodeClient(spec.url))
                for spec in (*real, *nodes)
            },
            patience_s=60.0,
        )
        stand = Stand(site, directory, real, nodes, processes, clusters, zookeeper_config)
        for spec in stand.specs:
            await stand.wait_until_up(spec)
        yield stand


def _hosts(specs: Sequence[ServerSpec]) -> list:  # type: ignore[type-arg]
    return [spec.host_id for spec in specs]
