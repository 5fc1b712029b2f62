"""INSERTs that are chDB's while a replicated table gets their name: none of them writes past Keeper."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.errors import SqlError
from engine.keeper.memory import MemoryKeeperServer
from engine.names import TableName
from engine.node.replicated.running.local_writes import PATIENCE_S
from engine.testing.simulation import SimulationEnv, run_simulation
from tests.unit.replicated.lifecycle_support import (
    CREATE,
    CREATE_AS_SELECT,
    NAME,
    UNDROP,
    Bomb,
    Process,
    World,
)

OTHER = CREATE.replace("d.t ", "d.other ")
REPLACE = "CREATE OR REPLACE TABLE d.t (a Int8) ENGINE = ReplicatedMergeTree('/t', 'r') ORDER BY a"
PLAIN = "CREATE TABLE d.t UUID '00000000-0000-0000-0000-000000000005' (a Int8) ENGINE = Memory"
STORIES = {
    "CREATE": ([], CREATE),
    "AS SELECT": ([], CREATE_AS_SELECT),
    "RENAME": ([OTHER], "RENAME TABLE d.other TO d.t"),
    "EXCHANGE": ([OTHER, PLAIN], "EXCHANGE TABLES d.t AND d.other"),
    "REPLACE": ([PLAIN], REPLACE),
    "UNDROP": ([CREATE, "DROP TABLE d.t"], UNDROP),
}
"""What is there before, and the statement that gives a replicated table the name."""


async def started(directory: Path, env: SimulationEnv, before: Sequence[str]) -> Process:
    process = Process(World(env, MemoryKeeperServer(env), directory), Bomb())
    await process.start()
    for sql in before:
        await (process.world.disk.query(sql) if sql == PLAIN else process.run(sql))
    return process


async def insert(
    process: Process, begun: asyncio.Event, goes_on: asyncio.Event, names: Sequence[TableName] = (NAME,)
) -> None:
    with process.tables.written_by_chdb(*names):
        begun.set()
        await goes_on.wait()


@pytest.mark.parametrize("story", STORIES)
def test_a_name_is_given_to_a_replicated_table_when_no_insert_of_chdb_s_is_under_way(
    tmp_path: Path, story: str
) -> None:
    """1. An INSERT is handed to chDB. 2. A statement that gives a replicated table the name waits for it, and
    3. another INSERT is not handed over. 4. The first one ends, and is acknowledged: chDB had no replicated
    table of that name. 5. The statement goes on."""
    before, sql = STORIES[story]

    async def race(env: SimulationEnv) -> None:
        process = await started(tmp_path, env, before)
        was_there = await process.world.disk.named(NAME)
        begun, goes_on = asyncio.Event(), asyncio.Event()
        writes = asyncio.create_task(insert(process, begun, goes_on))
        await begun.wait()
        gives = asyncio.create_task(process.run(sql))
        await env.sleep(PATIENCE_S / 2)
        assert await process.world.disk.named(NAME) == was_there
        with pytest.raises(SqlError, match="is a replicated one now") as refused:
            await insert(process, begun, goes_on)
        assert refused.value.code == 60
        waits = asyncio.create_task(process.tables.local_writes.settled(NAME))
        goes_on.set()
        await writes
        await gives
        await waits
        assert process.tables.find(NAME) is not None
        await process.end()

    run_simulation(1, race)


def test_so_it_is_with_what_a_view_of_chdb_s_writes_to(tmp_path: Path) -> None:
    async def race(env: SimulationEnv) -> None:
        process = await started(tmp_path, env, [OTHER])
        begun, goes_on = asyncio.Event(), asyncio.Event()
        writes = asyncio.create_task(insert(process, begun, goes_on, [TableName("d", "source"), NAME]))
        await begun.wait()
        gives = asyncio.create_task(process.run("RENAME TABLE d.other TO d.t"))
        await env.sleep(PATIENCE_S / 2)
        assert await process.world.disk.named(NAME) is None
        goes_on.set()
        await writes
        await gives
        assert process.tables.find(NAME) is not None
        await process.end()

    run_simulation(1, race)


@pytest.mark.parametrize(
    ("names", "said"),
    [([NAME], "is a replicated one now"), ([TableName("d", "source"), NAME], "do not repeat it")],
)
def test_an_insert_that_takes_long_is_not_waited_for_and_not_acknowledged(
    tmp_path: Path, names: Sequence[TableName], said: str
) -> None:
    async def race(env: SimulationEnv) -> None:
        process = await started(tmp_path, env, [OTHER])
        begun, goes_on = asyncio.Event(), asyncio.Event()
        writes = asyncio.create_task(insert(process, begun, goes_on, names))
        await begun.wait()
        await process.run("RENAME TABLE d.other TO d.t")
        goes_on.set()
        with pytest.raises(SqlError, match=said):
            await writes
        await process.end()

    run_simulation(1, race)
