"""Two nodes, one ZooKeeper, and replicated tables with a replica on each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from engine.config.graphite import GraphitePattern, GraphiteRollup, Retention
from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import Call, LocalCluster, blocking_cluster
from tests.node.http_client import HttpAt, Reply
from tests.warm import warm

HOSTS = ("n1", "n2")
SMALL = "(a Int8) ENGINE = ReplicatedMergeTree('/small', 'r') ORDER BY a"
OWN_PATH = "'/t/{shard}/{database}/{table}', '{replica}'"
RETENTIONS = (Retention(0, 60), Retention(3600, 300))
ROLLUPS = {
    "graphite_rollup": GraphiteRollup(
        version_column="Version", default=GraphitePattern(function="AVG", retentions=RETENTIONS)
    ),
    "other_rollup": GraphiteRollup(
        version_column="Version", default=GraphitePattern(function="max", retentions=RETENTIONS)
    ),
}


class Pair:
    """Two nodes, each with a replica of every table that `table` makes."""

    def __init__(self, local: LocalCluster, call: Call[object]) -> None:
        self.local = local
        self.call = call
        self.n1, self.n2 = (HttpAt(local.node(host).url) for host in HOSTS)
        self.zookeeper = local.zookeeper
        self._made = 0

    @property
    def both(self) -> tuple[HttpAt, HttpAt]:
        return self.n1, self.n2

    def table(
        self,
        columns: str = "k UInt64, v String",
        *,
        engine: str = "ReplicatedMergeTree",
        arguments: str = "",
        rest: str = "PARTITION BY k % 2 ORDER BY k",
    ) -> str:
        self._made += 1
        name = f"t{self._made}"
        more = f", {arguments}" if arguments else ""
        for number, node in enumerate(self.both, start=1):
            place = f"'/tables/{name}', 'r{number}'{more}"
            node.query(f"CREATE TABLE {name} ({columns}) ENGINE = {engine}({place}) {rest}")
        return name

    def synced(self, table: str) -> None:
        for node in self.both:
            node.query(f"SYSTEM SYNC REPLICA {table}")

    def on_cluster(self, sql: str) -> None:
        self.n1.query(sql)

    def catalog(self, host: str) -> set[Path]:
        """The node's records of its replicated tables. That of a table dropped before may go any time."""
        return set((self.local.directory / "nodes" / host / "data/oncluster/replicated").iterdir())

    def children(self, path: str) -> list[str]:
        """Of a node in Keeper."""
        return self.n1.query(f"SELECT name FROM system.zookeeper WHERE path = '{path}' ORDER BY name").split()

    def restart(self, host: str) -> None:
        self.call(self.local.node(host).restart())

    def kill9(self, host: str) -> None:
        """And start it again."""
        self.call(self.local.node(host).kill9())
        self.call(self.local.node(host).start())

    def same(self, sql: str) -> str:
        """The answer of both nodes, which has to be the same."""
        first, second = (node.query(sql) for node in self.both)
        assert first == second
        return first

    def rows(self, table: str) -> str:
        """All rows, after both replicas have caught up; also the parts have to be the same."""
        self.synced(table)
        self.same(f"SELECT name, hash_of_all_files FROM system.parts WHERE table = '{table}' ORDER BY name")
        return self.same(f"SELECT * FROM {table} ORDER BY ALL")


@contextmanager
def running_pair(
    directory: Path, *, more: Mapping[str, Sequence[Sequence[str]]] = MappingProxyType({})
) -> Iterator[Pair]:
    """Both nodes are replicas of one shard; the cluster `apart` has one of them only. `more` are clusters as
    `clusters_xml` takes them."""
    file = directory / "given.xml"
    text = clusters_xml({"all": [HOSTS], "apart": [["n1"], ["absent"]], **more})
    macros = "".join(
        f"<macros_{host}><shard>01</shard><replica>{host}</replica></macros_{host}>" for host in HOSTS
    )
    rules = "".join(rollup.to_xml(name) for name, rollup in ROLLUPS.items())
    assert "</clickhouse>" in text
    file.write_text(text.replace("</clickhouse>", f"{macros}{rules}</clickhouse>"))
    options = {"cluster_file": file, "hosts": HOSTS, "session_timeout_ms": 6000}
    with blocking_cluster(directory / "run", **options, launch=warm) as (local, call):
        pair = Pair(local, call)
        pair.n1.query("CREATE DATABASE d ON CLUSTER all")
        yield pair


def error(reply: Reply) -> int:
    assert reply.status != 200, reply.text
    return reply.code


def json_rows(node: HttpAt, sql: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in node.query(f"{sql} FORMAT JSONEachRow").splitlines()]


def wait_for(is_so: Callable[[], bool]) -> None:
    """Until it is so; the test's own time limit ends it otherwise."""
    while not is_so():
        time.sleep(0.05)


def eventually(look: Callable[[], object], expected: object, *, within_s: float = 120.0) -> None:
    deadline = time.monotonic() + within_s
    while (found := look()) != expected:
        assert time.monotonic() < deadline, f"{found!r} is not {expected!r}"
        time.sleep(0.05)


def refused(reply: Reply, code: int, text: str = "") -> None:
    assert reply.code == code, reply.text
    assert text in reply.text
