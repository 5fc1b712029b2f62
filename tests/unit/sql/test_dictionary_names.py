"""Names of dictionaries in a statement that is carried out without a current database."""

from __future__ import annotations

import pytest

from engine.sql.dictionary_names import short_dictionary_names, with_dictionary_database


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("dictGet('d', 'v', k)", "dictGet('my db.d', 'v', k)"),
        ("dictGetUInt64OrDefault('d', 'v', k, 0)", "dictGetUInt64OrDefault('my db.d', 'v', k, 0)"),
        ("NOT dictHas(d, k)", "NOT dictHas(`my db`.d, k)"),
        ("dictIsIn(`d`, 1, 2)", "dictIsIn(`my db`.`d`, 1, 2)"),
        ("dictGet('other.d', 'v', k)", "dictGet('other.d', 'v', k)"),
        ("dictGet(other.d, 'v', k)", "dictGet(other.d, 'v', k)"),
        ("concat('d', 'dictGet(', k)", "concat('d', 'dictGet(', k)"),
        ("dictGet(concat('d', 'e'), 'v', k)", "dictGet(concat('d', 'e'), 'v', k)"),
        ("dictGet({name:String}, 'v', k)", "dictGet({name:String}, 'v', k)"),
    ],
)
def test_a_dictionary_without_a_database_is_one_of_the_current_database(sql: str, expected: str) -> None:
    assert with_dictionary_database(sql, "my db") == expected


def test_only_names_that_are_known_are_written_out() -> None:
    sql = "SELECT dictGet('a', 'v', k), dictHas(b, k), dictGet('db.c', 'v', k), dictGet(db.d, 'v', k)"
    assert short_dictionary_names(sql) == {"a", "b"}
    assert with_dictionary_database(sql, "x", only={"b"}) == sql.replace("dictHas(b", "dictHas(`x`.b")
