"""A cluster of real servers, of engine nodes, or of both in one queue, as operations see it.

Shard 1 has the real servers, of 2018 or of 26.9, shard 2 the nodes: a replicated table has replicas of one
kind, because a server of 2018 cannot read the parts that a node writes.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

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
from tests.interop.program_in_memory import Unknown
from tests.warm import warm

OPERATOR = "test"
_ROOT = Path(__file__).parents[2]
_MODERN = "tests.interop.server_of_26_9"


class Kind(enum.Enum):
    """Who is in the cluster."""

    REAL = "real servers"
    NODES = "engine nodes"
    MIXED = "both"
    MODERN = "servers of 26.9"
    MODERN_MIXED = "servers of 26.9 and nodes"


_COUNTS = {
    Kind.REAL: (2, 0, 0),
    Kind.NODES: (0, 0, 2),
    Kind.MIXED: (2, 0, 1),
    Kind.MODERN: (0, 2, 0),
    Kind.MODERN_MIXED: (0, 2, 1),
}
"""Servers of 2018, of 26.9, and nodes."""


@dataclass(slots=True)
class Stand:
    """What is running, and a site for it. `processes` are by host."""

    site: Site
    directory: Path
    real: tuple[ServerSpec, ...]
    modern: tuple[ServerSpec, ...]
    nodes: tuple[ServerSpec, ...]
    processes: dict[str, ChildProcess]
    clusters: tuple[Cluster, ...]
    zookeeper: ZooKeeper

    @property
    def specs(self) -> tuple[ServerSpec, ...]:
        return tuple(spec for specs in self.kinds for spec in specs)

    @property
    def kinds(self) -> tuple[tuple[ServerSpec, ...], ...]:
        """Each in a shard of its own."""
        return tuple(filter(None, (self.real, self.modern, self.nodes)))

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
                if not process.is_running and f"{Unknown.__name__}: " in process.log_tail():
                    pytest.skip(process.log_tail())
                assert process.is_running and ENV.monotonic_s() < deadline_s, process.log_tail()
                await ENV.sleep(0.05)


@asynccontextmanager
async def running(
    kind: Kind, zookeeper_config: ZooKeeper, directory: Path, real_clusters: list[RealCluster]
) -> AsyncIterator[Stand]:
    """Two real servers, two nodes, or one more of both; everything is stopped in the end.

    Real servers are also put into `real_clusters`.
    """
    counts = _COUNTS[kind]
    real, modern, nodes = (
        plan_servers(count, env=ENV, prefix=prefix) if count else ()
        for count, prefix in zip(counts, ("real", "modern", "node"), strict=True)
    )
    nodes = tuple(replace(spec, macros={**spec.macros, "shard": "02"}) for spec in nodes)
    shards = [_hosts(specs) for specs in (real, modern, nodes) if specs]
    # 18.16 alters plain tables in the first, and replicated ones in the second.
    clusters = (
        make_cluster("all", shards, internal_replication=False),
        make_cluster("replicated", shards, internal_replication=True),
    )
    queue = DistributedDdl(path=f"/interop/{ENV.new_uuid()}/ddl")
    if modern:  # they end without closing their sessions
        zookeeper_config = replace(zookeeper_config, session_timeout_ms=6000)
    async with AsyncExitStack() as stack:
        processes: dict[str, ChildProcess] = {}
        if real:
            servers = RealCluster(
                real, clusters=clusters, zookeeper=zookeeper_config, directory=directory, env=ENV, queue=queue
            )
            real_clusters.append(servers)
            await stack.enter_async_context(servers)
            processes |= {server.spec.name: server.process for server in servers.servers}
        for spec in (*modern, *nodes):
            place = directory / spec.name
            ClickHouseConfig(clusters, zookeeper_config, queue, "information").write(spec, place)
            config = place / "config.xml"
            ports = (str(spec.http_port), str(spec.interserver_http_port))
            process = processes[spec.name] = ChildProcess(
                spec.name,
                [sys.executable, "-m", "engine.cli", "node", "--config", config]
                if spec in nodes
                else [sys.executable, "-m", _MODERN, place / "data", config, *ports, queue.path],
                log_file=place / "node.log",
                cwd=place if spec in nodes else _ROOT,
                launch=warm,
            )
            process.start()
            stack.push_async_callback(process.stop)
        keeper = await zookeeper.connect(zookeeper_config, ENV)
        stack.push_async_callback(keeper.close)
        ledger = str(directory / "ledger.db")
        site = Site(
            "all",
            load_node_config(directory / (*real, *modern, *nodes)[0].name / "config.xml"),
            Records(ledger, env=ENV),
            ENV,
            OPERATOR,
            ledger_url=ledger,
            keeper_or_none=keeper,
            clients={
                spec.host_id: await stack.enter_async_context(NodeClient(spec.url))
                for spec in (*real, *modern, *nodes)
            },
            patience_s=60.0,
        )
        stand = Stand(site, directory, real, modern, nodes, processes, clusters, zookeeper_config)
        for spec in stand.specs:
            await stand.wait_until_up(spec)
        yield stand


def _hosts(specs: Sequence[ServerSpec]) -> list:  # type: ignore[type-arg]
    return [spec.host_id for spec in specs]
