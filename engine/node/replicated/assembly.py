"""Everything that a node needs for its replicated tables, put together.

Order of start: the interserver port (peers are told it), then the tables, whose parts are loaded before
anybody can read them; Keeper is waited for in the background. Order of stop: tables, port, client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from engine.config.model import NodeConfig, Topology
from engine.ddl import NodeIdentity
from engine.env import Env
from engine.errors import Busy, Code, OnclusterError
from engine.keeper.recipes import SessionHolder
from engine.names import TableName
from engine.node.interserver import fetcher_of, listens_on_loopback, server_of, warn_if_open
from engine.node.replicated.definitions.attach_as import AttachAsStatements
from engine.node.replicated.definitions.attach_definition import AttachDefinitionStatements
from engine.node.replicated.definitions.convert import Converter
from engine.node.replicated.definitions.create import CreateStatements
from engine.node.replicated.definitions.drop_rename import DropRenameStatements
from engine.node.replicated.definitions.engine_arguments import EngineArguments
from engine.node.replicated.definitions.leftovers import drop_leftovers
from engine.node.replicated.definitions.own_tables import OwnTableStatements
from engine.node.replicated.definitions.rollup_functions import with_own_names
from engine.node.replicated.definitions.shard_check import Defaults
from engine.node.replicated.definitions.show import DatabasesView, ShowStatements, TablesView
from engine.node.replicated.definitions.unconvert import Unconverter
from engine.node.replicated.definitions.undrop import UndropStatements
from engine.node.replicated.definitions.view_tables import ViewTableStatements
from engine.node.replicated.executor import ReplicatedExecutor
from engine.node.replicated.guard import ReplicatedGuard
from engine.node.replicated.parts.alter import AlterStatements
from engine.node.replicated.parts.broken_reads import check_what_cannot_be_read
from engine.node.replicated.parts.check import CheckStatements
from engine.node.replicated.parts.mutations import KillMutationStatements
from engine.node.replicated.parts.optimize import OptimizeStatements
from engine.node.replicated.parts.part_names import PartNames
from engine.node.replicated.replica_metrics import replica_gauges, replica_measures
from engine.node.replicated.replicas_status import replicas_status
from engine.node.replicated.rows.consistent_reads import ConsistentReads
from engine.node.replicated.rows.dropped_columns import DroppedColumns
from engine.node.replicated.rows.feeders import FeederGuard
from engine.node.replicated.rows.inserts import ReplicatedInserts
from engine.node.replicated.rows.plain_targets import PlainTargetStatements
from engine.node.replicated.rows.view_catalog import read_links
from engine.node.replicated.rows.views import ViewGraph, ViewPush
from engine.node.replicated.running.catalog import TableCatalog, TableRecord
from engine.node.replicated.running.lifecycle import TableLifecycle
from engine.node.replicated.running.local_tables import LocalTable, LocalTables
from engine.node.replicated.running.runtime import ReplicatedTables, RunningTable
from engine.node.replicated.running.statements import StatementHandlers
from engine.node.replicated.system_commands import SystemStatements
from engine.node.replicated.system_tables import replicated_system_tables
from engine.node.start_flags import is_forced
from engine.node.statements.node_statements import NodeStatements
from engine.node.statements.statement import Answer, Asked, WriteInput
from engine.node.system.system_tables import SystemTable, SystemView
from engine.part_storage import HIDDEN_SETTINGS, ChdbPartStore, FoundTable, open_plain, settings_of
from engine.replication.fetching import PartFetcher
from engine.replication.host import ReplicaHost
from engine.replication.idle_settings import note_idle
from engine.replication.part_store import PartStore
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.queue.queue import ReplicaQueue
from engine.replication.replicated_table import ReplicatedTable
from engine.replication.settings import ReplicatedSettings
from engine.sql import Statement, StatementKind, parse_statement
from engine.storage import ChdbPool
from engine.storage.layout import private_directory
from engine.storage.local_executor import ChdbExecutor
from engine.storage.statement_text import InsertText

_OF_THE_PROFILE = ("max_fetch_partition_retries_count",)
"""Settings of queries, by which also goes what no query asks for: the default profile's."""


class ReplicatedNode:
    """The replicated side of a node. `start` it before clients come, `stop` it after they went."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        env: Env,
        pool: ChdbPool,
        holder: SessionHolder,
        identity: NodeIdentity,
        topology: Callable[[], Topology],
    ) -> None:
        self._config = config
        self._env = env
        self._pool = pool
        self._holder = holder
        self._topology = topology
        self.tables = ReplicatedTables()
        self._local = LocalTables(pool)
        self._server = server_of(config, find=self._context_at, version=pool.version)
        self._fetcher = fetcher_of(config)
        self.default_profile = config.default_settings
        self._graph = ViewGraph(lambda: read_links(self._local))
        self._defaults = Defaults(
            config.default_replica_path,
            config.default_replica_name,
            identity.server_uuid,
            identity.host_id,
            tuple(dict.fromkeys(queue.replicas_path for queue in config.queues)),
        )
        self.life = TableLifecycle(
            env=env,
            catalog=TableCatalog(private_directory(pool.path) / "replicated"),
            dropped=TableCatalog(private_directory(pool.path) / "replicated" / "dropped"),
            tables=self.tables,
            local=self._local,
            holder=holder,
            factory=TableMaker(self, pool=pool, env=env, holder=holder, identity=identity),
            server_uuid=identity.server_uuid,
            on_change=self._graph.changed,
            reserve=pool.disk_reserve,
        )
        feeders = FeederGuard(self.tables, self._graph)
        self.life.check_new_name = feeders.check_new_table
        self.dropped_columns = DroppedColumns(self._local, self._graph)
        self.views = ViewPush(self._graph, self.tables, pool=pool, env=env, run_insert=self.run_insert)
        self.altering_in_database: Callable[[TableName], AbstractContextManager[object]] = nullcontext
        self.into_distributed: Callable[[Asked], Awaitable[Asked | None]] | None = None
        """Runs an INSERT into a Distributed table; gives back any other, its reads of such ones replaced."""
        self._inserts = ReplicatedInserts(self.tables, self.views)
        self._reads = ConsistentReads(self.tables, self._local)
        self._part_names = PartNames(self.tables)
        self._create = CreateStatements(
            self.life, env=env, topology=topology, defaults=self._defaults, run_insert=self.run_insert
        )
        self.life.check_place = self._create.check_place
        self._converter = Converter(self.life, self._create, env, pool.path)
        self._unconverter = Unconverter(self.life, env)
        self._undrop = UndropStatements(self.life, env)
        self.handlers = StatementHandlers(
            [
                feeders,
                AttachAsStatements(self.life, self._converter, self._unconverter),
                AttachDefinitionStatements(self.life, self._create, self._converter),
                self._undrop,
                ViewTableStatements(
                    self.life,
                    self._create,
                    env=env,
                    run_insert=self.run_insert,
                    check_sources=feeders.check_sources,
                ),
                self._create,
                PlainTargetStatements(self.tables, self._run_other),
                DropRenameStatements(self.life, self._run_other),
                ShowStatements(self.life),
                CheckStatements(self.tables),
                self._inserts,
                AlterStatements(
                    self.tables,
                    self.life.catalog,
                    partial(open_plain, pool),
                    self._local,
                    self.dropped_columns.check,
                ),
                OptimizeStatements(self.tables),
                KillMutationStatements(self.tables),
                SystemStatements(self.tables, holder),
                ReplicatedGuard(self.tables, self._graph),
            ]
        )
        self.handlers.put_first(OwnTableStatements(self.life, self.handlers))
        self.handlers.put_first(EngineArguments(self.handlers))

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises Busy when the interserver port is taken, Corrupt for a record that cannot be read."""
        try:
            await self._server.start()
        except OSError as error:
            raise Busy(
                f"Cannot listen on interserver port {self._config.interserver_http_port}: "
                f"{(error.strerror or str(error)).lower()}.",
                holder="another process",
                code=Code.NETWORK_ERROR,
                hint="Stop what uses the port, or leave <interserver_http_port> out: any free one will do.",
            ) from error
        warn_if_open(self._config, self._server.port)
        await self.dropped_columns.clear()
        self.life.rollups = await with_own_names(self._config.graphite, self._local)
        forced = is_forced(Path(self._config.path))
        await self.life.start(force=forced.exists())
        forced.unlink(missing_ok=True)
        drop_leftovers(self.life, self._env)
        self.life.until_done(self._undrop.forget_regularly, "forget what was dropped long ago")
        await self._unconverter.finish_interrupted()
        await self._converter.run()
        await self._undrop.finish_interrupted()

    async def stop(self) -> None:
        await self.life.stop()
        await self._server.stop()
        await self._fetcher.close()

    # -- for the router --------------------------------------------------------------------------------------

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if asked.session.is_readonly and not statement.is_query:
            return None  # chDB says so, or knows better (SET, USE)
        if statement.kind in (StatementKind.INSERT, StatementKind.CREATE_TABLE):
            asked = await self._reads.prepare(asked, statement)
        return await self.handlers.run(asked, statement)

    async def insert(
        self,
        asked: Asked,
        insert: InsertText,
        rows: AsyncIterator[bytes],
        write_input: WriteInput,
    ) -> Answer | None:
        return await self._inserts.insert(asked, insert, rows, write_input)

    @asynccontextmanager
    async def written_by_chdb(self, asked: Asked, statement: Statement) -> AsyncIterator[None]:
        """See `ReplicatedTables.written_by_chdb`."""
        if statement.kind is not StatementKind.INSERT or not statement.tables:
            yield
            return
        name = statement.tables[0].within(asked.current_database)
        reached = await self._graph.reached(name) if self.tables.has_any else [name]
        with self.tables.written_by_chdb(*reached):
            yield

    async def prepare_read(self, asked: Asked, statement: Statement) -> Asked:
        return await self._part_names.prepare(await self._reads.prepare(asked, statement), statement)

    def note_error(self, error: OnclusterError) -> None:
        """A statement has failed: a part that could not be read is checked, as in ClickHouse."""
        check_what_cannot_be_read(self.tables, error)

    def changed(self) -> None:
        """A definition may be another one than before: by a statement in chDB, or by an ALTER in the log."""
        self._graph.changed()

    @contextmanager
    def altering(self, ctx: ReplicaContext) -> Iterator[None]:
        """A table's own replication gives it another definition."""
        with self.altering_in_database(ctx.name):
            try:
                yield
            finally:
                self.changed()

    async def run_insert(self, asked: Asked) -> None:
        """Run an INSERT … SELECT of the node's own making, as a client's."""
        statement = parse_statement(asked.sql)
        if statement.kind is StatementKind.INSERT and self.into_distributed is not None:
            rest = await self.into_distributed(asked)
            if rest is None:
                return
            asked = rest
        await self._run_other(asked)

    async def _run_other(self, asked: Asked) -> None:
        """Any statement but one about a Distributed table."""
        answer = await self.handlers.run(asked, parse_statement(asked.sql))
        if answer is not None:
            await answer.finish()
            return
        await asked.session.query(asked.sql, format="Null", scope=asked.scope, multi=False)

    def executor(self, inner: ChdbExecutor, statements: NodeStatements) -> ReplicatedExecutor:
        """For the DDL queues."""
        return ReplicatedExecutor(inner, life=self.life, handlers=self.handlers, statements=statements)

    def macros_from(self, macros_of: Callable[[str], Mapping[str, str]]) -> None:
        """`macros_of` gives, by database, what macros stand for that the configuration does not have."""
        self._create.macros_of = macros_of

    def databases_view(self) -> SystemView:
        return DatabasesView()

    def system_tables(self) -> list[SystemTable | SystemView]:
        return [
            TablesView(self.life),
            *replicated_system_tables(self.tables, self._env),
        ]

    async def replicas_status(self) -> str:
        return await replicas_status(self.tables)

    async def gauges(self) -> Mapping[str, int]:
        """For `system.metrics`."""
        return replica_gauges(self.tables)

    async def measures(self) -> Mapping[str, float]:
        """For `system.asynchronous_metrics`."""
        return await replica_measures(self.tables)

    # -- for the tables --------------------------------------------------------------------------------------

    def _context_at(self, path: str) -> ReplicaContext | None:
        table = self.tables.by_replica_path(path)
        return None if table is None else table.ctx

    def host_of(self, name: TableName) -> ReplicaHost:
        """What `host` in Keeper says of a table of this node."""
        return ReplicaHost(
            reachable_host(self._config),
            self._server.port,
            self._config.tcp_port,
            name.database,
            name.table,
            self._server.scheme,
        )

    def store_of(self, database: str, table: str) -> PartStore | None:
        """For partitions that come from, or go to, another table."""
        name = TableName(database, table)
        found = self.tables.find(name)
        return self.tables.plain_sources.get(name) if found is None else found.store

    @property
    def fetcher(self) -> PartFetcher:
        return self._fetcher


def reachable_host(config: NodeConfig) -> str:
    """Where peers find the interserver port: a port that listens on loopback only is found only there."""
    if listens_on_loopback(config):
        return config.interserver_listen_host or config.listen_host
    return config.interserver_http_host


class TableMaker:
    """Implements `TableFactory` on chDB."""

    def __init__(
        self,
        node: ReplicatedNode,
        *,
        pool: ChdbPool,
        env: Env,
        holder: SessionHolder,
        identity: NodeIdentity,
    ) -> None:
        self._node = node
        self._pool = pool
        self._env = env
        self._holder = holder
        self._server_uuid = identity.server_uuid
        self._host_id = identity.host_id

    async def make(self, record: TableRecord, local: LocalTable) -> RunningTable:
        found = FoundTable(Path(local.data_paths[0]), local.engine, local.create_query)
        store = await ChdbPartStore.open(self._pool, local.name, str(record.uuid), found=found)
        settings = {n: v for n, v in settings_of(local.create_query).items() if n not in HIDDEN_SETTINGS}
        note_idle(local.name, [*settings, *record.user_settings])
        profile = self._node.default_profile
        settings |= {name: profile[name] for name in _OF_THE_PROFILE if name in profile}
        ctx = ReplicaContext(
            name=local.name,
            paths=record.paths,
            me=record.me,
            host_id=str(self._host_id),
            env=self._env,
            holder=self._holder,
            store=store,
            fetcher=self._node.fetcher,
            host=self._node.host_of(local.name),
            server_uuid=str(self._server_uuid),
            settings=ReplicatedSettings.of({**settings, **record.user_settings}),
            queue=ReplicaQueue(),
            other_table=self._node.store_of,
        )
        store.found_broken = ctx.check_later
        store.altering = partial(self._node.altering, ctx)
        return RunningTable(record, ctx, ReplicatedTable(ctx), store)
