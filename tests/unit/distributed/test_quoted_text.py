"""Errors quote the statement without what reads the shards."""

from __future__ import annotations

import pytest

from engine.errors import SqlError
from engine.node.distributed.reading.quoted_text import without_shards

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
