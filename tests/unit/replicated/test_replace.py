"""CREATE OR REPLACE of a replicated table, killed at durable steps: the old table or the new one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from engine.keeper.memory import MemoryKeeperServer
from engine.testing.simulation import SimulationEnv, run_simulation
from tests.unit.replicated.lifecycle_support import NAME, Bomb, Killed, Process, World

OLD, NEW = (
    f"CREATE{or_replace} TABLE d.t UUID '00000000-0000-0000-0000-00000000000{number}' (a Int8) "
    "ENGINE = ReplicatedMergeTree('/t/{uuid}/shard/01', 'r') ORDER BY a AS SELECT 1 AS a"
    for or_replace, number in (("", 7), (" OR REPLACE", 8))
)


@pytest.fixture(autouse=True)
def _no_power_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """These are kills, which unwritten pages survive; hundreds of fsyncs on a busy disk take seconds."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


PLAIN = NEW.replace("ReplicatedMergeTree('/t/{uuid}/shard/01', 'r')", "MergeTree")


async def _one_table(world: World, process: Process, *, is_plain: bool) -> int:
    """The last digit of the UUID of the only table there is, which is whole, in chDB, and in Keeper if it is
    replicated."""
    [(uuid, name)] = world.disk.tables.items()
    assert name == NAME
    replicated = () if is_plain and uuid.int == 8 else (uuid,)
    assert tuple((one.uuid, one.name) for one in process.catalog.all()) == tuple(
        (u, NAME) for u in replicated
    )
    observer = await world.keeper.connect(client="observer")
    assert (await observer.children("/t")).names == tuple(map(str, replicated))
    await observer.close()
    return uuid.int


async def _replace(new: str, directory: Path, at: int, env: SimulationEnv) -> int:
    """Which table is there after a kill at step `at`; 0 when there was none any more."""
    world, is_plain = World(env, MemoryKeeperServer(env), directory), new == PLAIN
    bomb = Bomb()
    first = Process(world, bomb)
    await first.start()
    await first.run(OLD)
    bomb.at, bomb.steps = at, 0
    found = 0
    try:
        await first.run(new)
    except Killed:
        found = -1
    await first.end()
    second = Process(world, Bomb())
    await second.start()
    await env.sleep(60)
    if found:
        found = await _one_table(world, second, is_plain=is_plain)
    await second.run(new)
    assert await _one_table(world, second, is_plain=is_plain) == 8
    await second.end()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("new", "each", "least"), [(NEW, 3, 33), (PLAIN, 1, 20)], ids=["replicated", "plain"]
)
def test_a_replacement_killed_anywhere_ends_in_one_whole_table_and_can_be_repeated(
    tmp_path: Path, new: str, each: int, least: int
) -> None:
    """At each third of the steps, of which there are many: at all of them nothing more was found."""
    seen: list[int] = []
    while found := run_simulation(0, partial(_replace, new, tmp_path / str(len(seen)), each * len(seen))):
        seen.append(found)
    assert len(seen) > least and seen == sorted(seen) and set(seen) == {7, 8}
