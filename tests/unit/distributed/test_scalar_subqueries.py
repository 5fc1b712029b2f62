"""Which subqueries of a SELECT are one value, or EXISTS. `@` is a Distributed table."""

from __future__ import annotations

import asyncio

import pytest

from engine.node.distributed.reading.scalar_subqueries import with_values_of_scalars
from engine.node.distributed.reading.subquery_values import Meaning, Subquery


async def _sign(subquery: Subquery) -> str | None:
    return {Meaning.VALUE: "v", Meaning.EXISTENCE: "e", Meaning.SET: "s"}[subquery.meaning]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT (SELECT 1 FROM @), f((SELECT 2 FROM @)) FROM @", "SELECT v, f(v) FROM @"),
        (
            "SELECT ((SELECT 1 FROM @)) + 1 FROM @ WHERE a = ((SELECT 1 FROM @) + 2)",
            "SELECT v + 1 FROM @ WHERE a = (v + 2)",
        ),
        (
            "SELECT ((SELECT 1) UNION ALL (SELECT 1 FROM @)), (1, (SELECT 2 FROM @)) FROM t",
            "SELECT v, (1, v) FROM t",
        ),
        (
            "WITH (SELECT 1 FROM @) AS x SELECT [x, (FROM @ SELECT 1)] FROM t",
            "WITH v AS x SELECT [x, v] FROM t",
        ),
        (
            "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM @) AND exists((SELECT 1 FROM @))",
            "SELECT 1 WHERE NOT e AND e",
        ),
        (
            "SELECT 1 FROM (SELECT (SELECT 1 FROM @) FROM @) LIMIT (SELECT 2 FROM @)",
            "SELECT 1 FROM (SELECT v FROM @) LIMIT v",
        ),
        (
            "SELECT 1 FROM t WHERE a IN ((SELECT 1 FROM @), 2) AND b BETWEEN (SELECT 1 FROM @) AND 2",
            "SELECT 1 FROM t WHERE a IN (v, 2) AND b BETWEEN v AND 2",
        ),
        (
            "SELECT 1 FROM @ AS a, (SELECT 1 FROM @) AS b JOIN (SELECT 1 FROM @) c ON a = (SELECT 1 FROM @)",
            "SELECT 1 FROM @ AS a, (SELECT 1 FROM @) AS b JOIN (SELECT 1 FROM @) c ON a = v",
        ),
        ("SELECT 1 FROM ((SELECT 1 FROM @) UNION ALL (SELECT 2 FROM @))", ""),
        ("(SELECT 1 FROM @) UNION DISTINCT (SELECT 1 FROM @)", ""),
        ("SELECT 1 FROM t WHERE a IN (SELECT 1 FROM @) AND b IN ((SELECT 2 FROM @)) AND c IN @", ""),
        ("SELECT 1 FROM t WHERE a = ANY (SELECT 1 FROM @) OR b > ALL (SELECT 1 FROM @)", ""),
        ("SELECT 1 FROM view(SELECT 1 FROM @)", ""),
        ("INSERT INTO t (SELECT 1 FROM @)", ""),
        ("CREATE TABLE t ENGINE = Memory AS (SELECT 1 FROM @)", ""),
        ("SELECT `by`(SELECT 1 FROM @)", ""),
    ],
)
def test_a_subquery_is_one_value_where_an_expression_stands(sql: str, expected: str) -> None:
    starts = [at for at, character in enumerate(sql) if character == "@"]
    text = sql.replace("@", "d")
    found = asyncio.run(with_values_of_scalars(text, starts, _sign))
    assert found == (expected or sql).replace("@", "d")
