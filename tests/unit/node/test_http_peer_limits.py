"""A user who may change no setting, and what another node passes on with its part of a statement."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from engine.config.model import User
from engine.env import SystemEnv
from engine.node.distributed.reading.shard_reader import depth_mark
from engine.node.http.http_config import HttpConfig
from engine.node.http.server import HttpServer
from engine.node.statements.router import StatementRouter
from engine.node.statements.statement import Answer, Asked
from engine.node.system.system_tables import SystemTables
from engine.sql import Statement
from engine.storage import ChdbPool
from engine.storage.setting_rules import SettingRules

PROFILE = {"readonly": "1", "max_bytes_to_read": "800"}


async def nowhere(asked: Asked, statement: Statement) -> Answer:
    raise AssertionError(asked.sql)


async def no_replicas() -> str:
    return ""


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    pool = await ChdbPool.open(tmp_path / "data", max_running=2)
    await pool.query("CREATE TABLE t ENGINE = MergeTree ORDER BY id AS SELECT number AS id FROM numbers(50)")
    users = {"default": User("default", profile="reader")}
    server = HttpServer(
        HttpConfig("127.0.0.1", 0, 0, None, "here", "UTC", users, {"reader": PROFILE}, b"secret"),
        pool=pool,
        router=StatementRouter(tables=SystemTables([]), run_on_cluster=nowhere),
        env=SystemEnv(),
        replicas_status=no_replicas,
        rules=SettingRules(pool),
    )
    await server.start()
    yield f"http://127.0.0.1:{server.http_port}/"
    await server.stop(grace_s=1.0)
    await pool.close()


async def ask(url: str, sql: str, **settings: str) -> str:
    """The answer, or the code of the error."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, params={"query": sql, **settings}) as reply,
    ):
        text = (await reply.text()).strip()
        return reply.headers.get("X-ClickHouse-Exception-Code", text)


MARKED = f"{depth_mark(1)} SELECT sum(id) FROM t"
TOO_MANY_ROWS, TOO_MANY_BYTES, READONLY = "158", "307", "164"


async def test_a_stricter_limit_of_another_node_holds(url: str) -> None:
    assert await ask(url, MARKED) == "1225"
    assert await ask(url, MARKED, max_rows_to_read="50", read_overflow_mode="throw") == "1225"
    assert await ask(url, MARKED, max_rows_to_read="49") == TOO_MANY_ROWS
    assert await ask(url, MARKED, max_bytes_to_read="100") == TOO_MANY_BYTES


async def test_the_profile_s_own_limit_stays(url: str) -> None:
    more = f"{depth_mark(1)} SELECT sum(number) FROM numbers(1000)"
    for value in ("", "0", "1000000"):
        settings = {"max_bytes_to_read": value} if value else {}
        assert await ask(url, more, **settings) == TOO_MANY_BYTES


async def test_no_other_setting_and_no_other_statement_may_change_anything(url: str) -> None:
    assert await ask(url, MARKED, max_threads="1") == READONLY
    assert await ask(url, "SELECT sum(id) FROM t", max_rows_to_read="10") == READONLY
