"""What the node asks chDB for itself does not wait for what clients do."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from engine.errors import SqlError
from engine.names import TableName
from engine.node.replicated.running.local_tables import LocalTables
from engine.storage import ChdbPool

NAMES = [TableName("default", name) for name in "abc"]


@pytest.mark.slow
async def test_tables_that_are_dropped_while_they_are_read_hold_up_no_question(tmp_path: Path) -> None:
    pool = await ChdbPool.open(tmp_path / "data")
    local = LocalTables(pool)
    uuids = {}
    for name in NAMES:
        await pool.query(f"CREATE TABLE {name.quoted} (k UInt64) ENGINE = MergeTree ORDER BY k")
        await pool.query(f"INSERT INTO {name.quoted} SELECT number FROM numbers(3000000)")
        table = await local.named(name)
        assert table is not None
        uuids[name] = table.uuid
    async with AsyncExitStack() as readers:
        for name in NAMES:
            sql = f"SELECT k, k FROM {name.quoted}"
            stream = await readers.enter_async_context(pool.session(one_shot=True).stream(sql))
            assert await stream.read()
        # 1. Their readers read no further, so the tables stay, under no name.
        drops = [asyncio.create_task(local.drop(name, uuids[name])) for name in NAMES[:2]]
        while (await pool.query("SHOW TABLES")).text != "c\n":
            await asyncio.sleep(0)
        # 2. The node still finds out what there is, as every INSERT behind a change has to.
        assert await local.by_uuid([*uuids.values()]) and not any(drop.done() for drop in drops)
    await asyncio.gather(*drops)
    await pool.close()


@pytest.mark.slow
async def test_settings_that_chdb_is_never_told_are_those_that_it_would_take(tmp_path: Path) -> None:
    pool = await ChdbPool.open(tmp_path / "data")
    local = LocalTables(pool)
    given = {
        "max_suspicious_broken_parts": "0x10",
        "remove_empty_parts": "{p:Bool}",
        "max_table_size_rows": "'1K'",
    }
    assert await local.settings_as_written(given, {"p": "true"}) == {
        "max_suspicious_broken_parts": "16",
        "remove_empty_parts": "'true'",
        "max_table_size_rows": "'1K'",
    }
    for name, value, code in (
        ("max_suspicious_broken_parts", "-1", 70),
        ("assign_part_uuids", "'yes'", 467),
        ("max_table_size_rows", "['a']", 62),
        ("max_table_size_rows", "1 COMMENT 'c'; SELECT 1", 62),
    ):
        with pytest.raises(SqlError) as refused:
            await local.settings_as_written({name: value})
        assert refused.value.code == code
    await pool.close()
