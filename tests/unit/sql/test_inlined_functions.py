"""Bodies of SQL user functions in the place of their calls."""

from __future__ import annotations

import pytest

from engine.sql.inlined_functions import inlined

FUNCTIONS = {
    "f": "CREATE FUNCTION f AS (a, b) -> (a + (b * 2))",
    "g": "CREATE FUNCTION g AS x -> f(x, 1)",
    "five": "CREATE FUNCTION five AS () -> 5",
    "low": "CREATE FUNCTION low AS s -> lower(s.name, s, `s`)",
    "self": "CREATE FUNCTION self AS x -> self(x)",
}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT f(x, 3)", "SELECT (x + (3 * 2))"),
        ("SELECT `f`(f(1, 2) , [1, (2)]) * 2", "SELECT ((1 + (2 * 2)) + ([1, (2)] * 2)) * 2"),
        ("SELECT g(y + 1), five()", "SELECT ((y + 1) + (1 * 2)), 5"),
        ("SELECT g(t.y)", "SELECT ((t.y) + (1 * 2))"),
        ("SELECT low('A')", "SELECT (lower(s.name, 'A', 'A'))"),
        ("SELECT f(1), f, 'f(1, 2)' -- f(1, 2)", "SELECT f(1), f, 'f(1, 2)' -- f(1, 2)"),
        ("SELECT lower(F(1, 2))", "SELECT lower(F(1, 2))"),
    ],
)
def test_a_call_becomes_the_body_with_its_arguments(sql: str, expected: str) -> None:
    assert inlined(sql, FUNCTIONS) == expected


def test_names_that_are_made_are_no_calls() -> None:
    sql = "CREATE TABLE f (x Int8, INDEX f (x) TYPE minmax, PROJECTION g (SELECT x)) ENGINE = Memory"
    assert inlined(sql, FUNCTIONS) == sql


def test_a_function_that_calls_itself_is_left_for_chdb_to_refuse() -> None:
    assert "self(" in inlined("SELECT self(1)", FUNCTIONS)
