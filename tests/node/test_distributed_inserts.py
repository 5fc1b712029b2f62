"""Distributed tables on real nodes: definitions, and INSERT over two shards of two replicas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import LocalCluster, blocking_cluster
from tests.node.conftest import HttpAt, Reply

pytestmark = pytest.mark.slow

HOSTS = ("n1", "n2", "n3", "n4")
SHARDS = (("n1", "n2"), ("n3", "n4"))


class Cluster:
    """Four nodes: cluster `c` has two shards of two replicas that replicate among themselves."""

    def __init__(self, local: LocalCluster, call: Any) -> None:
        self.local = local
        self.call = call
        self.nodes = {host: HttpAt(local.node(host).url) for host in HOSTS}
        self.n1 = self.nodes["n1"]
        self._made = 0

    def tables(self, columns: str = "k UInt64, v String", *, key: str = "k", settings: str = "") -> str:
        """A replicated table on each shard, and a Distributed one of the name `<it>_d` on every node."""
        self._made += 1
        name = f"t{self._made}"
        self.n1.query(
            f"CREATE TABLE {name} ON CLUSTER c ({columns}) "
            f"ENGINE = ReplicatedMergeTree('/t/{name}/{{c_shard}}', '{{replica}}') ORDER BY tuple()"
        )
        self.n1.query(
            f"CREATE TABLE {name}_d ON CLUSTER c ({columns}) ENGINE = Distributed(c, default, {name}, {key}) "
            f"{settings}"
        )
        return name

    def rows(self, table: str, what: str = "groupArray(k)") -> list[Any]:
        """By shard, after its replicas have caught up; they have to agree."""
        found = []
        for shard in SHARDS:
            answers = []
            for host in shard:
                self.nodes[host].query(f"SYSTEM SYNC REPLICA {table}")
                sql = f"SELECT {what} FROM (SELECT * FROM {table} ORDER BY ALL)"
                answers.append(json.loads(self.nodes[host].query(sql, default_format="JSONCompact"))["data"])
            assert answers[0] == answers[1]
            found.append(answers[0][0][0])
        return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("distributed")
    file = directory / "clusters.xml"
    file.write_text(clusters_xml({"c": [list(shard) for shard in SHARDS]}))
    with blocking_cluster(directory / "cluster", cluster_file=file) as (local, call):
        yield Cluster(local, call)


def refused(node: HttpAt, sql: str, **settings: str) -> Reply:
    reply = node.post(sql, **settings)
    assert reply.status != 200, reply.text
    return reply


FOREGROUND = {"distributed_foreground_insert": "1"}


def test_rows_go_to_the_shard_that_the_key_says(cluster: Cluster) -> None:
    name = cluster.tables()
    cluster.n1.query(f"INSERT INTO {name}_d SELECT number, toString(number) FROM numbers(100)", **FOREGROUND)
    assert cluster.rows(name) == [
        list(range(0, 100, 2)),
        list(range(1, 100, 2)),
    ]
    full = cluster.n1.query(f"SELECT engine, engine_full FROM system.tables WHERE name = '{name}_d'")
    assert full == f"Distributed\tDistributed(\\'c\\', \\'default\\', \\'{name}\\', k)\n"
    assert f"ENGINE = Distributed('c', 'default', '{name}', k)" in cluster.n1.query(
        f"SHOW CREATE TABLE {name}_d FORMAT TSVRaw"
    )


def test_rows_may_come_as_a_stream_and_as_values(cluster: Cluster) -> None:
    name = cluster.tables()
    node = cluster.nodes["n4"]
    node.query(f"INSERT INTO {name}_d VALUES (1, 'a'), (2, 'b')", **FOREGROUND)
    node.query("3\tc\n4\td\n", query=f"INSERT INTO {name}_d (k, v) FORMAT TSV", **FOREGROUND)
    assert cluster.rows(name) == [[2, 4], [1, 3]]


def test_an_insert_repeated_with_its_token_writes_nothing_twice(cluster: Cluster) -> None:
    name = cluster.tables()
    for _ in range(2):
        cluster.n1.query(
            f"INSERT INTO {name}_d SELECT number, '' FROM numbers(10)",
            insert_deduplication_token="once",
            **FOREGROUND,
        )
    assert cluster.rows(name, "count()") == [5, 5]
