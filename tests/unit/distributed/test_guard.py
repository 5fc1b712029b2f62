"""What chDB would do with a Distributed table by itself: found in the text, or put into it."""

from __future__ import annotations

import asyncio
import re

import pytest

from engine.config.model import User
from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.distributed.definitions.guard import DistributedGuard, check_merge
from engine.node.statements.statement import Asked
from engine.node.statements.view_parameters import view_calls, with_arguments
from engine.sql import parse_statement

DICTIONARY = "CREATE DICTIONARY x (k UInt64) PRIMARY KEY k"
NAMES = (TableName("default", "d"), TableName("other", "d2"))


class OnlyNames:
    """A registry of tables that knows their names."""

    async def names(self) -> tuple[TableName, ...]:
        return NAMES


def refusal(sql: str) -> int:
    asked = Asked(sql=sql, user=User("u"), session=None, database="default")  # type: ignore[arg-type]

    async def reads_distributed(text: str, database: str) -> bool:
        assert "SELECT" in text
        return bool(re.search(r"FROM (?:`?other`?\.`?d2|(?:`?default`?\.)?`?d\b)", f"{text} IN {database}"))

    guard = DistributedGuard(OnlyNames(), reads_distributed)  # type: ignore[arg-type]
    try:
        assert asyncio.run(guard.run(asked, parse_statement(sql))) is None
        check_merge(sql, NAMES, "default")
    except SqlError as error:
        return error.code
    return 0


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE b AS d ENGINE = Buffer(default, d, 1, 1, 1, 1, 1, 1, 1)",
        "CREATE TABLE b (k UInt8) ENGINE = Buffer(currentDatabase(), 'd', 1, 1, 1, 1, 1, 1, 1)",
        "CREATE TABLE a ENGINE = Alias('d')",
        "CREATE TABLE a ENGINE = Alias(other, d2)",
        "CREATE TABLE m (k UInt8) ENGINE = Merge(default, '^d', 'd')",
        "CREATE TABLE m (k UInt8) ENGINE = Merge(REGEXP('oth'), '2$', 'd2')",
        "CREATE DICTIONARY x (k UInt64) PRIMARY KEY k SOURCE(CLICKHOUSE(TABLE 'd')) LAYOUT(FLAT())",
        "CREATE DICTIONARY x (k UInt64) PRIMARY KEY k SOURCE(CLICKHOUSE(DB 'other' TABLE 'd2'))",
        f"{DICTIONARY} SOURCE(CLICKHOUSE(QUERY 'SELECT k FROM d')) LAYOUT(FLAT())",
        f"{DICTIONARY} SOURCE(CLICKHOUSE(TABLE 'plain' INVALIDATE_QUERY 'SELECT 1 FROM other.d2'))",
        "SELECT * FROM merge('^d$')",
        "SELECT * FROM a JOIN merge(other, 'd') AS m USING k",
    ],
)
def test_engines_and_sources_of_chdb_do_not_get_a_distributed_table(sql: str) -> None:
    assert refusal(sql) == Code.NOT_IMPLEMENTED


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE b AS d ENGINE = Buffer(default, plain, 1, 1, 1, 1, 1, 1, 1)",
        "CREATE TABLE m (k UInt8) ENGINE = Merge(default, '^plain', 'plain')",
        "CREATE TABLE m (k UInt8) ENGINE = Merge(default, '^d')",
        "CREATE TABLE m AS d ENGINE = MergeTree ORDER BY k",
        "CREATE DICTIONARY x (k UInt64) PRIMARY KEY k SOURCE(CLICKHOUSE(TABLE 'plain')) LAYOUT(FLAT())",
        "CREATE DICTIONARY x (k UInt64) PRIMARY KEY k SOURCE(CLICKHOUSE(HOST 'far' TABLE 'd'))",
        f"{DICTIONARY} SOURCE(CLICKHOUSE(HOST 'far' QUERY 'SELECT k FROM d'))",
        f"{DICTIONARY} SOURCE(CLICKHOUSE(QUERY 'SELECT k FROM plain'))",
        "SELECT sumMerge(s), 'merge(' FROM d",
        "SELECT * FROM merge('^plain$')",
        "SELECT * FROM merge('[')",
    ],
)
def test_other_tables_are_theirs(sql: str) -> None:
    assert refusal(sql) == 0


def test_a_view_with_parameters_is_its_select_with_the_values() -> None:
    sql = "SELECT * FROM a, db.v(lo = 1 + 1, t = 'x') AS v JOIN numbers(3) USING k"
    [call] = view_calls(sql)
    assert (sql[call.start : call.end], call.name) == ("db.v(lo = 1 + 1, t = 'x')", TableName("db", "v"))
    assert with_arguments("SELECT {t:String} AS s FROM d WHERE k > {lo:UInt64}", call) == (
        "SELECT CAST('x', 'String') AS s FROM d WHERE k > CAST(1 + 1, 'UInt64')"
    )
    assert with_arguments("SELECT 1 WHERE (k > {lo:UInt8}) AND (s = f({t:String}))", call) == (
        "SELECT 1 WHERE (k > CAST(1 + 1, 'UInt8')) AND (s = f(CAST('x', 'String')))"
    )
    with pytest.raises(SqlError) as raised:
        with_arguments("SELECT {no:UInt8}", call)
    assert raised.value.code == Code.UNKNOWN_QUERY_PARAMETER
