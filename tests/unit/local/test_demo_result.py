"""What the demo shows at its end: a table of migrations and hosts, the ledger, one verdict."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from engine.local.demo_flights import ReplicaContent
from engine.local.demo_result import ClusterResult, DemoResult, LedgerLine, show_result

SAME = {"c": {"node01": "aa", "node02": "aa"}}


def line(version: int, statement: int, host: str, ms: int) -> LedgerLine:
    return LedgerLine(
        version=version,
        title="make",
        migration_state="applied",
        statement=statement,
        host=host,
        state="done",
        duration_ms=ms,
        code=0,
        error="",
        entry=f"query-{version:010d}",
        token="t",
        sql=f"CREATE   TABLE\n t{statement}",
    )


LINES = (
    line(1, 1, "node01", 11),
    line(1, 1, "node02", 12),
    line(1, 2, "node01", 100),
    line(1, 2, "node02", 200),
    line(2, 1, "node01", 7),
    line(2, 1, "node02", 8),
)
RESULT = DemoResult((ClusterResult("c", LINES),), SAME, ("c: approve 1 of 3",), 61.4)


def shown(result: DemoResult) -> list[str]:
    """Each line, with one space between its words."""
    console = Console(width=160, record=True, file=io.StringIO())
    show_result(result, console)
    return [" ".join(text.split()) for text in console.export_text().splitlines()]


def test_each_host_has_its_milliseconds_of_each_migration() -> None:
    lines = shown(RESULT)
    assert "migration state node01 node02" in lines
    assert "0001 make applied ✓ 111 ✓ 212" in lines
    assert "0002 make applied ✓ 7 ✓ 8" in lines


def test_each_statement_is_a_line_of_the_ledger() -> None:
    lines = shown(RESULT)
    assert "0001 1 query-0000000001 2 done 11–12 CREATE TABLE t1" in lines
    assert "0001 2 query-0000000001 2 done 100–200 CREATE TABLE t2" in lines
    assert "Approved by the demo in your place: c: approve 1 of 3" in lines
    assert "Schema of c: the same on 2 hosts (aa)" in lines
    assert lines[-1] == "Every migration is applied on every host. 61 s"


def test_a_host_that_failed_and_one_that_was_not_asked_are_seen() -> None:
    failed = replace(LINES[-1], state="failed", code=57, duration_ms=None, migration_state="failed")
    result = replace(RESULT, clusters=(ClusterResult("c", (*LINES[:3], LINES[4], failed)),))
    lines = shown(result)
    assert "0001 make applied ✓ 111 ✓ 12" in lines
    assert "0002 make applied ✓ 7 failed 57" in lines
    assert lines[-1].startswith("NOT everything is applied.")
    assert not result.succeeded


@pytest.mark.parametrize(
    "wrong",
    [
        replace(RESULT, schemas={"c": {"node01": "aa", "node02": "bb"}}),
        replace(RESULT, clusters=()),
        replace(RESULT, clusters=(ClusterResult("c", ()),)),
        replace(RESULT, data=(ReplicaContent("a", 1, 5, 1, "x", 0), ReplicaContent("b", 1, 5, 1, "y", 0))),
    ],
    ids=["another schema", "no cluster", "an empty ledger", "other parts"],
)
def test_what_is_not_the_same_everywhere_is_no_success(wrong: DemoResult) -> None:
    assert RESULT.succeeded
    assert not wrong.succeeded
    assert wrong.as_json()["succeeded"] is False
    assert shown(wrong)[-1].startswith("NOT ")
