"""Which statements wait for nobody's thread."""

from __future__ import annotations

import pytest

from engine.node.statements.urgent import is_urgent
from engine.sql import parse_statement


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("KILL QUERY WHERE query_id = 'a'", True),
        ("KILL QUERY ON CLUSTER c WHERE query_id = 'a'", False),
        ("KILL MUTATION WHERE 1", False),
        ("SHOW PROCESSLIST", True),
        ("/* from a tool */ show full processlist FORMAT JSON", True),
        ("SHOW TABLES LIKE 'processlist'", False),
        ("SELECT * FROM system.processes", True),
        ("SELECT query, elapsed FROM `system`.processes AS p WHERE elapsed > 1 ORDER BY 1, 2", True),
        ("WITH 1 AS x SELECT count() FROM system.processes WHERE x", True),
        ("SELECT * FROM system.processes WHERE query_id IN (SELECT a FROM t)", False),
        ("SELECT * FROM system.processes, numbers(1000000000000)", False),
        ("SELECT * FROM system.processes AS p, numbers(1000000000000)", False),
        ("SELECT * FROM system.processes JOIN numbers(1000000000000) USING a", False),
        ("SELECT * FROM system.processes, t", False),
        ("SELECT * FROM system.processes WHERE 1 IN (SELECT a FROM numbers(1000000000000))", False),
        ("SELECT * FROM processes", False),
        ("SELECT 'system.processes'", False),
        ("INSERT INTO t SELECT query FROM system.processes", False),
    ],
)
def test_those_that_look_at_what_runs_or_end_it_are_urgent(sql: str, *, expected: bool) -> None:
    assert is_urgent(sql, parse_statement(sql)) is expected
