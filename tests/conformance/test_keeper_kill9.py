"""A single Keeper server is killed under a node at work, and comes back: the node goes on by itself."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from engine.errors import ConfigError
from engine.keeper.embedded import EmbeddedZooKeeper
from engine.keeper.etcd.embedded import EmbeddedEtcd, find_etcd
from tests.conformance.nodes_support import ask, nodes_of
from tests.few import few_first

pytestmark = pytest.mark.slow

STATE = "SELECT is_readonly, is_session_expired FROM system.replicas WHERE table = 't'"
TABLE = (
    "CREATE TABLE t ON CLUSTER all (a UInt64) "
    "ENGINE = ReplicatedMergeTree('/nodes/t/{shard}', '{replica}') ORDER BY a"
)


INSERT, CREATE = "INSERT INTO t VALUES ({})", "CREATE DATABASE d{} ON CLUSTER all"


class Work:
    """Statements that need Keeper, one after the other; each has to succeed, however long it takes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._numbers = itertools.count()
        self._is_over = False
        self.done: dict[str, set[int]] = {INSERT: set(), CREATE: set()}

    async def do(self, sql: str) -> None:
        while not self._is_over:
            number = next(self._numbers)
            await asyncio.to_thread(ask, self._port, sql.format(number))
            self.done[sql].add(number)

    async def more(self) -> None:
        """Until each statement was done again, begun after this was called."""
        before = next(self._numbers)
        while any(max(done, default=0) < before for done in self.done.values()):
            await asyncio.sleep(0.02)

    def end(self) -> None:
        self._is_over = True


@pytest.mark.parametrize("kind", few_first([EmbeddedZooKeeper, EmbeddedEtcd], few=1))
async def test_a_node_at_work_goes_on_by_itself_when_its_keeper_is_killed_and_comes_back(tmp_path, kind):
    """1 INSERTs and ON CLUSTER statements come one after the other, 2 Keeper is killed and starts again at
    once, 3 it is killed and starts again when the node's sessions are over, 4 every statement has succeeded,
    and each row is there once."""
    if kind is EmbeddedEtcd:
        try:
            find_etcd()
        except ConfigError as error:
            pytest.skip(str(error))
    async with (
        kind(tmp_path / "keeper", is_durable=False, ends_with_parent=True) as server,
        nodes_of(tmp_path, server, ["n1"], session_timeout_ms=3000) as [port],
    ):
        await asyncio.to_thread(ask, port, TABLE)
        work = Work(port)
        async with asyncio.TaskGroup() as group:
            for sql in work.done:
                group.create_task(work.do(sql))
            for until in ("", "1\t1\n"):
                await work.more()
                await server.kill()
                while until and await asyncio.to_thread(ask, port, STATE) != until:
                    await asyncio.sleep(0.05)
                await server.start()
                await work.more()
                assert await asyncio.to_thread(ask, port, STATE) == "0\t0\n"
            work.end()
        inserted, databases = work.done.values()
        rows = await asyncio.to_thread(ask, port, "SELECT a FROM t ORDER BY a")
        assert list(map(int, rows.split())) == sorted(inserted)
        there = await asyncio.to_thread(ask, port, "SELECT name FROM system.databases WHERE name LIKE 'd_%'")
        assert {f"d{number}" for number in databases} <= set(there.split())
