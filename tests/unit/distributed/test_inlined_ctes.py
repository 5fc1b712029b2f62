"""Common table expressions are put where they are read."""

from __future__ import annotations

import re

import pytest

from engine.distributed.select.inlined_ctes import with_inlined_ctes


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "WITH x AS (SELECT id FROM t) SELECT count() FROM x",
            "SELECT count() FROM (SELECT id FROM t) AS `x`",
        ),
        ("WITH x AS (SELECT 1) SELECT * FROM x AS y, x z", "SELECT * FROM (SELECT 1) AS y, (SELECT 1) z"),
        ("WITH x AS (SELECT 1) SELECT 2 IN x, 3 IN (x)", "SELECT 2 IN (SELECT 1), 3 IN ((SELECT 1))"),
        ("WITH 5 AS n, x AS (SELECT 1) SELECT n FROM x", "WITH 5 AS n SELECT n FROM (SELECT 1) AS `x`"),
        ("WITH x AS (SELECT 1), 5 AS n SELECT n FROM x", "WITH 5 AS n SELECT n FROM (SELECT 1) AS `x`"),
        (
            "WITH x AS (SELECT 1), y AS (SELECT * FROM x) SELECT * FROM y FORMAT CSV",
            "SELECT * FROM (SELECT * FROM (SELECT 1) AS `x`) AS `y` FORMAT CSV",
        ),
        (
            "WITH x AS (SELECT 1) SELECT * FROM x, view(SELECT * FROM (SELECT * FROM x)) AS y",
            "SELECT * FROM (SELECT 1) AS `x`, view(SELECT * FROM (SELECT * FROM x)) AS y",
        ),
        ("WITH t AS (SELECT * FROM t) SELECT * FROM t, d.t", "SELECT * FROM (SELECT * FROM t) AS `t`, d.t"),
        (
            "WITH x AS (SELECT * FROM t), y AS (FROM x), t AS (SELECT * FROM y) SELECT * FROM t",
            "SELECT * FROM (SELECT * FROM (FROM (SELECT * FROM t) AS `x`) AS `y`) AS `t`",
        ),
        (
            "WITH t AS (SELECT 1), x AS (FROM t) SELECT * FROM x",
            "SELECT * FROM (FROM (SELECT 1) AS `t`) AS `x`",
        ),
        (
            "SELECT * FROM (WITH x AS (SELECT 1) SELECT * FROM x) AS x UNION ALL SELECT * FROM x",
            "SELECT * FROM (SELECT * FROM (SELECT 1) AS `x`) AS x UNION ALL SELECT * FROM x",
        ),
        (
            "WITH x AS (WITH x AS (SELECT 2) SELECT * FROM x) SELECT * FROM x",
            "SELECT * FROM (SELECT * FROM (SELECT 2) AS `x`) AS `x`",
        ),
        (
            "WITH x (a, b) AS (SELECT 1, 2), y AS (SELECT * FROM x AS z) SELECT a FROM x, y",
            "SELECT a FROM {0} AS `x`, (SELECT * FROM {0} AS z) AS `y`".format(
                "(SELECT * FROM (SELECT 1, 2) AS `x` (a, b))"
            ),
        ),
        (
            "WITH x AS MATERIALIZED (SELECT 1), y(a) AS NOT MATERIALIZED (SELECT 2) SELECT 1 IN y FROM x",
            "SELECT 1 IN (SELECT * FROM (SELECT 2) AS `y` (a)) FROM (SELECT 1) AS `x`",
        ),
        (
            "INSERT INTO t (a) WITH x AS (SELECT 1) SELECT * FROM x",
            "INSERT INTO t (a) SELECT * FROM (SELECT 1) AS `x`",
        ),
        (
            "EXPLAIN SYNTAX WITH x AS (SELECT 1) SELECT * FROM x",
            "EXPLAIN SYNTAX SELECT * FROM (SELECT 1) AS `x`",
        ),
    ],
)
def test_a_name_is_replaced_by_what_it_stands_for(sql: str, expected: str) -> None:
    assert re.sub(r"\s+", " ", with_inlined_ctes(sql)).replace("( ", "(").strip() == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "SELECT a, count() FROM t GROUP BY a WITH TOTALS",
        "WITH 5 AS x SELECT * FROM x",
        "WITH RECURSIVE x AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM x WHERE n < 3) SELECT * FROM x",
        "WITH x AS MATERIALIZED (SELECT 1) SELECT * FROM x",
    ],
)
def test_what_is_more_than_a_name_stays(sql: str) -> None:
    assert with_inlined_ctes(sql, materializes=True) == sql


def test_a_materialized_one_is_any_other_unless_the_setting_says_so() -> None:
    """Its rows would come twice, and rand() twice another way."""
    sql = "WITH x AS NOT MATERIALIZED (SELECT 1) SELECT * FROM x"
    assert with_inlined_ctes(sql, materializes=True) != sql
