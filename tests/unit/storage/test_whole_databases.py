"""A database that was made to load its tables when they are read is loaded with them."""

from pathlib import Path

import pytest

from engine.storage import ChdbPool
from engine.storage.whole_databases import without_lazy_loading

PARTS = "SELECT name FROM system.parts WHERE database = 'd' AND active"


@pytest.mark.parametrize(
    ("sql", "whole"),
    [
        (
            "CREATE DATABASE d ENGINE = Atomic SETTINGS lazy_load_tables = 1",
            "CREATE DATABASE d ENGINE = Atomic",
        ),
        ("create database d engine = Atomic settings lazy_load_tables", "create database d engine = Atomic"),
        (
            "ATTACH DATABASE _ UUID 'u' ENGINE = Atomic SETTINGS lazy_load_tables = 1, a = 2 COMMENT 'c'",
            "ATTACH DATABASE _ UUID 'u' ENGINE = Atomic SETTINGS  a = 2 COMMENT 'c'",
        ),
        (
            "CREATE DATABASE lazy_load_tables SETTINGS a = 2, `lazy_load_tables` = 1 COMMENT 'c'",
            "CREATE DATABASE lazy_load_tables SETTINGS a = 2 COMMENT 'c'",
        ),
        ("CREATE DATABASE lazy_load_tables", None),
        ("CREATE DATABASE d SETTINGS a = 1 COMMENT 'lazy_load_tables'", None),
        ("SELECT 'CREATE DATABASE', lazy_load_tables FROM t SETTINGS a = 1", None),
        ("CREATE DATABASE d ENGINE = Atomic SETTINGS lazy_load_tables = 'open", None),
    ],
)
def test_the_setting_is_left_out_of_what_makes_a_database(sql: str, whole: str | None) -> None:
    assert without_lazy_loading(sql).rstrip() == (sql if whole is None else whole)


@pytest.mark.slow
async def test_its_parts_are_there_after_a_start(tmp_path: Path) -> None:
    pool = await ChdbPool.open(tmp_path)
    await pool.query("CREATE DATABASE d ENGINE = Atomic SETTINGS lazy_load_tables = 1")
    await pool.query("CREATE TABLE d.t (k UInt8) ENGINE = MergeTree ORDER BY k")
    await pool.query("INSERT INTO d.t VALUES (1)")
    await pool.close()
    pool = await ChdbPool.open(tmp_path)
    assert (await pool.query(PARTS)).text == "all_1_1_0\n"
    await pool.query("DETACH DATABASE d")
    await pool.query("ATTACH DATABASE d")
    assert (await pool.query(PARTS)).text == "all_1_1_0\n"
    await pool.close()
    file = tmp_path / "metadata" / "d.sql"
    file.write_text(file.read_text().rstrip() + "\nSETTINGS lazy_load_tables = 1\n")  # of an earlier version
    pool = await ChdbPool.open(tmp_path)
    assert (await pool.query(PARTS)).text == "all_1_1_0\n"
    await pool.close()
