"""Two nodes, one ZooKeeper, and replicated tables with a replica on each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import LocalCluster, blocking_cluster
from tests.node.conftest import HttpAt, Reply

HOSTS = ("n1", "n2")


class Pair:
    """Two nodes, each with a replica of every table that `table` makes."""

    def __init__(self, local: LocalCluster) -> None:
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
def running_pair(directory: Path, *, more: str = "") -> Iterator[Pair]:
    """`more` goes into the nodes' configuration."""
    file = directory / "given.xml"
    text = clusters_xml({"all": [list(HOSTS)]})
    assert "</clickhouse>" in text
    file.write_text(text.replace("</clickhouse>", f"{more}</clickhouse>"))
    with blocking_cluster(directory / "run", cluster_file=file, hosts=HOSTS) as (local, _):
        yield Pair(local)


def error(reply: Reply) -> int:
    assert reply.status != 200, reply.text
    return reply.code


def json_rows(node: HttpAt, sql: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in node.query(f"{sql} FORMAT JSONEachRow").splitlines()]


def wait_for(is_so: Callable[[], bool]) -> None:
    """Until it is so; the test's own time limit ends it otherwise."""
    while not is_so():
        time.sleep(0.05)
