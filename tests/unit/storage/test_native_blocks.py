"""Blocks in Native of a revision of the protocol, made of the columns that chDB writes with their lengths."""

import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.errors import SqlError
from engine.storage import ChdbPool
from engine.storage.native_blocks import NativeBlocks

COLUMNS = [(b"n", b"UInt8"), (b"d", b"DateTime('UTC')")]
BLOCK = struct.pack("<QQQ2sQ8s", 2, 2, 2, b"\1\2", 8, b"abcdefgh")
INFO = b"\1\0\2\xff\xff\xff\xff\0"

TYPES = """
    1, 'x', '', NULL, [1, NULL], map('a', [1]), (1, (2, 'y'))::Tuple(a Int8, `b ( ` Tuple(c Int8, d String)),
    toLowCardinality('z'), toLowCardinality(toNullable('z')), toDate('2020-01-02'), 1.5,
    toDateTime64('2020-01-02 03:04:05', 3, 'Asia/Tokyo'), toFixedString('ab', 3), toIPv4('1.2.3.4'),
    toIPv6('::1'), toDecimal256('1.5', 4), CAST('a ( b', 'Enum8(\\'a ( b\\' = 1)'),
    5::Variant(Int8, String), 7::Dynamic, '{"a": [1, "b"]}'::JSON, sumState(number),
    uniqState(toString(number)), [(1, 'n')]::Nested(a Int8, b String),
    true, INTERVAL 1 DAY, toInt128(-1), repeat('long', 100), toUUID('7fd309a8-cef5-4f50-9b47-99bebcff8984')
"""


def blocks(revision: int) -> NativeBlocks:
    made = NativeBlocks(revision)
    made.expect(COLUMNS)
    return made


@pytest.mark.parametrize(
    ("revision", "first", "second"),
    [
        (50000, b"\1n\5UInt8", b"\1d\x08DateTime"),
        (54405, b"\1n\5UInt8", b"\1d\x0fDateTime('UTC')"),
        (54454, b"\1n\5UInt8\0", b"\1d\x0fDateTime('UTC')\0"),
    ],
)
def test_a_block_has_what_its_revision_has(revision: int, first: bytes, second: bytes) -> None:
    expected = INFO + b"\2\2" + first + b"\1\2" + second + b"abcdefgh"
    assert blocks(revision).put(BLOCK * 2) == expected * 2


def test_newer_clients_are_told_of_buckets_out_of_order() -> None:
    assert blocks(54480).put(BLOCK).startswith(INFO[:-1] + b"\3\0\0")


def test_pieces_of_any_size_make_the_same_blocks() -> None:
    written = BLOCK * 3
    whole = blocks(54460).put(written)
    for size in range(1, 20):
        made = blocks(54460)
        assert b"".join(made.put(written[at : at + size]) for at in range(0, len(written), size)) == whole


def test_a_block_of_other_columns_is_an_error() -> None:
    made = NativeBlocks(54460)
    made.expect(COLUMNS[:1])
    with pytest.raises(SqlError):
        made.put(BLOCK)


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[ChdbPool]:
    pool = await ChdbPool.open(tmp_path / "data", max_running=2)
    yield pool
    await pool.close()


async def streamed(pool: ChdbPool, sql: str, revision: int, **params: str) -> bytes:
    async with (
        pool.use() as session,
        session.stream(sql, format="Native", params=params, native_revision=revision) as stream,
    ):
        data = b""
        while piece := await stream.read():
            data += piece
        await stream.finish()
        return data


@pytest.mark.slow
async def test_columns_of_every_type_are_what_chdb_writes_in_native(pool: ChdbPool) -> None:
    """An old revision has only the information about the block in addition."""
    sql = f"SELECT {TYPES} FROM numbers(1)"
    plain = (await pool.query(sql, format="Native")).data
    assert await streamed(pool, sql, 50000) == INFO + plain
    assert await pool.native_of_revision(plain, 50000) == INFO + plain


@pytest.mark.slow
async def test_a_sparse_column_is_written_in_full(pool: ChdbPool) -> None:
    await pool.query(
        "CREATE TABLE t (a UInt64, b UInt64) ENGINE = MergeTree ORDER BY a "
        "SETTINGS ratio_of_defaults_for_sparse_serialization = 0.1"
    )
    await pool.query("INSERT INTO t SELECT number, number = 7 FROM numbers(1000)")
    sql = "SELECT a, b FROM t ORDER BY a"
    assert await streamed(pool, sql, 50000) == INFO + (await pool.query(sql, format="Native")).data


@pytest.mark.slow
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT toDateTime(0, 'UTC') AS d",
        "SELECT toDateTime(0, 'UTC') AS d FORMAT Native",
        "SELECT toDateTime({n:UInt8}, 'UTC') AS d format native SETTINGS max_threads = 1 -- the end",
        "WITH 0 AS n SELECT toDateTime(n, 'UTC') AS d SETTINGS describe_include_subcolumns = 1",
        "(SELECT toDateTime(0, 'UTC') AS d) UNION DISTINCT (SELECT toDateTime(0, 'UTC'));",
    ],
)
async def test_columns_have_their_time_zones_however_the_statement_ends(pool: ChdbPool, sql: str) -> None:
    assert await streamed(pool, sql, 54460, n="0") == INFO + b"\1\1\1d\x0fDateTime('UTC')\0\0\0\0\0"


@pytest.mark.slow
@pytest.mark.parametrize("sql", ["SELECT nosuch", "SELECT 1 frm t", "SELECT 1; SELECT 2"])
async def test_an_error_is_that_of_the_statement_itself(pool: ChdbPool, sql: str) -> None:
    messages = []
    for revision in (0, 54460):
        with pytest.raises(SqlError) as caught:
            await streamed(pool, sql, revision)
        messages.append(caught.value.message)
    assert messages[0] == messages[1]


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["max_result_rows = 1", "max_result_bytes = 10", "max_ast_depth = 5"])
@pytest.mark.parametrize(
    "where", ["SELECT 1 AS a, 2 AS b SETTINGS {}", "SELECT 1 AS a, 2 AS b FORMAT Native SETTINGS {}"]
)
async def test_limits_are_those_of_the_result_and_not_of_its_columns(
    pool: ChdbPool, limit: str, where: str
) -> None:
    expected = INFO + b"\2\1\1a\5UInt8\0\1\1b\5UInt8\0\2"
    assert await streamed(pool, where.format(limit), 54460) == expected


@pytest.mark.slow
async def test_who_may_only_read_and_little_reads_that(pool: ChdbPool) -> None:
    limits = {"max_result_rows": "2", "readonly": "1"}
    data = b""
    session = pool.session(settings=limits, one_shot=True)
    async with session.stream("SELECT 1 AS a, 2, 3", format="Native", native_revision=54460) as stream:
        while piece := await stream.read():
            data += piece
        await stream.finish()
    assert data.startswith(INFO + b"\3\1\1a\5UInt8\0\1")
    with pytest.raises(SqlError) as caught:
        session = pool.session(settings=limits, one_shot=True)
        async with session.stream(
            "SELECT number FROM numbers(5)", format="Native", native_revision=54460
        ) as stream:
            await stream.finish()
    assert caught.value.code == 396


@pytest.mark.slow
async def test_other_formats_are_as_they_are(pool: ChdbPool) -> None:
    assert await streamed(pool, "SELECT 1 FORMAT TSV", 54460) == b"1\n"
    assert await streamed(pool, "SELECT 1 WHERE 0", 54460) == b""
