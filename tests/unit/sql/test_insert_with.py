"""WITH in front of an INSERT: the statement is an INSERT, whatever stands before it."""

from __future__ import annotations

import pytest

from engine.sql import StatementKind, parse_statement
from engine.sql.insert_with import insert_begin, with_behind_insert

INSERTS = {
    "WITH 1 AS a INSERT INTO t SELECT a": "INSERT INTO t WITH 1 AS a SELECT a",
    "with x as (select 1 as k) insert into d.t (k) select k from x": (
        "insert into d.t (k) with x as (select 1 as k) select k from x"
    ),
    "/* c */ WITH [1] AS a, 'INSERT INTO u' AS b INSERT INTO TABLE t SETTINGS x = 1 FROM y SELECT a": (
        "/* c */ INSERT INTO TABLE t SETTINGS x = 1 WITH [1] AS a, 'INSERT INTO u' AS b FROM y SELECT a"
    ),
    "WITH f(1) AS `insert` INSERT INTO FUNCTION url('h', CSV) SELECT `insert` UNION ALL SELECT 2": (
        "INSERT INTO FUNCTION url('h', CSV) WITH f(1) AS `insert` SELECT `insert` UNION ALL SELECT 2"
    ),
    "WITH insert AS (SELECT 1) INSERT INTO t SELECT * FROM insert": (
        "INSERT INTO t WITH insert AS (SELECT 1) SELECT * FROM insert"
    ),
}


@pytest.mark.parametrize("sql", INSERTS)
def test_an_insert_comes_before_its_with(sql: str) -> None:
    assert with_behind_insert(sql).split() == INSERTS[sql].split()
    statement = parse_statement(sql)
    assert (statement.kind, statement.is_query) == (StatementKind.INSERT, False)
    assert statement.targets == parse_statement(INSERTS[sql]).targets


@pytest.mark.parametrize(
    "sql",
    [
        "WITH 1 AS insert SELECT insert",
        "WITH 1 AS a SELECT a FROM t",
        "WITH x AS (INSERT INTO t SELECT 1) SELECT 1",
        "WITH 1 AS a FROM insert SELECT a",
        "SELECT 1 AS insert",
        "INSERT INTO t WITH 1 AS a SELECT a",
        "WITH",
        "",
    ],
)
def test_any_other_statement_stays_as_it_is(sql: str) -> None:
    assert with_behind_insert(sql) == sql


@pytest.mark.parametrize(
    "rest", ["VALUES (1)", "FORMAT TSV\n1", "FROM INFILE '/etc/passwd' FORMAT LineAsString", ""]
)
def test_with_means_nothing_to_rows(rest: str) -> None:
    sql = f"WITH 1 AS a INSERT INTO t {rest}"
    assert with_behind_insert(sql) == f"INSERT INTO t {rest}"
    assert parse_statement(sql).kind is StatementKind.INSERT


@pytest.mark.parametrize(
    ("sql", "begin"),
    [
        ("INSERT INTO t VALUES (1)", 0),
        (" /* x */ insert into t FORMAT TSV\nit's", 0),
        ("WITH 1 AS a INSERT INTO t FORMAT TSV\nit's", 12),
        ("WITH (SELECT 1) AS insert, [2] AS b INSERT INTO t SELECT 1", 36),
        ("WITH insert AS (SELECT 1) SELECT * FROM insert", None),
        ("WITH 'INTO' AS a SELECT 'INSERT INTO t'", None),
        ("WITH 1 AS a INSERT INT", None),
        ("SELECT 1", None),
        ("", None),
    ],
)
def test_where_an_insert_begins_is_known_before_its_rows(sql: str, begin: int | None) -> None:
    assert insert_begin(sql) == begin
