"""Everything that a node needs for its Replicated databases, put together.

Order of start: the databases are known before anybody can ask; their logs are followed when the node serves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from uuid import UUID

from engine.config.model import Topology
from engine.ddl import NodeIdentity
from engine.env import Env
from engine.keeper.recipes import SessionHolder
from engine.names import TableName
from engine.node.databases.at_start import TextsAtStart, catalog_of
from engine.node.databases.local_database import Shell
from engine.node.databases.planning import AlterPlanner
from engine.node.databases.running import ReplicatedDatabases
from engine.node.databases.show import DatabasesView
from engine.node.databases.statements import DatabaseStatements
from engine.node.databases.system_tables import ClusterFacts, DatabaseReplicasTable
from engine.node.databases.table_columns import TableColumns
from engine.node.databases.texts import SchemaTexts
from engine.node.distributed.assembly import DistributedNode
from engine.node.replicated.assembly import ReplicatedNode
from engine.node.replicated.definitions.show import shown_definition
from engine.node.replicated.running.local_tables import LocalTables
from engine.node.statements.statement import Asked
from engine.node.system.system_tables import SystemTable, SystemView
from engine.storage import ChdbPool


class DatabasesNode:
    """`load` it before clients come, `start` it when the node serves, `stop` it before everything else."""

    def __init__(
        self,
        *,
        env: Env,
        pool: ChdbPool,
        holder: SessionHolder,
        identity: NodeIdentity,
        topology: Callable[[], Topology],
        replicated: ReplicatedNode,
        distributed: DistributedNode,
        profile: Mapping[str, str],
        as_started: TextsAtStart,
    ) -> None:
        """`profile`: settings of statements that other replicas have sent."""
        self._replicated = replicated
        self._distributed = distributed
        self._run: Callable[[Asked], Awaitable[None]] | None = None
        local = LocalTables(pool)
        texts = SchemaTexts(pool.path, shown=self._shown, distributed=self._engine_of)
        self._planner = AlterPlanner(pool, local, texts, env)
        shell = Shell(
            pool=pool,
            local=local,
            life=replicated.life,
            texts=texts,
            planner=self._planner,
            dropped_columns=replicated.dropped_columns,
            run_here=self._run_here,
            profile=profile,
        )
        self.databases = ReplicatedDatabases(
            env=env,
            catalog=catalog_of(pool.path),
            shell=shell,
            holder=holder,
            identity=identity,
            topology=topology,
            as_started=as_started,
        )
        columns = TableColumns(local, env)
        self.statements = DatabaseStatements(
            self.databases, columns, env, path=pool.path, describable=distributed.describable
        )
        self.cluster_facts = ClusterFacts(self.databases)
        replicated.macros_from(self.databases.macros_of)
        replicated.altering_in_database = self._altering

    async def load(self) -> None:
        """Raises Corrupt."""
        await self._planner.clear()
        await self.databases.load()

    def start(self, run_here: Callable[[Asked], Awaitable[None]]) -> None:
        """`run_here` runs a statement as a client's that is on this node only."""
        self._run = run_here
        self.databases.start()

    async def stop(self, *, grace_s: float) -> None:
        await self.databases.stop(grace_s=grace_s)

    def system_tables(self) -> list[SystemTable | SystemView]:
        return [
            DatabasesView(self.databases.catalog, self._replicated.databases_view()),
            DatabaseReplicasTable(self.databases),
        ]

    async def _run_here(self, asked: Asked) -> None:
        assert self._run is not None
        await self._run(asked)

    @contextmanager
    def _altering(self, table: TableName) -> Iterator[None]:
        """The digest is not waited for: the statement that waits for the ALTER may hold what it needs."""
        database = self.databases.find(table.database)
        if database is None:
            yield
            return
        database.schema.alters_itself(table.table)
        try:
            yield
        finally:
            self._replicated.life.later(database.core.definition_changed(), f"digest of {table}")

    def _shown(self, uuid: UUID, text: str) -> str | None:
        record = self._replicated.life.catalog.get(uuid)
        return None if record is None else shown_definition(record, text)

    def _engine_of(self, uuid: UUID) -> str | None:
        record = self._distributed.tables.catalog.get(uuid)
        return None if record is None else record.definition.engine_full
