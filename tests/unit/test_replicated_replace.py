"""CREATE OR REPLACE of a replicated table, killed at durable steps: the old table or the new one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from engine.keeper.memory import MemoryKeeperServer
from engine.testing.simulation import SimulationEnv, run_simulation
from tests.unit.replicated_lifecycle_support import NAME, Bomb, Killed, Process, World

EACH = 3
"""Of the steps; with 1 it takes three times as long, and has found no more."""
OLD, NEW = (
    f"CREATE{or_replace} TABLE d.t UUID '00000000-0000-0000-0000-00000000000{number}' (a Int8) "
    "ENGINE = ReplicatedMergeTree('/t/{uuid}/shard/01', 'r') ORDER BY a AS SELECT 1 AS a"
    for or_replace, number in (("", 7), (" OR REPLACE", 8))
)


@pytest.fixture(autouse=True)
def _no_power_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """These are kills, which unwritten pages survive; hundreds of fsyncs on a busy disk take seconds."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


async def _one_table(world: World, process: Process) -> int:
    """The last digit of the UUID of the only table there is, which is whole, in chDB and in Keeper."""
    [(uuid, name)] = world.disk.tables.items()
    [record] = process.catalog.all()
    assert name == record.name == NAME and record.uuid == uuid
    observer = await world.keeper.connect(client="observer")
    assert (await observer.children("/t")).names == (str(uuid),)
    await observer.close()
    return uuid.int


async def _replace(directory: Path, at: int, env: SimulationEnv) -> int:
    """Which table is there after a kill at step `at`; 0 when there was none any more."""
    world = World(env, MemoryKeeperServer(env), directory)
    bomb = Bomb()
    first = Process(world, bomb)
    await first.start()
    await first.run(OLD)
    bomb.at, bomb.steps = at, 0
    found = 0
    try:
        await first.run(NEW)
    except Killed:
        found = -1
    await first.end()
    second = Process(world, Bomb())
    await second.start()
    await env.sleep(60)
    if found:
        found = await _one_table(world, second)
    await second.run(NEW)
    assert await _one_table(world, second) == 8
    await second.end()
    return found


@pytest.mark.slow
def test_a_replacement_killed_anywhere_ends_in_one_whole_table_and_can_be_repeated(tmp_path: Path) -> None:
    seen: list[int] = []
    while found := run_simulation(0, partial(_replace, tmp_path / str(len(seen)), EACH * len(seen))):
        seen.append(found)
    assert len(seen) > 100 / EACH and seen == sorted(seen) and set(seen) == {7, 8}
