"""An INSERT whose rows cannot be written fails, whichever way they came. chDB itself would not say so."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from engine.errors import SqlError
from engine.storage import ChdbPool, Scope

pytestmark = pytest.mark.slow

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


async def given(rows: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in rows:
        yield chunk


async def insert(pool: ChdbPool, head: str, *rows: bytes, format: str = "TSV", **settings: str) -> int:
    session = pool.session(one_shot=True)
    result = await session.insert(head, format=format, rows=given(rows), scope=Scope(settings=settings))
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


async def test_rows_come_by_way_of_a_table_also_with_types_that_a_log_cannot_have(pool: ChdbPool) -> None:
    await pool.query(
        "CREATE TABLE lean (a Int64, j JSON, y Dynamic, d Int64 DEFAULT a + b, b Int64 DEFAULT 7, "
        "m Int64 MATERIALIZED a * 2) ENGINE = MergeTree ORDER BY a"
    )
    await insert(pool, "INSERT INTO lean (a, j, y, d)", b'1\t{"x":1}\tq\t\\N\n')
    await insert(
        pool, "INSERT INTO lean (a, j, m)", b'2\t{"x":2}\t5\n', insert_allow_materialized_columns="1"
    )
    read = await pool.query("SELECT a, j.x, y, d, b, m FROM lean ORDER BY a", format="TSV")
    assert read.text == "1\t1\tq\t8\t7\t2\n2\t2\t\\N\t9\t7\t5\n"


async def test_settings_in_the_text_hold_and_columns_are_found_as_ever(pool: ChdbPool) -> None:
    assert (
        await insert(pool, "INSERT INTO cut SETTINGS max_partitions_per_insert_block = 0", PIECE[:700])
        == 200 + 3
    )
    await insert(pool, "INSERT INTO made (* EXCEPT(d))", b"1\n")
    await insert(pool, "INSERT INTO made (a, e)", b"2\t5\n")
    await insert(pool, "INSERT INTO made (a, m)", b"3\t1\n", insert_allow_materialized_columns="1")
    await insert(pool, "INSERT INTO made (COLUMNS('^[ax]$'))", b"4\n")
    found = await pool.query("SELECT a, m, d FROM made ORDER BY a")
    assert found.text == "1\t2\t7\n2\t4\t5\n3\t1\t7\n4\t8\t7\n"


async def test_columns_of_all_kinds_come_with_the_rows_and_have_their_defaults(pool: ChdbPool) -> None:
    await pool.query(
        "CREATE TABLE kinds (a Int64, m Int64 MATERIALIZED a * 2, f Int64 DEFAULT a + m) ENGINE = Log"
    )
    rows = b'{"a": 1, "m": 5, "f": 3}\n{"a": 4}\n'
    all_kinds = {"insert_allow_materialized_columns": "1"}
    for head in ("INSERT INTO kinds", "INSERT INTO kinds (a, m)", "INSERT INTO kinds (a, f)"):
        assert await insert(pool, head, rows, format="JSONEachRow", **all_kinds) == 2
    head = "INSERT INTO kinds (a, m) SETTINGS insert_allow_materialized_columns = 1"
    assert await insert(pool, head, *[b"7\t7\n" * 100_000] * 4) == 400_000
    found = await pool.query("SELECT a, m, f, count() FROM kinds GROUP BY ALL ORDER BY ALL")
    assert found.text.splitlines() == [
        *("1\t2\t3\t1", "1\t5\t3\t1", "1\t5\t6\t1", "4\t8\t12\t3", "7\t7\t14\t400000"),
    ]


@pytest.mark.parametrize(
    ("columns", "rows", "settings"),
    [
        *((columns, 2, {}) for columns in ("", "(a, f)", "(a,`g.x`)", "(a, h)", "(a, i)", "(g.x, a, e, h)")),
        *((columns, 2, {"max_insert_block_size": "1"}) for columns in ("", "(a, e)")),
        *((columns, 200_000, {}) for columns in ("", "(g.x, a, e)")),
    ],
)
async def test_defaults_are_made_of_columns_that_the_rows_do_not_have(
    pool: ChdbPool, columns: str, rows: int, settings: dict[str, str]
) -> None:
    """`e` is no column of a row unless it is named."""
    definitions = (
        "a Int64, m Int64 MATERIALIZED a * 2, f Int64 DEFAULT a + m, b Int64 DEFAULT 3",
        "`g.x` Int64 DEFAULT a + b",
        "e Int64 EPHEMERAL 7, h Int64 DEFAULT e, l Int64 ALIAS a * 3, i Int64 DEFAULT l",
    )
    await pool.query(f"CREATE TABLE leaning ({', '.join(definitions)}) ENGINE = MergeTree ORDER BY a")
    lines = b'{"a":1}\n{"a":4}\n' * (rows // 2)
    await insert(pool, f"INSERT INTO leaning {columns}", lines, format="JSONEachRow", **settings)
    found = await pool.query("SELECT a, m, f, b, `g.x`, h, i, count() FROM leaning GROUP BY ALL ORDER BY ALL")
    n = rows // 2
    assert found.text == f"1\t2\t3\t3\t4\t7\t3\t{n}\n4\t8\t12\t3\t7\t7\t12\t{n}\n"


@pytest.mark.parametrize("rows", [100_000, 600_000])
@pytest.mark.parametrize("is_in_text", [True, False])
async def test_a_block_has_as_many_rows_as_the_statement_says(
    pool: ChdbPool, rows: int, is_in_text: bool
) -> None:
    settings = {"max_insert_block_size": "50000", "min_insert_block_size_rows": "1"}
    settings["min_insert_block_size_bytes"] = "0"
    await pool.query("SYSTEM STOP MERGES seen")
    chunks = [b"1000000\n" * 100_000] * (rows // 100_000)
    if is_in_text:
        clause = ", ".join(f"{name} = {value}" for name, value in settings.items())
        await insert(pool, f"INSERT INTO seen SETTINGS {clause}", *chunks)
    else:
        await insert(pool, "INSERT INTO seen", *chunks, **settings)
    found = await pool.query("SELECT max(rows), sum(rows) FROM system.parts WHERE table = 'seen' AND active")
    assert found.text == f"50000\t{rows}\n"


async def test_a_table_may_be_called_settings(pool: ChdbPool) -> None:
    await pool.query("CREATE DATABASE d")
    await pool.query("CREATE TABLE d.settings (a Int64, columns Int64) ENGINE = Log")
    assert await insert(pool, "INSERT INTO d.settings", b"1\t2\n") == 1
    session = pool.session(database="d", one_shot=True)
    await session.insert("INSERT INTO settings (columns)", format="TSV", rows=given([b"5\n"]))
    assert (await pool.query("SELECT * FROM d.settings ORDER BY a")).text == "0\t5\n1\t2\n"


@pytest.mark.parametrize("columns", ["", f"({', '.join(['a', *(f'c{n}' for n in range(3000))])})"])
@pytest.mark.parametrize("way", ["raised", "cancelled"])
@pytest.mark.parametrize("chunks", [1, 2, 3])
async def test_rows_that_do_not_all_come_are_not_there(
    pool: ChdbPool, columns: str, way: str, chunks: int
) -> None:
    others = "".join(f", c{n} UInt8" for n in range(3000)) if columns else ""
    await pool.query(f"CREATE TABLE half (a Int64{others}) ENGINE = MergeTree ORDER BY a")
    began = asyncio.Event()

    async def rows() -> AsyncIterator[bytes]:
        line = b"1" + b"\t1" * (3000 if columns else 0) + b"\n"
        for _ in range(chunks):
            yield line * ((1 << 20) // len(line) + 1)
        began.set()
        if way == "raised":
            raise ConnectionResetError("the client is gone")
        await asyncio.Event().wait()

    session = pool.session()
    task = asyncio.create_task(session.insert(f"INSERT INTO half {columns}", format="TSV", rows=rows()))
    await began.wait()
    if way == "cancelled":
        task.cancel()
    with pytest.raises(ConnectionResetError if way == "raised" else asyncio.CancelledError):
        await task
    assert await count(pool, "half") == 0
    assert (await session.query("SELECT count() FROM half")).text == "0\n"
    await session.close()


async def test_rows_that_wait_for_their_client_keep_nobody_from_working(pool: ChdbPool) -> None:
    """More of them than there are threads for statements."""
    may_end = asyncio.Event()

    async def rows() -> AsyncIterator[bytes]:
        yield PIECE
        await may_end.wait()
        yield PIECE

    async with asyncio.TaskGroup() as group:
        for _ in range(10):
            group.create_task(
                pool.session(one_shot=True).insert("INSERT INTO plain", format="TSV", rows=rows())
            )
        assert await count(pool, "seen") == 0
        may_end.set()
    assert await count(pool, "plain") == 10 * 400_000
