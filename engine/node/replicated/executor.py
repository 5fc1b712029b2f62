"""What the DDL queue runs statements on, where some tables are replicated.

Statements about replicated tables go the way of a client's: through the same handlers, with the queue's
`fence` in the transactions that change the table. So what one replica runs for its shard is recorded in
Keeper with its effect, and after a crash nothing has to be guessed (`engine.ddl.attempt`). Everything else is
`ChdbExecutor`'s.

Of what every host runs by itself, and of attempts that recorded nothing, the queue compares two fingerprints
(`engine.ddl.recovery`). Of a replicated table they are read from Keeper where the statement's effect is
there: definitions from the table's `metadata` and `columns`, mutations from `mutations/`, what parts cover
from this replica's parts and all entries that are not done yet. Those are alike on all replicas. DELETE and
UPDATE make a mutation on each replica, of which only this one's counts. CREATE and DROP change this node
only: for them a table counts as present from its record's ATTACHED to its record's DROPPING, because what is
half done is finished or undone by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from engine.ddl.attempt import Fence
from engine.ddl.executor import Blocks, Execution, FenceLost, Fingerprint, Steps
from engine.ddl.series import ToldSteps
from engine.errors import MultiFailed
from engine.keeper.base import Node
from engine.names import TableName
from engine.node.replicated.definitions.definition_sql import REPLICATED, is_create_of_replicated
from engine.node.replicated.definitions.own_tables import own_table, table_behind
from engine.node.replicated.definitions.view_definition import is_inner
from engine.node.replicated.rows.feeders import makes_feeder
from engine.node.replicated.running.catalog import TableState
from engine.node.replicated.running.lifecycle import TableLifecycle
from engine.node.replicated.running.runtime import RunningTable
from engine.node.replicated.running.statements import ReplicatedStatements
from engine.node.statements.executor_layer import ExecutorLayer
from engine.node.statements.node_statements import NodeStatements
from engine.replication.mutation_entry import MutationEntry
from engine.replication.replica.log_puller import pull
from engine.sql import AlterCommand, Statement, StatementKind, parse_statement, runs_once_per_shard
from engine.storage.local_executor import ChdbExecutor

_K = StatementKind
_OF_A_VIEW = frozenset({_K.DROP_TABLE, _K.DROP_VIEW, _K.ALTER_TABLE, _K.OPTIMIZE, _K.TRUNCATE_TABLE})
_PARTITION_COMMANDS = frozenset(command for command in AlterCommand if "PARTITION" in command.value)


class ReplicatedExecutor(ExecutorLayer[ChdbExecutor]):
    """Implements `LocalExecutor`, `RecordingExecutor`, `SeriesExecutor` and `FencedExecutor`."""

    def __init__(
        self,
        inner: ChdbExecutor,
        *,
        life: TableLifecycle,
        handlers: ReplicatedStatements,
        statements: NodeStatements,
    ) -> None:
        super().__init__(inner, new_session=inner.new_session)
        self._statements = statements
        self._life = life
        self._handlers = handlers

    async def execute_fenced(self, execution: Execution, *, fence: Fence) -> None:
        asked = self._asked(execution, fence)
        statement = parse_statement(execution.sql)
        try:
            with self._statements.enter(asked, statement):
                answer = await self._handlers.run(asked, statement)
            if answer is not None:
                await answer.finish()
                if fence.is_there and not fence.is_closed:
                    await (await self._life.holder.get()).multi(fence.close())
                return
        except MultiFailed as error:
            if error.error.path in fence.paths:
                raise FenceLost(error.code, f"Another replica has taken over: {error.message}") from error
            raise
        finally:
            await asked.session.close()
        await self._inner.execute(execution)
        self._life.on_change()

    async def execute_recorded(
        self,
        execution: Execution,
        *,
        statement: Statement,
        database: str,
        record: Callable[[str], None],
    ) -> None:
        if not self._may_concern(statement, database):
            await self._inner.execute_recorded(
                execution, statement=statement, database=database, record=record
            )
            self._life.on_change()
            return
        record(await self.definition_digest(statement, database))
        await self.execute(execution)

    async def takes_in_series(self, statement: Statement, database: str) -> bool:
        return not self._may_concern(statement, database) and await self._inner.takes_in_series(
            statement, database
        )

    async def execute_series(self, steps: Steps, settings: Mapping[str, str]) -> None:
        if self._life.catalog.all():
            steps = ToldSteps(steps, lambda _: self._life.on_change())
        try:
            await self._inner.execute_series(steps, settings)
        finally:
            self._life.on_change()

    async def table_engine(self, table: TableName) -> str | None:
        name = _whole(table, "default")
        own = await own_table(self._life, name)
        engine = await self._inner.table_engine(table if own is None else own.name)
        is_ours = own is not None or self._life.tables.find(name) is not None
        return f"{REPLICATED}{engine}" if engine and is_ours else engine

    async def definition_digest(self, statement: Statement, database: str) -> str:
        tables = [_whole(name, database) for name in (*statement.tables, *statement.targets)]
        if statement.kind is _K.KILL_MUTATION:
            return await self._kill_digest(statement, database)
        if tables and runs_once_per_shard(statement):
            table = await table_behind(self._life, tables[0])
            if table is not None:
                return (await self._shared(statement, table)).to_text()
        if tables and statement.kind in (_K.DELETE, _K.UPDATE):
            table = self._life.tables.find(tables[0])
            if table is not None:
                return Fingerprint(mutations=await _own_mutations(table)).to_text()
        digest = await self._inner.definition_digest(statement, database)
        return self._without_half_done(digest)

    # -- whose it is -----------------------------------------------------------------------------------------

    def _may_concern(self, statement: Statement, database: str) -> bool:
        """False: it is chDB's alone, without a doubt."""
        if is_create_of_replicated(statement.kind, statement.engine) or makes_feeder(statement):
            return True
        records = self._life.catalog.all()
        if not records:
            return False
        if statement.kind is _K.CREATE_TABLE and statement.engine is None:
            return True  # perhaps AS a replicated one
        may_be_view = statement.kind in _OF_A_VIEW or statement.or_replace
        if may_be_view and any(is_inner(record.name) for record in records):
            return True  # perhaps of a view that has one of them for its own
        names = {record.name for record in records}
        databases = {name.database for name in names}
        mentioned = {_whole(name, database) for name in (*statement.tables, *statement.targets)}
        return bool(
            names & mentioned
            or databases & {statement.database, statement.new_database}
            or statement.kind in (_K.SYSTEM, _K.KILL_MUTATION, _K.ATTACH_DATABASE, _K.PARALLEL_WITH)
        )

    # -- fingerprints ----------------------------------------------------------------------------------------

    async def _shared(self, statement: Statement, table: RunningTable) -> Fingerprint:
        """Raises SqlError 242 while the replica is read-only."""
        ctx = table.ctx
        keeper = ctx.session()
        await keeper.sync(ctx.paths.root)
        metadata, columns = await keeper.get_many([ctx.paths.metadata, ctx.paths.columns])
        hasher = hashlib.sha256()
        for node in (metadata, columns):
            hasher.update(getattr(node, "data", b""))
            hasher.update(b"\0")
        mutations = blocks = None
        if statement.kind in (_K.ALTER_TABLE, _K.CREATE_INDEX, _K.DROP_INDEX):
            mutations = (await keeper.children(ctx.paths.mutations)).names
        removes = _PARTITION_COMMANDS.intersection(statement.alter_commands)
        if statement.kind is _K.TRUNCATE_TABLE or removes:
            await pull(ctx)
            blocks = tuple(
                Blocks(part.partition_id, part.min_block, part.max_block)
                for part in sorted(ctx.queue.virtual_parts)
                if not part.is_range  # a range that is being dropped: what it covers is gone
            )
        objects = ((f"table {table.name}", hasher.hexdigest()[:32]),)
        return Fingerprint(objects=objects, mutations=mutations, blocks=blocks, is_shared=True)

    async def _kill_digest(self, statement: Statement, database: str) -> str:
        found = Fingerprint.from_text(await self._inner.definition_digest(statement, database))
        mutations = [] if found is None else list(found.mutations or ())
        for table in self._life.tables.all():
            keeper = table.ctx.session()
            names = (await keeper.children(table.ctx.paths.mutations)).names
            mutations += [f"{table.name} {name}" for name in names]
        return Fingerprint(mutations=tuple(mutations)).to_text()

    def _without_half_done(self, digest: str) -> str:
        """Tables whose CREATE or DROP is under way count as absent."""
        half_done = {
            f"table {record.name}"
            for record in self._life.catalog.all()
            if record.state in (TableState.CREATING, TableState.DROPPING)
        }
        found = Fingerprint.from_text(digest) if half_done else None
        if found is None or not half_done & {name for name, _ in found.objects}:
            return digest
        objects = tuple((name, "" if name in half_done else text) for name, text in found.objects)
        return replace(found, objects=objects).to_text()


async def _own_mutations(table: RunningTable) -> tuple[str, ...]:
    """Those that this replica has made. Raises SqlError 242 while it is read-only."""
    ctx = table.ctx
    keeper = ctx.session()
    await keeper.sync(ctx.paths.mutations)
    names = (await keeper.children(ctx.paths.mutations)).names
    nodes = await keeper.get_many([f"{ctx.paths.mutations}/{name}" for name in names])
    return tuple(
        f"{table.name} {name}"
        for name, node in zip(names, nodes, strict=True)
        if isinstance(node, Node)
        and MutationEntry.from_bytes(node.data, where=name).source_replica == ctx.replica
    )


def _whole(name: TableName, database: str) -> TableName:
    return name.within(database or "default")
