"""How a statement reads the node's own views of `system`: as a subquery where that is all it reads."""

from __future__ import annotations

from typing import Any, cast

import pytest

from engine.config.model import User
from engine.node.statement import Asked
from engine.node.system_tables import SystemTables
from engine.sql import Token, parse_statement
from engine.storage import ChdbSession


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

    def __init__(self, *, is_readonly: bool = False) -> None:
        self.is_readonly = is_readonly

    def clone(self) -> ChdbSession:
        raise NeedsItsOwnSession


async def text_to_run(sql: str, *, is_readonly: bool = False) -> str:
    session = cast(ChdbSession, cast(Any, Session(is_readonly=is_readonly)))
    asked = Asked(sql=sql, user=User("default"), session=session, query_id="q")
    async with SystemTables([View()]).provide(asked, parse_statement(sql)) as (text, used):
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
