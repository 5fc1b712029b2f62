"""Other nodes are asked at once, and before this node reads its own rows."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from engine.config.model import Cluster, NodeConfig, Replica, Shard, Topology, User
from engine.env import SystemEnv
from engine.node.distributed.assembly import DistributedNode
from engine.node.statements.router import StatementRouter
from engine.node.statements.statement import Asked
from engine.node.system.system_tables import SystemTables
from engine.ports import free_ports
from engine.sql import Statement
from engine.storage import ChdbPool

pytestmark = pytest.mark.slow

OTHERS = 5
OWN_ROWS = 7
DEADLOCK_S = 20.0
"""Nobody waits so long where all are asked."""


class Others:
    """The other nodes, and one that this node's own table is read from: each answers when all were asked."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        self._all_asked = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            return web.Response(headers={"X-ClickHouse-Server-Display-Name": "other"})  # a probe
        query = request.query.get("query", "own rows")
        self.asked.add(request.host)
        if len(self.asked) == OTHERS + 1:
            self._all_asked.set()
        try:
            await asyncio.wait_for(self._all_asked.wait(), DEADLOCK_S)
        except TimeoutError:
            return web.Response(status=500, text=f"only {sorted(self.asked)} were asked")
        if query == "own rows":
            return web.Response(body=b"1\n" * OWN_ROWS)
        if request.query["default_format"] == "TSVRaw":
            return web.Response(body=b"1000\n")
        column = b"\x01\x01\x04__a0\x06UInt64" + struct.pack("<Q", 1000)
        return web.Response(body=column)


@pytest.fixture
async def others() -> AsyncIterator[tuple[Others, int]]:
    others, [port] = Others(), free_ports(1)
    app = web.Application()
    app.router.add_get("/", others.answer)
    app.router.add_post("/", others.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    yield others, port
    await runner.cleanup()


async def nowhere(asked: Asked, statement: Statement) -> object:
    raise AssertionError(asked.sql)


@pytest.mark.parametrize("threads", ["1", "2", ""])
@pytest.mark.parametrize("has_one_row", [True, False])
async def test_all_shards_are_read_at_the_same_time(
    tmp_path_factory: pytest.TempPathFactory, others: tuple[Others, int], threads: str, has_one_row: bool
) -> None:
    them, port = others
    own = Shard(1, (Replica("127.0.0.1", 9000, default_database="default"),))
    shards = [
        Shard(number, (Replica(f"127.0.0.{number}", 9000, http_port=port),))
        for number in range(2, OTHERS + 2)
    ]
    topology = Topology({"c": Cluster("c", (own, *shards))})
    pool = await ChdbPool.open(tmp_path_factory.mktemp("node") / "data")
    node = DistributedNode(
        NodeConfig(path=str(pool.path)),
        env=SystemEnv(),
        pool=pool,
        topology=lambda: topology,
        is_local=lambda host: host.host == "127.0.0.1",
        run_other=None,
    )
    router = StatementRouter(
        tables=SystemTables([]),
        run_on_cluster=nowhere,  # type: ignore[arg-type]
        distributed=node,
    )

    async def ask(sql: str, **settings: str) -> str:
        asked = Asked(sql, User("u"), pool.session(one_shot=True), settings=settings)
        data = b""
        async with router.run(asked) as answer:
            while chunk := await answer.read():
                data += chunk
            await answer.finish()
        return data.decode()

    await node.start()
    try:
        rows = f"url('http://127.0.0.1:{port}/', 'TSV', 'k UInt64')"
        await pool.query(f"CREATE VIEW t AS SELECT k FROM {rows}")
        await ask("CREATE TABLE d (k UInt64) ENGINE = Distributed(c, default, t, k)")
        sql = "SELECT count() FROM d" if has_one_row else "SELECT count() FROM d GROUP BY ALL"
        settings = {"max_threads": threads} if threads else {}
        assert await ask(sql, **settings) == f"{1000 * OTHERS + OWN_ROWS}\n"
        assert len(them.asked) == OTHERS + 1
    finally:
        await node.stop()
        await pool.close()
