"""A text that the node has made of a client's is run however long it is, and of however many parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from engine.config.model import User
from engine.errors import SqlError
from engine.node.statements.statement import Asked
from engine.storage.chdb_pool import ChdbPool
from tests.few import few_first

LONG = "SELECT length([" + ", ".join(["number"] * 60_000) + "]) FROM numbers(1)"
SHORT = "SELECT" + " " * 300 + "1"

pytestmark = pytest.mark.slow


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[ChdbPool]:
    pool = await ChdbPool.open(tmp_path / "data")
    yield pool
    await pool.close()


@pytest.mark.parametrize(
    ("of_session", "of_request"),
    few_first(
        [
            ({"max_ast_elements": "200", "readonly": "2"}, {}),
            ({}, {"max_ast_elements": "200"}),
            ({"max_ast_elements": "200"}, {}),
            ({}, {}),
        ],
        few=1,
    ),
)
async def test_what_bounds_a_client_s_text_does_not_bound_the_node_s(
    pool: ChdbPool, of_session: Mapping[str, str], of_request: Mapping[str, str]
) -> None:
    async def run(sql: str, *, is_the_node_s: bool) -> str:
        session = pool.session(settings=of_session, one_shot=True)
        asked = Asked("", User("u"), session, settings=of_request)
        if is_the_node_s:
            asked = asked.rewritten(sql)
        return (await asked.run(sql, is_harmless=True)).text

    assert await run(LONG, is_the_node_s=True) == "60000\n"
    assert await run(SHORT, is_the_node_s=True) == "1\n"
    with pytest.raises(SqlError):
        await run(LONG, is_the_node_s=False)


async def test_a_user_who_may_set_nothing_is_not_refused_because_of_it(pool: ChdbPool) -> None:
    session = pool.session(settings={"max_query_size": "9000", "readonly": "1"}, one_shot=True)
    asked = Asked("", User("u"), session).rewritten(SHORT)
    assert (await asked.run(SHORT, is_harmless=True)).text == "1\n"
