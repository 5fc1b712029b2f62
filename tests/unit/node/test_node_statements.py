"""KILL QUERY, `replace_running_query` and `system.processes` know statements that the node is busy with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from engine.config.model import User
from engine.ddl import OutputMode, OutputRow, output_columns
from engine.ddl.executor import Execution
from engine.env import SystemEnv
from engine.errors import SqlError
from engine.killable import ends_by_kill
from engine.node.http.http_config import HttpConfig
from engine.node.http.server import HttpServer
from engine.node.statements.hosts_answer import HostsAnswer
from engine.node.statements.node_statements import NodeStatements
from engine.node.statements.queue_executor import QueueExecutor
from engine.node.statements.router import StatementRouter
from engine.node.statements.statement import Answer, Asked
from engine.node.system.system_tables import SystemTables
from engine.sql import Statement, parse_statement
from engine.storage import ChdbPool
from engine.storage.setting_rules import SettingRules

CREATE = "CREATE TABLE it ON CLUSTER `c's` (x Int8) ENGINE = Memory"
IDS = "SELECT query_id, Settings['log_comment'], user, query, query_kind FROM system.processes WHERE "
ENDLESS = "SELECT count() FROM system.numbers WHERE NOT ignore(number)"


class Node:
    """An HTTP server whose statements ON CLUSTER wait for a host that never answers."""

    def __init__(self, pool: ChdbPool) -> None:
        self.pool = pool
        self.statements = NodeStatements(SystemEnv())
        self.waiting = asyncio.Semaphore(0)
        self.url = ""
        users = {"ann": User("ann"), "eve": User("eve", profile="reader")}
        self.server = HttpServer(
            HttpConfig(
                "127.0.0.1", 0, 0, None, "here", "UTC", users, {"reader": {"readonly": "1"}}, b"secret"
            ),
            pool=pool,
            router=StatementRouter(
                tables=SystemTables([self.statements]), run_on_cluster=self._wait, statements=self.statements
            ),
            env=SystemEnv(),
            replicas_status=self._no_replicas,
            rules=SettingRules(pool),
            statements=self.statements,
        )

    async def _no_replicas(self) -> str:
        return ""

    async def _wait(self, asked: Asked, statement: Statement) -> Answer:
        async def rows() -> AsyncIterator[OutputRow]:
            yield OutputRow("node01", 9000, 0, "", 1, 0)
            self.waiting.release()
            await asyncio.Event().wait()

        return HostsAnswer(asked, rows(), columns=output_columns(OutputMode.THROW), format="TSV")

    async def post(self, sql: str, *, user: str = "ann", **parameters: str) -> tuple[str, str]:
        """The code of the error, empty for none, and the answer."""
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.url, data=sql.encode(), params={"user": user, **parameters}) as reply,
        ):
            text = await reply.text()
            return reply.headers.get("X-ClickHouse-Exception-Code", ""), text

    async def rows(self, sql: str, **parameters: str) -> list[list[str]]:
        code, text = await self.post(f"{sql} FORMAT JSONCompactEachRow", **parameters)
        assert code == "", text
        return [json.loads(line) for line in text.splitlines()]

    @asynccontextmanager
    async def statement(
        self, query_id: str, sql: str = CREATE, **parameters: str
    ) -> AsyncIterator[asyncio.Task[tuple[str, str]]]:
        """One that has begun to wait."""
        task = asyncio.create_task(self.post(sql, query_id=query_id, **parameters))
        await self.waiting.acquire()
        try:
            yield task
        finally:
            task.cancel()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    pool = await ChdbPool.open(tmp_path / "data", max_running=4)
    node = Node(pool)
    await node.server.start()
    node.url = f"http://127.0.0.1:{node.server.http_port}/"
    yield node
    await node.server.stop(grace_s=0.0)
    await pool.close()


async def test_kill_query_ends_the_wait_which_system_processes_shows(node: Node) -> None:
    async with node.statement("first") as first, node.statement("second") as second:
        shown = [["first", "first", "ann", CREATE, "Create"]]
        assert await node.rows(IDS + "query_id = 'first'") == shown
        assert await node.rows(IDS + "query_id = 'first'", user="eve") == shown, "who may only read"
        for all_of_them in ("SELECT * FROM system.processes", "SHOW PROCESSLIST"):
            assert len(await node.rows(all_of_them)) == 3, "and the statement itself"

        test = await node.rows("KILL QUERY WHERE query_id = 'first' TEST")
        assert test == [["unknown_status", "first", "ann", CREATE]]
        assert await node.rows("KILL QUERY WHERE query_id = {id:String} TEST", param_id="first") == test
        assert (await node.post("KILL QUERY WHERE query_id = 'nobody' SYNC")) == ("", "")
        assert (await node.post("KILL QUERY WHERE nothing = 'first' SYNC"))[0] == "47"
        assert len(await node.rows(IDS + "query_kind = 'Create'")) == 2

        killed = await node.rows("KILL QUERY WHERE user = 'ann' AND query_id = 'first' SYNC")
        assert killed == [["finished", "first", "ann", CREATE]]
        assert await node.rows(IDS + "query_kind = 'Create'") == [
            ["second", "second", "ann", CREATE, "Create"]
        ]
        code, text = await first
        assert (code, "Query was cancelled" in text) == ("394", True)
        assert not second.done()


async def test_a_password_in_a_statement_that_waits_is_not_shown(node: Node) -> None:
    sql = "CREATE TABLE it ON CLUSTER `c's` (x Int8) ENGINE = MySQL('h', 'd', 't', 'ada', 'SECRET')"
    async with node.statement("waits", sql):
        for asked in (
            "SELECT query FROM system.processes WHERE query_id = 'waits'",
            "KILL QUERY WHERE query = '" + sql.replace("'", "''") + "' TEST",
        ):
            (row,) = await node.rows(asked)
            assert "CREATE TABLE it" in row[-1]
            assert "SECRET" not in row[-1]


async def test_the_statement_that_looks_is_shown_as_it_was_asked(node: Node) -> None:
    sql = "SELECT query FROM system.processes WHERE query LIKE '%FORMAT TSV%'"
    async with node.statement("waits"):
        code, text = await node.post(f"{sql} FORMAT TSVRaw", query_id="looks")
    assert (code, text) == ("", f"{sql} FORMAT TSVRaw\n")


async def test_one_kill_query_ends_queries_of_chdb_and_waits(node: Node) -> None:
    async with node.statement("waits"):
        runs = asyncio.create_task(node.post(ENDLESS, query_id="runs"))
        while not await node.rows(IDS + "Settings['log_comment'] = 'runs'"):
            pass
        killed = await node.rows("KILL QUERY WHERE query_id IN ('runs', 'waits') SYNC")
        assert sorted((status, query[: len(ENDLESS)]) for status, _, _, query in killed) == [
            ("finished", CREATE),
            ("finished", ENDLESS),
        ]
        assert (await runs)[0] == "394"


async def test_a_statement_that_replaces_one_that_waits_ends_it(node: Node) -> None:
    async with node.statement("same") as earlier:
        assert (await node.post("SELECT 1", query_id="same"))[0] == "216"
        assert await node.post("SELECT 1", query_id="same", replace_running_query="1") == ("", "1\n")
        assert (await earlier)[0] == "394"


async def test_who_is_killed_before_it_waits_does_not_wait(node: Node) -> None:
    asked = Asked(CREATE, User("ann"), node.pool.session(one_shot=True), query_id="early")
    with node.statements.enter(asked, parse_statement(CREATE)):
        node.statements.kill("early")
        with pytest.raises(SqlError, match="Query was cancelled"), ends_by_kill():
            await asyncio.Event().wait()
    assert not node.statements.is_needed


async def test_the_uuid_that_an_initiator_gives_a_database_is_ignored_where_it_can_have_none(
    node: Node,
) -> None:
    """CREATE DATABASE … ON CLUSTER c ENGINE = Memory failed on every node (80)."""
    executor = QueueExecutor(
        node.pool, lanes=1, check=lambda sql, statement: None, statements=node.statements
    )
    uuid = "00000000-0000-0000-0000-0000000000{}"
    await executor.execute(Execution(f"CREATE DATABASE m UUID '{uuid.format(11)}' ENGINE = Memory"))
    await executor.execute(Execution(f"CREATE DATABASE a UUID '{uuid.format(12)}' ENGINE = Atomic"))
    await executor.execute(Execution(f"CREATE DATABASE b UUID '{uuid.format(13)}'"))
    found = await node.rows(
        "SELECT name, engine, uuid FROM system.databases WHERE name IN ('a', 'b', 'm') ORDER BY name"
    )
    assert found[:2] == [["a", "Atomic", uuid.format(12)], ["b", "Atomic", uuid.format(13)]]
    assert [row[:2] for row in found[2:]] == [["m", "Memory"]]
    await executor.close()


async def test_kill_query_from_the_queue_ends_waits_and_not_that_of_its_own_statement(node: Node) -> None:
    executor = QueueExecutor(
        node.pool, lanes=1, check=lambda sql, statement: None, statements=node.statements
    )
    kill = "KILL QUERY {} WHERE query LIKE '%CLUSTER%' ASYNC"
    async with node.statement("create") as create:
        everywhere = asyncio.create_task(node.post(kill.format("ON CLUSTER c"), query_id="kill"))
        await node.waiting.acquire()
        await executor.execute(Execution(kill.format("")))
        assert (await create)[0] == "394"
        assert not everywhere.done()
        everywhere.cancel()
    await executor.close()
