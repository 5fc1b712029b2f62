"""`ENGINE = ReplicatedMergeTree` without arguments, on six real nodes: two shards of three replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.migrations.probe import HttpProbe
from engine.names import HostId
from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import blocking_cluster
from tests.node.http_client import HttpAt
from tests.warm import warm

pytestmark = pytest.mark.slow

SHARDS = {"01": ("a1", "a2", "a3"), "02": ("b1", "b2", "b3")}
Nodes = Mapping[str, HttpAt]


@contextmanager
def started(directory: Path, shards: Mapping[str, tuple[str, ...]], more: str = "") -> Iterator[Nodes]:
    hosts = [host for names in shards.values() for host in names]
    macros = "".join(
        f"<macros_{host}><shard>{shard}</shard><replica>{host}</replica></macros_{host}>"
        for shard, names in shards.items()
        for host in names
    )
    text = clusters_xml({"all": [list(names) for names in shards.values()]})
    file = directory / "given.xml"
    assert "</clickhouse>" in text
    file.write_text(text.replace("</clickhouse>", f"{macros}{more}</clickhouse>"))
    with blocking_cluster(directory / "run", cluster_file=file, hosts=hosts, launch=warm) as (local, _):
        yield {host: HttpAt(local.node(host).url) for host in hosts}


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with started(tmp_path_factory.mktemp("six"), SHARDS) as nodes:
        yield nodes


def places(nodes: Nodes, table: str) -> set[tuple[str, ...]]:
    """Where each host's replica stands: host, path, name, replicas of the table."""
    sql = (
        "SELECT zookeeper_path, replica_name, total_replicas, active_replicas FROM system.replicas "
        f"WHERE table = '{table}'"
    )
    return {(host, *node.query(sql).split()) for host, node in nodes.items()}


def expected_places(nodes: Nodes, table: str) -> set[tuple[str, ...]]:
    """One UUID for all hosts; the replicas of a shard share a path."""
    (uuid,) = {
        node.query(f"SELECT uuid FROM system.tables WHERE name = '{table}'") for node in nodes.values()
    }
    return {
        (host, f"/clickhouse/tables/{uuid.strip()}/{shard}", host, "3", "3")
        for shard, hosts in SHARDS.items()
        for host in hosts
    }


def rows(nodes: Nodes, table: str) -> dict[str, set[str]]:
    """By shard, what its replicas have once they are in step."""
    found: dict[str, set[str]] = {}
    for shard, hosts in SHARDS.items():
        for host in hosts:
            nodes[host].query(f"SYSTEM SYNC REPLICA {table}")
            found.setdefault(shard, set()).add(nodes[host].query(f"SELECT * FROM {table} ORDER BY ALL"))
    return found


@pytest.mark.extended
def test_the_hosts_of_a_shard_share_one_path_through_all_that_happens_to_the_name(six: Nodes) -> None:
    made = "(k UInt64) ENGINE = ReplicatedMergeTree ORDER BY k"
    a1, b2 = six["a1"], six["b2"]

    a1.query(f"CREATE TABLE t ON CLUSTER all {made}")
    assert places(six, "t") == expected_places(six, "t")
    a1.query("INSERT INTO t VALUES (1)")
    b2.query("INSERT INTO t VALUES (2)")
    assert rows(six, "t") == {"01": {"1\n"}, "02": {"2\n"}}

    b2.query("RENAME TABLE t TO renamed ON CLUSTER all")
    assert places(six, "renamed") == expected_places(six, "renamed")
    a1.query("CREATE TABLE t ON CLUSTER all AS renamed")
    assert places(six, "t") == expected_places(six, "t") != places(six, "renamed")
    a1.query("EXCHANGE TABLES t AND renamed ON CLUSTER all")
    assert places(six, "t") == expected_places(six, "t")
    assert rows(six, "t") == {"01": {"1\n"}, "02": {"2\n"}}
    assert rows(six, "renamed") == {"01": {""}, "02": {""}}

    before = places(six, "t")
    b2.query(f"CREATE OR REPLACE TABLE t ON CLUSTER all {made}")
    assert places(six, "t") == expected_places(six, "t") != before
    six["b3"].query("INSERT INTO t VALUES (3)")
    assert rows(six, "t") == {"01": {""}, "02": {"3\n"}}

    for again in range(2):  # at once: the UUID of what was dropped is in nobody's way
        a1.query(f"DROP TABLE t ON CLUSTER all {'SYNC' if again else ''}")
        a1.query(f"CREATE TABLE t ON CLUSTER all {made}")
        assert places(six, "t") == expected_places(six, "t")
    a1.query("DETACH TABLE t ON CLUSTER all")
    a1.query("ATTACH TABLE t ON CLUSTER all")
    six["a2"].query("INSERT INTO t VALUES (4)")
    assert rows(six, "t") == {"01": {"4\n"}, "02": {""}}

    for name in ("t", "renamed"):
        a1.query(f"DROP TABLE {name} ON CLUSTER all SYNC")
    assert a1.query("SELECT name FROM system.zookeeper WHERE path = '/clickhouse/tables'") == ""


def test_macros_of_the_configuration_come_before_the_names_of_a_replicated_database(six: Nodes) -> None:
    for shard, hosts in SHARDS.items():
        for host in hosts:
            six[host].query(f"CREATE DATABASE rd ENGINE = Replicated('/rd', 'of {shard}', 'name of {host}')")
    six["a1"].query("CREATE TABLE rd.inside (k UInt64) ENGINE = ReplicatedMergeTree ORDER BY k")
    assert places(six, "inside") == expected_places(six, "inside")
    for node in six.values():
        node.query("DROP DATABASE rd SYNC")


def test_without_a_macro_the_shard_is_that_of_the_replicated_database(tmp_path: Path) -> None:
    file = tmp_path / "given.xml"
    text = clusters_xml({"all": [["x1"]]})
    macros = "<macros_x1><replica>x1</replica></macros_x1>"
    file.write_text(text.replace("</clickhouse>", f"{macros}</clickhouse>"))
    with blocking_cluster(tmp_path / "run", cluster_file=file, launch=warm) as (local, _):
        x1 = HttpAt(local.node("x1").url)
        assert "shard" not in x1.query("SELECT macro FROM system.macros").split()
        x1.query("CREATE DATABASE rd ENGINE = Replicated('/rd', 'of its own', 'x')")
        x1.query("CREATE TABLE rd.inside (k UInt64) ENGINE = ReplicatedMergeTree ORDER BY k")
        assert x1.query("SELECT zookeeper_path FROM system.replicas").endswith("/of its own\n")


def test_a_path_that_names_no_shard_is_refused_to_the_second_shard(six: Nodes) -> None:
    create = "CREATE TABLE {} (k UInt64) ENGINE = ReplicatedMergeTree('/one/{}', '{{replica}}') ORDER BY k"
    first, peer, other = six["a1"], six["a2"], six["b1"]
    for node in (first, peer):
        node.query(create.format("one", "one"))
    reply = other.post(create.format("one", "one"))
    assert reply.code == 36, reply.text
    assert "another shard's table" in reply.text and "'all'" in reply.text and "{shard}" in reply.text
    assert other.query("EXISTS one") == "0\n"
    replicas = "SELECT name FROM system.zookeeper WHERE path = '/one/one/replicas' ORDER BY name"
    assert first.query(replicas) == "a1\na2\n"
    first.query("INSERT INTO one VALUES (1)", insert_quorum="2")
    reply = first.post(create.format("both ON CLUSTER all", "both"))
    assert reply.code == 36, reply.text
    made = {host for host, node in six.items() if node.query("EXISTS both") == "1\n"}
    assert made in ({"a1", "a2", "a3"}, {"b1", "b2", "b3"}), "of whichever came first"
    for node in (first, peer):
        node.query("DROP TABLE one SYNC")
    first.query("DROP TABLE IF EXISTS both ON CLUSTER all SYNC")
    first.query(create.format("both ON CLUSTER all", "{shard}/both"))


def test_without_on_cluster_the_uuid_has_to_be_given(six: Nodes) -> None:
    made = "(k UInt64) ENGINE = ReplicatedMergeTree ORDER BY k"
    refused = six["a1"].post(f"CREATE TABLE lonely {made}")
    assert refused.code == 36 and "supported only for ON CLUSTER queries" in refused.text
    uuid = "7a7a7a7a-0000-4000-8000-000000000001"
    for host in ("a1", "a3"):
        six[host].query(f"CREATE TABLE lonely UUID '{uuid}' {made}")
    six["a1"].query("INSERT INTO lonely VALUES (1)")
    six["a3"].query("SYSTEM SYNC REPLICA lonely")
    assert six["a3"].query("SELECT * FROM lonely") == "1\n"
    for host in ("a1", "a3"):
        six[host].query("DROP TABLE lonely SYNC")


def test_the_servers_own_default_path_and_name(tmp_path: Path) -> None:
    more = (
        "<default_replica_path>/own/{uuid}/{database}.{table}/s{shard}</default_replica_path>"
        "<default_replica_name>r-{replica}</default_replica_name>"
    )
    with started(tmp_path, {"01": ("n1",), "02": ("n2",)}, more) as nodes:
        nodes["n1"].query("CREATE TABLE t ON CLUSTER all (k UInt64) ENGINE = ReplicatedMergeTree ORDER BY k")
        uuid = nodes["n1"].query("SELECT uuid FROM system.tables WHERE name = 't'").strip()
        assert places(nodes, "t") == {
            ("n1", f"/own/{uuid}/default.t/s01", "r-n1", "1", "1"),
            ("n2", f"/own/{uuid}/default.t/s02", "r-n2", "1", "1"),
        }
        shown = nodes["n2"].query("SHOW CREATE TABLE t FORMAT TSVRaw")
        assert "ReplicatedMergeTree('/own/{uuid}/default.t/s{shard}', 'r-{replica}')" in shown
        nodes["n1"].query("RENAME TABLE t TO renamed ON CLUSTER all")
        nodes["n2"].query("DROP TABLE renamed ON CLUSTER all SYNC")
        assert nodes["n1"].query("SELECT name FROM system.zookeeper WHERE path = '/own'") == ""

        asked = HttpProbe({"n1": nodes["n1"].url}).configuration(HostId("n1", 9000), "all")
        its = asyncio.run(asked)
        assert its is not None
        assert (its.macros, its.default_place) == (
            {"shard": "01", "replica": "n1"},
            ("/own/{uuid}/{database}.{table}/s{shard}", "r-{replica}"),
        )
