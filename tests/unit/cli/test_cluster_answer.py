"""The rows of an ON CLUSTER statement are written as chDB would write them, whoever writes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.config.model import User
from engine.ddl import OutputMode, OutputRow, output_columns
from engine.node.statements import hosts_answer
from engine.node.statements.hosts_answer import format_rows
from engine.node.statements.statement import Asked
from engine.storage import ChdbPool

ROWS = [
    OutputRow("node01", 9000, 0, "", 2, 1),
    OutputRow("ch-1.example", 65535, -57, "Code: 57. It's \t\n\r\b\f\0 \\N “ü” \x01\x7f", 1, 0),
    OutputRow("::1", 9000, None, None, 0, 18446744073709551615),
]


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[ChdbPool]:
    pool = await ChdbPool.open(tmp_path / "data", max_running=2)
    yield pool
    await pool.close()


def _asked(pool: ChdbPool, sql: str = "", **settings: str) -> Asked:
    return Asked(sql, User("default"), pool.session(one_shot=True), settings=settings)


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], []])
@pytest.mark.parametrize("format", ["TabSeparated", "TSV"])
async def test_what_the_node_writes_itself_is_what_chdb_writes(
    pool: ChdbPool, rows: list[OutputRow], format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = output_columns(OutputMode.NEVER_THROW)
    values = [row.values() for row in rows]

    ours = await format_rows(_asked(pool), columns, values, format=format)
    monkeypatch.setattr(hosts_answer, "_PLAIN_FORMATS", frozenset())
    theirs = await format_rows(_asked(pool), columns, values, format=format)

    assert ours.data == theirs.data
    assert ours.result_rows == theirs.result_rows


async def test_settings_of_the_format_are_minded(pool: ChdbPool) -> None:
    columns = output_columns(OutputMode.NEVER_THROW)
    sql = "DROP TABLE t ON CLUSTER c SETTINGS format_tsv_null_representation = 'nothing'"
    asked = _asked(pool, sql, output_format_tsv_crlf_end_of_line="1")

    written = await format_rows(asked, columns, [ROWS[2].values()], format="TabSeparated")

    assert written.data == b"::1\t9000\tnothing\tnothing\t0\t18446744073709551615\r\n"


async def test_one_statement_is_told_from_several_and_from_none(pool: ChdbPool) -> None:
    assert await pool.is_one_statement("CREATE TABLE t ON CLUSTER c (a UInt8) ENGINE = Memory")
    assert not await pool.is_one_statement("SELECT 1; SELECT 2")
    assert not await pool.is_one_statement("CREATE TABL t")
