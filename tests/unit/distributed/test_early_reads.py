"""Another node's sums are asked before chDB plans the statement, and whatever comes, the answer is right."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import combinations
from pathlib import Path
from typing import Protocol

import pytest
from aiohttp import web

from engine.config.model import Cluster, NodeConfig, Replica, Shard, Topology, User
from engine.env import SystemEnv
from engine.errors import Code, SqlError
from engine.node.distributed.assembly import DistributedNode
from engine.node.distributed.reading.early_reads import integers_of
from engine.node.distributed.reading.patience import USUAL_S, patience_s, with_patience
from engine.node.statements.router import StatementRouter
from engine.node.statements.statement import Asked
from engine.node.system.system_tables import SystemTables
from engine.ports import free_ports
from engine.sql import Statement
from engine.storage import ChdbPool, awaited_values

pytestmark = pytest.mark.slow

TOP = (1 << 64) - 1
COUNT = "SELECT count() FROM d"
OWN_ROWS = 3

Early = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Other:
    """Another node, with the same rows: `early` answers what is asked before chDB asks."""

    def __init__(self) -> None:
        self.early: Early | None = None
        self.has_rows = True
        self.pool: ChdbPool | None = None
        self.formats: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST":
            return web.Response(headers={"X-ClickHouse-Server-Display-Name": "other"})  # a probe
        self.formats.append(request.query["default_format"])
        if self.formats[-1] == "TSVRaw" and self.early is not None:
            return await self.early(request)
        if not self.has_rows:
            return web.Response(status=500, text="Code: 241. DB::Exception: no memory")
        assert self.pool is not None
        result = await self.pool.query(request.query["query"], format=self.formats[-1])
        return web.Response(body=result.data)


class Ask(Protocol):
    async def __call__(self, sql: str, **settings: str) -> str: ...


@asynccontextmanager
async def node_beside(other: Other, directory: Path, *, max_running: int = 8) -> AsyncIterator[Ask]:
    """A node with a Distributed table `d`, of which one shard is its own `t`."""
    [port] = free_ports(1)
    app = web.Application()
    app.router.add_route("*", "/", other.answer)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.2", port).start()
    own = Shard(1, (Replica("127.0.0.1", 9000, default_database="default"),))
    shards = (own, Shard(2, (Replica("127.0.0.2", 9000, http_port=port),)))
    topology = Topology({"c": Cluster("c", shards)})
    other.pool = pool = await ChdbPool.open(directory / "data", max_running=max_running)
    node = DistributedNode(
        NodeConfig(path=str(pool.path)),
        env=SystemEnv(),
        pool=pool,
        topology=lambda: topology,
        is_local=lambda host: host.host == "127.0.0.1",
        run_other=None,
    )

    async def nowhere(asked: Asked, statement: Statement) -> object:
        raise AssertionError(asked.sql)

    router = StatementRouter(
        tables=SystemTables([]),
        run_on_cluster=nowhere,  # type: ignore[arg-type]
        distributed=node,
    )

    async def ask(sql: str, **settings: str) -> str:
        asked = Asked(sql, User("u"), pool.session(one_shot=True), query_id="q", settings=settings)
        data = b""
        async with router.run(asked) as answer:
            while chunk := await answer.read():
                data += chunk
            await answer.finish()
        return data.decode()

    await node.start()
    try:
        columns = "k UInt64, i Int64, s UInt8"
        await pool.query(f"CREATE TABLE t ({columns}) ENGINE = MergeTree ORDER BY k")
        await pool.query(f"INSERT INTO t SELECT {TOP} - number, -5, 200 FROM numbers({OWN_ROWS})")
        await ask(f"CREATE TABLE d ({columns}) ENGINE = Distributed(c, default, t, k)")
        yield ask
    finally:
        await node.stop()
        await pool.close()
        await runner.cleanup()


async def broken_off(request: web.Request) -> web.StreamResponse:
    reply = web.StreamResponse(headers={"Content-Length": "100"})
    await reply.prepare(request)
    await reply.write(b"4\n")
    assert request.transport is not None
    request.transport.abort()
    return reply


def saying(body: bytes, status: int = 200) -> Early:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=body)

    return answer


NO_ANSWERS: dict[str, Early] = {
    "broken off": broken_off,
    "refused": saying(b"Code: 60. DB::Exception: no table\n", 404),
    "an exception behind the header": saying(b"1\n__exception__\r\nCode: 241."),
    "two rows": saying(b"1\n2\n"),
    "no row": saying(b""),
    "half a row": saying(b"4"),
    "two values": saying(b"4\t5\n"),
    "not a number": saying(b"4.5\n"),
    "less than nothing": saying(b"-1\n"),
    "too large": saying(f"{TOP + 1}\n".encode()),
    "endless": saying(b"1" * (1 << 17)),
}


async def test_a_shard_is_asked_once_and_early(tmp_path: Path) -> None:
    other = Other()
    async with node_beside(other, tmp_path) as ask:
        for _ in range(2):  # the second time the text is remembered
            other.formats.clear()
            assert await ask(COUNT) == f"{2 * OWN_ROWS}\n"
            assert other.formats == ["TSVRaw"]
        assert await ask("SELECT countIf(k > 5) AS c FROM d HAVING c > 100") == ""


@pytest.mark.parametrize("sql", [COUNT, "SELECT k FROM d LIMIT 1 BY 1"], ids=["early", "by chDB"])
async def test_statements_that_wait_for_another_node_leave_threads_to_what_it_asks(
    tmp_path: Path, sql: str
) -> None:
    """What the other node answers takes threads of this one, as if it asked this one at the same time."""
    other = Other()
    async with node_beside(other, tmp_path, max_running=3) as ask:
        answers = await asyncio.gather(*(ask(sql) for _ in range(6)))
        assert len(set(answers)) == 1 and answers[0]


SUMS = (
    "sum(k)",
    "sum(i)",
    "sum(s)",
    "sum(-k)",
    "sumIf(i, k > 3)",
    "sumIf(k, k = 0)",
    "countIf(s = 200)",
    "count(i)",
    "sum(i) / count() + sum(s)",
    "sum(k) = 0",
)


async def test_sums_are_those_of_one_table(tmp_path: Path) -> None:
    """They go over the end of their type, and below zero."""
    other = Other()
    async with node_beside(other, tmp_path) as ask:
        twice = "(SELECT * FROM t UNION ALL SELECT * FROM t)"
        for sums in [*combinations(SUMS, 1), SUMS]:
            for tail in ("", " WHERE k % 2 = 0", " WHERE k = 5"):
                other.formats.clear()
                found = await ask(f"SELECT {', '.join(sums)} FROM d{tail} FORMAT JSON")
                assert other.formats == ["TSVRaw"], sums
                wanted = await ask(f"SELECT {', '.join(sums)} FROM {twice}{tail} FORMAT JSON")
                for answer in ("meta", "data"):
                    assert json.loads(found)[answer] == json.loads(wanted)[answer], (sums, tail)
                found = await ask(f"SELECT {', '.join(sums)} FROM d{tail}")
                assert found == await ask(f"SELECT {', '.join(sums)} FROM {twice}{tail}"), (sums, tail)


TEXTS = (
    "SELECT sum(k), count() FROM {}",
    "SELECT count() AS `a ``b\\``, sum(i), count() FROM {}",
    "SELECT sum(i) AS `k```, count() AS c FROM {} FORMAT TSVRaw",
    "SELECT count() FROM {} FORMAT TSVWithNames",
    "SELECT count() FROM {} FORMAT CSV;",
    "SELECT count() FROM {} LIMIT 0",
    "SELECT count() FROM {} HAVING count() > 100",
    "SELECT DISTINCT count() FROM {}",
)
OUTPUTS: tuple[dict[str, str], ...] = (
    {},
    {"extremes": "1"},
    {"offset": "1"},
    {"limit": "1"},
    {"output_format_tsv_crlf_end_of_line": "1"},
    {"use_query_cache": "1"},
)


@pytest.mark.parametrize("settings", OUTPUTS, ids=lambda settings: next(iter(settings), "none"))
async def test_a_row_of_sums_is_written_as_settings_and_clauses_say(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    other = Other()
    async with node_beside(other, tmp_path) as ask:
        twice = "(SELECT * FROM t UNION ALL SELECT * FROM t)"
        for text in TEXTS:
            for _ in range(2):  # the second time the text is remembered
                wanted = await ask(text.format(twice), **settings)
                assert await ask(text.format("d"), **settings) == wanted, text


async def test_a_statement_that_waits_for_another_node_can_be_seen(tmp_path: Path) -> None:
    other, may_answer = Other(), asyncio.Event()

    async def later(request: web.Request) -> web.StreamResponse:
        await may_answer.wait()
        return web.Response(body=b"4\n")

    other.early = later
    async with node_beside(other, tmp_path) as ask:
        asking = asyncio.create_task(ask(COUNT))
        assert other.pool is not None
        while not (await other.pool.query("SHOW PROCESSLIST", format="TSV")).text.count(
            "__oncluster_awaited"
        ):
            assert not asking.done()
        may_answer.set()
        assert await asking == f"{OWN_ROWS + 4}\n"


async def test_what_is_no_sum_of_integers_is_left_to_chdb(tmp_path: Path) -> None:
    other = Other()
    async with node_beside(other, tmp_path) as ask:
        for what in ("max(k)", "sum(k / 2)", "sum(toNullable(i))", "sum(toInt128(i))", "avg(k)", "uniq(k)"):
            other.formats.clear()
            await ask(f"SELECT {what}, count() FROM d")
            assert other.formats == ["Native"], what


@pytest.mark.parametrize("has_rows", [True, False])
async def test_whatever_comes_instead_of_an_answer_chdb_asks_itself(tmp_path: Path, has_rows: bool) -> None:
    other = Other()
    async with node_beside(other, tmp_path) as ask:
        for what, early in NO_ANSWERS.items():
            other.early, other.has_rows = early, has_rows
            other.formats.clear()
            if has_rows:
                assert await ask(COUNT) == f"{2 * OWN_ROWS}\n", what
            else:
                with pytest.raises(SqlError, match="no memory"):
                    await ask(COUNT)
            assert other.formats[-1] == "Native", what
            assert set(other.formats[:-1]) == {"TSVRaw"}, what
        assert not awaited_values._awaited


async def test_nothing_waits_any_more_when_the_client_has_gone(tmp_path: Path) -> None:
    other, was_asked = Other(), asyncio.Event()

    async def never(request: web.Request) -> web.StreamResponse:
        was_asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    other.early = never
    async with node_beside(other, tmp_path) as ask:
        asking = asyncio.create_task(ask(COUNT))
        await was_asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not awaited_values._awaited
        other.early = None
        assert await ask(COUNT) == f"{2 * OWN_ROWS}\n"


@pytest.mark.parametrize(
    ("how", "code", "says"),
    [
        ("receive_timeout", Code.SOCKET_TIMEOUT, "Timeout: no answer from"),
        # Or chDB says it first.
        ("max_execution_time", Code.TIMEOUT_EXCEEDED, "Timeout: no answer from|Timeout exceeded"),
    ],
)
async def test_a_shard_that_is_silent_is_given_up_as_soon_as_the_statement_says(
    tmp_path: Path, how: str, code: Code, says: str
) -> None:
    other = Other()

    async def never(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    other.early = never
    async with node_beside(other, tmp_path) as ask:
        with pytest.raises(SqlError, match=says) as late:
            await ask(f"{COUNT} SETTINGS {how} = 0.8")  # to be asked whether it has the table counts, too
        assert late.value.code == code


PATIENCE = (
    ({}, "", USUAL_S, None),
    ({"receive_timeout": "2"}, "", 2, "2"),
    ({"max_execution_time": "2.5"}, "", 2.5, "3"),
    ({"max_execution_time": "0", "receive_timeout": "600"}, "", 600, "600"),
    ({"http_receive_timeout": "7", "max_execution_time": "9"}, "", 7, "7"),
    ({}, " SETTINGS receive_timeout = 4", 4, "4"),
)


@pytest.mark.parametrize(("settings", "clause", "wait_s", "of_chdb"), PATIENCE)
async def test_how_long_a_silent_shard_is_waited_for(
    tmp_path: Path, settings: dict[str, str], clause: str, wait_s: float, of_chdb: str | None
) -> None:
    pool = await ChdbPool.open(tmp_path / "data")
    try:
        asked = Asked(f"SELECT 1{clause}", User("u"), pool.session(one_shot=True), settings=settings)
        assert patience_s(asked) == wait_s
        assert with_patience(asked, wait_s).settings.get("http_receive_timeout") == of_chdb
    finally:
        await pool.close()


def test_an_answer_is_one_row_of_integers_of_its_types() -> None:
    columns = (("a", "UInt64"), ("b", "Int64"))
    assert integers_of(b"18446744073709551615\t-9223372036854775808\n", columns) == [TOP, -(1 << 63)]
    assert integers_of(b"0\t9223372036854775808\n", columns) is None
