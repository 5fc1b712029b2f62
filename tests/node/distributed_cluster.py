"""Nodes with Distributed tables over replicated ones, as tests of the node use them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from engine.errors import Code
from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import LocalCluster, blocking_cluster
from tests.node.http_client import HttpAt, Reply
from tests.node.replicated_pair import eventually
from tests.warm import warm

HOSTS = ("n1", "n2", "n3", "n4")
SHARDS = (("n1", "n2"), ("n3", "n4"))
COLUMNS = (
    "id UInt64, city LowCardinality(String), price Decimal(12, 2), note Nullable(String), tags Array(String)"
)
FOREGROUND = {"distributed_foreground_insert": "1"}
WEIGHTED = """
<w>
  <shard><weight>1</weight><replica><host>n1</host><port>9000</port></replica></shard>
  <shard><weight>0</weight><replica><host>n2</host><port>9000</port></replica></shard>
  <shard><weight>2</weight><replica><host>n3</host><port>9000</port></replica>
    <replica><host>n4</host><port>9000</port></replica></shard>
</w>
"""
"""Cluster `w`: shards of other weights, copies of which the Distributed table makes."""


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

    def sync(self, *tables: str) -> None:
        """Any replica may be asked, and an INSERT waits for one of each shard only. One whose node has just
        started may not be active yet, and is read-only until it is."""
        for table in tables:
            for node in self.nodes.values():
                eventually(partial(_synced, node, table), True)

    def rows(self, table: str, what: str = "groupArray(k)", *, of: str = "*") -> list[Any]:
        """By shard, after its replicas have caught up; they have to agree."""
        self.sync(table)
        found = []
        for shard in SHARDS:
            answers = []
            for host in shard:
                sql = f"SELECT {what} FROM (SELECT {of} FROM {table} ORDER BY ALL)"
                answers.append(json.loads(self.nodes[host].query(sql, default_format="JSONCompact"))["data"])
            assert answers[0] == answers[1]
            found.append(answers[0][0][0])
        return found


def _synced(node: HttpAt, table: str) -> bool:
    reply = node.post(f"SYSTEM SYNC REPLICA {table}")
    assert reply.code in (0, Code.TABLE_IS_READ_ONLY), reply.text
    return reply.code == 0


def refused(node: HttpAt, sql: str, **settings: str) -> Reply:
    reply = node.post(sql, **settings)
    assert reply.status != 200, reply.text
    return reply


@contextmanager
def running_cluster(directory: Path, *, other_clusters: str = "") -> Iterator[Cluster]:
    """Four nodes. `other_clusters` (XML) stand beside `c`."""
    file = directory / "clusters.xml"
    text = clusters_xml({"c": [list(shard) for shard in SHARDS]})
    file.write_text(text.replace("</remote_servers>", f"{other_clusters}</remote_servers>"))
    with blocking_cluster(directory / "cluster", cluster_file=file, launch=warm) as (local, call):
        yield Cluster(local, call)


def fill_events(cluster: Cluster) -> None:
    """Rows in `events_d`, over `events` of each shard, and the same rows in `one` on the first node."""
    n1 = cluster.n1
    n1.query(
        f"CREATE TABLE events ON CLUSTER c ({COLUMNS}) "
        "ENGINE = ReplicatedMergeTree('/t/events/{c_shard}', '{replica}') ORDER BY id"
    )
    n1.query(f"CREATE TABLE events_d ON CLUSTER c ({COLUMNS}) ENGINE = Distributed(c, default, events, id)")
    n1.query(f"CREATE TABLE one ({COLUMNS}) ENGINE = MergeTree ORDER BY id")
    n1.query(
        "INSERT INTO one SELECT number, ['Rome', 'Oslo', 'Bonn'][number % 3 + 1], number / 4, "
        "if(number % 5 = 0, NULL, toString(number % 7)), [toString(number % 2), 'x'] FROM numbers(2000)"
    )
    n1.query("INSERT INTO events_d SELECT * FROM one", **FOREGROUND)
    cluster.sync("events")
