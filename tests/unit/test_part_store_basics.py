"""Parts of a replicated table on chDB: inserted, staged, published, taken away, found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import SqlError
from engine.replication.part_name import PartName
from engine.replication.part_store import Fate, MergeOptions
from tests.unit.part_store_support import add, insert, named, opened, rows, texts

CREATE = "CREATE TABLE t (k UInt64, v String DEFAULT 'x') ENGINE = MergeTree PARTITION BY k % 2 ORDER BY k"


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
