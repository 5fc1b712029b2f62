"""The two clusters that `benchmarks.ddl` compares: six engine nodes and six real ClickHouse servers, one
ZooKeeper.

Both have the clusters `two`, `four` and `six` over the same six nodes, each its own queue in the same
ZooKeeper, both listen on loopback, and both are spoken to by the same HTTP client.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import aiohttp
import psutil

from engine.config.model import DistributedDdl, ZooKeeper
from engine.env import Env
from engine.names import HostId, QueuePaths
from engine.testing.clickhouse_server import RealCluster, find_server, make_cluster, plan_servers
from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import LocalCluster

T = TypeVar("T")

SIZES = {"two": 2, "four": 4, "six": 6}
NODES = max(SIZES.values())
REAL_QUEUE = DistributedDdl(path="/benchmark/real/task_queue/ddl")


@dataclass(frozen=True, slots=True)
class System:
    """Six nodes under test. `start` returns when the node answers; node numbers count from 0."""

    name: str
    urls: tuple[str, ...]
    hosts: tuple[HostId, ...]
    queue: QueuePaths
    start: Callable[[int], Awaitable[None]]
    stop: Callable[[int], Awaitable[object]]
    pids: Callable[[], Sequence[int | None]]
    zookeeper_pid: Callable[[], int | None]
    """The server of both systems; it works for whichever is measured."""

    def processor_time_s(self) -> float:
        """What all its running processes have used up to now, in ticks of 10 ms."""
        return sum(map(processor_time_s, self.pids()))

    async def query(self, http: aiohttp.ClientSession, sql: str, *, node: int = 0) -> str:
        """Run `sql` on one node and read the whole answer. Raises RuntimeError with the server's message."""
        async with http.post(self.urls[node], data=sql.encode()) as reply:
            text = await reply.text()
            if reply.status != 200:
                raise RuntimeError(f"{self.name}: {sql}: {text.strip()}")
            return text


def processor_time_s(pid: int | None) -> float:
    """What a process has used up to now, in ticks of 10 ms; 0 for one that is no more."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if pid is not None:
            times = psutil.Process(pid).cpu_times()
            return float(times.user + times.system)
    return 0.0


def engine_cluster(directory: Path, *, env: Env) -> LocalCluster:
    """Six engine nodes and the ZooKeeper that everybody uses; not started yet."""
    directory.mkdir(parents=True, exist_ok=True)
    names = [f"node{i + 1:02d}" for i in range(NODES)]
    cluster_file = directory / "benchmark.xml"
    cluster_file.write_text(clusters_xml({name: _shards(names[:size]) for name, size in SIZES.items()}))
    return LocalCluster(directory / "engine", cluster_file=cluster_file, is_durable=True, env=env)


def engine_system(cluster: LocalCluster) -> System:
    nodes = [cluster.node(name) for name in cluster.hosts]
    return System(
        name="engine",
        urls=tuple(node.url for node in nodes),
        hosts=tuple(HostId(name, 9000) for name in cluster.hosts),
        queue=DistributedDdl().paths,
        start=lambda i: nodes[i].start(),
        stop=lambda i: nodes[i].stop(),
        pids=lambda: [node.process.pid for node in nodes],
        zookeeper_pid=lambda: cluster.zookeeper.pid,
    )


def real_cluster(directory: Path, *, zookeeper: ZooKeeper, env: Env) -> RealCluster | None:
    """Six real servers, not started yet; None where clickhouse-server is not installed."""
    if find_server() is None:
        return None
    specs = plan_servers(NODES, env=env)
    ids = [spec.host_id for spec in specs]
    return RealCluster(
        specs,
        clusters=[make_cluster(name, _shards(ids[:size])) for name, size in SIZES.items()],
        zookeeper=zookeeper,
        queue=REAL_QUEUE,
        directory=directory / "real",
        env=env,
    )


async def real_system(cluster: RealCluster, *, zookeeper_pid: Callable[[], int | None]) -> System:
    servers = cluster.servers
    version = await servers[0].version()
    return System(
        name=f"ClickHouse {version}",
        urls=tuple(server.spec.url for server in servers),
        hosts=tuple(server.host_id for server in servers),
        queue=REAL_QUEUE.paths,
        start=lambda i: servers[i].start(),
        stop=lambda i: servers[i].stop(),
        pids=lambda: [server.process.pid for server in servers],
        zookeeper_pid=zookeeper_pid,
    )


def _shards(hosts: list[T]) -> list[list[T]]:
    """Two replicas to a shard."""
    return [hosts[i : i + 2] for i in range(0, len(hosts), 2)]
