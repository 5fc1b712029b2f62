"""CREATE and DROP of replicated tables, killed at every durable step: there or not there, never half."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from engine.config.model import Cluster, Replica, Shard, Topology
from engine.errors import Code, KeeperUnavailable, SqlError
from engine.keeper.memory import MemoryKeeperServer
from engine.names import HostId, TableName
from engine.node.replicated.definitions.shard_check import Defaults
from engine.node.replicated.definitions.undrop import forget_dropped
from engine.node.replicated.running.catalog import TableState
from engine.node.replicated.running.runtime import ReplicatedTables
from engine.replication.host import ReplicaHost
from engine.testing.simulation import SimulationEnv, run_simulation
from tests.unit.replicated.lifecycle_support import (
    CREATE,
    CREATE_BELOW_ITS_UUID,
    DETACH,
    DROP,
    NAME,
    OF_ITS_UUID,
    ROOT,
    SERVER,
    UNDROP,
    Bomb,
    Killed,
    Memory,
    Process,
    World,
)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _no_power_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """These are kills, which unwritten pages survive; hundreds of fsyncs on a busy disk take seconds."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


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


def test_create_and_drop_that_find_no_memory_at_any_step_can_be_repeated(tmp_path: Path) -> None:
    async def fails_at(world: World, at: int) -> bool:
        process = Process(world, Bomb())
        await process.life.start()
        world.disk.memory = Memory(at)
        for sql, behind in ((CREATE, THERE), (DROP, GONE)):
            tries = 0
            while tries := tries + 1:
                assert tries < 5, "it fails for other reasons"
                try:
                    await process.run(sql)
                except SqlError as error:
                    assert error.code == Code.MEMORY_LIMIT_EXCEEDED, error
                else:
                    break
            if sql is DROP:  # Keeper's side of it may go on in the background
                await world.env.sleep(60)
            assert await process.state() == behind
            assert len(process.catalog.all()) == (behind == THERE)
            assert (process.tables.find(NAME) is not None) is (behind == THERE)
        await world.env.sleep(60)
        assert await process.state() == GONE and not process.catalog.all()
        has_failed = world.disk.memory.has_failed
        world.disk.memory = Memory()
        await process.end()
        return has_failed

    assert _each_step(tmp_path, fails_at) > 5


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


def test_a_table_that_is_not_dropped_is_not_detached_either_for_want_of_memory(tmp_path: Path) -> None:
    """1. chDB refuses the DROP. 2. There is no memory to load the table again. 3. There is: the table is as
    it was, and a DROP, repeated, finds it."""

    async def main(env: SimulationEnv) -> None:
        world = World(env, MemoryKeeperServer(env), tmp_path)
        process = Process(world, Bomb())
        await process.life.start()
        await process.run(CREATE)
        world.disk.refuses_drop = world.disk.has_no_memory_to_load = True
        dropping = asyncio.ensure_future(process.run(DROP.replace("IF EXISTS ", "")))
        await env.sleep(30)
        world.disk.has_no_memory_to_load = False
        with pytest.raises(SqlError, match="too big"):
            await dropping
        assert await process.state() == THERE
        assert process.tables.find(NAME) is not None
        world.disk.refuses_drop = False
        await process.run(DROP.replace("IF EXISTS ", ""))
        assert await process.state() == GONE
        await process.end()

    run_simulation(1, main)


@pytest.mark.parametrize("is_at_the_start", [False, True])
def test_a_drop_that_the_disk_cuts_short_goes_on_by_itself(tmp_path: Path, is_at_the_start: bool) -> None:
    """1. The last step of a DROP, in the statement or when the node starts behind a kill, meets an error of
    the disk. 2. The table is gone soon after, without another start."""

    async def main(env: SimulationEnv) -> None:
        world = World(env, MemoryKeeperServer(env), tmp_path)
        process = Process(world, Bomb())
        await process.life.start()
        await process.run(CREATE)
        if is_at_the_start:
            (record,) = process.catalog.all()
            process.catalog.put(replace(record, state=TableState.DROPPING))
            await process.end()
            process = Process(world, Bomb())
        remove, errors = process.catalog.remove, [OSError("I/O error")]

        def fails_once(uuid: UUID) -> None:
            if errors:
                raise errors.pop()
            remove(uuid)

        process.catalog.remove = fails_once  # type: ignore[method-assign]
        if is_at_the_start:
            await process.start()
        else:
            with pytest.raises(OSError, match="I/O error"):
                await process.run(DROP)
        await env.sleep(60)
        assert not errors and not process.catalog.all()
        assert await process.state() == GONE
        await process.end()

    run_simulation(1, main)


def test_attach_of_a_table_that_cannot_be_loaded_leaves_it_detached(tmp_path: Path) -> None:
    """Readers could find twice what a swap has left."""

    async def main(env: SimulationEnv) -> None:
        world = World(env, MemoryKeeperServer(env), tmp_path)
        process = Process(world, Bomb())
        await process.life.start()
        await process.run(CREATE)
        tables = dict(world.disk.tables)
        await process.run(DETACH)
        for cannot_load in (True, False):
            world.disk.tables, world.disk.cannot_load = dict(tables), cannot_load  # chDB has attached it
            try:
                await process.life.reattach(next(iter(tables)))
            except SqlError as error:
                assert (error.code, cannot_load) == (243, True)
            assert (process.tables.find(NAME) is None, not world.disk.tables) == (cannot_load, cannot_load)
        await process.end()

    run_simulation(1, main)


def test_a_table_that_a_start_could_not_load_is_loaded_when_that_is_possible(tmp_path: Path) -> None:
    async def main(env: SimulationEnv) -> None:
        world = World(env, MemoryKeeperServer(env), tmp_path)
        process = Process(world, Bomb())
        await process.life.start()
        await process.run(CREATE)
        await process.end()
        world.disk.cannot_load = True
        process = Process(world, Bomb())
        await process.life.start()
        table = process.tables.find(NAME)
        assert table is not None and "could not be loaded: Not enough space" in table.ctx.readonly_reason
        await env.sleep(10)
        replica: Any = table.replica
        assert not replica.is_started
        world.disk.cannot_load = False
        await env.sleep(3)
        assert replica.is_started
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


@pytest.mark.parametrize("seed", range(6))
def test_a_table_that_is_created_while_its_database_goes_is_gone_with_it_or_refused(
    tmp_path: Path, seed: int
) -> None:
    async def main(env: SimulationEnv) -> None:
        world = World(env, MemoryKeeperServer(env, latency_s=(0.001, 0.02)), tmp_path)
        process = Process(world, Bomb())
        await process.life.start()
        await process.run(CREATE)

        async def create(number: int) -> int:
            await env.sleep(env.rng.uniform(0, 0.1))
            try:
                await process.run(CREATE.replace("d.t", f"d.t{number}").replace("'/t'", f"'/t{number}'"))
            except SqlError as error:
                return error.code
            return 0

        _, *created = await asyncio.gather(process.run("DROP DATABASE d"), *map(create, range(4)))
        assert set(created) <= {0, Code.UNKNOWN_DATABASE}
        assert process.catalog.all() == () and not process.tables.all()
        session = await world.keeper.connect(client="observer")
        assert [await session.exists(f"/t{number}") for number in range(4)] == [None] * 4
        await process.end()

    run_simulation(seed, main)


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


async def _left_half_done(world: World, sql: str, state: TableState) -> Process:
    """A process that was killed with the table in chDB and its record in `state`, and the one after it, which
    has started and finds no Keeper."""
    for at in itertools.count():
        process = Process(world, Bomb(at))
        await process.start()
        assert await _killed_at(process, sql)
        await process.end()
        if world.disk.tables and [record.state for record in process.catalog.all()] == [state]:
            break
        await world.env.sleep(60)
    world.keeper.stop()
    process = Process(world, Bomb())
    await process.start()
    await world.env.sleep(60)
    return process


def test_without_keeper_a_half_done_create_keeps_no_statement_waiting(tmp_path: Path) -> None:
    async def main(env: SimulationEnv) -> None:
        world = World(env, MemoryKeeperServer(env), tmp_path)
        process = await _left_half_done(world, CREATE, TableState.CREATING)
        async with asyncio.timeout(60):
            with pytest.raises(SqlError) as caught:
                await process.run(DROP)
        assert caught.value.code == Code.TABLE_IS_READ_ONLY
        async with asyncio.timeout(60):
            with pytest.raises(KeeperUnavailable):
                await process.run(CREATE)
        world.keeper.start()
        await env.sleep(60)
        assert await process.state() == THERE
        await process.end()

    run_simulation(1, main)


@pytest.mark.parametrize("seed", range(4))
def test_a_table_that_is_dropped_while_its_undrop_goes_on_does_not_come_back(
    tmp_path: Path, seed: int
) -> None:
    """1. UNDROP is killed. 2. The next process cannot reach Keeper. 3. A DROP comes when it can."""

    async def main(env: SimulationEnv) -> None:
        world = World(env, MemoryKeeperServer(env, latency_s=(0.001, 0.02)), tmp_path)
        first = Process(world, Bomb())
        await first.start()
        await first.run(CREATE)
        await first.run("DROP TABLE d.t")
        await first.end()
        await env.sleep(60)
        process = await _left_half_done(world, UNDROP, TableState.RESTORING)
        world.keeper.start()
        await process.holder.get()
        await process.run(DROP)
        await env.sleep(60)
        assert await process.state() == GONE
        assert process.catalog.all() == ()
        await process.end()

    run_simulation(seed, main)


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
        assert caught.value.hint.startswith("Put {shard} into the path. A table that all shards have as one")
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
