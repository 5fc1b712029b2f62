"""Bytes behind what ends the rows of an INSERT are refused or left unread, however many there are."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from engine.errors import Code, SqlError
from engine.storage import ChdbPool

pytestmark = pytest.mark.slow

MANY = 40
CHUNK = 1 << 16


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[ChdbPool]:
    pool = await ChdbPool.open(tmp_path / "data", max_running=2)
    await pool.query("CREATE TABLE t (a UInt64) ENGINE = Log")
    yield pool
    await pool.close()


async def insert(pool: ChdbPool, format: str, rows: Iterable[bytes]) -> int:
    async def given() -> AsyncIterator[bytes]:
        for chunk in rows:
            yield chunk

    await pool.session(one_shot=True).insert("INSERT INTO t", format=format, rows=given())
    return int((await pool.query("SELECT count() FROM t")).text)


@pytest.mark.parametrize("rows", [itertools.repeat(bytes(CHUNK)), [b"\0", b"\0", b"\0"], [b"\0\1"]])
async def test_native_that_begins_with_a_block_without_columns_is_refused(
    pool: ChdbPool, rows: Iterable[bytes]
) -> None:
    with pytest.raises(SqlError) as refused:
        await insert(pool, "Native", rows)
    assert refused.value.code == Code.INCORRECT_DATA


async def test_an_empty_block_alone_is_an_empty_insert(pool: ChdbPool) -> None:
    assert await insert(pool, "Native", [b"\0", b"\0"]) == 0
    assert await insert(pool, "Native", []) == 0
    block = (await pool.query("SELECT number AS a FROM numbers(3)", format="Native")).data
    assert await insert(pool, "Native", [block[:1], block[1:]]) == 3


@pytest.mark.parametrize("behind", [[b"x" * CHUNK] * MANY, [b" ", b"x"], [b"(2)"]])
@pytest.mark.parametrize("begin", [[b"(1);"], [b"(1)", b";"]])
async def test_values_with_anything_behind_a_semicolon_are_refused(
    pool: ChdbPool, begin: list[bytes], behind: list[bytes]
) -> None:
    with pytest.raises(SqlError, match="after semicolon") as refused:
        await insert(pool, "Values", [*begin, *behind])
    assert refused.value.code == Code.CANNOT_READ_ALL_DATA


async def test_white_space_behind_a_semicolon_is_nothing(pool: ChdbPool) -> None:
    assert await insert(pool, "Values", [b"(1), (2)", b";", *[b" \n" * CHUNK] * MANY]) == 2


async def test_a_semicolon_in_a_string_is_text(pool: ChdbPool) -> None:
    assert await insert(pool, "Values", [b"(length('a", b";b')), (1)"]) == 2


@pytest.mark.parametrize("format", ["ArrowStream", "JSON", "JSONCompact", "Native", "Parquet", "Avro"])
async def test_bytes_behind_the_end_of_a_format_do_no_harm(pool: ChdbPool, format: str) -> None:
    """To a node that is handed what its format cannot hold; whether it is an error is left to chDB."""
    rows = (await pool.query("SELECT number AS a FROM numbers(3)", format=format)).data
    with contextlib.suppress(SqlError):
        await insert(pool, format, [rows, *[b"\0" * CHUNK] * MANY])
    await pool.query("TRUNCATE TABLE t")
    assert await insert(pool, format, [rows]) == 3
