"""A model of the SQL that a host runs, for simulations and tests of the queue: tables, effects, faults.

`ModelDatabase` is what is on disk: it survives the process. `ModelExecutor` is one process's way to it and
implements both protocols of `engine.ddl.executor`. Replicated tables live in Keeper, so that the replicas of
a shard see one table and a fence can be part of the transaction that changes it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from engine.ddl.attempt import Fence
from engine.ddl.executor import Blocks, Execution, FenceLost, Fingerprint, Steps
from engine.env import Env
from engine.errors import BadVersion, Code, MultiFailed, NoNode, SqlError
from engine.keeper.base import Create, CreateMode, Keeper
from engine.keeper.recipes import create_ancestors, create_if_not_exists
from engine.names import TableName
from engine.sql import AlterCommand, Statement, StatementKind, parse_statement

_K = StatementKind
_A = AlterCommand
_ENTRY = re.compile(r"/\* ddl_entry=(query-\d{10}) \*/ ")
_FAIL = re.compile(r"FAIL (\d+)")
_REPLICATED_ROOT = "/model/replicated"


@dataclass(frozen=True, slots=True)
class Effect:
    """One change of one object, as it happened on disk."""

    host: str
    entry: str
    object: str
    what: str


@dataclass(slots=True)
class ModelTable:
    uuid: str
    engine: str
    columns: list[str] = field(default_factory=list)
    mutations: list[str] = field(default_factory=list)
    blocks: list[Blocks] = field(default_factory=list)
    next_block: int = 0

    def insert(self) -> None:
        """A user's insert: one new block."""
        self.blocks.append(Blocks("all", self.next_block, self.next_block))
        self.next_block += 1

    def merge(self) -> None:
        """All parts become one that covers what they covered."""
        if self.blocks:
            self.blocks = [Blocks("all", self.blocks[0].first, self.blocks[-1].last)]

    def definition(self) -> str:
        return f"{self.uuid} {self.engine} {','.join(self.columns)}"


@dataclass(slots=True)
class ModelDatabase:
    """The disk of one host. `effects` is the history that checkers read."""

    host: str
    tables: dict[TableName, ModelTable] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)
    counter: int = 0
    on_effect: Callable[[Effect], None] | None = None

    def next_id(self) -> str:
        self.counter += 1
        return f"{self.host}-{self.counter}"


class ModelExecutor:
    """Runs the statements of the model: CREATE, DROP, RENAME TABLE, ALTER … ADD COLUMN, UPDATE, DELETE, DROP
    PARTITION, TRUNCATE, OPTIMIZE.

    `duration_s` is how long one takes, half before its effect and half after it. A statement whose text says
    `FAIL <code>` in a comment fails with that code.
    """

    def __init__(
        self,
        database: ModelDatabase,
        env: Env,
        *,
        duration_s: tuple[float, float] = (0.0, 0.0),
        keeper: Callable[[], Awaitable[Keeper]] | None = None,
        shard: str = "",
        gate: Callable[[], None] = lambda: None,
    ) -> None:
        self._database = database
        self._env = env
        self.duration_s = duration_s
        self._keeper = keeper
        self._shard = shard
        self._gate = gate
        self.flaky_rate = 0.0
        """How often a statement fails with MEMORY_LIMIT_EXCEEDED, without effect."""
        self.executed: list[str] = []

    # --- LocalExecutor ------------------------------------------------------------------------------------

    async def execute(self, execution: Execution) -> None:
        await self._execute(execution.sql, Fence())

    async def execute_fenced(self, execution: Execution, *, fence: Fence) -> None:
        await self._execute(execution.sql, fence)

    async def table_engine(self, table: TableName) -> str | None:
        found = self._database.tables.get(_qualified(table))
        return found.engine if found is not None else None

    def supports_replication(self, engine: str) -> bool:
        return engine.startswith("Replicated")

    async def definition_digest(self, statement: Statement, database: str) -> str:
        names = [_qualified(table, database) for table in statement.tables]
        found = [(name, self._database.tables.get(name)) for name in names]
        if len(found) == 1 and found[0][1] is not None and statement.kind is not _K.DROP_TABLE:
            name = found[0][0]
            if self.supports_replication(found[0][1].engine):
                return await self._replicated_digest(name)
        return Fingerprint(
            objects=tuple((str(name), table.definition() if table else "") for name, table in found),
            mutations=tuple(m for _, table in found if table for m in table.mutations),
            blocks=tuple(b for _, table in found if table for b in table.blocks),
        ).to_text()

    async def validate(self, sql: str) -> str:
        parse_statement(sql)
        return sql

    # --- the model ----------------------------------------------------------------------------------------

    async def _execute(self, sql: str, fence: Fence) -> None:
        match = _ENTRY.match(sql)
        entry = match.group(1) if match else ""
        self.executed.append(entry)
        duration_s = self._env.rng.uniform(*self.duration_s)
        await self._work(duration_s / 2)
        failure = _FAIL.search(sql)
        if failure:
            raise SqlError(int(failure.group(1)), "asked to fail")
        if self.flaky_rate and self._env.rng.random() < self.flaky_rate:
            raise SqlError(Code.MEMORY_LIMIT_EXCEEDED, "flaky")
        self._gate()
        await self._apply(parse_statement(sql), entry, fence)
        self._gate()
        await self._work(duration_s / 2)

    async def _work(self, duration_s: float) -> None:
        if duration_s > 0:
            await self._env.sleep(duration_s)
        else:
            await asyncio.sleep(0)

    async def _apply(self, statement: Statement, entry: str, fence: Fence) -> None:
        tables = self._database.tables
        names = [_qualified(table) for table in statement.tables]
        match statement.kind:
            case _K.CREATE_TABLE:
                if names[0] in tables:
                    if statement.if_not_exists:
                        return
                    raise SqlError(Code.TABLE_ALREADY_EXISTS, f"Table {names[0]} already exists.")
                engine = statement.engine or "MergeTree"
                if self.supports_replication(engine):
                    await self._create_replicated(names[0])
                tables[names[0]] = ModelTable(self._database.next_id(), engine)
                self._record(entry, names[0], "create")
            case _K.DROP_TABLE:
                if names[0] not in tables:
                    if statement.if_exists:
                        return
                    raise _unknown_table(names[0])
                del tables[names[0]]
                self._record(entry, names[0], "drop")
            case _K.RENAME_TABLE:
                if names[0] not in tables:
                    raise _unknown_table(names[0])
                if names[1] in tables:
                    raise SqlError(Code.TABLE_ALREADY_EXISTS, f"Table {names[1]} already exists.")
                tables[names[1]] = tables.pop(names[0])
                self._record(entry, names[0], "rename")
            case _K.ALTER_TABLE | _K.TRUNCATE_TABLE | _K.OPTIMIZE | _K.UPDATE | _K.DELETE:
                table = tables.get(names[0])
                if table is None:
                    raise _unknown_table(names[0])
                if self.supports_replication(table.engine):
                    await self._change_replicated(statement, names[0], entry, fence)
                else:
                    self._change(statement, table, entry, names[0])
            case _:
                self._record(entry, TableName("", statement.kind.value), "other")

    def _change(self, statement: Statement, table: ModelTable, entry: str, name: TableName) -> None:
        """One step: there is no await in here, so a kill falls before or after it."""
        if _change_table(statement, table, self._database.next_id()):
            self._record(entry, name, statement.kind.value)

    def _record(self, entry: str, name: TableName, what: str) -> None:
        effect = Effect(self._database.host, entry, str(name), what)
        self._database.effects.append(effect)
        if self._database.on_effect is not None:
            self._database.on_effect(effect)

    # --- replicated tables --------------------------------------------------------------------------------

    def _path(self, name: TableName) -> str:
        return f"{_REPLICATED_ROOT}/{self._shard}/{name}"

    async def _create_replicated(self, name: TableName) -> None:
        keeper = await self._session()
        await create_ancestors(keeper, f"{self._path(name)}/x")
        await create_if_not_exists(keeper, f"{self._path(name)}/effects")

    async def _replicated_digest(self, name: TableName) -> str:
        keeper = await self._session()
        path = f"{self._path(name)}/effects"
        await keeper.sync(path)
        try:
            effects = (await keeper.children(path)).names
        except NoNode:
            return ""
        # The table always holds one block; a truncation puts the next one in its place.
        block = sum(effect.startswith("t-") for effect in effects)
        return Fingerprint(
            objects=((str(name), str(len(effects))),),
            mutations=effects,
            blocks=(Blocks("all", block, block),),
            is_shared=True,
        ).to_text()

    async def _change_replicated(
        self, statement: Statement, name: TableName, entry: str, fence: Fence
    ) -> None:
        keeper = await self._session()
        data = json.dumps([self._database.host, entry, statement.kind.value]).encode()
        prefix = "t" if statement.kind is _K.TRUNCATE_TABLE else "e"
        path = f"{self._path(name)}/effects/{prefix}-"
        try:
            await keeper.multi([Create(path, data, CreateMode.PERSISTENT_SEQUENTIAL), *(fence.whole() or ())])
        except MultiFailed as refusal:
            if refusal.error.path in fence.paths and isinstance(refusal.error, (BadVersion, NoNode)):
                raise FenceLost(Code.UNFINISHED, "Another replica has taken over") from refusal
            raise

    async def _session(self) -> Keeper:
        if self._keeper is None:
            raise SqlError(Code.TABLE_IS_READ_ONLY, "The model has no Keeper for replicated tables")
        return await self._keeper()


class RecordingModelExecutor(ModelExecutor):
    """The same, and looks, records and executes in one go, or several in a row (`RecordingExecutor` and
    `SeriesExecutor` of `engine.ddl.executor`)."""

    async def execute_recorded(
        self,
        execution: Execution,
        *,
        statement: Statement,
        database: str,
        record: Callable[[str], None],
    ) -> None:
        record(await self.definition_digest(statement, database))
        await self._execute(execution.sql, Fence())

    # --- SeriesExecutor -----------------------------------------------------------------------------------

    async def takes_in_series(self, statement: Statement, database: str) -> bool:
        if statement.engine is not None and self.supports_replication(statement.engine):
            return False
        engines = [await self.table_engine(_qualified(table, database)) for table in statement.tables]
        return not any(engine is not None and self.supports_replication(engine) for engine in engines)

    async def execute_series(self, steps: Steps, settings: Mapping[str, str]) -> None:
        while taken := steps.take():
            steps.record([await self.definition_digest(step.statement, step.database) for step in taken])
            for step in taken:
                await self._execute(step.execution.sql, Fence())
                if not steps.done():
                    return


async def replicated_effects(keeper: Keeper, shard: str, table: TableName) -> list[Effect]:
    """What happened to a replicated table of a shard, in order."""
    path = f"{_REPLICATED_ROOT}/{shard}/{table}/effects"
    try:
        names = (await keeper.children(path)).names
    except NoNode:
        return []
    effects = []
    for name in names:
        host, entry, what = json.loads((await keeper.get(f"{path}/{name}")).data)
        effects.append(Effect(host, entry, str(table), what))
    return effects


def _change_table(statement: Statement, table: ModelTable, new_id: str) -> bool:
    """Whether anything changed: nothing does when an empty table is truncated."""
    commands = set(statement.alter_commands)
    if statement.kind is _K.TRUNCATE_TABLE or _A.DROP_PARTITION in commands:
        had_blocks = bool(table.blocks)
        table.blocks.clear()
        return had_blocks
    if statement.kind is _K.OPTIMIZE:
        return False
    if statement.kind in (_K.UPDATE, _K.DELETE) or commands & {_A.UPDATE, _A.DELETE}:
        table.mutations.append(new_id)
    elif commands:
        table.columns.append(new_id)
    return True


def _qualified(table: TableName, database: str = "default") -> TableName:
    return table if table.database else TableName(database or "default", table.table)


def _unknown_table(name: TableName) -> SqlError:
    return SqlError(Code.UNKNOWN_TABLE, f"Table {name} doesn't exist.")
