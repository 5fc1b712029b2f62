"""Query parameters in statements that are understood by their text."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from engine.errors import SqlError
from engine.sql import parse_statement, with_parameters


def filled(sql: str, parameters: Mapping[str, str]) -> str:
    return with_parameters(sql, parameters, parse_statement(sql))


@pytest.mark.parametrize(
    ("sql", "parameters", "expected"),
    [
        ("DROP TABLE {d:Identifier}.{t:Identifier}", {"d": "a", "t": "b c"}, "DROP TABLE `a`.`b c`"),
        ("DROP TABLE { t : Identifier } SYNC", {"t": "x`y"}, "DROP TABLE `x\\`y` SYNC"),
        (
            "ALTER TABLE t DELETE WHERE a = {a:UInt8} AND s = {s:String}",
            {"a": "7", "s": "it's\\tit"},
            "ALTER TABLE t DELETE WHERE a = CAST('7', 'UInt8') AND s = 'it\\'s\\tit'",
        ),
        (
            "ALTER TABLE t UPDATE a = {a:Nullable(String)} WHERE 1",
            {"a": "\\N"},
            "ALTER TABLE t UPDATE a = NULL WHERE 1",
        ),
        (
            "ALTER TABLE t UPDATE a = {a:Array(Tuple(x UInt8, y String))} WHERE 1",
            {"a": "[(1,\\'b\\')]"},
            "ALTER TABLE t UPDATE a = CAST('[(1,\\'b\\')]', 'Array(Tuple(x UInt8, y String))') WHERE 1",
        ),
        ("ALTER TABLE t DROP PARTITION {p:UInt32}", {"p": "202401"}, "ALTER TABLE t DROP PARTITION 202401"),
        ("ALTER TABLE t DROP PARTITION {p:String}", {"p": "a"}, "ALTER TABLE t DROP PARTITION 'a'"),
        ("SELECT {a:UInt8} FROM {t:Identifier}", {"a": "1", "t": "x"}, "SELECT {a:UInt8} FROM `x`"),
        ("INSERT INTO {t:Identifier} SELECT {a:UInt8}", {"t": "x"}, "INSERT INTO `x` SELECT {a:UInt8}"),
        ("SELECT {'a': 1}, '{t:Identifier}'", {"t": "x"}, "SELECT {'a': 1}, '{t:Identifier}'"),
        (
            "CREATE VIEW {v:Identifier} AS SELECT {x:UInt8} AS a",
            {"v": "w", "x": "7"},
            "CREATE VIEW `w` AS SELECT {x:UInt8} AS a",
        ),
        ("CREATE TABLE t (a Map(String, UInt8) DEFAULT {'a': 1})", {}, None),
        ("SELECT 1", {"t": "x"}, None),
    ],
)
def test_values_stand_in_the_places_of_parameters(
    sql: str, parameters: dict[str, str], expected: str | None
) -> None:
    assert filled(sql, parameters) == (sql if expected is None else expected)


@pytest.mark.parametrize("sql", ["DROP TABLE {t:Identifier}", "SELECT * FROM {t:Identifier}"])
def test_a_parameter_without_a_value_is_named(sql: str) -> None:
    with pytest.raises(SqlError, match=r"`t` is not set.*param_t") as caught:
        filled(sql, {"other": "x"})
    assert caught.value.code == 456
