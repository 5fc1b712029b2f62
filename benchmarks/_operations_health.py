"""`health` of `benchmarks.operations`: six real nodes, a replica of 200 tables on each, checked whole."""

from __future__ import annotations

import asyncio

from benchmarks.operations import Stand, measure
from engine.client import NodeClient
from engine.config.load import load_node_config
from engine.operations.health import check_health, record_health
from engine.operations.site import open_site
from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import LocalCluster

_SHARDS = (("n1", "n2", "n3"), ("n4", "n5", "n6"))
_AT_ONCE = 8
_CHECKS = 3


@measure("health", "a check of 6 nodes with 200 replicated tables each, and keeping what it found")
async def health(stand: Stand) -> None:
    tables = stand.scaled(200)
    hosts = [host for shard in _SHARDS for host in shard]
    file = stand.directory / "given.xml"
    file.write_text(clusters_xml({"all": [list(shard) for shard in _SHARDS]}))
    cluster = LocalCluster(stand.directory / "run", cluster_file=file, hosts=hosts, env=stand.env)
    await stand.stack.enter_async_context(cluster)
    await asyncio.gather(*(_create(cluster, host, tables) for host in hosts))
    site = await stand.stack.enter_async_context(
        open_site(
            "all",
            load_node_config(cluster.config_file),
            database_url=stand.directory / "records.db",
            operator="benchmark",
            env=stand.env,
        )
    )
    times = []
    for _ in range(_CHECKS):
        began_s = stand.env.monotonic_s()
        report = await check_health(site)
        checked_s = stand.env.monotonic_s()
        record_health(site, report)
        times.append((checked_s - began_s, stand.env.monotonic_s() - checked_s))
        if sum(1 for _ in report.facts.replicas()) != len(hosts) * tables:
            raise RuntimeError(f"not all replicas were seen: {report.to_json()}")
    checked, kept = (sorted(column)[_CHECKS // 2] for column in zip(*times, strict=True))
    stand.add(f"health check of {len(hosts)} nodes, {tables} tables each", checked, aim_s=5)
    stand.add(f"health check of {len(hosts)} nodes, {tables} tables each: keeping what it found", kept)


async def _create(cluster: LocalCluster, host: str, tables: int) -> None:
    shard = next(number for number, hosts in enumerate(_SHARDS, start=1) if host in hosts)
    turn = asyncio.Semaphore(_AT_ONCE)
    async with NodeClient(cluster.node(host).url) as client:

        async def create(number: int) -> None:
            async with turn:
                await client.command(
                    f"CREATE TABLE t{number} (k UInt64, v String) ENGINE = "
                    f"ReplicatedMergeTree('/tables/{shard}/t{number}', '{{replica}}') ORDER BY k"
                )

        await asyncio.gather(*map(create, range(tables)))
