"""Replicated tables of a node on a disk, a chDB and a Keeper of memory, in processes killed at any step."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from engine.config.model import Topology, User
from engine.errors import Code, NodeExists, SqlError
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.recipes import SessionHolder
from engine.names import HostId, TableName
from engine.node.replicated.definitions.create import CreateStatements
from engine.node.replicated.definitions.drop_rename import DropRenameStatements
from engine.node.replicated.definitions.leftovers import drop_leftovers
from engine.node.replicated.definitions.shard_check import Defaults
from engine.node.replicated.definitions.undrop import UndropStatements, forget_dropped
from engine.node.replicated.definitions.view_definition import inner_name
from engine.node.replicated.definitions.view_tables import ViewTableStatements
from engine.node.replicated.running.catalog import TableCatalog, TableRecord, TableState
from engine.node.replicated.running.lifecycle import TableLifecycle
from engine.node.replicated.running.local_tables import LocalTable, LocalTables
from engine.node.replicated.running.runtime import ReplicatedTables, RunningTable
from engine.node.replicated.running.statements import NOTHING
from engine.node.statements.statement import Asked
from engine.replication.commands.create import Created, create_replica
from engine.replication.host import ReplicaHost
from engine.replication.part_name import PartName
from engine.replication.replica.context import Broadcast
from engine.sql import StatementKind, parse_statement
from engine.storage import DiskReserve, QueryResult
from engine.testing.simulation import SimulationEnv

NAME = TableName("d", "t")
ROOT = "/t"
CREATE = "CREATE TABLE IF NOT EXISTS d.t (a Int8) ENGINE = ReplicatedMergeTree('/t', 'r') ORDER BY a"
OF_ITS_UUID = "/t/00000000-0000-0000-0000-000000000007"
CREATE_BELOW_ITS_UUID = (
    "CREATE TABLE IF NOT EXISTS d.t UUID '00000000-0000-0000-0000-000000000007' (a Int8) "
    "ENGINE = ReplicatedMergeTree('/t/{uuid}/shard/01', 'r') ORDER BY a"
)
CREATE_AS_SELECT = f"{CREATE} AS SELECT 1 AS a"
FILLED = (PartName.parse("all_0_0_0"), PartName.parse("all_1_1_0"))
DROP = "DROP TABLE IF EXISTS d.t SYNC"
UNDROP = "UNDROP TABLE d.t"
DETACH = f"DETACH TABLE {NAME}"
SERVER = UUID(int=99)
_WRITES = ("create", "remove", "set", "multi")


class Killed(asyncio.CancelledError):
    """kill -9: nothing durable happens after it, whatever `finally` blocks try."""


@dataclass
class Bomb:
    """Goes off at step `at`; every durable write is two steps, before it and after it."""

    at: int = -1
    steps: int = 0
    is_off: bool = False

    def tick(self) -> None:
        if self.is_off or self.steps == self.at:
            self.is_off = True
            raise Killed
        self.steps += 1


@dataclass
class Memory:
    """Of chDB: there is none at steps `at` and `at + 1`; each look is a step, each change two, before and
    behind."""

    at: int = -1
    steps: int = 0

    def tick(self) -> None:
        self.steps += 1
        if self.at < self.steps <= self.at + 2 and self.at >= 0:
            raise SqlError(Code.MEMORY_LIMIT_EXCEEDED, "Memory limit exceeded")

    @property
    def has_failed(self) -> bool:
        return self.steps > self.at >= 0


class Disk(LocalTables):
    """chDB's tables: what is in it outlives the process."""

    def __init__(self) -> None:
        self.tables: dict[UUID, TableName] = {}
        self.dropped_tables: dict[UUID, TableName] = {}
        self.detached_tables: dict[UUID, TableName] = {}
        self.bomb = Bomb()
        self.memory = Memory()
        self.settings: Mapping[str, str] = {}
        """Of the session that it stands for, too."""
        self.refuses_drop = False
        self.cannot_load = self.has_no_memory_to_load = False
        self.has_database = True

    def _tick(self) -> None:
        self.bomb.tick()
        self.memory.tick()

    async def run(self, sql: str) -> None:
        """RENAME of one table to a free name, EXCHANGE of two, DETACH, or ATTACH."""
        statement = parse_statement(sql)
        if statement.kind in (StatementKind.DETACH_TABLE, StatementKind.ATTACH_TABLE):
            known = self.tables | self.detached_tables
            chosen = {uuid: name for uuid, name in known.items() if name in statement.tables}
            is_detach = statement.kind is StatementKind.DETACH_TABLE
            here, there = (
                (self.tables, self.detached_tables) if is_detach else (self.detached_tables, self.tables)
            )
            for uuid, name in chosen.items():
                here.pop(uuid, None)
                there[uuid] = name
            return
        old, new = statement.tables
        if sql.startswith("EXCHANGE"):
            one, two = await self.named(old), await self.named(new)
            assert one is not None and two is not None
            self._tick()
            self.tables |= {one.uuid: new, two.uuid: old}
            self._tick()
            return
        assert statement.kind is StatementKind.RENAME_TABLE, sql
        found = await self.named(old)
        assert found is not None
        assert await self.named(new) is None
        self._tick()
        self.tables[found.uuid] = new
        self._tick()

    async def named(self, name: TableName) -> LocalTable | None:
        return next((_local(u, n) for u, n in self.tables.items() if n == name), None)

    async def by_uuid(self, uuids: Sequence[UUID]) -> Mapping[UUID, LocalTable]:
        self.memory.tick()
        return {uuid: _local(uuid, self.tables[uuid]) for uuid in uuids if uuid in self.tables}

    async def with_settings(self, settings: Mapping[str, str]) -> Sequence[LocalTable]:
        return []

    async def beginning_with(self, prefix: str) -> Sequence[LocalTable]:
        return [_local(uuid, name) for uuid, name in self.tables.items() if name.table.startswith(prefix)]

    async def detached(self) -> Mapping[UUID, TableName]:
        return self.detached_tables

    async def engine_of_database(self, database: str) -> str | None:
        return "Atomic" if self.has_database else None

    async def size_bytes(self, name: TableName) -> int:
        return 0

    async def needed_elsewhere(self, database: str) -> Sequence[tuple[str, str, bool]]:
        return []

    async def drop(self, name: TableName, uuid: UUID) -> None:
        self._tick()
        self.tables.pop(uuid, None)
        self._tick()

    async def last_dropped(self, name: TableName, uuid: str | None = None) -> UUID | None:
        return next((u for u, n in self.dropped_tables.items() if n == name and uuid in (None, str(u))), None)

    async def dropped(self) -> set[UUID]:
        return set(self.dropped_tables)

    async def defined(self) -> frozenset[UUID]:
        return frozenset(self.tables)

    def clone(self) -> "Disk":
        return self

    async def forget(self, uuid: UUID) -> None:
        assert uuid not in self.tables

    async def query(self, sql: str, **_: object) -> QueryResult:
        """What a client's session does."""
        statement = parse_statement(sql)
        if sql.startswith("DESCRIBE"):
            return replace(NOTHING, data=b'["a", "Int8"]\n')
        if statement.kind in (StatementKind.RENAME_TABLE, StatementKind.EXCHANGE_TABLES):
            await self.run(sql)
            return NOTHING
        self._tick()
        if sql.startswith("UNDROP"):
            uuid = await self.last_dropped(statement.tables[0])
            assert uuid is not None
            self.tables[uuid] = self.dropped_tables.pop(uuid)
        elif statement.kind is StatementKind.DROP_DATABASE:
            self.tables, self.has_database = {}, False
        elif statement.uuid is not None:
            self.tables[UUID(statement.uuid)] = statement.tables[0]
        else:
            if self.refuses_drop:
                raise SqlError(359, "Table is too big to be dropped")
            found = await self.named(statement.tables[0])
            if found is not None:
                inner = await self.named(inner_name(found.name, found.uuid))
                if inner is not None:  # a view's own table goes first
                    del self.tables[inner.uuid]
                    self._tick()
                del self.tables[found.uuid]
                if "SYNC" not in sql:
                    self.dropped_tables[found.uuid] = found.name
        self._tick()
        return NOTHING


def _local(uuid: UUID, name: TableName) -> LocalTable:
    query = f"CREATE TABLE {name} (`a` Int8) ENGINE = MergeTree ORDER BY a SETTINGS index_granularity = 8192"
    return LocalTable(uuid, name, "MergeTree", query)


class Catalog(TableCatalog):
    def __init__(self, directory: Path, bomb: Bomb) -> None:
        super().__init__(directory)
        self._bomb = bomb

    def put(self, record: TableRecord) -> None:
        self._bomb.tick()
        super().put(record)
        self._bomb.tick()

    def remove(self, uuid: UUID) -> None:
        self._bomb.tick()
        super().remove(uuid)
        self._bomb.tick()


class Keeper:
    """A session whose writes are durable steps, too."""

    def __init__(self, inner: Any, bomb: Bomb) -> None:
        self._inner = inner
        self._bomb = bomb

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in _WRITES:
            return found

        async def write(*args: Any, **kwargs: Any) -> Any:
            self._bomb.tick()
            result = await found(*args, **kwargs)
            self._bomb.tick()
            return result

        return write


class _Part:
    """A replica and a store that do nothing."""

    async def start(self, *, force: bool = False) -> None:
        local: Any = self._life.local
        if local.cannot_load:
            raise SqlError(243, "Not enough space")
        if local.has_no_memory_to_load:
            raise SqlError(Code.MEMORY_LIMIT_EXCEEDED, "Memory limit exceeded")
        self.is_started = True

    async def stop(self) -> None: ...

    async def close(self) -> None: ...

    async def destroy(self) -> None: ...

    async def wait_until_active(self, *, timeout_s: float | None = None) -> bool:
        return True

    def __init__(self, life: TableLifecycle, record: TableRecord, local: LocalTable) -> None:
        self._life, self._record, self._local = life, record, local
        self.is_started = False

    @asynccontextmanager
    async def renaming(self) -> AsyncIterator[None]:
        yield

    def renamed(self, name: TableName) -> None: ...

    async def restore(self, table_uuid: UUID) -> Created:
        """Keeper's side of it."""
        life, record = self._life, self._record
        keeper = await life.holder.get()
        if await keeper.exists(record.me.root) is not None:
            raise SqlError(36, "nothing to restore")
        definition = life.definition_of(self._local)
        new = life.new_replica(record, definition)
        return await create_replica(keeper, record.paths, record.me, new, definition)


async def _nothing_to_check(_: Asked) -> None: ...


class Maker:
    life: TableLifecycle

    async def make(self, record: TableRecord, local: LocalTable) -> RunningTable:
        part: Any = _Part(self.life, record, local)
        ctx: Any = SimpleNamespace(
            name=local.name,
            me=record.me,
            keeper=None,
            host=ReplicaHost("n", 9009, 9000, local.name.database, local.name.table),
            readonly_reason="",
            is_readonly=True,
            is_ending=False,
            ending=asyncio.Event(),
            term_began=Broadcast(),
        )
        return RunningTable(record, ctx, part, part)


@dataclass
class World:
    """What outlives a process of the node."""

    env: SimulationEnv
    keeper: MemoryKeeperServer
    directory: Path
    disk: Disk = field(default_factory=Disk)
    root: str = ROOT

    async def paths(self) -> bool:
        """Whether anything of the table is in Keeper."""
        session = await self.keeper.connect(client="observer")
        found = await session.exists(self.root) is not None
        await session.close()
        return found


class Process:
    """One process of the node."""

    def __init__(self, world: World, bomb: Bomb) -> None:
        env = world.env
        world.disk.bomb = bomb

        async def connect() -> Any:
            return Keeper(await world.keeper.connect(session_timeout_s=6, client="node"), bomb)

        self.world = world
        self.filled: list[UUID] = []
        self.holder = SessionHolder(connect, env)
        self.catalog = Catalog(world.directory, bomb)
        self.tables = ReplicatedTables()
        maker = Maker()
        self.life = TableLifecycle(
            env=env,
            catalog=self.catalog,
            dropped=Catalog(world.directory / "dropped", bomb),
            tables=self.tables,
            local=world.disk,
            holder=self.holder,
            factory=maker,
            server_uuid=SERVER,
            on_change=lambda: None,
            reserve=DiskReserve(world.directory),
        )
        maker.life = self.life
        defaults = Defaults("/x/{uuid}", "r", SERVER, HostId("n", 9000))
        self._create = CreateStatements(
            self.life, env=env, topology=Topology, defaults=defaults, run_insert=self._fill
        )
        self.life.check_place = self._create.check_place
        self._views = ViewTableStatements(
            self.life, self._create, env=env, run_insert=self._fill, check_sources=_nothing_to_check
        )
        self._drop = DropRenameStatements(self.life, self._fill)
        self._undrop = UndropStatements(self.life, env)

    async def run(self, sql: str) -> None:
        session: Any = self.world.disk
        asked = Asked(sql=sql, user=User("u"), session=session, database="d")
        for handler in (self._views, self._create, self._undrop, self._drop):
            if await handler.run(asked, parse_statement(sql)) is not None:
                return

    async def start(self) -> None:
        """As the node does."""
        await self.life.start()
        drop_leftovers(self.life, self.world.env)
        await forget_dropped(self.life)
        await self._undrop.finish_interrupted()

    async def end(self) -> None:
        """Ends as killed: its session with Keeper is found out later."""
        for task in list(self.life._tasks):
            task.cancel()
        await asyncio.gather(*self.life._tasks, return_exceptions=True)
        self.world.keeper.crash_client("node")

    async def state(self) -> tuple[bool, bool, bool]:
        """Of the table: in chDB, in Keeper, attached by its record."""
        record = self.catalog.named(NAME)
        is_attached = record is not None and record.state is TableState.ATTACHED
        return bool(self.world.disk.tables), await self.world.paths(), is_attached

    async def _fill(self, asked: Asked) -> None:
        """INSERT INTO … SELECT: parts, one after another. Or a CREATE of a table that is not replicated."""
        statement = parse_statement(asked.sql)
        if statement.kind is StatementKind.CREATE_TABLE:
            await self.world.disk.query(asked.sql)
            return
        [name] = statement.tables
        table = self.tables.find(name)
        assert table is not None
        keeper = await self.holder.get()
        for part in FILLED:
            with suppress(NodeExists):  # the same rows once more are duplicates
                await keeper.create(table.ctx.me.part(part))
        self.filled.append(table.uuid)
