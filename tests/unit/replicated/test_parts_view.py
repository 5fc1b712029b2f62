"""`system.parts` has the names of a replica, also in the middle of an ALTER for which chDB rewrites parts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from engine.config.model import User
from engine.node.replicated.parts.detached_view import DetachedPartsView
from engine.node.replicated.parts.parts_view import PartsView
from engine.node.replicated.running.runtime import ReplicatedTables, RunningTable
from engine.node.statements.statement import Asked
from engine.part_storage import ChdbPartStore
from engine.part_storage.altering import Alterer
from engine.part_storage.workers import Connection
from engine.replication.part_name import PartName
from engine.replication.part_store import Fate
from engine.sql.tokens import scan
from engine.storage import ChdbPool
from tests.unit.part_storage.support import TABLE, add, opened

pytestmark = pytest.mark.slow

CREATE = "CREATE TABLE t (p UInt8, v String) ENGINE = MergeTree PARTITION BY p ORDER BY p"
STATEMENTS = ("SELECT name, rows, table, active FROM system.parts", "SELECT * FROM system.parts")


class Reader:
    """Makes the text that a statement's `system.parts` stands for, and runs it, now or later."""

    def __init__(self, pool: ChdbPool, store: ChdbPartStore) -> None:
        self._pool = pool
        nothing: Any = None
        ctx: Any = SimpleNamespace(name=TABLE)
        record: Any = SimpleNamespace(uuid=UUID(int=1), me=SimpleNamespace(root="/t/replicas/r"))
        tables = ReplicatedTables()
        tables.add(RunningTable(record, ctx, nothing, store))
        self._view = PartsView(tables)

    async def text(self, statement: str) -> str:
        asked = Asked(statement, User("u"), self._pool.session(one_shot=True))
        return await self._view.select(asked, [token for token in scan(statement) if token.is_significant])

    async def names(self, text: str) -> str:
        found = await self._pool.query(f"SELECT name, rows FROM ({text}) WHERE table = 't' ORDER BY name")
        return found.text.replace("\n", ", ").replace("\t", " ").removesuffix(", ")

    async def texts(self) -> list[str]:
        return [await self.text(statement) for statement in STATEMENTS]


Made = tuple[ChdbPool, ChdbPartStore, Reader]
NAMES = "1_0_0_0 2, 2_0_0_0 1, 2_1_1_0 1"


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Made]:
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        await add(pool, store, "SELECT 1, toString(number) FROM numbers(2)", "1_0_0_0")
        await add(pool, store, "SELECT 2, 'x'", "2_0_0_0")
        await add(pool, store, "SELECT 2, 'y'", "2_1_1_0")
        yield pool, store, Reader(pool, store)


async def rename(store: ChdbPartStore, old: str, new: str) -> None:
    plan = await store.plan_alter(f"RENAME COLUMN {old} TO {new}")
    await store.apply_alter(plan.definition.columns, plan.definition.metadata, {old: new})


async def test_whoever_reads_while_chdb_renames_a_column_sees_the_replicas_names(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A reader begins. 2. The ALTER runs in chDB, which has parts of other names now. 3. Its end, at which
    the parts get their names again, waits. 4. This reader, and one that comes now, read. 5. The ALTER ends;
    both read again, and so does a third one."""
    is_renamed, goes_on = threading.Event(), threading.Event()
    settle = Alterer.settle

    def waiting(self: Alterer, connection: Connection) -> None:
        if self._journal.exists():
            is_renamed.set()
            assert goes_on.wait(60)
        settle(self, connection)

    pool, store, reader = made
    texts = await reader.texts()
    monkeypatch.setattr(Alterer, "settle", waiting)
    altering = asyncio.create_task(rename(store, "v", "w"))
    try:
        assert await asyncio.to_thread(is_renamed.wait, 60)
        local = await pool.query("SELECT name FROM system.parts WHERE active AND table = 't'")
        assert "1_1_1_0_4" in local.text.split()  # chDB's own
        texts += await reader.texts()
        assert {await reader.names(text) for text in texts} == {NAMES}
    finally:
        goes_on.set()
        await altering
    texts += await reader.texts()
    assert {await reader.names(text) for text in texts} == {NAMES}
    # What was there before the ALTER is no longer needed once the store knows the parts again.
    await rename(store, "w", "x")
    assert await reader.names(await reader.text(STATEMENTS[0])) == NAMES


async def test_parts_of_other_tables_and_what_was_replaced_are_left_alone(made: Made) -> None:
    pool, store, reader = made
    await pool.query("CREATE TABLE other (v String) ENGINE = MergeTree ORDER BY tuple()")
    await pool.query("INSERT INTO other VALUES ('a')")
    await pool.query("ALTER TABLE other RENAME COLUMN v TO w SETTINGS mutations_sync = 2")
    await store.remove([name for name in store.active if str(name) == "2_0_0_0"])
    text = await reader.text(STATEMENTS[0])
    assert await reader.names(text) == "1_0_0_0 2, 2_1_1_0 1"
    found = await pool.query(f"SELECT name FROM ({text}) WHERE table = 'other' AND active")
    assert found.text == "all_1_1_0_2\n"


async def test_a_statement_without_names_has_the_rows_of_one_with_them(made: Made) -> None:
    """A part that was dropped, chDB's cover of it, and a replica's own part without rows."""
    pool, store, reader = made
    await store.remove([name for name in store.active if str(name) == "2_0_0_0"])
    empty = PartName.parse("1_0_1_1")
    await store.stage_empty(empty)
    await store.publish([empty], [name for name in store.active if str(name) == "1_0_0_0"])
    short = await reader.text("SELECT count() FROM system.parts WHERE table = 't' AND active AND rows >= 0")
    assert "OVER" not in short
    long = await reader.text(STATEMENTS[0])
    assert await reader.names(long) == "1_0_1_1 0, 2_1_1_0 1"
    counted = "SELECT table, rows, active FROM ({}) ORDER BY ALL"
    assert (await pool.query(counted.format(short))).text == "t\t0\t1\nt\t1\t1\n"
    assert (await pool.query(counted.format(long))).text == (await pool.query(counted.format(short))).text


async def test_detached_parts_are_those_that_somebody_has_detached(made: Made) -> None:
    """chDB renames each part by way of `detached/`, also in the tables where parts are made."""
    pool, store, _ = made
    await store.remove([PartName.parse("2_1_1_0")], fate=Fate.DETACH)
    await pool.query("CREATE DATABASE IF NOT EXISTS _oncluster")
    await pool.query("CREATE TABLE _oncluster.s (p UInt8) ENGINE = MergeTree ORDER BY p")
    scratch = await pool.query("SELECT data_paths[1] FROM system.tables WHERE name = 's'")
    for directory in (
        store.state.detached / "attaching_2_7_7_0_888888888",
        Path(scratch.text.strip()) / "detached/2_7_7_0",
    ):
        directory.mkdir()
    found = await pool.query("SELECT count() FROM system.detached_parts")
    assert found.text == "3\n"
    tables: Any = SimpleNamespace(all=lambda: [store])
    nothing: Any = None
    text = await DetachedPartsView(tables).select(nothing, [])
    assert (await pool.query(f"SELECT name FROM ({text})")).text == "2_1_1_0\n"
