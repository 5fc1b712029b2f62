"""chDB itself reads and writes no file of the machine, by whatever way a name has come to it, and cannot be
made to fail.

The statements go to chDB as they are: nothing has looked at their text (`test_guard` is about that).
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.errors import Code, SqlError
from engine.names import quote_string
from engine.storage import ChdbPool

pytestmark = pytest.mark.slow

SECRET = "not for users of SQL"


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[ChdbPool]:
    pool = await ChdbPool.open(tmp_path / "chdb")
    yield pool
    await pool.close()


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "secret").write_text(SECRET)
    return quote_string(str(tmp_path / "secret"))


async def test_there_is_no_function_file_however_it_is_called(pool: ChdbPool, file: str) -> None:
    await pool.query("CREATE TABLE t (a String) ENGINE = MergeTree ORDER BY a")
    await pool.query("CREATE FUNCTION by_another_name AS path -> file(path)")
    default = quote_string(f"a String, b String DEFAULT file({file})")
    rest = quote_string(f"le({file})")
    values = quote_string(f"(file({file}))")
    for sql in (
        f"SELECT file({file})",
        f"SELECT file({file}, 'default')",
        "SELECT file()",
        f"SELECT arrayMap(file, [{file}])",
        f"SELECT arrayMap(path -> file(path), [{file}])",
        f"SELECT * APPLY file FROM (SELECT {file})",
        f"SELECT by_another_name({file})",
        f"SELECT * FROM format(JSONEachRow, {default}, '{{}}')",
        f"SELECT * FROM format(JSONEachRow, concat('b String DEFAULT fi', {rest}), '{{}}')",
        f"SELECT * FROM format(Values, 'a String', {values})",
        f"SELECT 1 SETTINGS additional_result_filter = {quote_string(f'throwIf(1, file({file}))')}",
        f"CREATE TABLE u (a String DEFAULT file({file})) ENGINE = Memory",
        f"INSERT INTO t VALUES (file({file}))",
        f"INSERT INTO t SELECT file({file})",
        f"ALTER TABLE t DELETE WHERE file({file}) = a",
    ):
        with pytest.raises(SqlError) as refusal:
            await pool.query(sql)
        assert refusal.value.code == Code.ACCESS_DENIED, sql
        assert SECRET not in str(refusal.value)


async def test_an_address_that_begins_otherwise_is_no_file(pool: ChdbPool, file: str) -> None:
    base = f"file://{Path(file[1:-1]).parent}/"
    create = "CREATE TABLE t (a String) ENGINE = URL('secret', LineAsString)"
    with pytest.raises(SqlError) as refusal:
        await pool.query(create, settings={"url_base": base})
    assert refusal.value.code == Code.SETTING_CONSTRAINT_VIOLATION
    await pool.query(f"{create} SETTINGS url_base = {quote_string(base)}")
    for sql in ("SELECT * FROM t", "INSERT INTO t VALUES ('x')"):
        with pytest.raises(SqlError, match="Empty protocol in the URL"):
            await pool.query(sql)
    assert Path(file[1:-1]).read_text() == SECRET


async def test_sqlites_files_are_out_of_reach(pool: ChdbPool, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "db") as database:
        database.execute("CREATE TABLE t (a)")
    path = quote_string(str(tmp_path / "db"))
    for sql in (
        f"SELECT * FROM sqlite({path}, 't')",
        f"CREATE TABLE u ENGINE = SQLite({path}, 't')",
        f"CREATE DATABASE u ENGINE = SQLite({path})",
        "CREATE TABLE u (a String) ENGINE = File(TSV)",
    ):
        with pytest.raises(SqlError) as refusal:
            await pool.query(sql)
        assert refusal.value.code == Code.ACCESS_DENIED, sql


async def test_nobody_ends_the_process_or_makes_it_fail(pool: ChdbPool) -> None:
    for sql in (
        "SYSTEM ENABLE FAILPOINT dummy_failpoint",
        "SYSTEM WAIT FAILPOINT dummy_failpoint",
        "SYSTEM SUSPEND FOR 1 SECOND",
    ):
        with pytest.raises(SqlError) as refusal:
            await pool.query(sql)
        assert refusal.value.code == Code.ACCESS_DENIED, sql
