"""The order of a series: fewer groups than the queue's order has, and the same end."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.ddl.entry import DDLLogEntry
from engine.ddl.series_order import in_groups
from engine.ddl.task import Task, interpret_without_cluster
from engine.names import HostId
from engine.sql import StatementKind

HOST = HostId("node01", 9000)


def _task(number: int, sql: str) -> Task:
    entry = DDLLogEntry(1, sql, (HOST,))
    task = interpret_without_cluster(f"query-{number:010d}", number + 1, entry.to_bytes(), entry, HOST)
    assert task is not None
    return task


def _create(table: str, columns: str = "(a UInt8)", engine: str = "MergeTree ORDER BY a") -> str:
    return f"CREATE TABLE d.{table} ON CLUSTER c {columns} ENGINE = {engine}"


def _drop(table: str, end: str = "") -> str:
    return f"DROP TABLE d.{table} ON CLUSTER c{end}"


def _order(*statements: str) -> list[list[int]]:
    """The groups, by the statements' numbers in the queue."""
    tasks = [_task(number, sql) for number, sql in enumerate(statements)]
    return [[int(task.name[6:]) for task in group] for group in in_groups(tasks)]


def test_pairs_of_create_and_drop_make_two_groups() -> None:
    pairs = [sql for name in "xyz" for sql in (_create(name), _drop(name))]
    assert _order(*pairs) == [[0, 2, 4], [1, 3, 5]]


def test_tables_that_are_made_anew_make_two_groups() -> None:
    assert _order(_drop("x"), _create("x"), _drop("y"), _create("y")) == [[0, 2], [1, 3]]


def test_two_drops_keep_their_order() -> None:
    assert _order(_create("y"), _drop("y"), _drop("x"), _create("x")) == [[0], [1, 2], [3]]


@pytest.mark.parametrize(
    "create",
    [
        _create("b", "(a UInt8 DEFAULT dictGet('d.a', 'x', 1))"),
        _create("b", "(a UInt8 DEFAULT joinGet('d.a', 'x', 1))"),
        _create("b", "(a UInt8, CONSTRAINT c CHECK a IN d.a)"),
        _create("b", "(a UInt8 DEFAULT hasColumnInTable('d', 'a', 'x'))"),
        _create("b", "", "Buffer('d', 'a', 1, 1, 1, 1, 1, 1, 1)"),
        _create("b", "", "Merge('d', 'a')"),
        "CREATE TABLE d.b ON CLUSTER c (a UInt8)",
    ],
)
def test_a_create_that_may_need_another_table_keeps_its_place(create: str) -> None:
    assert _order(_create("a"), _drop("a"), create) == [[0], [1, 2]]


def test_nothing_overtakes_a_drop_that_gives_its_uuid_back_at_once() -> None:
    assert _order(_create("a"), _drop("a", " SYNC"), _create("b")) == [[0], [1, 2]]


_STATEMENTS = st.lists(
    st.tuples(
        st.sampled_from("xyz"),
        st.sampled_from([_create, _drop, lambda table: _create(table, "", "Merge('d', 'x')")]),
    ).map(lambda pair: pair[1](pair[0])),
    min_size=1,
    max_size=17,
)


@given(_STATEMENTS)
def test_every_statement_has_the_outcome_that_it_has_in_queue_order(statements: list[str]) -> None:
    tasks = [_task(number, sql) for number, sql in enumerate(statements)]
    groups = in_groups(tasks)

    assert sorted((task for group in groups for task in group), key=lambda task: task.name) == tasks
    assert groups[0][0] is tasks[0]
    for group in groups:
        assert len({task.tables for task in group}) == len(group)
    assert _outcomes([task for group in groups for task in group]) == _outcomes(tasks)
    drops = [
        task.name for group in groups for task in group if task.statement.kind is StatementKind.DROP_TABLE
    ]
    assert all(one < other for one, other in pairwise(drops))


def _outcomes(tasks: list[Task]) -> tuple[dict[str, object], dict[str, str]]:
    """What each statement does to tables of which some are made from what is there, and what is left."""
    there: dict[str, str] = {}
    outcomes: dict[str, object] = {}
    for task in tasks:
        name = task.tables[0].table
        if task.statement.kind is StatementKind.DROP_TABLE:
            outcomes[task.name] = there.pop(name, None)
        elif name in there:
            outcomes[task.name] = "exists"
        else:
            made = f"from {there.get('x')}" if task.statement.engine == "Merge" else "by itself"
            outcomes[task.name] = there[name] = made
    return outcomes, there
