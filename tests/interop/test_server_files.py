"""The files that real servers are started with: our own loader reads them alike."""

from __future__ import annotations

from pathlib import Path

from engine.config.load import load_node_config
from engine.config.model import DistributedDdl, ZooKeeper
from engine.env import SystemEnv
from engine.testing.clickhouse_config import ClickHouseConfig
from engine.testing.clickhouse_server import make_cluster, plan_servers

ENV = SystemEnv()


def test_our_loader_reads_the_configuration_that_real_servers_run_with(tmp_path: Path) -> None:
    specs = plan_servers(4, env=ENV, shards=2)
    ids = [spec.host_id for spec in specs]
    clusters = (
        make_cluster("all", [ids[:2], ids[2:]]),
        make_cluster("one", [ids[:1]], internal_replication=False),
    )
    queue = DistributedDdl(path="/here/ddl", cleanup_delay_period_s=7, max_tasks_in_queue=9)
    shared = ClickHouseConfig(clusters, ZooKeeper((("127.0.0.1", 2181),), 5000), queue, "warning")
    shared.write(specs[2], tmp_path / "real03")

    read = load_node_config(tmp_path / "real03" / "config.xml")

    assert tuple(read.topology.clusters.values()) == clusters
    assert read.topology.macros == {"shard": "02", "replica": "real03"}
    assert read.tcp_port == specs[2].tcp_port
    assert read.http_port == specs[2].http_port
    assert read.zookeeper is not None
    assert read.zookeeper.hosts == (("127.0.0.1", 2181),)
    assert read.zookeeper.session_timeout_ms == 5000
    assert [(q.path, q.cleanup_delay_period_s, q.max_tasks_in_queue) for q in read.queues] == [
        ("/here/ddl", 7, 9)
    ]


def test_planned_servers_have_different_ports_and_equal_runs_of_shards() -> None:
    specs = plan_servers(5, env=ENV, shards=2)

    ports = [port for s in specs for port in (s.tcp_port, s.http_port, s.interserver_http_port)]
    assert len(set(ports)) == 15
    assert [spec.macros["shard"] for spec in specs] == ["01", "01", "01", "02", "02"]
