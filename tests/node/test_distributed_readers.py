"""A Distributed table's answers stay right while its nodes restart and its shards' tables change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.node.distributed_cluster import Cluster, running_cluster
from tests.node.readers import one_of, reading

pytestmark = [pytest.mark.slow, pytest.mark.extended]

ANSWERS = {
    "SELECT count(), uniqExact(k), sum(v) FROM {}_d WHERE NOT ignore(rand())": "2000\t2000\t0\n",
    "SELECT countIf(c = 1), count() FROM (SELECT k, count() AS c FROM {}_d GROUP BY k)": "2000\t2000\n",
    "SELECT sum(v) + count() FROM (SELECT * FROM {}_d)": "2000\n",
    "SELECT count() FROM {0}_d AS a GLOBAL JOIN {0}_d AS b USING k": "2000\n",
}
"""By the way in which the shards are read: in parts, by groups, as rows, and for a global join."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("readers")) as cluster:
        yield cluster


def filled(cluster: Cluster) -> str:
    t = cluster.tables("k UInt64, v Int64")
    rows = "SELECT number, if(number % 2, 1, -1) FROM numbers(2000)"
    cluster.n1.query(f"INSERT INTO {t}_d {rows}", distributed_foreground_insert="1")
    cluster.sync(t)
    return t


@contextmanager
def read_in_every_way(cluster: Cluster, t: str, *hosts: str) -> Iterator[None]:
    with ExitStack() as stack:
        for sql, answer in ANSWERS.items():
            nodes = [cluster.nodes[host] for host in hosts]
            stack.enter_context(reading(nodes, sql.format(t), one_of({answer})))
        yield


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_nodes_that_restart_are_not_missed(cluster: Cluster, how: str) -> None:
    t = filled(cluster)
    with read_in_every_way(cluster, t, "n1"):
        for host in ("n2", "n3", "n4"):
            node = cluster.local.node(host)
            cluster.call(node.stop() if how == "stopped" else node.kill9())
            cluster.call(node.start())
            cluster.sync(t)


def test_tables_of_the_shards_are_changed(cluster: Cluster) -> None:
    t = filled(cluster)
    waits = {"alter_sync": "2", "mutations_sync": "2"}
    with read_in_every_way(cluster, t, "n1", "n3"):
        for change in (
            "ADD COLUMN w UInt64 DEFAULT k * 2",
            "MODIFY COLUMN v Int32",
            "UPDATE w = 1 WHERE true",
            "DROP COLUMN w",
            "MODIFY COLUMN v Int64",
        ):
            cluster.n1.query(f"ALTER TABLE {t} ON CLUSTER c {change}", **waits)
        cluster.n1.query(f"OPTIMIZE TABLE {t} ON CLUSTER c FINAL", **waits)


def test_tables_of_the_shards_and_the_distributed_one_are_replaced(cluster: Cluster) -> None:
    t, other = filled(cluster), filled(cluster)
    with read_in_every_way(cluster, t, "n1", "n3"):
        for _ in range(3):
            cluster.n1.query(f"EXCHANGE TABLES {t} AND {other} ON CLUSTER c")
            cluster.n1.query(
                f"CREATE OR REPLACE TABLE {t}_d ON CLUSTER c AS {t} ENGINE = Distributed(c, default, {t}, k)"
            )
