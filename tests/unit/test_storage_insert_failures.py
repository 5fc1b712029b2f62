"""An INSERT whose rows cannot be written fails, whichever way they came. chDB itself would not say so."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.errors import SqlError
from engine.storage import ChdbPool, Scope
from engine.storage.insert_whole import fits_whole

PIECE = b"".join(b"%d\n" % number for number in range(200_000))
"""Of more than a megabyte: such rows are handed over piece by piece."""


MADE = "a Int64, m Int64 MATERIALIZED a * 2, e Int64 EPHEMERAL 7, d Int64 DEFAULT e"


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[ChdbPool]:
    pool = await ChdbPool.open(tmp_path / "data", max_running=4)
    for sql in (
        "CREATE TABLE positive (a Int64, CONSTRAINT positive CHECK a > 0) ENGINE = MergeTree ORDER BY a",
        "CREATE TABLE cut (a Int64) ENGINE = MergeTree PARTITION BY a ORDER BY a",
        "CREATE TABLE plain (a Int64) ENGINE = Log",
        "CREATE TABLE seen (a Int64) ENGINE = MergeTree ORDER BY a",
        "CREATE MATERIALIZED VIEW three ENGINE = Log AS SELECT throwIf(a = 3, 'a view') AS x FROM seen",
        f"CREATE TABLE made ({MADE}) ENGINE = Log",
    ):
        await pool.query(sql)
    yield pool
    await pool.close()


async def insert(pool: ChdbPool, head: str, *rows: bytes, **settings: str) -> int:
    async def given() -> AsyncIterator[bytes]:
        for chunk in rows:
            yield chunk

    session = pool.session(one_shot=True)
    result = await session.insert(head, format="TSV", rows=given(), scope=Scope(settings=settings))
    return result.written_rows


async def count(pool: ChdbPool, table: str) -> int:
    return int((await pool.query(f"SELECT count() FROM {table}")).text)


@pytest.mark.parametrize(
    ("table", "code", "rows", "settings"),
    [
        ("positive", 469, [b"5\n-1\n"], {}),
        ("cut", 252, [PIECE[:700]], {}),
        ("seen", 395, [b"3\n"], {}),
        ("positive", 469, [PIECE], {}),
        ("cut", 252, [PIECE, b"1\n"], {}),
        ("cut", 252, [PIECE[:700]], {"max_insert_block_size": "1000000"}),
    ],
)
async def test_rows_that_cannot_be_written_are_an_error(
    pool: ChdbPool, table: str, code: int, rows: list[bytes], settings: dict[str, str]
) -> None:
    with pytest.raises(SqlError) as caught:
        await insert(pool, f"INSERT INTO {table}", *rows, **settings)
    assert caught.value.code == code
    assert "/proc" not in caught.value.message
    if table != "seen":  # a view comes after its table
        assert await count(pool, table) == 0


async def test_a_large_insert_is_done_though_another_one_failed_meanwhile(pool: ChdbPool) -> None:
    async def rows() -> AsyncIterator[bytes]:
        yield PIECE
        for head in ("INSERT INTO positive", "INSERT INTO positive SELECT -1"):
            with pytest.raises(SqlError):
                await (insert(pool, head, b"-1\n") if head.endswith("positive") else pool.query(head))
        yield PIECE

    session = pool.session(one_shot=True)
    done = await session.insert("INSERT INTO plain", format="TSV", rows=rows())
    assert done.written_rows == 400_000


async def test_rows_that_do_not_parse_are_told_as_a_server_tells_them(pool: ChdbPool) -> None:
    with pytest.raises(SqlError) as caught:
        await insert(pool, "INSERT INTO seen", b"x\n")
    assert caught.value.code == 27
    assert "INSERT was parsed from file" not in caught.value.message


async def test_settings_in_the_text_hold_and_columns_are_found_as_ever(pool: ChdbPool) -> None:
    assert (
        await insert(pool, "INSERT INTO cut SETTINGS max_partitions_per_insert_block = 0", PIECE[:700])
        == 200 + 3
    )
    await insert(pool, "INSERT INTO made (* EXCEPT(d))", b"1\n")
    await insert(pool, "INSERT INTO made (a, e)", b"2\t5\n")
    await insert(pool, "INSERT INTO made (a, m)", b"3\t1\n", insert_allow_materialized_columns="1")
    found = await pool.query("SELECT a, m, d FROM made ORDER BY a")
    assert found.text == "1\t2\t7\n2\t4\t5\n3\t1\t7\n"


def test_a_statement_that_a_file_would_mean_something_else_to_goes_the_other_way() -> None:
    assert fits_whole("INSERT INTO t (`a*b`) SETTINGS async_insert = 0", {"max_threads": "1"})
    assert not fits_whole("INSERT INTO t (* EXCEPT a)", {})
    assert not fits_whole("INSERT INTO t SETTINGS max_insert_block_size = 5", {})
    assert not fits_whole("INSERT INTO t", {"insert_allow_materialized_columns": "1"})
