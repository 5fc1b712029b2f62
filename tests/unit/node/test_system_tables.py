"""How a statement reads the node's own views of `system`: as a subquery where that is all it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from engine.config.model import User
from engine.errors import Code, SqlError
from engine.node.statements.statement import Asked
from engine.node.system.system_tables import Row, SystemTables
from engine.sql import Token, parse_statement
from engine.storage import ChdbPool, ChdbSession


class View:
    """Implements SystemView."""

    name = "parts"
    is_needed = True

    async def select(self, asked: Asked, tokens: list[Token]) -> str:
        return "SELECT 1 AS active"


class NeedsItsOwnSession(Exception):
    pass


class Session:
    """Of it nothing is asked but a copy."""

    database = "default"
    may_have_temporary_tables = False

    def __init__(self, *, is_readonly: bool = False) -> None:
        self.is_readonly = is_readonly

    def clone(self, *, for_text: str = "") -> ChdbSession:
        raise NeedsItsOwnSession


async def text_to_run(sql: str, *, is_readonly: bool = False) -> str:
    session = cast(ChdbSession, cast(Any, Session(is_readonly=is_readonly)))
    asked = Asked(sql=sql, user=User("default"), session=session, query_id="q")
    async with SystemTables([View(), Table()]).provide(asked, parse_statement(sql)) as (text, used):
        assert used is session
        return text


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT count() FROM system.parts", "SELECT count() FROM ({}) AS `parts`"),
        ("SELECT parts.active FROM  system . parts WHERE 1", None),
        (
            "SELECT active FROM `system`.`parts` AS p WHERE p.active",
            "SELECT active FROM ({}) AS p WHERE p.active",
        ),
        (
            "SELECT (SELECT count() FROM system.parts) LIMIT 1",
            "SELECT (SELECT count() FROM ({}) AS `parts`) LIMIT 1",
        ),
        ("SELECT 1 FROM system.parts FORMAT JSON", "SELECT 1 FROM ({}) AS `parts` FORMAT JSON"),
        ("SELECT active FROM system.parts p", None),
        ("SELECT 1 FROM system.parts JOIN t USING active", None),
        ("SELECT 1 FROM t, system.parts", None),
        ("SELECT system.parts.active FROM system.parts", None),
        ("WITH parts AS (SELECT 1 FROM system.parts) SELECT * FROM parts", None),
        ("DESCRIBE TABLE system.parts", None),
        ("INSERT INTO t SELECT * FROM system.parts", None),
    ],
)
async def test_a_view_that_is_read_alone_is_a_subquery(sql: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(NeedsItsOwnSession):
            await text_to_run(sql)
    else:
        assert await text_to_run(sql) == expected.format("SELECT 1 AS active")


async def test_who_may_only_read_gets_a_session_with_the_view() -> None:
    with pytest.raises(NeedsItsOwnSession):
        await text_to_run("SELECT count() FROM system.parts", is_readonly=True)


class Table:
    """Implements SystemTable: one that chDB does not have like that."""

    name = "zookeeper"
    columns = "name String, path String"

    async def rows(self, asked: Asked, tokens: list[Token]) -> list[Row]:
        raise AssertionError("nobody reads it")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("CREATE TABLE t AS system.parts ENGINE = Memory", "CREATE TABLE t AS system.parts ENGINE = Memory"),
        (
            "CREATE TABLE d.t as `system`.zookeeper ENGINE Memory COMMENT 'system.zookeeper'",
            "CREATE TABLE d.t (name String, path String) ENGINE Memory COMMENT 'system.zookeeper'",
        ),
    ],
)
async def test_a_table_like_one_of_them_has_its_columns(sql: str, expected: str) -> None:
    assert await text_to_run(sql) == expected


class TablesView:
    """Implements SystemView: of one table another engine is shown than chDB has."""

    name = "tables"

    def __init__(self, *, is_needed: bool = True) -> None:
        self.is_needed = is_needed

    async def select(self, asked: Asked, tokens: list[Token]) -> str:
        return (
            "SELECT * REPLACE (if(name = 'r', 'ReplicatedMergeTree', engine) AS engine) FROM system.tables "
            "WHERE name IN ('r', 'm')"
        )


@pytest.fixture(scope="module")
def chdb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    loop = asyncio.new_event_loop()
    pool = loop.run_until_complete(ChdbPool.open(tmp_path_factory.mktemp("chdb"), max_running=2))

    async def ask(sql: str, view: TablesView) -> str:
        async with pool.use(database="d") as session:
            asked = Asked(sql=sql, user=User("default"), session=session, query_id="q", database="d")
            async with SystemTables([view]).provide(asked, parse_statement(sql)) as (text, used):
                return (await used.query(text)).text

    for sql in (
        "CREATE DATABASE d",
        *(f"CREATE TABLE d.{t} (a Int8) ENGINE = MergeTree ORDER BY a" for t in "rm"),
    ):
        loop.run_until_complete(pool.query(sql))
    yield lambda sql: loop.run_until_complete(ask(sql, TablesView()))
    loop.run_until_complete(pool.close())
    loop.close()


BOTH = "m\tMergeTree\nr\tReplicatedMergeTree\n"


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SHOW FULL TABLES", BOTH),
        ("show full tables from d;", BOTH),
        ("SHOW FULL TABLES IN `d` NOT ILIKE 'M%'", "r\tReplicatedMergeTree\n"),
        ("SHOW FULL TABLES FROM d LIMIT 1 FORMAT CSV", '"m","MergeTree"\n'),
        ("SHOW TABLES FROM d WHERE engine LIKE 'Repl%' SETTINGS max_threads = 1", "r\n"),
        ("SHOW TABLES LIKE 'r'", "r\n"),
        (
            "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = 'd' ORDER BY ALL",
            BOTH,
        ),
        ("SELECT t.TABLE_NAME, t.ENGINE FROM INFORMATION_SCHEMA.TABLES AS t ORDER BY ALL", BOTH),
        (
            "SELECT tables.engine FROM `information_schema`.`tables` WHERE table_name = 'r'",
            "ReplicatedMergeTree\n",
        ),
        (
            "SELECT x.engine, n FROM (SELECT 'r' AS n) s JOIN information_schema.tables x ON n = table_name",
            "ReplicatedMergeTree\tr\n",
        ),
        (
            "SELECT (SELECT max(name) FROM system.tables), count() FROM information_schema.tables",
            "r\t2\n",
        ),
    ],
)
def test_engines_are_those_of_system_tables_wherever_they_are_shown(
    chdb: Callable[..., str], sql: str, rows: str
) -> None:
    assert chdb(sql) == rows


def test_tables_of_no_database_are_refused_as_by_chdb(chdb: Callable[..., str]) -> None:
    with pytest.raises(SqlError) as refused:
        chdb("SHOW FULL TABLES FROM nowhere")
    assert refused.value.code == Code.UNKNOWN_DATABASE


@pytest.mark.parametrize("sql", ["SHOW FULL TABLES FROM d", "SELECT engine FROM information_schema.tables"])
async def test_where_chdbs_own_tables_are_right_it_is_asked_as_it_was(sql: str) -> None:
    session = cast(ChdbSession, cast(Any, Session()))
    asked = Asked(sql=sql, user=User("default"), session=session, query_id="q")
    async with SystemTables([TablesView(is_needed=False)]).provide(asked, parse_statement(sql)) as (text, _):
        assert text == sql
