"""CREATE and DROP of replicated tables, killed at every durable step: there or not there, never half."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from engine.config.model import Cluster, Replica, Shard, Topology, User
from engine.errors import Code, KeeperUnavailable, SqlError
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.recipes import SessionHolder
from engine.names import HostId, TableName
from engine.node.replicated.catalog import TableCatalog, TableRecord, TableState
from engine.node.replicated.create import CreateStatements
from engine.node.replicated.drop_rename import DropRenameStatements
from engine.node.replicated.lifecycle import TableLifecycle
from engine.node.replicated.local_tables import LocalTable, LocalTables
from engine.node.replicated.runtime import ReplicatedTables, RunningTable
from engine.node.replicated.shard_check import Defaults
from engine.node.replicated.undrop import UndropStatements, forget_dropped
from engine.node.statement import Asked
from engine.replication.commands.create import Created, create_replica
from engine.replication.host import ReplicaHost
from engine.replication.replica.context import Broadcast
from engine.sql import parse_statement
from engine.testing.simulation import SimulationEnv, run_simulation

NAME = TableName("d", "t")
ROOT = "/t"
CREATE = "CREATE TABLE IF NOT EXISTS d.t (a Int8) ENGINE = ReplicatedMergeTree('/t', 'r') ORDER BY a"
OF_ITS_UUID = "/t/00000000-0000-0000-0000-000000000007"
CREATE_BELOW_ITS_UUID = (
    "CREATE TABLE IF NOT EXISTS d.t UUID '00000000-0000-0000-0000-000000000007' (a Int8) "
    "ENGINE = ReplicatedMergeTree('/t/{uuid}/shard/01', 'r') ORDER BY a"
)
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


class Disk(LocalTables):
    """chDB's tables: what is in it outlives the process."""

    def __init__(self) -> None:
        self.tables: dict[UUID, TableName] = {}
        self.dropped_tables: dict[UUID, TableName] = {}
        self.bomb = Bomb()
        self.refuses_drop = False

    async def run(self, sql: str) -> None:
        raise AssertionError(sql)

    async def named(self, name: TableName) -> LocalTable | None:
        return next((_local(u, n) for u, n in self.tables.items() if n == name), None)

    async def by_uuid(self, uuids: Sequence[UUID]) -> Mapping[UUID, LocalTable]:
        return {uuid: _local(uuid, self.tables[uuid]) for uuid in uuids if uuid in self.tables}

    async def detached(self) -> Mapping[UUID, TableName]:
        return {}

    async def engine_of_database(self, database: str) -> str | None:
        return "Atomic"

    async def drop(self, name: TableName, uuid: UUID) -> None:
        self.bomb.tick()
        self.tables.pop(uuid, None)
        self.bomb.tick()

    async def last_dropped(self, name: TableName, uuid: str | None = None) -> UUID | None:
        return next((u for u, n in self.dropped_tables.items() if n == name and uuid in (None, str(u))), None)

    async def dropped(self) -> set[UUID]:
        return set(self.dropped_tables)

    async def forget(self, uuid: UUID) -> None:
        assert uuid not in self.tables

    async def query(self, sql: str, **_: object) -> None:
        """What a client's session does."""
        statement = parse_statement(sql)
        self.bomb.tick()
        if sql.startswith("UNDROP"):
            uuid = await self.last_dropped(statement.tables[0])
            assert uuid is not None
            self.tables[uuid] = self.dropped_tables.pop(uuid)
        elif statement.uuid is not None:
            self.tables[UUID(statement.uuid)] = statement.tables[0]
        else:
            if self.refuses_drop:
                raise SqlError(359, "Table is too big to be dropped")
            found = await self.named(statement.tables[0])
            if found is not None:
                del self.tables[found.uuid]
                if "SYNC" not in sql:
                    self.dropped_tables[found.uuid] = found.name
        self.bomb.tick()


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

    async def start(self, *, force: bool = False) -> None: ...

    async def stop(self) -> None: ...

    async def close(self) -> None: ...

    async def destroy(self) -> None: ...

    async def wait_until_active(self, *, timeout_s: float | None = None) -> bool:
        return True

    def __init__(self, life: TableLifecycle, record: TableRecord, local: LocalTable) -> None:
        self._life, self._record, self._local = life, record, local

    async def restore(self, table_uuid: UUID) -> Created:
        """Keeper's side of it."""
        life, record = self._life, self._record
        keeper = await life.holder.get()
        if await keeper.exists(record.me.root) is not None:
            raise SqlError(36, "nothing to restore")
        definition = life.definition_of(self._local)
        new = life.new_replica(record, definition)
        return await create_replica(keeper, record.paths, record.me, new, definition)


class Maker:
    life: TableLifecycle

    async def make(self, record: TableRecord, local: LocalTable) -> RunningTable:
        part: Any = _Part(self.life, record, local)
        ctx: Any = SimpleNamespace(
            name=local.name,
            me=record.me,
            readonly_reason="",
            is_readonly=True,
            is_ending=False,
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
        )
        maker.life = self.life
        defaults = Defaults("/x/{uuid}", "r", SERVER, HostId("n", 9000))
        self._create = CreateStatements(
            self.life, env=env, topology=Topology, defaults=defaults, run_insert=_no_insert
        )
        self.life.check_place = self._create.check_place
        self._drop = DropRenameStatements(self.life)
        self._undrop = UndropStatements(self.life, env)

    async def run(self, sql: str) -> None:
        session: Any = self.world.disk
        asked = Asked(sql=sql, user=User("u"), session=session, database="d")
        for handler in (self._create, self._undrop, self._drop):
            if await handler.run(asked, parse_statement(sql)) is not None:
                return

    async def start(self) -> None:
        """As the node does."""
        await self.life.start()
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


@pytest.fixture(autouse=True)
def _no_power_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """These are kills, which unwritten pages survive; hundreds of fsyncs on a busy disk take seconds."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


async def _no_insert(asked: Asked) -> None:
    raise AssertionError(asked.sql)


async def _killed_at(process: Process, sql: str) -> bool:
    try:
        await process.run(sql)
    except Killed:
        return True
    return False


THERE, GONE = (True, True, True), (False, False, False)


def _each_step(tmp_path: Path, scenario: Callable[[World, int], Awaitable[bool]]) -> int:
    """Run the scenario with a kill at step 0, 1, …, until none happens; how many kills that were."""
    at = 0
    while run_simulation(at, partial(_in_a_world, scenario, tmp_path / f"{scenario.__name__}{at}", at)):
        at += 1
    return at


async def _in_a_world(
    scenario: Callable[[World, int], Awaitable[bool]], directory: Path, at: int, env: SimulationEnv
) -> bool:
    return await scenario(World(env, MemoryKeeperServer(env), directory), at)


def test_create_killed_anywhere_ends_in_there_or_not_there_and_can_be_repeated(tmp_path: Path) -> None:
    seen = set()

    async def create(world: World, at: int) -> bool:
        first = Process(world, Bomb(at))
        await first.life.start()
        was_killed = await _killed_at(first, CREATE)
        await first.end()
        second = Process(world, Bomb())
        await second.life.start()
        await world.env.sleep(60)
        state = await second.state()
        assert state in (THERE, GONE)
        seen.add(state)
        await second.run(CREATE)
        assert await second.state() == THERE
        assert len(world.disk.tables) == len(second.catalog.all()) == 1
        await second.end()
        return was_killed

    steps = _each_step(tmp_path, create)
    assert steps > 20
    assert seen == {THERE, GONE}


def test_a_create_that_was_killed_can_be_repeated_at_once(tmp_path: Path) -> None:
    """While the killed process still has its session, and before anything went on in the background."""

    async def create_again(world: World, at: int) -> bool:
        first = Process(world, Bomb(at))
        await first.life.start()
        was_killed = await _killed_at(first, CREATE)
        await first.end()
        second = Process(world, Bomb())
        await second.life.start()
        await second.run(CREATE)
        assert await second.state() == THERE
        await second.end()
        return was_killed

    assert _each_step(tmp_path, create_again) > 20


def test_undrop_killed_anywhere_ends_in_there_or_not_there_and_can_be_repeated(tmp_path: Path) -> None:
    seen = set()

    async def undrop(world: World, at: int) -> bool:
        zeroth = Process(world, Bomb())
        await zeroth.start()
        await zeroth.run(CREATE)
        await zeroth.run("DROP TABLE d.t")
        assert await zeroth.state() == GONE
        await zeroth.end()
        await world.env.sleep(60)
        first = Process(world, Bomb(at))
        await first.start()
        was_killed = await _killed_at(first, UNDROP)
        await first.end()
        second = Process(world, Bomb())
        await second.start()
        await world.env.sleep(60)
        state = await second.state()
        assert state in (THERE, GONE)
        seen.add(state)
        if state == GONE:
            await second.run(UNDROP)
        assert await second.state() == THERE
        assert len(world.disk.tables) == len(second.catalog.all()) == 1
        assert not [each for each in second.life.dropped.all() if each.uuid not in world.disk.tables]
        await second.end()
        return was_killed

    assert _each_step(tmp_path, undrop) > 20
    assert seen == {THERE, GONE}


def test_what_is_kept_for_undrop_goes_with_the_data(tmp_path: Path) -> None:
    async def story(world: World, at: int) -> bool:
        process = Process(world, Bomb())
        await process.start()
        await process.run(CREATE)
        await process.run("DROP TABLE d.t")
        await forget_dropped(process.life)
        assert len(process.life.dropped.all()) == 1
        world.disk.dropped_tables.clear()  # chDB has waited long enough
        await forget_dropped(process.life)
        assert not process.life.dropped.all()
        await process.run(CREATE)
        await process.run(DROP)
        assert not process.life.dropped.all(), "SYNC leaves nothing"
        await process.end()
        return False

    _each_step(tmp_path, story)


@pytest.mark.parametrize(("create", "root"), [(CREATE, ROOT), (CREATE_BELOW_ITS_UUID, OF_ITS_UUID)])
def test_drop_killed_anywhere_is_finished_by_the_next_process(tmp_path: Path, create: str, root: str) -> None:
    seen = set()

    async def drop(world: World, at: int) -> bool:
        world.root = root
        zeroth = Process(world, Bomb())
        await zeroth.life.start()
        await zeroth.run(create)
        await zeroth.end()
        await world.env.sleep(60)
        first = Process(world, Bomb(at))
        await first.life.start()
        was_killed = await _killed_at(first, DROP)
        await first.end()
        second = Process(world, Bomb())
        await second.life.start()
        await world.env.sleep(60)
        state = await second.state()
        assert state in (THERE, GONE)
        seen.add(state)
        await second.run(DROP)
        await world.env.sleep(60)
        assert await second.state() == GONE
        assert second.catalog.all() == ()
        await second.run(create)
        assert await second.state() == THERE
        await second.end()
        return was_killed

    assert _each_step(tmp_path, drop) > 20
    assert seen == {THERE, GONE}


def test_what_chdb_refuses_to_drop_goes_on_as_before(tmp_path: Path) -> None:
    async def main(env: SimulationEnv) -> None:
        world = World(env, MemoryKeeperServer(env), tmp_path)
        process = Process(world, Bomb())
        await process.life.start()
        await process.run(CREATE)
        world.disk.refuses_drop = True
        with pytest.raises(SqlError, match="too big"):
            await process.run(DROP)
        assert await process.state() == THERE
        assert process.tables.find(NAME) is not None
        await process.end()

    run_simulation(1, main)


@dataclass
class Writer(Bomb):
    """At each step of the node somebody wants to write into the table."""

    tables: ReplicatedTables | None = None
    answers: list[str] = field(default_factory=list)

    def tick(self) -> None:
        assert self.tables is not None
        try:
            found = self.tables.find_to_write(NAME)
            self.answers.append("chDB's" if found is None else "the replica's")
        except SqlError as error:
            self.answers.append(str(error.code))


def test_what_is_being_created_dropped_or_detached_is_never_written_to_past_its_replica(
    tmp_path: Path,
) -> None:
    """While chDB has the table already, or still, and no replica runs, rows would go nowhere else."""

    async def main(env: SimulationEnv) -> None:
        world = World(env, MemoryKeeperServer(env), tmp_path)
        process = Process(world, Bomb())
        await process.life.start()
        tables: dict[UUID, TableName] = {}
        for sql in (CREATE, DETACH, DROP):
            world.disk.bomb = writer = Writer(tables=process.tables)
            if sql == DROP:
                world.disk.tables = tables
                await process.life.reattach(next(iter(tables)))
                world.disk.refuses_drop = True
                with pytest.raises(SqlError, match="too big"):
                    await process.run(sql)
            else:
                await process.run(sql)
                tables = tables or dict(world.disk.tables)
            assert set(writer.answers) == {"60"}, sql
        assert process.tables.find_to_write(NAME) is not None
        await process.end()

    run_simulation(1, main)


def test_without_keeper_nothing_is_created_and_nothing_dropped(tmp_path: Path) -> None:
    async def main(env: SimulationEnv) -> None:
        world = World(env, MemoryKeeperServer(env), tmp_path)
        process = Process(world, Bomb())
        await process.life.start()
        await process.run(CREATE)
        world.keeper.stop()
        await env.sleep(30)
        with pytest.raises(SqlError) as caught:
            await process.run(DROP)
        assert caught.value.code == Code.TABLE_IS_READ_ONLY
        with pytest.raises(KeeperUnavailable):
            await process.run(CREATE.replace("d.t", "d.u").replace("'/t'", "'/u'"))
        assert list(world.disk.tables.values()) == [NAME]
        assert [record.name for record in process.catalog.all()] == [NAME]
        world.keeper.start()
        assert await process.state() == THERE
        await process.end()

    run_simulation(2, main)


def test_a_replica_of_another_server_is_left_alone(tmp_path: Path) -> None:
    async def main(env: SimulationEnv) -> None:
        keeper = MemoryKeeperServer(env)
        mine, other = World(env, keeper, tmp_path / "mine"), World(env, keeper, tmp_path / "other")
        theirs = Process(other, Bomb())
        await theirs.life.start()
        await theirs.run(CREATE)
        process = Process(mine, Bomb())
        process.life._server_uuid = UUID(int=7)
        await process.life.start()
        with pytest.raises(SqlError) as caught:
            await process.run(CREATE)
        assert caught.value.code == Code.REPLICA_ALREADY_EXISTS
        assert mine.disk.tables == {} and process.catalog.all() == ()
        assert await theirs.state() == THERE
        await process.end()

    run_simulation(3, main)


async def _of_two_shards(
    env: SimulationEnv, keeper: MemoryKeeperServer, session: Any, directory: Path
) -> list[Process]:
    """Two nodes that are alive."""
    shards = [Shard(n, (Replica(f"n{n}", 9000),), internal_replication=True) for n in (1, 2)]
    topology = Topology(clusters={"c": Cluster("c", tuple(shards))})
    await session.create("/alive")
    nodes = []
    for number, server in ((1, SERVER), (2, UUID(int=7))):
        await session.create(f"/alive/n{number}:9000")
        await session.create(f"/alive/n{number}:9000/active", str(server).encode())
        node = Process(World(env, keeper, directory / str(number)), Bomb())
        node.life._server_uuid = server
        node._create._topology = lambda: topology
        host = HostId(f"n{number}", 9000)
        node._create._defaults = Defaults("/x", "r", server, host, ("/alive",))
        await node.life.start()
        nodes.append(node)
    return nodes


def test_a_table_of_another_shard_is_refused_while_its_path_names_no_shard(tmp_path: Path) -> None:
    async def main(env: SimulationEnv) -> None:
        keeper = MemoryKeeperServer(env)
        session = await keeper.connect(client="observer")
        nodes = await _of_two_shards(env, keeper, session, tmp_path)
        await nodes[0].run(CREATE)
        with pytest.raises(SqlError, match="another shard's table") as caught:
            await nodes[1].run(CREATE.replace("'r'", "'r2'"))
        assert caught.value.hint == "Put {shard} into the path."
        await session.remove("/alive/n1:9000/active")
        await session.set("/t/replicas/r/host", ReplicaHost("n1", 9009, 9000, "d", "t").to_bytes())
        with pytest.raises(SqlError, match="another shard's table"):
            await nodes[1].run(CREATE.replace("'r'", "'r2'"))
        # Its interserver address is no name of a cluster, but it has written that down.
        await session.set("/t/replicas/r/host", ReplicaHost("10.0.0.1", 9009, 9000, "d", "t").to_bytes())
        await session.set("/t/replicas/r", b"n1:9000")
        with pytest.raises(SqlError, match="another shard's table"):
            await nodes[1].run(CREATE.replace("'r'", "'r2'"))
        assert await session.exists("/t/replicas/r2") is None
        assert nodes[1].catalog.all() == ()
        for node in nodes:
            await node.end()

    run_simulation(4, main)


@pytest.mark.parametrize("seed", range(8))
def test_of_two_shards_that_create_at_one_path_at_once_one_is_refused(tmp_path: Path, seed: int) -> None:
    async def main(env: SimulationEnv) -> None:
        keeper = MemoryKeeperServer(env, latency_s=(0.001, 0.02))
        session = await keeper.connect(client="observer")
        nodes = await _of_two_shards(env, keeper, session, tmp_path)
        creates = [CREATE.replace("'r'", f"'r{number}'") for number in (1, 2)]
        results = await asyncio.gather(
            *(node.run(sql) for node, sql in zip(nodes, creates, strict=True)), return_exceptions=True
        )
        (refused,) = [result for result in results if result is not None]
        assert isinstance(refused, SqlError) and "another shard's table" in refused.message
        made = [not isinstance(result, SqlError) for result in results]
        assert [bool(node.catalog.all()) for node in nodes] == made
        assert [bool(node.world.disk.tables) for node in nodes] == made
        names = (await session.children("/t/replicas")).names
        assert list(names) == ["r1" if made[0] else "r2"]
        for node in nodes:
            await node.end()

    run_simulation(seed, main)
