"""Workloads and resources are there after a start."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from engine.storage import ChdbPool

pytestmark = pytest.mark.slow

STATEMENTS = (
    "CREATE RESOURCE zeal (MASTER THREAD)",
    "CREATE WORKLOAD `the root`",
    "CREATE WORKLOAD a_child IN `the root` SETTINGS max_concurrent_threads = 3 FOR zeal",
    "CREATE OR REPLACE WORKLOAD a_child IN `the root` SETTINGS max_concurrent_threads = 4 FOR zeal",
)
SHOWN = (
    "SELECT name, create_query FROM system.workloads "
    "UNION ALL SELECT name, create_query FROM system.resources ORDER BY ALL"
)


async def test_they_are_what_they_were_and_can_be_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = await ChdbPool.open(tmp_path)
    for sql in STATEMENTS:
        await pool.query(sql)
    before = (await pool.query(SHOWN)).text
    assert before.count("\n") == 3 and "max_concurrent_threads = 4" in before
    await pool.close()

    (tmp_path / "workload" / "workload_lost.sql").write_text("CREATE WORKLOAD lost IN nowhere\n")
    with caplog.at_level(logging.CRITICAL):
        pool = await ChdbPool.open(tmp_path)
    assert (await pool.query(SHOWN)).text == before
    assert [record.args[0].name for record in caplog.records if record.args] == ["workload_lost.sql"]  # type: ignore[index,union-attr]
    for name in ("WORKLOAD a_child", "WORKLOAD `the root`", "RESOURCE zeal"):
        await pool.query(f"DROP {name}")
    await pool.close()
    assert [file.name for file in (tmp_path / "workload").iterdir()] == ["workload_lost.sql"]
