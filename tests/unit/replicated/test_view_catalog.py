"""What the node knows of views holds, though others change them while it asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.names import TableName
from engine.node.replicated.rows.view_catalog import read_links
from engine.node.replicated.running.local_tables import LocalTables
from engine.storage import ChdbPool


class Detaching(LocalTables):
    """Before it asks for columns, a view is detached."""

    async def rows(self, sql: str) -> list[Any]:
        if "system.columns" in sql:
            await self.run("DETACH TABLE default.v")
        return [*await super().rows(sql)]


@pytest.mark.slow
async def test_a_view_that_is_detached_meanwhile_keeps_the_columns_of_its_target(tmp_path: Path) -> None:
    pool = await ChdbPool.open(tmp_path / "data")
    for sql in (
        "CREATE TABLE default.s (k UInt64) ENGINE = MergeTree ORDER BY k",
        "CREATE TABLE default.t (k UInt64, v UInt64, sum UInt64 ALIAS k + v) ENGINE = MergeTree ORDER BY k",
        "CREATE MATERIALIZED VIEW default.v TO default.t AS SELECT k FROM default.s",
    ):
        await pool.query(sql)
    [view] = (await read_links(Detaching(pool))).views
    assert (view.target, view.columns) == (TableName("default", "t"), ("k", "v"))
    assert not (await read_links(LocalTables(pool))).views
    await pool.close()
