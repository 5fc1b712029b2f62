"""What users do with a Keeper in etcd: the command line, copies from and to ZooKeeper, nodes."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.cli.main import cli
from engine.env import SystemEnv
from engine.keeper import CreateMode, etcd
from engine.ports import free_ports

pytestmark = pytest.mark.slow
_numbers = itertools.count()
PATIENCE_S = 90.0


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


def ask(port: int, sql: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", data=sql.encode())
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        return reply.read().decode()


@pytest.fixture
def two_nodes(tmp_path: Path, etcd_server):
    """Two node processes whose Keeper is the etcd."""
    ports = free_ports(6)
    replicas = "".join(f"<replica><host>{name}</host><port>9000</port></replica>" for name in ("n1", "n2"))
    processes = []
    try:
        for number, name in enumerate(("n1", "n2")):
            config = tmp_path / f"{name}.xml"
            config.write_text(
                f"<clickhouse><path>{tmp_path / name}</path><host_name>{name}</host_name>"
                f"<http_port>{ports[number]}</http_port>"
                f"<interserver_http_host>127.0.0.1</interserver_http_host>"
                f"<interserver_http_port>{ports[2 + number]}</interserver_http_port>"
                f"<macros><shard>1</shard><replica>{name}</replica></macros>"
                f"<etcd><node><host>127.0.0.1</host><port>{etcd_server.client_port}</port></node></etcd>"
                f"<distributed_ddl><path>/nodes/ddl</path></distributed_ddl>"
                f"<remote_servers><both><shard><internal_replication>true</internal_replication>"
                f"{replicas}</shard></both></remote_servers></clickhouse>"
            )
            log = (tmp_path / f"{name}.log").open("wb")
            command = [sys.executable, "-m", "engine.cli", "node", "--config", str(config)]
            processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        deadline_s = time.monotonic() + PATIENCE_S
        for port, process in zip(ports, processes, strict=False):
            while True:
                try:
                    ask(port, "SELECT 1")
                    break
                except OSError:
                    assert process.poll() is None, (tmp_path / "n1.log").read_text()
                    assert time.monotonic() < deadline_s, (tmp_path / "n1.log").read_text()
                    time.sleep(0.1)
        yield ports[0], ports[1]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=30)


def test_on_cluster_statements_and_replicated_tables_work_over_etcd(two_nodes):
    one, two = two_nodes
    create = (
        "CREATE TABLE t ON CLUSTER both (a UInt64) "
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
