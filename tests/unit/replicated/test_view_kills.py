"""Materialized views with a replicated table of their own: kills at every durable step of CREATE and DROP."""

from pathlib import Path
from uuid import UUID

import pytest

from engine.keeper.memory import MemoryKeeperServer
from engine.names import TableName
from engine.node.replicated.definitions.view_definition import inner_name
from engine.node.replicated.running.catalog import TableState
from engine.testing.simulation import SimulationEnv, run_simulation
from tests.unit.replicated.lifecycle_support import ROOT, Bomb, Killed, Process, World

pytestmark = pytest.mark.slow

VIEW = TableName("d", "v")
UUIDS = (
    "UUID '00000000-0000-4000-8000-000000000001' ",
    "TO INNER UUID '00000000-0000-4000-8000-000000000002' ",
)
TEXT = (
    f"CREATE MATERIALIZED VIEW d.v {{}}{{}}ENGINE = ReplicatedMergeTree('{ROOT}', 'r') ORDER BY a POPULATE "
    "AS SELECT a FROM d.s"
)
OF_A_CLIENT, OF_THE_QUEUE = TEXT.format("", ""), TEXT.format(*UUIDS)


@pytest.fixture(autouse=True)
def _no_power_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """These are kills, which unwritten pages survive."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def own_table_of(world: World) -> tuple[UUID, UUID] | None:
    """The UUIDs of the view and of its table; None if neither is there."""
    by_name = {name: uuid for uuid, name in world.disk.tables.items()}
    if VIEW not in by_name:
        return None
    view = by_name[VIEW]
    assert set(by_name) == {VIEW, inner_name(VIEW, view)}
    return view, by_name[inner_name(VIEW, view)]


async def check_made(process: Process) -> None:
    """The view, its filled table and the replica, and nothing else."""
    found = own_table_of(process.world)
    assert found is not None and await process.world.paths()
    (record,) = process.catalog.all()
    assert (record.uuid, record.state, record.for_view) == (found[1], TableState.ATTACHED, None)
    assert process.tables.by_uuid(record.uuid) is not None


@pytest.mark.parametrize("create", [OF_A_CLIENT, OF_THE_QUEUE])
@pytest.mark.parametrize("is_repeated_at_once", [False, True])
def test_a_view_is_there_with_its_filled_table_or_neither_is(
    tmp_path: Path, create: str, is_repeated_at_once: bool
) -> None:
    seen = set()

    async def story(env: SimulationEnv, at: int) -> bool:
        world = World(env, MemoryKeeperServer(env), tmp_path / str(at))
        first = Process(world, Bomb(at))
        await first.start()
        was_killed = False
        try:
            await first.run(create)
        except Killed:
            was_killed = True
        await first.end()
        filled = set(first.filled)
        second = Process(world, Bomb())
        await second.start()
        if not is_repeated_at_once:
            await env.sleep(60)
            found = own_table_of(world)
            seen.add(found is not None)
            if found is None:
                assert not world.disk.tables and not second.catalog.all() and not await world.paths()
            else:
                assert found[1] in filled, f"killed at step {at}: there, and not filled"
                await check_made(second)
        await second.run(
            create if own_table_of(world) is None else create.replace("VIEW", "VIEW IF NOT EXISTS")
        )
        await env.sleep(60)
        await check_made(second)
        found = own_table_of(world)
        assert found is not None and found[1] in {*filled, *second.filled}
        await second.end()
        return was_killed

    at = 0
    while run_simulation(at, lambda env, at=at: story(env, at)):
        at += 1
    assert at > 20
    assert seen == (set() if is_repeated_at_once else {True, False})


def test_a_drop_of_the_view_can_be_repeated_wherever_it_was_cut_short(tmp_path: Path) -> None:
    async def story(env: SimulationEnv, at: int) -> bool:
        world = World(env, MemoryKeeperServer(env), tmp_path / str(at))
        maker = Process(world, Bomb())
        await maker.start()
        await maker.run(OF_THE_QUEUE)
        await maker.end()
        first = Process(world, Bomb(at))
        await first.start()
        was_killed = False
        try:
            await first.run("DROP VIEW d.v")
        except Killed:
            was_killed = True
        await first.end()
        second = Process(world, Bomb())
        await second.start()
        await second.run("DROP VIEW IF EXISTS d.v")
        local = await world.disk.named(VIEW)
        if local is not None:  # without its table it is chDB's alone
            await world.disk.query("DROP VIEW IF EXISTS d.v")
        await env.sleep(60)
        assert not world.disk.tables and not second.catalog.all() and not await world.paths()
        await second.run(OF_THE_QUEUE)
        await check_made(second)
        await second.end()
        return was_killed

    at = 0
    while run_simulation(at, lambda env, at=at: story(env, at)):
        at += 1
    assert at > 8
