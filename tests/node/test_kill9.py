"""kill −9 at generated moments: what was acknowledged is there, every statement took effect exactly once."""

import http.client
import random
import threading
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class State:
    """What clients see. `name` is the number in the renamed table's name."""

    rows: frozenset[int] = frozenset()
    columns: frozenset[str] = frozenset()
    name: int = 0
    made: frozenset[str] = frozenset()
    emptied: frozenset[int] = frozenset()


def step(number: int, state: State) -> tuple[str, str, State]:
    """A statement's kind, its text, and what is to be seen behind it."""
    kind = ("INSERT", "CREATE", "ALTER", "RENAME", "INSERT", "FILL", "TRUNCATE", "CREATE", "DROP")[number % 9]
    match kind:
        case "CREATE":
            sql = f"CREATE TABLE made_{number} (a UInt64) ENGINE = MergeTree ORDER BY a"
            return kind, sql, replace(state, made=state.made | {f"made_{number}"})
        case "ALTER":
            after = replace(state, columns=state.columns | {f"c_{number}"})
            return kind, f"ALTER TABLE altered ADD COLUMN c_{number} UInt8", after
        case "RENAME":
            sql = f"RENAME TABLE renamed_{state.name} TO renamed_{number}"
            return kind, sql, replace(state, name=number)
        case "FILL":
            after = replace(state, emptied=state.emptied | {number})
            return kind, f"INSERT INTO emptied VALUES ({number})", after
        case "TRUNCATE":
            return kind, "TRUNCATE TABLE emptied", replace(state, emptied=frozenset())
        case "DROP" if state.made:
            table = min(state.made)
            return kind, f"DROP TABLE {table}", replace(state, made=state.made - {table})
        case _:
            sql = f'INSERT INTO log FORMAT CSV\n{number},"text of {number}"\n'
            return "INSERT", sql, replace(state, rows=state.rows | {number})


def seen(node: Http) -> State:
    rows = [int(line) for line in node.query("SELECT n FROM log ORDER BY n").split()]
    assert len(rows) == len(set(rows))
    tables = node.query("SHOW TABLES").split()
    (name,) = (int(table.removeprefix("renamed_")) for table in tables if table.startswith("renamed_"))
    return State(
        frozenset(rows),
        frozenset(
            node.query("SELECT name FROM system.columns WHERE table = 'altered' AND name != 'a'").split()
        ),
        name,
        frozenset(table for table in tables if table.startswith("made_")),
        frozenset(map(int, node.query("SELECT a FROM emptied").split())),
    )


def test_acknowledged_statements_survive_the_process(start_node: StartNode) -> None:
    """Behind each kill everything is as it was before the statement under way, or as behind it."""
    rng = random.Random(1)
    node = start_node()
    node.query("CREATE TABLE log (n UInt64, text String) ENGINE = MergeTree ORDER BY n")
    for table in ("altered", "renamed_0", "emptied"):
        node.query(f"CREATE TABLE {table} (a UInt64) ENGINE = MergeTree ORDER BY a")
    state = State()
    acknowledged = dict.fromkeys(("INSERT", "CREATE", "ALTER", "RENAME", "TRUNCATE", "DROP"), 0)
    number = 0
    kills = 0
    while kills < KILLS or min(acknowledged.values()) < 3:
        kills += 1
        killer = threading.Timer(rng.uniform(0.05, 0.6), node.process.signal, (9,))
        killer.start()
        while True:
            number += 1
            kind, sql, after = step(number, state)
            try:
                node.query(sql)
            except LOST:
                break
            state = after
            if kind in acknowledged:
                acknowledged[kind] += 1
        killer.join()
        assert node.wait() == -9
        node.start()
        now = seen(node)
        assert now in (state, after), sql
        state = now
        assert node.query("SELECT * FROM log WHERE text != concat('text of ', toString(n))") == ""
        if state.made:
            node.query(f"INSERT INTO {rng.choice(sorted(state.made))} VALUES (1)")
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
