"""Everything that a node needs for its Distributed tables, put together.

Order of start: records are compared with chDB's tables, then senders begin. Order of stop: senders, clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from engine.config.model import NodeConfig, Topology
from engine.distributed.definition import DistributedDefinition
from engine.distributed.delivery import Deliveries
from engine.distributed.peers import PeerShard, peers_of
from engine.distributed.replica_choice import ErrorLimits, ReplicaFailures
from engine.env import Env
from engine.errors import SqlError
from engine.names import HostId, TableName
from engine.node.distributed.definitions.alter import AlterDistributed
from engine.node.distributed.definitions.create import CreateDistributed
from engine.node.distributed.definitions.create_views import CreateViews
from engine.node.distributed.definitions.ddl import DistributedDdl
from engine.node.distributed.definitions.guard import DistributedGuard
from engine.node.distributed.definitions.replacing import Replacing
from engine.node.distributed.definitions.show import DistributedTablesView, ShowDistributed
from engine.node.distributed.function_guard import FunctionGuard
from engine.node.distributed.function_targets import FunctionTargets
from engine.node.distributed.functions.read_place import ReadPlace
from engine.node.distributed.inserts import DistributedInserts
from engine.node.distributed.peers.peer_health import PeerHealth
from engine.node.distributed.reading.asked_first import AskedFirst
from engine.node.distributed.reading.columns import described_elsewhere, listed_for_create
from engine.node.distributed.reading.failover import Failover
from engine.node.distributed.reading.running_reads import RunningReads
from engine.node.distributed.reading.selects import READING, DistributedSelects
from engine.node.distributed.registry.catalog import DistributedCatalog
from engine.node.distributed.registry.name_changes import is_among, keeps_names, names_given
from engine.node.distributed.registry.overlooked import make_overlooked_an_error
from engine.node.distributed.registry.tables import DistributedTables
from engine.node.distributed.sending.sinks import Here, NodeSink
from engine.node.distributed.sending.spools import Spools
from engine.node.distributed.sending.stage import Stages
from engine.node.distributed.sending.system_commands import DistributedSystemStatements
from engine.node.distributed.sending.system_tables import DistributionQueueTable
from engine.node.replicated.rows.insert_sql import InsertSql
from engine.node.replicated.rows.views import ViewPush
from engine.node.replicated.running.local_tables import LocalTables
from engine.node.replicated.running.name_locks import NameLocks
from engine.node.replicated.running.statements import StatementHandlers
from engine.node.statements.asked_settings import number
from engine.node.statements.statement import CHANGE_NO_DEFINITION, Answer, Asked, WriteInput
from engine.node.system.system_tables import SystemTable, SystemView
from engine.sql import Statement, StatementKind, parse_statement
from engine.storage import ChdbPool
from engine.storage.layout import private_directory
from engine.storage.statement_text import InsertText

log = logging.getLogger(__name__)

RunOther = Callable[[Asked], Awaitable[None]]


class DistributedNode:
    """The Distributed tables of a node. `start` it before clients come, `stop` it after they went."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        env: Env,
        pool: ChdbPool,
        topology: Callable[[], Topology],
        is_local: Callable[[HostId], bool],
        run_other: RunOther | None,
        views: ViewPush | None = None,
        is_replicated: Callable[[TableName], bool] = lambda _: False,
    ) -> None:
        async def in_chdb(asked: Asked) -> None:
            await asked.session.query(asked.sql, format="Null", scope=asked.scope, multi=False)

        self._topology = topology
        self._is_local = is_local
        self._local = LocalTables(pool)
        directory = private_directory(pool.path) / "distributed"
        self.tables = DistributedTables(DistributedCatalog(directory), self._local)
        self._views = views
        self._given: dict[int, frozenset[TableName]] = {}
        if views is not None:
            views.distributed = self.tables.names
        self._sink = NodeSink(pool, env)
        self._failures = failures = ReplicaFailures(_error_limits(config), env.monotonic_s)
        self.deliveries = Deliveries(self._sink, env, own_host=config.host_name, failures=failures)
        self._spools = Spools(
            directory, tables=self.tables, deliveries=self.deliveries, shards_of=self.shards_of, env=env
        )
        names = NameLocks()
        others = run_other or in_chdb
        self._replacing = replacing = Replacing(self.tables, self._spools, others)
        self._stages = stages = Stages(pool, env)
        self._turns = asyncio.Semaphore(pool.may_wait_for_others)
        self._health = PeerHealth(pool, env, config.host_name, failures)
        self._reads = RunningReads(self._health)
        pool.on_kill = self._reads.kill
        self._inserts = DistributedInserts(
            self.tables,
            stages=stages,
            deliveries=self.deliveries,
            spools=self._spools,
            shards_of=self.shards_of,
            env=env,
            functions=FunctionTargets(self._health, topology=topology, is_local=is_local),
            views=views,
        )
        self._selects = DistributedSelects(
            self.tables,
            self._local,
            self._health,
            topology=topology,
            is_local=is_local,
            shards_of=self.shards_of,
            turn=self.turn,
        )
        self._asked_first = AskedFirst(self._selects, self.turn, is_replicated)
        self.handlers = StatementHandlers(
            [
                CreateDistributed(
                    self.tables,
                    stages=stages,
                    spools=self._spools,
                    names=names,
                    replacing=replacing,
                    env=env,
                    own_host=config.host_name,
                    topology=topology,
                    run_other=others,
                    run_insert=self._fill,
                    columns_on_shards=self._columns_on_shards,
                ),
                DistributedDdl(
                    self.tables,
                    spools=self._spools,
                    names=names,
                    replacing=replacing,
                    alter=AlterDistributed(
                        self.tables, stages=stages, names=names, replacing=replacing, env=env
                    ),
                    views=CreateViews(self.tables, others, has_views=views is not None),
                    run_other=others,
                ),
                FunctionGuard(),
                DistributedGuard(self.tables, self._selects.reads_distributed),
                ShowDistributed(self.tables),
                DistributedSystemStatements(self.tables, self._spools),
                self._inserts,
            ]
        )

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises OSError when the directory of the records cannot be read."""
        self.tables.catalog.load()
        if len(self.tables):
            await make_overlooked_an_error(self._local)
        await self._reconcile()
        await self._replacing.drop_leftovers()
        await self._spools.refresh()

    async def stop(self) -> None:
        await self._spools.stop_all()
        await self._stages.close()
        await self._inserts.close()
        await self._selects.close()
        await self._reads.close()
        await self._health.close()
        await self._sink.close()

    def deliver_here_with(self, here: Here) -> None:
        """Rows for this node itself go to its router instead of through HTTP."""
        self._sink.here = here

    # -- for the router --------------------------------------------------------------------------------------

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if asked.session.is_readonly and not statement.is_query:
            return None  # chDB says so
        if given := names_given(asked, statement):
            self._given[id(statement)] = given
            self.tables.name_changes.begin(given)
        answer = None
        is_over = True
        try:
            answer = await self.handlers.run(asked, statement)
            is_over = answer is not None
        finally:
            self._forget_views(statement)
            if is_over:
                self._names_are_given(statement)
        if answer is not None and statement.kind is not StatementKind.INSERT and self._views is not None:
            self._views.changed()
        return answer

    def failover(self, asked: Asked, statement: Statement) -> Failover:
        """For `prepare_read` of this statement, however often it begins."""
        return self._selects.failover(asked, statement)

    async def prepare_read(self, asked: Asked, statement: Statement, failover: Failover) -> Asked:
        """The request with every Distributed table that it reads replaced. Raises SqlError."""
        asked = await self.with_values(asked, statement)
        if len(self.tables) and statement.kind in READING:
            if statement.kind is not StatementKind.EXPLAIN:
                await asked.check_text()
            asked = await self._asked_first.with_filters(asked)
        return await self._selects.prepare(asked, statement, failover)

    async def describable(self, select: str, database: str) -> str:
        """A SELECT, in a database, as chDB can describe it."""
        return await self._selects.describable(select, database)

    async def with_values(self, asked: Asked, statement: Statement) -> Asked:
        """The request, with values for subqueries over Distributed tables where chDB cannot read those.
        Raises SqlError."""
        if not len(self.tables) or statement.on_cluster is not None:
            return asked
        return await self._asked_first.with_values(asked, statement)

    async def names_moved(self, prepared: Asked, failover: Failover) -> bool:
        """Whether chDB may have met the placeholder of a table that the statement does not know."""
        if not failover.watches_names or failover.statement.kind is not StatementKind.SELECT:
            return False
        return await self._selects.names_moved(prepared, failover)

    async def target_moved(self, asked: Asked, failover: Failover) -> bool:
        """Whether an INSERT, which has failed, may have met such a placeholder."""
        target = InsertSql(asked.sql).table
        if target is None or not (given := self.tables.given_since(failover.version)):
            return False
        name = target.within(asked.current_database)
        await self.tables.name_changes.settled(name)
        return is_among(name, given)

    @asynccontextmanager
    async def turn(self, failover: Failover) -> AsyncIterator[None]:
        """Where a prepared statement may run. Those that read other nodes leave threads to what others ask of
        this one: else two nodes could wait for each other with all threads that they have."""
        if not failover.reads:
            yield
            return
        async with self._turns:
            failover.begin_watching()
            is_over = False
            try:
                with self._reads.running(failover):
                    yield
                is_over = True
            except SqlError:
                is_over = True
                raise
            except asyncio.CancelledError:
                failover.watch_on()
                raise
            finally:
                failover.end_watching()
                if not is_over:
                    self._reads.give_up(failover)

    def following_kills(self) -> AbstractAsyncContextManager[None]:
        """In the block a KILL runs; what other nodes do for the statements that it kills ends, too."""
        return self._reads.following_kills()

    async def insert(
        self,
        asked: Asked,
        insert: InsertText,
        rows: AsyncIterator[bytes],
        write_input: WriteInput,
    ) -> Answer | None:
        return await self._inserts.insert(asked, insert, rows, write_input)

    async def finished(self, statement: Statement) -> None:
        """A statement has run, whoever ran it."""
        if statement.is_query or statement.kind is StatementKind.INSERT:
            return
        self.forget_views(statement)
        if not len(self.tables) or keeps_names(statement):
            return
        self.tables.changed()
        if statement.kind in (StatementKind.DROP_DATABASE, StatementKind.TRUNCATE_DATABASE):
            await self._reconcile()
        await self._spools.refresh()

    def forget_views(self, statement: Statement) -> None:
        """A statement has run or was given up, and may have changed what a view reads or a name means."""
        self._forget_views(statement)
        self._names_are_given(statement)

    def _names_are_given(self, statement: Statement) -> None:
        given = self._given.pop(id(statement), None)
        if given is not None:
            self.tables.note_given(given)
            self.tables.name_changes.end(given)

    def _forget_views(self, statement: Statement) -> None:
        if not statement.is_query and statement.kind not in CHANGE_NO_DEFINITION:
            self._selects.forget_views()

    def system_tables(self, shown_tables: object) -> list[SystemTable | SystemView]:
        """`system.tables` goes over `shown_tables`, which shows the replicated ones."""
        inner = shown_tables if isinstance(shown_tables, SystemView) else None
        return [DistributedTablesView(self.tables, inner), DistributionQueueTable(self._spools)]

    async def gauges(self) -> Mapping[str, int]:
        """For `system.metrics`: what waits in the spools, and what was put aside there."""
        facts = [row.facts for row in await self._spools.rows()]
        return {
            "DistributedFilesToInsert": sum(each.data_files for each in facts),
            "DistributedBytesToInsert": sum(each.data_bytes for each in facts),
            "BrokenDistributedFilesToInsert": sum(each.broken_files for each in facts),
            "BrokenDistributedBytesToInsert": sum(each.broken_bytes for each in facts),
        }

    def failures_of(self, name: HostId) -> tuple[int, int]:
        """How many failed inserts and reads of a host still count, and the seconds until none does."""
        return self._failures.count(name), self._failures.recovery_s(name)

    def shards_of(self, cluster: str) -> tuple[PeerShard, ...]:
        """Raises SqlError 701."""
        return tuple(peers_of(self._topology(), cluster, self._is_local))

    async def run_insert(self, asked: Asked) -> Asked | None:
        """Run an INSERT of the node's own making if its table is Distributed; give back any other, with the
        Distributed tables that it reads replaced."""
        statement = parse_statement(asked.sql)
        asked = await self.prepare_read(asked, statement, self.failover(asked, statement))
        answer = await self._inserts.run(asked, statement)
        if answer is None:
            return asked
        await answer.finish()
        return None

    async def _fill(self, asked: Asked) -> None:
        answer = await self._inserts.run(asked, parse_statement(asked.sql))
        if answer is not None:
            await answer.finish()

    async def _columns_on_shards(self, definition: DistributedDefinition) -> str:
        place = ReadPlace(TableName(definition.database, definition.table))
        shards = self.shards_of(definition.cluster)
        return listed_for_create(await described_elsewhere(self._health, place, shards))

    async def _reconcile(self) -> None:
        """Records without a table go. A table of a database that is detached, or that chDB could not load, is
        one: what it has to send was acknowledged."""
        records = self.tables.records_made()
        attached = await self._local.by_uuid([record.uuid for record in records])
        missing = [record for record in records if record.uuid not in attached]
        defined = await self._local.defined() if missing else frozenset()
        for record in missing:
            if record.uuid not in defined:
                await self._spools.remove(record.uuid)
                try:
                    self.tables.catalog.remove(record.uuid)
                except OSError as error:
                    log.warning("distributed.record_stays uuid=%s error=%s", record.uuid, error)
        self.tables.changed()


def _error_limits(config: NodeConfig) -> ErrorLimits:
    """By the default profile, as in ClickHouse: the counters are everybody's, so no statement changes them.

    Raises SqlError 36.
    """
    usual, profile = ErrorLimits(), config.default_settings
    return ErrorLimits(
        number(profile, "distributed_replica_error_half_life", usual.half_life_s),
        int(number(profile, "distributed_replica_error_cap", usual.cap)),
    )
