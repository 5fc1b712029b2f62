"""kill −9 at generated moments: what was acknowledged is there, every statement took effect exactly once."""

import http.client
import random
import threading
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import blocking_cluster
from tests.node.conftest import StartNode
from tests.node.http_client import Http, HttpAt
from tests.warm import warm

pytestmark = pytest.mark.slow

LOST = (urllib.error.URLError, ConnectionError, http.client.HTTPException, TimeoutError)
"""The answer did not come; the statement may have been executed."""

KILLS = 5


def test_acknowledged_inserts_and_ddl_survive_the_process(start_node: StartNode) -> None:
    rng = random.Random(1)
    node = start_node()
    node.query("CREATE TABLE log (n UInt64, text String) ENGINE = MergeTree ORDER BY n")
    acknowledged: set[int] = set()
    tables: set[str] = set()
    number = 0
    kills = 0
    while kills < KILLS or len(acknowledged) <= 20:
        kills += 1
        killer = threading.Timer(rng.uniform(0.05, 0.6), node.process.signal, (9,))
        killer.start()
        try:
            while True:
                number += 1
                if number % 5 == 0:
                    node.query(f"CREATE TABLE made_{number} (a UInt64) ENGINE = MergeTree ORDER BY a")
                    tables.add(f"made_{number}")
                else:
                    node.query(f'INSERT INTO log FORMAT CSV\n{number},"text of {number}"\n')
                    acknowledged.add(number)
        except LOST:
            pass
        killer.join()
        assert node.wait() == -9
        node.start()
        present = [int(line) for line in node.query("SELECT n FROM log ORDER BY n").split()]
        assert len(present) == len(set(present))
        assert acknowledged <= set(present)
        assert set(present) - acknowledged <= {number}
        acknowledged = set(present)
        assert node.query("SELECT * FROM log WHERE text != concat('text of ', toString(n))") == ""
        there = set(node.query("SHOW TABLES LIKE 'made%'").split())
        assert tables <= there
        tables = there
        for table in rng.sample(sorted(tables), min(3, len(tables))):
            node.query(f"INSERT INTO {table} VALUES (1)")
    assert node.stop() == 0


def test_statements_on_cluster_take_effect_exactly_once_on_each_host(tmp_path: Path) -> None:
    """Each statement shows a second effect: a counter that is one too high, a column or a table that is there
    already, a rename of what is gone."""
    seed = 11
    rng = random.Random(seed)
    hosts = ("n1", "n2", "n3")
    file = tmp_path / "given.xml"
    file.write_text(clusters_xml({"all": [[host] for host in hosts]}))
    with blocking_cluster(tmp_path / "run", cluster_file=file, hosts=hosts, launch=warm) as (cluster, call):
        nodes = {name: HttpAt(cluster.node(name).url) for name in hosts}
        first = nodes["n1"]
        first.query("CREATE TABLE counted ON CLUSTER all (k UInt8, v UInt64) ENGINE = MergeTree ORDER BY k")
        first.query("CREATE TABLE moved_0 ON CLUSTER all (a UInt8) ENGINE = MergeTree ORDER BY a")
        for node in nodes.values():
            node.query("INSERT INTO counted VALUES (1, 0)")
        stop = threading.Event()
        kills = 0

        moments = random.Random(seed)

        def kill_now_and_then() -> None:
            nonlocal kills
            while not stop.wait(moments.uniform(0.1, 0.7)):
                victim = cluster.node(moments.choice(hosts))
                call(victim.kill9())
                kills += 1
                call(victim.start())

        pool = ThreadPoolExecutor(1)
        killer = pool.submit(kill_now_and_then)
        rounds = 0
        try:
            while (kills < KILLS or rounds < 8) and not killer.done():
                rounds += 1
                statements = (
                    "ALTER TABLE counted ON CLUSTER all UPDATE v = v + 1 WHERE 1",
                    f"ALTER TABLE counted ON CLUSTER all ADD COLUMN c_{rounds} UInt8",
                    f"RENAME TABLE moved_{rounds - 1} TO moved_{rounds} ON CLUSTER all",
                    f"CREATE TABLE made_{rounds} ON CLUSTER all (a UInt8) ENGINE = MergeTree ORDER BY a",
                )
                for number, sql in enumerate(statements):
                    submit(nodes, rng, sql, token=f"seed-{seed}-{rounds}-{number}")
        finally:
            stop.set()
            killer.result()
        failed = first.query(
            "SELECT entry, host, exception_code, exception_text FROM system.distributed_ddl_queue "
            "WHERE exception_code != 0 OR status != 'Finished'"
        )
        assert failed == ""
        assert (
            first.query("SELECT uniqExact(entry) FROM system.distributed_ddl_queue") == f"{2 + 4 * rounds}\n"
        )
        for name, node in nodes.items():
            assert node.query("SELECT v FROM counted") == f"{rounds}\n", name
            assert (
                node.query("SELECT count() FROM system.columns WHERE table = 'counted'") == f"{rounds + 2}\n"
            )
            assert node.query("SHOW TABLES LIKE 'moved%'") == f"moved_{rounds}\n"
            assert node.query("SELECT count() FROM system.tables WHERE name LIKE 'made%'") == f"{rounds}\n"
        assert kills >= KILLS


def submit(nodes: dict[str, HttpAt], rng: random.Random, sql: str, *, token: str) -> None:
    """Until some node has answered; always under the same token."""
    deadline = time.monotonic() + 120
    while True:
        node: Http = nodes[rng.choice(sorted(nodes))]
        try:
            reply = node.post(sql, oncluster_token=token, mutations_sync="1")
        except LOST:
            time.sleep(0.05)
        else:
            if reply.status == 200:
                return
            assert reply.code == 999, reply.text
        assert time.monotonic() < deadline
