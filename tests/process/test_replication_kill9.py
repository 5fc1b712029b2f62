"""Real nodes with a replicated table are killed while they insert, fetch, merge and mutate; afterwards the
rows are counted.

Each insert has rows and a token of its own and is repeated, on any node, until somebody acknowledges it. What
must hold stands in the invariants: a token is stored once, on every replica (R2); when quiet, all replicas
have equal parts with equal hashes (R3); what was acknowledged is there, and damage is not (R1, R5).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from engine.env import SystemEnv
from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import LocalCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HOSTS = ["node01", "node02", "node03"]
BLOCKS, ROWS, WRITERS, KILLS = 36, 20, 3, 7
PATIENCE_S = 90.0
ENV = SystemEnv()
CREATE = (
    "CREATE TABLE default.t (id UInt32, p UInt8, value UInt32) "
    "ENGINE = ReplicatedMergeTree('/clickhouse/tables/kill/t', '{replica}') PARTITION BY p ORDER BY id"
)
PARTS = (
    "SELECT name, hash_of_all_files FROM system.parts "
    "WHERE active AND database = 'default' AND table = 't' ORDER BY name FORMAT TSVRaw"
)
QUEUE = (
    "SELECT node_name, type, new_part_name, num_tries, postpone_reason, last_exception "
    "FROM system.replication_queue FORMAT TSVRaw"
)


class Refused(Exception):
    """A node said no, or nothing."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    cluster_file = tmp_path / "cluster.xml"
    cluster_file.write_text(clusters_xml({"kill_cluster": [HOSTS]}))
    async with LocalCluster(tmp_path / "run", cluster_file=cluster_file, session_timeout_ms=4000) as running:
        yield running


class Client:
    """Talks to whichever node it is told to. A statement that takes longer than 20 s counts as unanswered."""

    def __init__(self, cluster: LocalCluster, http: aiohttp.ClientSession) -> None:
        self._cluster = cluster
        self._http = http

    async def query(self, host: str, sql: str, **settings: str) -> str:
        """Raises Refused."""
        timeout = aiohttp.ClientTimeout(total=20)
        url = self._cluster.node(host).url
        try:
            async with self._http.post(url, data=sql, params=settings, timeout=timeout) as answer:
                text = await answer.text()
                if answer.status != 200:
                    raise Refused(text)
                return text.strip()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Refused(repr(error)) from error

    async def insert(self, block: int, rng: random.Random) -> None:
        """Until somebody acknowledges it."""
        rows = ", ".join(f"({number}, {block % 2}, 0)" for number in range(block * ROWS, (block + 1) * ROWS))
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await self.query(
                        rng.choice(HOSTS),
                        f"INSERT INTO default.t VALUES {rows}",
                        insert_deduplication_token=f"block {block}",
                    )
                    return
                except Refused:
                    await ENV.sleep(rng.uniform(0.0, 0.3))

    async def somewhere(self, sql: str, rng: random.Random) -> None:
        """Once, wherever; an error is fine."""
        try:
            await self.query(rng.choice(HOSTS), sql)
        except Refused:
            pass


@pytest.mark.parametrize("seed", [1, 2])
async def test_replicas_killed_at_any_moment_end_with_the_same_parts_and_every_row_once(
    cluster: LocalCluster, seed: int
) -> None:
    rng = random.Random(seed)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
        client = Client(cluster, http)
        for host in HOSTS:
            await client.query(host, CREATE)

        async def write(writer: int) -> None:
            own = random.Random(seed * 100 + writer)
            for block in range(writer, BLOCKS, WRITERS):
                await client.insert(block, own)

        async def disturb() -> None:
            own = random.Random(seed * 100 + 50)
            for _ in range(5):
                await ENV.sleep(own.uniform(0.1, 0.8))
                await client.somewhere("OPTIMIZE TABLE default.t FINAL", own)
                await client.somewhere("ALTER TABLE default.t UPDATE value = 7 WHERE p = 0", own)

        async def kill_and_start() -> None:
            for _ in range(KILLS):
                await ENV.sleep(rng.uniform(0.0, 0.7))
                node = cluster.nodes[rng.choice(HOSTS)]
                await node.kill9()
                await ENV.sleep(rng.uniform(0.0, 0.5))
                await node.start()

        await asyncio.gather(*(write(writer) for writer in range(WRITERS)), disturb(), kill_and_start())
        parts = await until_equal(client)
        assert parts
        for host in HOSTS:
            found = await client.query(host, "SELECT id FROM default.t ORDER BY id FORMAT TSVRaw")
            assert [int(line) for line in found.split()] == list(range(BLOCKS * ROWS)), host
            values = await client.query(host, "SELECT DISTINCT p, value FROM default.t ORDER BY ALL")
            assert {tuple(line.split("\t")) for line in values.splitlines()} <= {
                ("0", "0"),
                ("0", "7"),
                ("1", "0"),
            }


async def until_equal(client: Client) -> str:
    """The parts of all replicas, once they are the same and nothing waits any more."""
    seen: dict[str, str] = {}
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    for host in HOSTS:
                        await client.query(host, "SYSTEM SYNC REPLICA default.t")
                    seen = {host: await client.query(host, PARTS) for host in HOSTS}
                except Refused as refusal:
                    seen = {"refused": str(refusal)}
                    await ENV.sleep(0.5)
                    continue
                if len(set(seen.values())) == 1:
                    return next(iter(seen.values()))
                await ENV.sleep(0.3)
    except TimeoutError:
        queues = {host: await client.query(host, QUEUE) for host in HOSTS}
        shown = "\n\n".join(f"{host}:\n{seen.get(host, seen)}\n{queues[host]}" for host in HOSTS)
        pytest.fail(f"the replicas are not equal after {PATIENCE_S:g} s:\n{shown}")
