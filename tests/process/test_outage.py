"""The demo's migrations by command line while a node is away: same schema everywhere, a true ledger."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engine.config.load import load_node_config
from engine.env import SystemEnv
from engine.testing.local_cluster import LocalCluster
from tests.process.support import cluster_file_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
ENV = SystemEnv()
CLUSTER = "order_cluster"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    file = cluster_file_in(tmp_path / "cluster.xml", nodes=4, shards=2)
    async with LocalCluster(tmp_path / "run", cluster_file=file, session_timeout_ms=4000) as running:
        yield running


async def migrate(cluster: LocalCluster, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "engine.cli", "migrate", *arguments),
        *("--cluster", CLUSTER, "--dir", str(ROOT / "migrations")),
        *("--config", str(cluster.config_file), "--ledger-url", str(cluster.directory / "ledger.db")),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=cluster.directory,
    )


async def run(cluster: LocalCluster, *arguments: str) -> tuple[int | None, str, str]:
    process = await migrate(cluster, *arguments)
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def status(cluster: LocalCluster) -> dict[str, Any]:
    _, out, err = await run(cluster, "status", "--json")
    found: dict[str, Any] = json.loads(out)
    assert found, err
    return found


async def schema(cluster: LocalCluster, name: str) -> str:
    sql = (
        "SELECT database, name, replaceRegexpOne(create_table_query, ' UUID \\'[^\\']*\\'', '') "
        "FROM system.tables WHERE database = 'flights' ORDER BY name FORMAT TSVRaw"
    )
    async with aiohttp.ClientSession() as session, session.post(cluster.node(name).url, data=sql) as answer:
        text = await answer.text()
        assert answer.status == 200, text
        return text


async def finished(cluster: LocalCluster, host: str) -> int:
    """How many entries of the queue this host has finished."""
    paths = load_node_config(cluster.config_file).queues[0].paths
    async with cluster.keeper() as keeper:
        if await keeper.exists(paths.root) is None:
            return 0
        entries = [name for name in (await keeper.children(paths.root)).names if name.startswith("query-")]
        found = await keeper.exists_many([paths.finished(entry, f"{host}:9000") for entry in entries])
        return sum(stat is not None for stat in found)


async def until_finished(cluster: LocalCluster, host: str, count: int, *, by: asyncio.Task[Any]) -> None:
    while await finished(cluster, host) < count:
        assert not by.done(), by.result()
        await ENV.sleep(0.02)


async def assert_true_ledger_and_same_schema(cluster: LocalCluster) -> None:
    """Every cell of the ledger says done, every entry of the queue agrees, and all hosts look the same."""
    code, out, err = await run(cluster, "status", "--json")
    assert code == 0, out + err
    paths = load_node_config(cluster.config_file).queues[0].paths
    async with cluster.keeper() as keeper:
        entries = [name for name in (await keeper.children(paths.root)).names if name.startswith("query-")]
        assert len(entries) == 17, "one entry for each statement, and no second one for any"
        for entry in entries:
            for host in cluster.hosts:
                outcome = await keeper.get(paths.finished(entry, f"{host}:9000"))
                assert outcome.data.startswith(b"0"), (entry, host, outcome.data)
    schemas = {host: await schema(cluster, host) for host in cluster.hosts}
    assert "aircraft" in schemas["node01"] and "flights_staging" not in schemas["node01"]
    assert len(set(schemas.values())) == 1, schemas


async def test_a_node_that_is_away_during_a_migration_catches_up_while_the_run_waits(
    cluster: LocalCluster,
) -> None:
    """1. Apply. 2. node03 is killed in the middle. 3. The others do one that it misses. 4. It comes back."""
    away = cluster.node("node03")
    applying = asyncio.create_task(run(cluster, "apply", "--approve", "--no-rehearse"))
    await until_finished(cluster, "node03", 2, by=applying)
    await away.kill9()
    missed = await finished(cluster, "node03") + 1
    await until_finished(cluster, "node01", missed, by=applying)
    await away.start()

    code, out, err = await applying

    assert code == 0, out + err
    await assert_true_ledger_and_same_schema(cluster)


async def test_a_run_that_times_out_on_an_absent_node_is_finished_by_a_second_one(
    cluster: LocalCluster,
) -> None:
    """1. node04 is away. 2. Apply gives up after its timeout: not finished, not failed. 3. Once it is back,
    the same command attaches to what was sent and sends the rest."""
    await cluster.node("node04").kill9()

    code, out, err = await run(cluster, "apply", "--approve", "--no-rehearse", "--timeout", "8")
    assert code == 3, out + err
    assert "node04" in out + err
    half = await finished(cluster, "node01")
    assert 0 < half < 12

    await cluster.node("node04").start()
    code, out, err = await run(cluster, "apply", "--approve", "--no-rehearse")
    assert code == 0, out + err
    await assert_true_ledger_and_same_schema(cluster)
