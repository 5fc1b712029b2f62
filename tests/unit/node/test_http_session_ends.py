"""A request without `session_id` leaves no connection of chDB open, whatever came of its statement."""

from __future__ import annotations

from pathlib import Path

import aiohttp

from engine.config.model import User
from engine.env import SystemEnv
from engine.errors import Code, SqlError
from engine.node.http.http_config import HttpConfig
from engine.node.http.server import HttpServer
from engine.node.statements.router import StatementRouter
from engine.node.statements.statement import Answer, Asked
from engine.node.system.system_tables import SystemTables
from engine.sql import Statement
from engine.storage import ChdbPool
from engine.storage.setting_rules import SettingRules


async def no_replicas() -> str:
    return ""


async def test_what_was_left_open_for_a_statement_that_is_refused_is_closed(tmp_path: Path) -> None:
    sessions = []

    async def refuse(asked: Asked, statement: Statement) -> Answer:
        sessions.append(asked.session)  # as a traceback keeps it
        with asked.session.left_open():
            await asked.session.query("SELECT 1")
        raise SqlError(Code.NOT_IMPLEMENTED, "not here")

    pool = await ChdbPool.open(tmp_path / "one")
    server = HttpServer(
        HttpConfig("127.0.0.1", 0, 0, None, "here", "UTC", {"default": User("default")}, {}, b"secret"),
        pool=pool,
        router=StatementRouter(tables=SystemTables([]), run_on_cluster=refuse),
        env=SystemEnv(),
        replicas_status=no_replicas,
        rules=SettingRules(pool),
    )
    await server.start()
    sql = "CREATE TABLE t ON CLUSTER c (k Int8) ENGINE = Memory"
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"http://127.0.0.1:{server.http_port}/", data=sql) as reply,
    ):
        assert reply.headers["X-ClickHouse-Exception-Code"] == str(int(Code.NOT_IMPLEMENTED))
    await server.stop(grace_s=1.0)
    await pool.close()
    assert len(sessions) == 1
    other = await ChdbPool.open(tmp_path / "two")  # there is one chDB in a process
    await other.close()
