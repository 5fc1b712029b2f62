"""Subqueries that are asked for first: which are found in a text, and what stands in their place."""

from __future__ import annotations

import asyncio
import random

import pytest

from engine.errors import Code, SqlError
from engine.node.distributed.reading.subquery_values import (
    Meaning,
    Subquery,
    literal,
    question_of,
    question_of_set,
    with_values_in_conditions,
    with_values_in_rows,
)
from tests.unit.distributed.test_select_shapes import Bench, bench

__all__ = ["bench"]

_SIGNS = {Meaning.VALUE: "v", Meaning.SET: "s", Meaning.EXISTENCE: "e"}


async def _sign(subquery: Subquery) -> str | None:
    return None if "here" in subquery.select else f"{_SIGNS[subquery.meaning]}<{subquery.select}>"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("DELETE FROM t WHERE a IN (SELECT 1)", "DELETE FROM t WHERE a IN s<SELECT 1>"),
        ("DELETE FROM t WHERE a IN ((SELECT 1)) AND 1", "DELETE FROM t WHERE a IN s<(SELECT 1)> AND 1"),
        ("DELETE FROM t WHERE a IN ((SELECT 1), 2)", "DELETE FROM t WHERE a IN (v<SELECT 1>, 2)"),
        ("DELETE FROM t WHERE NOT exists(SELECT 1) OR b", "DELETE FROM t WHERE NOT e<SELECT 1> OR b"),
        (
            "DELETE FROM t WHERE EXISTS ((SELECT 1) EXCEPT SELECT (2)) OR a = (FROM d SELECT 1)",
            "DELETE FROM t WHERE e<(SELECT 1) EXCEPT SELECT (2)> OR a = v<FROM d SELECT 1>",
        ),
        (
            (
                "ALTER TABLE t UPDATE a = f((SELECT 1)), b = ((SELECT 2) + 1) "
                "WHERE c = ((SELECT 3) UNION ALL (SELECT 4))"
            ),
            (
                "ALTER TABLE t UPDATE a = f(v<SELECT 1>), b = (v<SELECT 2> + 1) "
                "WHERE c = v<(SELECT 3) UNION ALL (SELECT 4)>"
            ),
        ),
        ("DELETE FROM t WHERE a IN (SELECT x FROM here WHERE y IN (SELECT 1))", ""),
        (
            (
                "DELETE FROM t IN PARTITION 'p' WHERE a NOT IN d.`x` "
                "AND b GLOBAL IN y OR c IN (1, 2) OR e IN here"
            ),
            (
                "DELETE FROM t IN PARTITION 'p' WHERE a NOT IN s<SELECT * FROM `d`.`x`> "
                "AND b GLOBAL IN s<SELECT * FROM `y`> OR c IN (1, 2) OR e IN here"
            ),
        ),
        (
            (
                "ALTER TABLE t MODIFY TTL a DELETE WHERE a IN (SELECT 1), (DELETE WHERE a IN (SELECT 2)), "
                "ADD COLUMN b DEFAULT (SELECT 3), UPDATE c = (SELECT 4) WHERE a IN e"
            ),
            (
                "ALTER TABLE t MODIFY TTL a DELETE WHERE a IN (SELECT 1), (DELETE WHERE a IN s<SELECT 2>), "
                "ADD COLUMN b DEFAULT (SELECT 3), UPDATE c = v<SELECT 4> WHERE a IN s<SELECT * FROM `e`>"
            ),
        ),
        ("SHOW TABLES IN d WHERE a IN d", "SHOW TABLES IN d WHERE a IN s<SELECT * FROM `d`>"),
        ("SHOW TABLES IN d LIMIT (SELECT 1)", "SHOW TABLES IN d LIMIT v<SELECT 1>"),
        ("SHOW TABLES IN d", ""),
        ("DELETE FROM t WHERE ((((a)))) = ((SELECT 1", "DELETE FROM t WHERE ((((a)))) = (v<SELECT >"),
    ],
)
def test_conditions(sql: str, expected: str) -> None:
    assert asyncio.run(with_values_in_conditions(sql, _sign)) == (expected or sql)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("INSERT INTO t VALUES (1, (SELECT 2)), ((SELECT 3), 4)", "(1, v<SELECT 2>), (v<SELECT 3>, 4)"),
        ("INSERT INTO t VALUES ((SELECT 1) IN (SELECT 2))", "(v<SELECT 1> IN s<SELECT 2>)"),
        ("INSERT INTO t VALUES (EXISTS (SELECT 1), '(SELECT 1)')", "(e<SELECT 1>, '(SELECT 1)')"),
    ],
)
def test_rows(sql: str, expected: str) -> None:
    assert asyncio.run(with_values_in_rows(sql, _sign)) == f"INSERT INTO t VALUES {expected}"


_TEXTS = [
    r"'(SELECT 9)'",
    r"'it\'s (SELECT 9)'",
    "'(WITH '' (SELECT 9)'",
    r"'\\'",
    '"a\'(SELECT 9)"',
    "1",
    "-1",
    "(",
    ")",
]
_TEXTS += [
    "-- '(SELECT 9)\n",
    "/* ' (SELECT 9) */",
    "$$'(SELECT 9)$$",
    "`'`",
    "# '(SELECT 9)\n",
    "2 / 3",
    "(SELECTED)",
]


@pytest.mark.parametrize("seed", range(200))
def test_what_texts_and_comments_among_rows_say_is_no_subquery(seed: int) -> None:
    rng = random.Random(seed)
    pieces = [rng.choice([*_TEXTS, "(SELECT 2)"]) for _ in range(rng.randrange(1, 7))]
    sql = f"INSERT INTO t VALUES ({' , '.join(pieces)})"
    expected = sql.replace("(SELECT 2)", "v<SELECT 2>")
    assert asyncio.run(with_values_in_rows(sql, _sign)) == expected


@pytest.mark.parametrize(
    "value",
    [
        "toDateTime(1729992600, 'Europe/Berlin')",
        "toDateTime(1729992600)",
        "toDateTime64(1729992600.125, 3, 'Europe/Berlin')",
        "toNullable(toDateTime64(-5.5, 1))",
        "toLowCardinality(toDateTime(5, 'Europe/Berlin'))",
        "[(toDateTime(1729992600), 'DateTime', toDateTime64(1729992600, 3, 'Europe/Berlin'))]",
        "(toDateTime(1729992600, 'Europe/Berlin'), CAST('DateTime', 'Enum8(\\'DateTime\\' = 1)'))",
        "CAST(NULL, 'Nullable(DateTime)')",
        "NULL",
        "CAST((1.5, 'ä'), 'Tuple(DateTime Float64, b String)')",
        "toDecimal128('1.23', 10)",
        "map('ä', 1, 'b\\'', 2)",
        "map(toDateTime(1729992600, 'Europe/Berlin'), [(toDateTime(5), NULL)])",
    ],
)
@pytest.mark.slow
def test_a_value_is_the_same_where_it_is_written(bench: Bench, value: str) -> None:
    """Also half past two in the night in which clocks are set back, the second time."""
    berlin = " SETTINGS session_timezone = 'Europe/Berlin'"
    questions = {
        f"(SELECT {value})": question_of(Meaning.VALUE, f"SELECT {value}"),
        f"(SELECT arrayMap(x -> x.1, groupUniqArray(tuple(*))) FROM (SELECT {value}))": question_of_set(
            f"SELECT {value}", columns=1, with_nulls=True
        ),
    }
    for one, question in questions.items():
        answer = bench.loop.run_until_complete(bench.pool.query(question + berlin, format="TSVRaw"))
        same = "toTypeName(a) = toTypeName(b), isNull(a) = isNull(b), ifNull(sipHash64(a) = sipHash64(b), 1)"
        found = bench.ask(
            f"SELECT {same} FROM (SELECT {one} AS a, {literal(answer.text, most=1000)} AS b){berlin}"
        )
        assert found.splitlines()[-1] == "1\t1\t1"


@pytest.mark.parametrize("type_", ["Dynamic", "Variant(String, UInt64)", "Array(Tuple(Dynamic, String))"])
def test_a_value_that_could_be_of_several_types_is_refused(type_: str) -> None:
    """The text 5 may be a number or a string: DELETE would meet other rows, or none."""
    with pytest.raises(SqlError) as refused:
        literal(f"{type_}\t0\t35\t{type_}", most=1000)
    assert refused.value.code == Code.NOT_IMPLEMENTED
    assert literal("Enum8('Dynamic' = 1)\t0\t44\tEnum8('Dynamic' = 1)", most=1000).startswith("CAST('D', ")
    assert literal(f"{type_}\t1\t\t{type_}", most=1000).startswith(("CAST(NULL, ", "_CAST(NULL, "))
