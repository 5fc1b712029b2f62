"""Real servers, their queue, and a host of ours that has no database."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.config.model import Cluster, DistributedDdl, Topology, ZooKeeper
from engine.ddl.client import DDLQueueClient
from engine.ddl.executor import Execution
from engine.ddl.initiator import PreparedStatement, prepare
from engine.ddl.outcome import EntryStatus
from engine.env import SystemEnv
from engine.errors import SqlError
from engine.keeper.base import Keeper
from engine.names import HostId, TableName
from engine.sql import Statement
from engine.testing.clickhouse_config import ServerSpec
from engine.testing.clickhouse_server import RealClickHouse

ENV = SystemEnv()


@dataclass(slots=True)
class RealQueue:
    """Real servers, the queue they work, and a session of ours with ZooKeeper."""

    servers: tuple[RealClickHouse, ...]
    clusters: tuple[Cluster, ...]
    queue: DistributedDdl
    zookeeper: ZooKeeper
    keeper: Keeper
    foreign: tuple[ServerSpec, ...] = ()
    """Hosts of the clusters that are ours to play."""

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

    async def outcome(self, entry: str) -> EntryStatus:
        """Wait until every host has an outcome."""
        return [status async for status in self.client.watch(entry)][-1]

    async def outcome_with_restarts(self, entry: str) -> EntryStatus:
        """As `outcome`, restarting servers whose worker died.

        Workers of 18.16 die by themselves now and then of an ALTER of a replicated table (a race between the
        replicas of a shard); after a restart they finish the entry.
        """
        waiting = asyncio.create_task(self.outcome(entry))
        while not (await asyncio.wait({waiting}, timeout=3.0))[0]:
            for server in self.servers:
                if not server.has_ddl_worker:
                    await server.stop()
                    await server.start()
        return waiting.result()

    async def eventually(self, server: RealClickHouse, sql: str, wanted: str) -> None:
        """Ask until the answer is `wanted`; replicas of a table follow one another in their own time."""
        deadline_s = ENV.monotonic_s() + 60
        while (answer := await server.query(sql)) != wanted and ENV.monotonic_s() < deadline_s:
            await ENV.sleep(0.05)
        assert answer == wanted, server.spec.name

    async def tables(self, server: RealClickHouse, database: str = "default") -> list[str]:
        answer = await server.query(
            f"SELECT name FROM system.tables WHERE database = '{database}' ORDER BY name"
        )
        return answer.split()

    async def all_workers_answer(self) -> None:
        """Fails unless every real server executes one more statement, which a dead DDL worker would not."""
        answer = await self.first.query(
            f"CREATE DATABASE IF NOT EXISTS alive ON CLUSTER {self.clusters[0].name}",
            settings={"distributed_ddl_task_timeout": "180"},
        )
        assert len(answer.splitlines()) == len(self.clusters[0].host_ids)
        assert [server.spec.name for server in self.servers if not server.has_ddl_worker] == []


@dataclass(slots=True)
class ModelExecutor:
    """A host without a database: notes what it is told to run, fails on demand, and can be held up."""

    executed: list[str] = field(default_factory=list)
    failures: dict[str, SqlError] = field(default_factory=dict)
    """Part of a statement's text → how it fails."""
    may_go_on: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.may_go_on.set()

    async def execute(self, execution: Execution) -> None:
        await self.may_go_on.wait()
        for part, error in self.failures.items():
            if part in execution.sql:
                raise error
        self.executed.append(execution.sql.partition("*/ ")[2])

    async def table_engine(self, table: TableName) -> str | None:
        return "MergeTree"

    def supports_replication(self, engine: str) -> bool:
        return engine.startswith("Replicated")

    async def definition_digest(self, statement: Statement, database: str) -> str:
        return str(len(self.executed))

    async def validate(self, sql: str) -> str:
        return sql
