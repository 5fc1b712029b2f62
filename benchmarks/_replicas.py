"""The two pairs of replicas that `benchmarks.replication` compares: two engine nodes and two real ClickHouse
servers, one ZooKeeper, and the rows that are put into them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil

from engine.config.model import ZooKeeper
from engine.env import Env
from engine.testing.clickhouse_server import RealCluster, find_server, plan_servers
from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import LocalCluster

REPLICAS = 2
COLUMNS = "(id UInt64, day Date, name String, value Float64)"
_MEMORY_POLL_S = 0.02
_START_POLL_S = 0.02
_START_S = 180.0


@dataclass(slots=True)
class Pair:
    """Two replicas under test; replica numbers count from 0. `root` is where their tables stand in Keeper."""

    name: str
    urls: tuple[str, ...]
    root: str
    http: aiohttp.ClientSession
    spawn: Callable[[int], None]
    stop: Callable[[int], Awaitable[object]]
    pid: Callable[[int], int | None]
    _tables: list[str] = field(default_factory=list)

    async def query(self, sql: str, *, replica: int = 0, data: bytes | AsyncIterator[bytes] = b"") -> str:
        """Run `sql`, with `data` for its rows, and read the answer. Raises RuntimeError with its message."""
        async with self.http.post(self.urls[replica], params={"query": sql}, data=data) as reply:
            text = await reply.text()
            if reply.status != 200:
                raise RuntimeError(f"{self.name}: {sql}: {text.strip()}")
            return text.strip()

    async def start(self, replica: int) -> None:
        """Start the process again, and return when it answers a query. Raises TimeoutError."""
        self.spawn(replica)
        async with asyncio.timeout(_START_S):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    await self.query("SELECT 1", replica=replica)
                    return
                await asyncio.sleep(_START_POLL_S)

    async def create(self, table: str, *, columns: str = COLUMNS, settings: str = "") -> None:
        """The table on both replicas."""
        self._tables.append(table)
        for number in range(REPLICAS):
            engine = f"ReplicatedMergeTree('{self.root}/{table}', 'r{number + 1}')"
            sql = f"CREATE TABLE default.{table} {columns} ENGINE = {engine} ORDER BY id {settings}"
            await self.query(sql, replica=number)

    async def drop(self, table: str) -> None:
        for number in range(REPLICAS):
            await self.query(f"DROP TABLE default.{table}", replica=number)

    async def rows(self, table: str, *, replica: int) -> int:
        return int(await self.query(f"SELECT count() FROM default.{table}", replica=replica))

    async def parts(self, table: str, *, replica: int) -> int:
        sql = f"SELECT count() FROM system.parts WHERE database = 'default' AND table = '{table}' AND active"
        return int(await self.query(sql, replica=replica))

    async def until(self, is_so: Callable[[], Awaitable[bool]], *, timeout_s: float = 120.0) -> None:
        """Ask again and again, without a pause. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not await is_so():
                pass

    def memory_bytes(self, replica: int) -> int:
        """Resident, with the pages of libraries that processes share."""
        pid = self.pid(replica)
        return 0 if pid is None else int(psutil.Process(pid).memory_info().rss)

    def processor_ms(self, replica: int) -> float:
        """Processor time that the process has used so far."""
        pid = self.pid(replica)
        if pid is None:
            return 0.0
        used = psutil.Process(pid).cpu_times()
        return (used.user + used.system) * 1000

    @contextlib.asynccontextmanager
    async def peak_memory(self, replica: int) -> AsyncIterator[list[int]]:
        """In the list given stands, after the block, the largest memory seen in it."""
        peak = [self.memory_bytes(replica)]

        async def look() -> None:
            while True:
                peak[0] = max(peak[0], self.memory_bytes(replica))
                await asyncio.sleep(_MEMORY_POLL_S)

        looking = asyncio.create_task(look())
        try:
            yield peak
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)


def engine_pair(directory: Path, *, env: Env) -> LocalCluster:
    """Two engine nodes and the ZooKeeper that everybody uses; not started yet."""
    directory.mkdir(parents=True, exist_ok=True)
    cluster_file = directory / "benchmark.xml"
    cluster_file.write_text(clusters_xml({"pair": [["node01", "node02"]]}))
    return LocalCluster(directory / "engine", cluster_file=cluster_file, is_durable=True, env=env)


def pair_of_engines(cluster: LocalCluster, http: aiohttp.ClientSession) -> Pair:
    nodes = [cluster.node(name) for name in cluster.hosts]
    return Pair(
        name="engine",
        urls=tuple(node.url for node in nodes),
        root="/benchmark/engine",
        http=http,
        spawn=lambda i: nodes[i].process.start(),
        stop=lambda i: nodes[i].stop(),
        pid=lambda i: nodes[i].process.pid,
    )


def real_pair(directory: Path, *, zookeeper: ZooKeeper, env: Env) -> RealCluster | None:
    """Two real servers, not started yet; None where clickhouse-server is not installed."""
    if find_server() is None:
        return None
    return RealCluster(
        plan_servers(REPLICAS, env=env),
        clusters=[],
        zookeeper=zookeeper,
        directory=directory / "real",
        env=env,
    )


async def pair_of_servers(cluster: RealCluster, http: aiohttp.ClientSession) -> Pair:
    servers = cluster.servers
    return Pair(
        name=f"ClickHouse {await servers[0].version()}",
        urls=tuple(server.spec.url for server in servers),
        root="/benchmark/real",
        http=http,
        spawn=lambda i: servers[i].process.start(),
        stop=lambda i: servers[i].stop(),
        pid=lambda i: servers[i].process.pid,
    )


def block(first: int, rows: int, rng: random.Random) -> bytes:
    """Rows in TabSeparated, of about 40 bytes each."""
    lines = (
        f"{number}\t2013-{number % 12 + 1:02d}-15\tN{rng.randrange(100_000):05d}UA\t{rng.random():.6f}\n"
        for number in range(first, first + rows)
    )
    return "".join(lines).encode()


WIDE_COLUMNS = "(id UInt64, text String)"
_WIDE_TEXT_BYTES = 1014
_WIDE_ROW_BYTES = 8 + 2 + _WIDE_TEXT_BYTES


async def wide_rows(size_bytes: int, sent: Callable[[int], None]) -> AsyncIterator[bytes]:
    """Rows of 1 KiB in RowBinary that do not compress, in pieces of 1 MiB; `sent` is told of each."""
    length = bytes([_WIDE_TEXT_BYTES & 0x7F | 0x80, _WIDE_TEXT_BYTES >> 7])
    texts = os.urandom(_WIDE_TEXT_BYTES + 4096)
    per_piece = (1 << 20) // _WIDE_ROW_BYTES
    for piece in range(max(1, size_bytes >> 20)):
        rows = []
        for number in range(piece * per_piece, (piece + 1) * per_piece):
            at = number * 7919 % 4096
            rows.append(number.to_bytes(8, "little") + length + texts[at : at + _WIDE_TEXT_BYTES])
        data = b"".join(rows)
        sent(len(data))
        yield data


def rows_of(size_bytes: int) -> int:
    """How many rows `wide_rows` gives."""
    return max(1, size_bytes >> 20) * ((1 << 20) // _WIDE_ROW_BYTES)
