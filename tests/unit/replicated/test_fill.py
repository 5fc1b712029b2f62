"""CREATE TABLE … AS SELECT of replicated tables, killed at every durable step: filled, or not there."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Busy, SqlError
from engine.keeper.memory import MemoryKeeperServer
from engine.node.replicated.definitions.taking_place import is_temporary
from engine.replication.paths import TablePaths
from engine.testing.simulation import SimulationEnv, run_simulation
from tests.unit.replicated.lifecycle_support import (
    CREATE,
    CREATE_AS_SELECT,
    FILLED,
    NAME,
    ROOT,
    Bomb,
    Killed,
    Process,
    World,
)

pytestmark = pytest.mark.slow

OTHER = TablePaths(ROOT).replica("other")


@pytest.fixture(autouse=True)
def _no_power_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """These are kills, which unwritten pages survive; hundreds of fsyncs on a busy disk take seconds."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.mark.parametrize("is_repeated_at_once", [False, True])
def test_a_table_is_there_with_its_rows_or_not_at_all(tmp_path: Path, is_repeated_at_once: bool) -> None:
    seen = set()

    async def story(env: SimulationEnv, at: int) -> bool:
        world = World(env, MemoryKeeperServer(env), tmp_path / str(at))
        first = Process(world, Bomb(at))
        await first.start()
        was_killed = False
        try:
            await first.run(CREATE_AS_SELECT)
        except Killed:
            was_killed = True
        await first.end()
        filled = set(first.filled)
        second = Process(world, Bomb())
        await second.start()
        if not is_repeated_at_once:
            await env.sleep(60)
            made = {uuid for uuid, name in world.disk.tables.items() if name == NAME}
            seen.add(bool(made))
            assert made <= filled, f"killed at step {at}: there, and not filled"
            assert bool(made) == await world.paths() == bool(second.catalog.all())
        await second.run(CREATE_AS_SELECT)
        assert await second.state() == (True, True, True)
        ((uuid, name),) = world.disk.tables.items()
        assert name == NAME and uuid in {*filled, *second.filled}
        await second.end()
        return was_killed

    at = 0
    while run_simulation(at, lambda env, at=at: story(env, at)):
        at += 1
    assert at > 30
    assert seen == (set() if is_repeated_at_once else {True, False})


async def _killed_when_filled(world: World, observer: Any) -> None:
    """Another replica has joined by then, and has nothing yet."""

    async def join_and_die(asked: object) -> None:
        await filling(asked)
        for path in (OTHER.root, OTHER.parts):
            await observer.create(path)
        raise Killed

    process = Process(world, Bomb())
    filling, process._create._run_insert = process._create._run_insert, join_and_die
    await process.start()
    with pytest.raises(Killed):
        await process.run(CREATE_AS_SELECT)
    await process.end()


def test_an_unfinished_table_that_others_have_joined_stays_until_they_have_its_parts(tmp_path: Path) -> None:
    async def main(env: SimulationEnv) -> None:
        world = World(env, MemoryKeeperServer(env), tmp_path)
        observer = await world.keeper.connect(client="observer")
        await _killed_when_filled(world, observer)
        process = Process(world, Bomb())
        await process.start()
        for sql in (CREATE_AS_SELECT, CREATE):
            with pytest.raises(Busy, match="cut short"):
                await process.run(sql)
        (record,) = process.catalog.all()
        assert is_temporary(record.name) and process.tables.by_replica_path(record.me.root) is not None
        await observer.create(OTHER.part(FILLED[0]))
        await env.sleep(60)
        assert process.catalog.all() == (record,), "of one part this is the only copy"
        repeated = asyncio.ensure_future(process.run(CREATE_AS_SELECT))
        await env.sleep(5)
        await observer.create(f"{OTHER.parts}/all_0_1_1")  # the second one, merged
        await repeated
        assert await process.state() == (True, True, True)
        ((uuid, name),) = world.disk.tables.items()
        assert name == NAME and [uuid] == process.filled and uuid != record.uuid
        await process.end()

    run_simulation(7, main)


@pytest.mark.parametrize("others_need_it", [False, True])
def test_a_fill_that_fails_leaves_no_table_once_nobody_needs_its_parts(
    tmp_path: Path, others_need_it: bool
) -> None:
    async def main(env: SimulationEnv) -> None:
        world = World(env, MemoryKeeperServer(env), tmp_path)
        observer = await world.keeper.connect(client="observer")
        process = Process(world, Bomb())
        filling = process._create._run_insert

        async def fail(asked: Any) -> None:
            await filling(asked)
            if others_need_it:
                for path in (OTHER.root, OTHER.parts):
                    await observer.create(path)
            raise SqlError(395, "throwIf")

        process._create._run_insert = fail
        await process.start()
        with pytest.raises(SqlError, match="throwIf"):
            await process.run(CREATE_AS_SELECT)
        assert bool(process.catalog.all()) == others_need_it
        assert NAME not in world.disk.tables.values()
        if others_need_it:
            for part in FILLED:
                await observer.create(OTHER.part(part))
            await env.sleep(60)
        assert process.catalog.all() == () and world.disk.tables == {}
        assert await world.paths() == others_need_it
        await process.end()

    run_simulation(8, main)
