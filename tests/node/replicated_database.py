"""Three nodes, one ZooKeeper, and databases with the engine Replicated on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.keeper.recipes import remove_recursive
from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import LocalCluster, blocking_cluster
from tests.node.http_client import HttpAt
from tests.warm import warm

HOSTS = ("n1", "n2", "n3")
CREATE = "CREATE DATABASE {} ENGINE = Replicated('/databases/{}', '{{shard}}', '{{replica}}')"
DEFINITIONS = "SELECT name, uuid, create_table_query FROM system.tables WHERE database = '{}' ORDER BY name"
SHOWN = "SELECT name, create_table_query FROM system.tables WHERE database = '{}' ORDER BY name"


class Three:
    """Three replicas of one shard."""

    def __init__(self, local: LocalCluster, call: Any) -> None:
        self.local = local
        self.call = call
        self.nodes = {host: HttpAt(local.node(host).url) for host in HOSTS}
        self.n1, self.n2, self.n3 = self.nodes.values()
        self._made = 0

    def database(self, *nodes: HttpAt) -> str:
        """On all nodes, or on some."""
        self._made += 1
        name = f"d{self._made}"
        for node in nodes or self.nodes.values():
            node.query(CREATE.format(name, name))
        return name

    def same(self, sql: str, *nodes: HttpAt) -> str:
        """The answer of all nodes, which has to be the same."""
        answers = {node.query(sql) for node in nodes or self.nodes.values()}
        assert len(answers) == 1, answers
        return answers.pop()

    def synced(self, table: str) -> None:
        for node in self.nodes.values():
            node.query(f"SYSTEM SYNC REPLICA {table}")

    def children(self, path: str) -> list[str]:
        return self.children_by(self.n1, path)

    def children_by(self, node: HttpAt, path: str) -> list[str]:
        return node.query(f"SELECT name FROM system.zookeeper WHERE path = '{path}' ORDER BY name").split()

    def value(self, path: str) -> str:
        parent, _, name = path.rpartition("/")
        sql = f"SELECT value FROM system.zookeeper WHERE path = '{parent}' AND name = '{name}' FORMAT TSVRaw"
        return self.n1.query(sql).removesuffix("\n")

    async def without(self, path: str) -> None:
        """Removed from Keeper, with all below it."""
        async with self.local.keeper() as keeper:
            await remove_recursive(keeper, path)

    async def put(self, path: str, value: str) -> None:
        async with self.local.keeper() as keeper:
            await keeper.set(path, value.encode())

    async def make(self, path: str, value: str) -> None:
        async with self.local.keeper() as keeper:
            await keeper.create(path, value.encode())

    def digests(self, database: str) -> set[str]:
        """What the replicas have in Keeper, which is one value when all is quiet."""
        root = f"/databases/{database}/replicas"
        return {self.value(f"{root}/{name}/digest") for name in self.children(root)}


@contextmanager
def running_three(directory: Path) -> Iterator[Three]:
    """They are replicas of one shard, `s1`; by the macro `half` the third stands alone."""
    file = directory / "given.xml"
    text = clusters_xml({"all": [list(HOSTS)]})
    macros = "".join(
        f"<macros_{host}><shard>s1</shard><replica>{host}</replica><half>{half}</half></macros_{host}>"
        for host, half in zip(HOSTS, ("a", "a", "b"), strict=True)
    )
    file.write_text(text.replace("</clickhouse>", f"{macros}</clickhouse>"))
    options = {"cluster_file": file, "hosts": HOSTS, "session_timeout_ms": 6000}
    with blocking_cluster(directory / "run", **options, launch=warm) as (local, call):
        yield Three(local, call)
