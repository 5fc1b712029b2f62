"""A merged part that is to be alone in its partition is shown out of the table that it was merged in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.errors import Code, SqlError
from engine.part_storage import ChdbPartStore
from engine.replication.part_name import PartName
from engine.replication.part_store import MergeOptions
from engine.storage import ChdbPool
from tests.unit.part_storage.support import add, insert, named, opened, rows, texts

pytestmark = pytest.mark.slow

CREATE = "CREATE TABLE t (k UInt64, v String DEFAULT 'x') ENGINE = MergeTree ORDER BY k"
SOURCES = named("all_0_0_0", "all_1_1_0", "all_2_2_0")
RESULT = PartName.parse("all_0_2_1")

Made = tuple[ChdbPool, ChdbPartStore]


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Made]:
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        for name in SOURCES:
            await add(pool, store, f"SELECT {name.min_block}, 'a'", str(name))
        yield pool, store


async def names_of_scratch_tables(pool: ChdbPool, purpose: str) -> list[str]:
    found = await pool.query(
        f"SELECT name FROM system.tables WHERE database = '_oncluster' AND name LIKE '{purpose}_%'"
        " ORDER BY name"
    )
    return found.text.split()


async def scratch_tables(pool: ChdbPool, purpose: str) -> int:
    return len(await names_of_scratch_tables(pool, purpose))


async def test_it_is_found_by_its_name_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        for name in SOURCES:
            await add(pool, store, f"SELECT {name.min_block}, 'a'", str(name))
        part = await store.merge(SOURCES, RESULT, MergeOptions())
        await store.publish([RESULT], SOURCES)
        assert await scratch_tables(pool, "swap") == 0
        assert await rows(pool) == "0 1 2"
        shown = await pool.query("SELECT uuid FROM system.parts WHERE table = 't' AND active")
        assert not shown.text.startswith("00000000-0000-0000-0000-000000000000")
    assert list((tmp_path / "data" / "_oncluster").iterdir()) == []
    async with opened(tmp_path) as (pool, store):
        found = await store.load()
        assert (found.active, found.staged, found.broken) == ((part,), (), ())
        assert await rows(pool) == "0 1 2"
        await add(pool, store, "SELECT 3, 'a'", "all_3_3_0")
        assert await rows(pool) == "0 1 2 3"


async def test_beside_others_it_is_shown_with_them(made: Made) -> None:
    pool, store = made
    result = PartName.parse("all_0_1_1")
    await store.merge(SOURCES[:2], result, MergeOptions())
    await store.publish([result], SOURCES[:2])
    assert texts(store.active) == ["all_0_1_1", "all_2_2_0"]
    assert await rows(pool) == "0 1 2"


async def test_a_part_that_comes_between_merge_and_publish_stays(made: Made) -> None:
    pool, store = made
    await store.merge(SOURCES, RESULT, MergeOptions())
    await add(pool, store, "SELECT 3, 'a'", "all_3_3_0")
    await store.publish([RESULT], SOURCES)
    assert texts(store.active) == ["all_0_2_1", "all_3_3_0"]
    assert await rows(pool) == "0 1 2 3"


async def test_what_is_staged_under_its_name_is_shown_and_not_what_was_merged(made: Made) -> None:
    pool, store = made
    await store.merge(SOURCES, RESULT, MergeOptions())
    await store.rename_staged(RESULT, PartName.parse("all_7_7_0"))
    await insert(pool, store, "SELECT number, 'fetched' FROM numbers(3)", str(RESULT))
    await store.publish([RESULT], SOURCES)
    assert await rows(pool, "v") == "fetched fetched fetched"


async def test_a_result_that_is_thrown_away_takes_its_table_along(made: Made) -> None:
    pool, store = made
    await store.merge(SOURCES, RESULT, MergeOptions())
    await store.discard(RESULT)
    await insert(pool, store, "SELECT number, 'fetched' FROM numbers(3)", str(RESULT))
    await store.publish([RESULT], SOURCES)
    assert await rows(pool, "v") == "fetched fetched fetched"


async def test_a_result_that_is_kept_can_be_attached(made: Made) -> None:
    pool, store = made
    await store.merge(SOURCES, RESULT, MergeOptions())
    await store.discard(RESULT, prefix="merge-not-byte-identical")
    assert texts(store.staged) == []
    [kept] = await store.detached()
    assert (kept.directory, kept.prefix, kept.name) == (
        f"merge-not-byte-identical_{RESULT}",
        "merge-not-byte-identical",
        RESULT,
    )
    await store.load()
    assert texts(store.staged) == []
    await store.stage_detached(kept.directory, RESULT)
    await store.publish([RESULT], SOURCES)
    assert await rows(pool) == "0 1 2"


async def test_a_table_of_an_older_structure_is_not_used(made: Made) -> None:
    pool, store = made
    await store.merge(SOURCES, RESULT, MergeOptions())
    plan = await store.plan_alter("ADD COLUMN x String DEFAULT concat('x', v)")
    await store.apply_alter(plan.definition.columns, plan.definition.metadata, {})
    await store.publish([RESULT], SOURCES)
    assert texts(store.active) == ["all_0_2_1"]
    assert await rows(pool, "k, x") == "0\txa 1\txa 2\txa"


async def test_a_broken_source_is_told_and_leaves_nothing(made: Made) -> None:
    pool, store = made
    directory = store.state.active[SOURCES[1]].directory
    (directory / "checksums.txt").write_bytes(b"not what it was")
    with pytest.raises(SqlError) as caught:
        await store.merge(SOURCES, RESULT, MergeOptions())
    assert caught.value.code == Code.CHECKSUM_DOESNT_MATCH
    assert await scratch_tables(pool, "merge") == 0
    assert await rows(pool) == "0 1 2"


async def test_rows_are_deduplicated_also_if_a_projection_has_been_added_since(made: Made) -> None:
    """An OPTIMIZE … DEDUPLICATE that is in the log may be executed behind the ALTER."""
    pool, store = made
    await add(pool, store, "SELECT 2, 'a'", "all_3_3_0")
    plan = await store.plan_alter("ADD PROJECTION p (SELECT v ORDER BY v), ADD PROJECTION q (SELECT count())")
    await store.apply_alter(plan.definition.columns, plan.definition.metadata, {})
    sources, result = [*SOURCES, *named("all_3_3_0")], PartName.parse("all_0_3_1")
    await store.merge(sources, result, MergeOptions(deduplicate=True))
    await store.publish([result], sources)
    assert await rows(pool) == "0 1 2"
    alone = PartName.parse("all_0_3_2")
    await store.merge([result], alone, MergeOptions(deduplicate=True))
    await store.publish([alone], [result])
    assert await rows(pool, "k, v") == "0\ta 1\ta 2\ta"


async def test_a_merge_takes_the_table_that_was_prepared_for_it(made: Made) -> None:
    pool, store = made
    async with store.preparing_merge(SOURCES, RESULT):
        while not await scratch_tables(pool, "merge"):
            await asyncio.sleep(0)
        [before] = await names_of_scratch_tables(pool, "merge")
        await store.merge(SOURCES, RESULT, MergeOptions())
        assert await names_of_scratch_tables(pool, "merge") == [before]
    await store.publish([RESULT], SOURCES)
    assert texts(store.active) == ["all_0_2_1"]
    assert await rows(pool) == "0 1 2"


async def test_what_was_prepared_for_a_merge_that_is_not_to_be_is_dropped(made: Made) -> None:
    pool, store = made
    async with store.preparing_merge(SOURCES, RESULT):
        pass
    assert await scratch_tables(pool, "merge") == 0


async def test_a_merge_of_other_parts_takes_nothing_that_was_prepared(made: Made) -> None:
    """The log may have brought another part of the range meanwhile."""
    pool, store = made
    async with store.preparing_merge([SOURCES[0], SOURCES[2]], RESULT):
        await store.merge(SOURCES, RESULT, MergeOptions())
    await store.publish([RESULT], SOURCES)
    assert await rows(pool) == "0 1 2"


async def test_what_was_prepared_before_an_alter_is_not_merged_in(made: Made) -> None:
    pool, store = made
    async with store.preparing_merge(SOURCES, RESULT):
        while not await scratch_tables(pool, "merge"):
            await asyncio.sleep(0)
        plan = await store.plan_alter("ADD COLUMN x String DEFAULT concat('x', v)")
        await store.apply_alter(plan.definition.columns, plan.definition.metadata, {})
        await store.merge(SOURCES, RESULT, MergeOptions())
    await store.publish([RESULT], SOURCES)
    merged = store.state.active[RESULT].directory
    assert b"`x`" in (merged / "columns.txt").read_bytes()
    assert await rows(pool, "k, x") == "0\txa 1\txa 2\txa"


async def test_sources_that_cannot_be_prepared_are_told_by_the_merge(made: Made) -> None:
    pool, store = made
    (store.state.active[SOURCES[1]].directory / "checksums.txt").write_bytes(b"not what it was")
    async with store.preparing_merge(SOURCES, RESULT):
        with pytest.raises(SqlError) as caught:
            await store.merge(SOURCES, RESULT, MergeOptions())
    assert caught.value.code == Code.CHECKSUM_DOESNT_MATCH
    assert await scratch_tables(pool, "merge") == 0
