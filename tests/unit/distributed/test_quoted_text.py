"""Errors quote the statement without what reads the shards."""

from __future__ import annotations

import pytest

from engine.errors import SqlError
from engine.node.distributed.reading.quoted_text import with_place_in, without_shards

_READ = "(SELECT id FROM url('http://h:1/?query=%28', 'Native', 'id UInt64') UNION ALL SELECT id FROM t)"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"Unknown `x`. In scope SELECT x FROM {_READ} AS t.", "Unknown `x`. In scope SELECT x FROM t."),
        (
            f"It doesn't: SELECT ')' FROM {_READ} AS a JOIN (SELECT 1 FROM {_READ} AS `b c`) AS s ON a.id",
            "It doesn't: SELECT ')' FROM a JOIN (SELECT 1 FROM `b c`) AS s ON a.id",
        ),
        (
            f"In scope SELECT 1 WHERE 1 IN (SELECT * FROM {_READ})",
            "In scope SELECT 1 WHERE 1 IN (SELECT * FROM (…))",
        ),
        (f"In scope SELECT x FROM {_READ[:50]}", "In scope SELECT x FROM (…)"),
        ("In scope SELECT x FROM (SELECT 1) AS t", "In scope SELECT x FROM (SELECT 1) AS t"),
    ],
)
def test_a_subquery_over_shards_is_the_name_that_the_text_gives_it(text: str, shown: str) -> None:
    error = without_shards(SqlError(47, text))
    assert (error.code, error.message) == (47, shown)


def test_a_syntax_error_has_its_place_in_the_users_text() -> None:
    def placed(sql: str, text: str) -> str:
        return with_place_in(sql, SqlError(62, f"Syntax error: failed at position {text}")).message

    sql = "SELECT 'ü', k FROM d\nLIMIT 1 BY s ORDER BY k"
    tail = "ORDER BY k. Expected one of: token, Dot, WITH TIES"
    place = placed(sql, f"776 (ORDER) (line 1, col 776): {tail}")
    assert place == f"Syntax error: failed at position 36 (ORDER) (line 2, col 14): {tail}"
    cut = "BY s ORDER.... Expected one of: Comma"
    assert placed(sql, f"800 (BY): {cut}") == f"Syntax error: failed at position 31 (BY): {cut}"
    for unknown in ("9 (k): k. Expected one of: Dot", "9 (x): nowhere. Expected one of: Dot", "9: no more"):
        assert placed(sql, unknown).endswith(unknown)
