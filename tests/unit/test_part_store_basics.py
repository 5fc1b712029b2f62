"""Parts of a replicated table on chDB: inserted, staged, published, taken away, found again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.errors import SqlError
from engine.names import TableName
from engine.part_storage import ChdbPartStore, Durability, with_hidden_settings
from engine.replication.part_name import PartName
from engine.replication.part_store import Fate, Part
from engine.storage import ChdbPool

TABLE = TableName("default", "t")
CREATE = "CREATE TABLE t (k UInt64, v String DEFAULT 'x') ENGINE = MergeTree PARTITION BY k % 2 ORDER BY k"


async def uuid_of(pool: ChdbPool, table: TableName = TABLE) -> str:
    found = await pool.query(f"SELECT uuid FROM system.tables WHERE name = '{table.table}'")
    return found.text.strip()


@asynccontextmanager
async def opened(path: Path, create: str = "") -> AsyncIterator[tuple[ChdbPool, ChdbPartStore]]:
    pool = await ChdbPool.open(path, max_running=2)
    try:
        if create:
            await pool.query(with_hidden_settings(create))
        store = await ChdbPartStore.open(pool, TABLE, await uuid_of(pool), durability=Durability.PROCESS)
        try:
            yield pool, store
        finally:
            await store.close()
    finally:
        await pool.close()


async def insert(pool: ChdbPool, store: ChdbPartStore, select: str, *names: str) -> list[Part]:
    """Stage what an INSERT … `select` makes, as the parts `names`, in the order of partitions."""
    async with store.insert_stage() as stage:
        await pool.query(f"INSERT INTO {stage.table.quoted} {select}")
        parts = sorted(await stage.collect(), key=lambda new: new.partition_id)
        assert len(parts) == len(names)
        return [
            await store.stage_inserted(new, PartName.parse(name))
            for new, name in zip(parts, names, strict=True)
        ]


async def add(pool: ChdbPool, store: ChdbPartStore, select: str, *names: str) -> None:
    await insert(pool, store, select, *names)
    await store.publish(named(*names))


async def rows(pool: ChdbPool, what: str = "k") -> str:
    found = await pool.query(f"SELECT {what} FROM t ORDER BY ALL")
    return found.text.replace("\n", " ").strip()


def named(*names: str) -> list[PartName]:
    return [PartName.parse(name) for name in names]


def texts(names: Sequence[PartName] | object) -> list[str]:
    return sorted(str(name) for name in names)  # type: ignore[attr-defined]


async def test_an_insert_is_staged_then_published_then_found_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path, CREATE) as (pool, store):
        assert (await store.load()).active == ()
        staged = await insert(pool, store, "SELECT number, 'a' FROM numbers(10)", "0_7_7_0", "1_5_5_0")
        assert await rows(pool, "count()") == "0"
        assert texts(store.staged) == ["0_7_7_0", "1_5_5_0"]
        await store.publish(named("0_7_7_0"))
        assert await rows(pool) == "0 2 4 6 8"
        assert (texts(store.staged), texts(store.active)) == (["1_5_5_0"], ["0_7_7_0"])
        await store.publish(named("0_7_7_0"))
        assert staged[0].rows == 5
    async with opened(tmp_path) as (pool, store):
        found = await store.load()
        assert [(part.name, part.digest, part.rows) for part in (*found.active, *found.staged)] == [
            (part.name, part.digest, part.rows) for part in staged
        ]
        assert found.broken == ()
        await store.publish(named("1_5_5_0"))
        assert await rows(pool, "count()") == "10"


async def test_merged_parts_take_the_place_of_their_sources(tmp_path: Path) -> None:
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        for number in range(4):
            await add(pool, store, f"SELECT 2 * {number}, 'a'", f"0_{number}_{number}_0")
        from engine.replication.part_store import MergeOptions

        sources, result = named("0_1_1_0", "0_2_2_0"), PartName.parse("0_1_2_1")
        part = await store.merge(sources, result, MergeOptions())
        assert part.rows == 2
        assert await rows(pool) == "0 2 4 6"
        await store.publish([result], sources)
        assert texts(store.active) == ["0_0_0_0", "0_1_2_1", "0_3_3_0"]
        assert await rows(pool) == "0 2 4 6"
        await store.remove(named("0_0_0_0", "0_3_3_0"))
        assert await rows(pool) == "2 4"
        await store.remove(named("0_1_2_1"), fate=Fate.DETACH)
        assert await rows(pool) == ""
        assert [part.directory for part in await store.detached()] == ["0_1_2_1"]
        await add(pool, store, "SELECT 100, 'a'", "0_9_9_0")
    async with opened(tmp_path) as (pool, store):
        found = await store.load()
        assert texts(part.name for part in found.active) == ["0_9_9_0"]
        assert await rows(pool) == "100"


async def test_a_part_is_sent_and_received(tmp_path: Path) -> None:
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        (part,) = await insert(pool, store, "SELECT 1, 'a'", "1_0_0_0")
        copy = PartName.parse("1_8_8_0")
        async with store.send(part.name) as outgoing, store.receive(copy) as incoming:
            await store.publish([part.name])
            for file in outgoing.files:
                await incoming.write(file, outgoing.read(file))
            received = await incoming.finish(part.header)
        assert received.digest == part.digest
        await store.publish([copy])
        assert await rows(pool) == "1 1"
        with pytest.raises(SqlError) as caught:
            async with store.send(PartName.parse("1_99_99_0")):
                pass
        assert caught.value.code == 232
