"""What writes into tables inside chDB, and whether its rows would come to a replicated one."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from engine.config.model import User
from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.replicated.rows.feeders import FeederGuard, feeder_of
from engine.node.replicated.rows.views import Feeder, Links, View, ViewGraph
from engine.node.replicated.running.runtime import ReplicatedTables
from engine.node.statements.statement import Asked
from engine.sql import parse_statement


def N(text: str) -> TableName:
    return TableName("d", text)


def view(name: str, source: str, target: str) -> View:
    return View(N(name), UUID(int=1), N(source), N(target), (), (), "")


LINKS = Links(
    views=[view("v", "plain", "r"), view("w", "log", "buffer"), view("x", "loop", "loop")],
    feeders=[
        Feeder(N("buffer"), "Buffer", N("plain")),
        Feeder(N("elsewhere"), "Buffer", N("other")),
        Feeder(N("log"), "FileLog", N("log")),
    ],
)


def graph() -> ViewGraph:
    async def read() -> Links:
        return LINKS

    return ViewGraph(read)


async def test_views_are_told_though_definitions_never_stand_still() -> None:
    """An INSERT asks for them; other statements change something each time they are read."""
    reads = 0

    async def read() -> Links:
        nonlocal reads
        reads += 1
        if reads < 100:
            busy.changed()
        return LINKS

    busy = ViewGraph(read)
    assert [one.name for one in await busy.of(N("plain"))] == [N("v")]
    assert await busy.target_of(N("v")) == N("r")
    assert reads == 2, "each time anew, as it changed since"


def guard() -> FeederGuard:
    tables = ReplicatedTables()
    tables.recorded = lambda: [N("r")]
    return FeederGuard(tables, graph())


def refusal(sql: str) -> str:
    asked = Asked(sql=sql, user=User("u"), session=None, database="d")  # type: ignore[arg-type]
    try:
        assert asyncio.run(guard().run(asked, parse_statement(sql))) is None
    except SqlError as error:
        assert error.code == Code.NOT_IMPLEMENTED
        return error.message
    return ""


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE b AS r ENGINE = Buffer(d, r, 1, 1, 1, 1, 1, 1, 1)",
        "CREATE TABLE e.b (k UInt8) ENGINE = Buffer('', r, 1, 1, 1, 1, 1, 1, 1)",
        "ATTACH TABLE b (k UInt8) ENGINE = Buffer('d', 'plain', 1, 1, 1, 1, 1, 1, 1)",
        "CREATE TABLE b AS r ENGINE = Buffer(d, v, 1, 1, 1, 1, 1, 1, 1)",
        "CREATE TABLE b AS r ENGINE = Buffer(d, buffer, 1, 1, 1, 1, 1, 1, 1)",
        "CREATE TABLE a ENGINE = Alias(r)",
        "CREATE TABLE e.a ENGINE = Alias('d', 'r')",
        "CREATE MATERIALIZED VIEW y REFRESH EVERY 1 DAY TO r AS SELECT 1",
        "CREATE MATERIALIZED VIEW y REFRESH EVERY 1 DAY APPEND TO d.plain AS SELECT 1",
        "CREATE MATERIALIZED VIEW y TO r AS SELECT k FROM plain",
        "CREATE MATERIALIZED VIEW y TO r AS SELECT k FROM log",
        "CREATE MATERIALIZED VIEW y TO v AS SELECT k FROM other",
    ],
)
def test_a_chain_that_ends_in_a_replicated_table_is_refused(sql: str) -> None:
    assert "replicated table d.r" in refusal(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE b AS r ENGINE = Buffer(d, other, 1, 1, 1, 1, 1, 1, 1)",
        "CREATE TABLE b AS r ENGINE = Buffer('', '', 1, 1, 1, 1, 1, 1, 1)",
        "CREATE TABLE b AS r ENGINE = Buffer(e, r, 1, 1, 1, 1, 1, 1, 1)",
        "CREATE TABLE e.a ENGINE = Alias(r)",
        "CREATE TABLE m ENGINE = Merge(d, '^r$')",
        "CREATE MATERIALIZED VIEW y REFRESH EVERY 1 DAY TO other AS SELECT k FROM r",
        "CREATE MATERIALIZED VIEW y TO r AS SELECT k FROM quiet JOIN far USING k",
        "CREATE MATERIALIZED VIEW y TO other AS SELECT k FROM plain",
    ],
)
def test_what_ends_elsewhere_is_left_alone(sql: str) -> None:
    assert refusal(sql) == ""


@pytest.mark.parametrize(("name", "feeder"), [("plain", "buffer"), ("r", "buffer"), ("other", "elsewhere")])
def test_a_table_at_the_end_of_a_chain_does_not_become_replicated(name: str, feeder: str) -> None:
    with pytest.raises(SqlError, match=rf"Buffer d\.{feeder} writes into it"):
        asyncio.run(guard().check_new_table(N(name)))


def test_others_do_and_a_circle_ends() -> None:
    asyncio.run(guard().check_new_table(N("quiet")))
    assert not asyncio.run(graph().reaches(N("loop"), lambda name: name == N("r")))


@pytest.mark.parametrize(
    ("engine", "full", "expected"),
    [
        ("Buffer", "Buffer('d', 'r', 1, 1, 1, 1, 1, 1, 1)", N("r")),
        ("Buffer", "Buffer('', 'r', 1, 1, 1, 1, 1, 1, 1)", TableName("home", "r")),
        ("Buffer", "Buffer('', '', 1, 1, 1, 1, 1, 1, 1)", None),
        ("Alias", "Alias('d', 'r')", N("r")),
        ("Alias", "Alias(`r`)", TableName("home", "r")),
        ("FileLog", "FileLog('/x', 'CSV')", TableName("home", "t")),
        ("MaterializedView", "", N("target")),
    ],
)
def test_what_a_feeder_writes_into(engine: str, full: str, expected: TableName | None) -> None:
    feeder = feeder_of(TableName("home", "t"), engine, full, N("target"))
    assert (None if feeder is None else feeder.target) == expected
