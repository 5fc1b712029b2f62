"""What users do with a Keeper in etcd: the command line, copies from and to ZooKeeper, nodes."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.cli.main import cli
from engine.env import SystemEnv
from engine.keeper import CreateMode, etcd
from tests.conformance.nodes_support import ask, nodes_of

pytestmark = pytest.mark.slow
_numbers = itertools.count()


def test_a_tree_is_copied_from_etcd_to_zookeeper_and_back(tmp_path, zookeeper_server, etcd_server):
    config = tmp_path / "config.xml"
    port = etcd_server.client_port
    config.write_text(
        f"<clickhouse><etcd><node><host>127.0.0.1</host><port>{port}</port></node></etcd></clickhouse>"
    )
    root = f"/copied-{next(_numbers)}"

    async def plant():
        keeper = await etcd.connect(etcd_server.config, SystemEnv())
        await keeper.create(root, b"\xff")
        for _ in range(3):
            await keeper.create(f"{root}/n-", mode=CreateMode.PERSISTENT_SEQUENTIAL)
        await keeper.remove(f"{root}/n-0000000002")
        await keeper.close()

    async def next_number(path):
        keeper = await etcd.connect(etcd_server.config, SystemEnv())
        made = await keeper.create(f"{path}/n-", mode=CreateMode.PERSISTENT_SEQUENTIAL)
        await keeper.close()
        return made

    def run(*arguments):
        result = CliRunner().invoke(cli, ["keeper", *arguments, "--config", str(config), "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    asyncio.run(plant())
    there = f"zk://127.0.0.1:{zookeeper_server.client_port}{root}"
    back = f"etcd://127.0.0.1:{port}{root}-back"
    assert run("copy", there, "--root", root)["comparison"]["is_equal"]
    file = tmp_path / "backup"
    run("dump", str(file), "--root", root)
    assert run("restore", str(file), "--to", back)["comparison"]["is_equal"]
    assert run("diff", there, back)["is_equal"]
    assert asyncio.run(next_number(f"{root}-back")) == f"{root}-back/n-0000000003"


@pytest.fixture
async def two_nodes(tmp_path: Path, etcd_server):
    """Two node processes whose Keeper is the etcd."""
    async with nodes_of(tmp_path, etcd_server, ["n1", "n2"]) as ports:
        yield ports


def test_on_cluster_statements_and_replicated_tables_work_over_etcd(two_nodes):
    one, two = two_nodes
    create = (
        "CREATE TABLE t ON CLUSTER all (a UInt64) "
        "ENGINE = ReplicatedMergeTree('/nodes/t/{shard}', '{replica}') ORDER BY a"
    )
    assert sorted(line.split("\t")[0] for line in ask(one, create).splitlines()) == ["n1", "n2"]
    ask(one, "INSERT INTO t VALUES (1), (2)")
    ask(two, "INSERT INTO t VALUES (3)")
    for port in two_nodes:
        ask(port, "SYSTEM SYNC REPLICA t")
        assert ask(port, "SELECT groupArray(a) FROM (SELECT a FROM t ORDER BY a)") == "[1,2,3]\n"
    shown = ask(two, "SELECT name FROM system.zookeeper WHERE path = '/nodes/t/1/replicas' ORDER BY name")
    assert shown.split() == ["n1", "n2"]
