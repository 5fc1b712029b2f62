"""Real nodes are killed while they execute ON CLUSTER statements; afterwards the effects are counted.

Each statement appends its number to a column by a mutation, so that a row tells which statements took effect
on a host, how often, and in which order. What must hold stands in the invariants: at most one effect, and one
where the outcome is done (D1); queue order on each host (D3); done survives a kill (D4); every entry gets an
outcome once the faults stop (D5).
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from engine.config.load import load_node_config
from engine.config.model import NodeConfig
from engine.ddl.client import DDLQueueClient
from engine.ddl.initiator import prepare
from engine.ddl.outcome import EntryStatus, HostState
from engine.env import SystemEnv
from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import LocalCluster, LocalNode
from tests.few import few_first
from tests.warm import warm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STATEMENTS = 14
ENV = SystemEnv()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    cluster_file = tmp_path / "cluster.xml"
    cluster_file.write_text(clusters_xml({"kill_cluster": [["node01", "node02", "node03"]]}))
    async with LocalCluster(
        tmp_path / "run", cluster_file=cluster_file, session_timeout_ms=4000, launch=warm
    ) as running:
        yield running


async def query(node: LocalNode, sql: str) -> str:
    async with aiohttp.ClientSession() as session, session.post(node.url, data=sql) as answer:
        text = await answer.text()
        assert answer.status == 200, text
        return text


async def submit(client: DDLQueueClient, config: NodeConfig, sql: str) -> str:
    prepared = prepare(
        sql,
        topology=config.topology,
        queue=config.queues[0],
        token=str(uuid.uuid4()),
        on_cluster="kill_cluster",
    )
    return (await client.submit(prepared)).entry


async def complete(client: DDLQueueClient, entry: str) -> EntryStatus:
    """Watch until every host has an outcome."""
    last = None
    async for status in client.watch(entry):
        last = status
    assert last is not None and last.is_complete
    return last


def append(number: int) -> str:
    return (
        f"ALTER TABLE default.trace UPDATE seen = arrayPushBack(seen, {number}) WHERE 1 "
        "SETTINGS mutations_sync = 2"
    )


async def trace(node: LocalNode) -> list[int]:
    text = await query(node, "SELECT arrayStringConcat(seen, ',') FROM default.trace FORMAT TSVRaw")
    return [int(number) for number in text.strip().split(",") if number]


@pytest.mark.parametrize("seed", few_first([1, 2], few=1))
async def test_nodes_killed_at_any_moment_execute_each_statement_once_and_in_order(
    cluster: LocalCluster, seed: int
) -> None:
    rng = random.Random(seed)
    config = load_node_config(cluster.config_file)
    async with cluster.keeper() as keeper:
        client = DDLQueueClient(keeper, ENV, config.queues[0].paths)
        await complete(
            client,
            await submit(
                client,
                config,
                "CREATE TABLE default.trace (id UInt8, seen Array(UInt32)) ENGINE = MergeTree ORDER BY id",
            ),
        )
        for node in cluster.nodes.values():
            await query(node, "INSERT INTO default.trace VALUES (1, [])")

        async def kill_and_start(times: int) -> None:
            for _ in range(times):
                await ENV.sleep(rng.uniform(0.0, 0.7))
                node = cluster.nodes[rng.choice(cluster.hosts)]
                await node.kill9()
                await ENV.sleep(rng.uniform(0.0, 0.5))
                await node.start()

        async def send() -> list[str]:
            entries = []
            for number in range(STATEMENTS):
                entries.append(await submit(client, config, append(number)))
                await ENV.sleep(rng.uniform(0.0, 0.4))
            return entries

        entries, _ = await asyncio.gather(send(), kill_and_start(6))
        outcomes = [await complete(client, entry) for entry in entries]

    for name, node in cluster.nodes.items():
        done = [
            number
            for number, status in enumerate(outcomes)
            for host in status.hosts
            if host.host.host == name and host.state is HostState.DONE
        ]
        seen = await trace(node)
        assert len(done) == STATEMENTS, (name, [s.hosts for s in outcomes])
        assert seen == sorted(seen), name
        assert seen == done, name

    # What was acknowledged survives one more kill of everybody.
    before = {name: await trace(node) for name, node in cluster.nodes.items()}
    await asyncio.gather(*(node.kill9() for node in cluster.nodes.values()))
    await cluster.start_nodes()
    assert {name: await trace(node) for name, node in cluster.nodes.items()} == before


async def test_a_sleep_past_the_session_and_a_restart_of_zookeeper_lose_no_statement(
    cluster: LocalCluster,
) -> None:
    """1. node02 is stopped by SIGSTOP. 2. A statement is done elsewhere; its session expires. 3. SIGCONT: it
    executes what it missed. 4. ZooKeeper is killed and started. 5. Everybody executes the next one."""
    config = load_node_config(cluster.config_file)
    async with cluster.keeper() as keeper:
        client = DDLQueueClient(keeper, ENV, config.queues[0].paths)
        asleep = cluster.node("node02")
        asleep.pause()
        entry = await submit(client, config, "CREATE TABLE default.missed (a UInt8) ENGINE = Memory")
        expected = {"node01": HostState.DONE, "node02": HostState.INACTIVE, "node03": HostState.DONE}
        while {h.host.host: h.state for h in (await client.status(entry)).hosts} != expected:
            await ENV.sleep(0.1)
        asleep.resume()

        status = await complete(client, entry)

    assert {host.state for host in status.hosts} == {HostState.DONE}
    assert await query(asleep, "EXISTS default.missed FORMAT TSV") == "1\n"

    await cluster.zookeeper.kill()
    await cluster.start_zookeeper()
    async with cluster.keeper() as keeper:
        client = DDLQueueClient(keeper, ENV, config.queues[0].paths)
        second = await submit(client, config, "CREATE TABLE default.after (a UInt8) ENGINE = Memory")
        status = await complete(client, second)
    assert {host.state for host in status.hosts} == {HostState.DONE}
    for node in cluster.nodes.values():
        tables = await query(node, "SELECT name FROM system.tables WHERE database = 'default' ORDER BY name")
        assert tables.split() == ["after", "missed"]
