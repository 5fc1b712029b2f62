"""The files of a local cluster say what each node is, and follow the cluster file they were made from."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from engine.config.load import load_node_config
from engine.config.model import ZooKeeper
from engine.config.watch import ConfigFile
from engine.errors import ConfigError
from engine.testing.cluster_files import DEFAULT_CLUSTER_FILE, ClusterFiles, clusters_xml, macros_of

HOSTS = ("node01", "node02", "node03", "node04", "node05", "node06")


def written(tmp_path: Path, cluster_file: Path) -> ClusterFiles:
    files = ClusterFiles(tmp_path / "run", cluster_file)
    files.write(
        zookeeper=files.zookeeper(4711),
        http_ports={host: 30_001 + number for number, host in enumerate(files.hosts())},
    )
    return files


@pytest.mark.parametrize("suffix", [".xml", ".yaml"])
def test_each_node_reads_its_name_its_ports_and_its_macros(tmp_path: Path, suffix: str) -> None:
    files = written(tmp_path, DEFAULT_CLUSTER_FILE.with_suffix(suffix))
    assert files.hosts() == HOSTS

    node = load_node_config(files.node_config("node04"))

    assert (node.host_name, node.http_port, node.listen_host) == ("node04", 30_004, "127.0.0.1")
    assert node.topology.macros["order_shard"] == "02"
    assert node.topology.macros["replica"] == "node04"
    assert set(node.topology.clusters) == {"order_cluster", "log_cluster"}
    assert node.zookeeper is not None
    assert node.zookeeper.hosts == (("127.0.0.1", 4711),)
    assert node.path.startswith(str(tmp_path))
    assert [(queue.path, queue.host_name) for queue in node.queues] == [
        ("/clickhouse/task_queue/ddl", "node04")
    ]


def test_clients_read_the_address_of_the_embedded_zookeeper_only(tmp_path: Path) -> None:
    config = load_node_config(written(tmp_path, DEFAULT_CLUSTER_FILE).shared)
    assert config.zookeeper is not None
    assert config.zookeeper.hosts == (("127.0.0.1", 4711),)


def test_of_its_zookeeper_a_cluster_file_keeps_all_but_the_servers(tmp_path: Path) -> None:
    cluster_file = tmp_path / "mine.yaml"
    cluster_file.write_text(
        "remote_servers: {c: {shard: {replica: {host: a, port: 9000}}}}\n"
        "zookeeper:\n"
        "  node: [{host: z1, port: 2281, secure: 1}, {host: z2, port: 2281, secure: 1}]\n"
        "  session_timeout_ms: 9000\n  operation_timeout_ms: 3000\n  root: /team/a\n"
        "  identity: 'bob:secret'\n"
    )
    files = written(tmp_path, cluster_file)
    expected = ZooKeeper((("127.0.0.1", 4711),), 9000, 3000, root="/team/a", identity="bob:secret")

    assert load_node_config(files.node_config("a")).zookeeper == expected
    assert load_node_config(files.shared).zookeeper == expected
    assert stat.S_IMODE((files.directory / "config.d" / "zookeeper.xml").stat().st_mode) == 0o600


def test_a_node_sees_an_edit_of_the_cluster_file(tmp_path: Path) -> None:
    cluster_file = tmp_path / "mine.xml"
    cluster_file.write_text(clusters_xml({"events_cluster": [["a", "b"]]}))
    node = ConfigFile(written(tmp_path, cluster_file).node_config("a"))
    assert node.reload() is False

    cluster_file.write_text(clusters_xml({"events_cluster": [["a", "b"], ["c"]]}))

    assert node.reload() is True
    assert len(node.topology.cluster("events_cluster").shards) == 2


def test_macros_are_made_up_where_the_file_has_none(tmp_path: Path) -> None:
    cluster_file = tmp_path / "mine.xml"
    cluster_file.write_text(clusters_xml({"events_cluster": [["a"], ["b"]], "logs": [["b"]]}))
    files = written(tmp_path, cluster_file)

    assert macros_of("b", files.topology()) == {"replica": "b", "events_shard": "02", "logs_shard": "01"}
    assert load_node_config(files.node_config("b")).topology.macros["events_shard"] == "02"


def test_the_macros_of_most_migrations_are_there_where_they_can_only_mean_one_thing(tmp_path: Path) -> None:
    def macros(host: str, clusters: dict[str, list[list[str]]]) -> dict[str, str]:
        cluster_file = tmp_path / "cluster.xml"
        cluster_file.write_text(clusters_xml(clusters))
        return macros_of(host, ClusterFiles(tmp_path / "run", cluster_file).topology())

    one = {"shop_cluster": [["a"], ["b"]]}
    assert macros("b", one) == {
        "replica": "b",
        "shop_shard": "02",
        "shard": "02",
        "cluster": "shop_cluster",
    }
    same = macros("b", one | {"logs": [["a"], ["b"]]})
    assert same == {"replica": "b", "shop_shard": "02", "logs_shard": "02", "shard": "02"}
    # c is in two shards: nobody has a `shard`, or the replicas of some tables would be those of others.
    other = macros("b", one | {"logs": [["c", "a"], ["b", "c"]]})
    assert "shard" not in other


def test_a_file_without_clusters_is_refused(tmp_path: Path) -> None:
    cluster_file = tmp_path / "empty.xml"
    cluster_file.write_text("<clickhouse/>")
    with pytest.raises(ConfigError, match="remote_servers"):
        ClusterFiles(tmp_path, cluster_file).hosts()


def test_files_can_be_written_twice_with_other_ports(tmp_path: Path) -> None:
    files = written(tmp_path, DEFAULT_CLUSTER_FILE)
    files.write(zookeeper=files.zookeeper(4712), http_ports={"node01": 31_000})
    node = load_node_config(files.node_config("node01"))
    assert node.http_port == 31_000
    assert node.zookeeper is not None and node.zookeeper.hosts == (("127.0.0.1", 4712),)
