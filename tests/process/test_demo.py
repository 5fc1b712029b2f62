"""`oncluster demo --with-outage` as a user runs it, to its end; then the stack that it leaves on disk is
started again, hurt and stopped.

What the demo says of itself is compared with what its nodes and its queue say afterwards.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.config.load import load_topology
from engine.migrations.files import load_folder
from engine.ports import is_free
from engine.testing.cluster_files import DEFAULT_CLUSTER_FILE
from tests.node.http_client import HttpAt
from tests.process.support import Home, home_in, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
CLUSTERS = load_topology(DEFAULT_CLUSTER_FILE).clusters
HOSTS = {name: {replica.host for replica in cluster.replicas} for name, cluster in CLUSTERS.items()}
NODES = tuple(f"node0{number}" for number in range(1, 7))
UP = ("up", "--no-airflow", "--port-base", "0", "--json")


@dataclass(frozen=True, slots=True)
class Demo:
    """A demo that has ended. `facts` is its document, `home` the directory that it worked in."""

    code: int
    facts: dict[str, Any]
    progress: str
    home: Home
    left: list[str]

    @property
    def rows_per_shard(self) -> dict[int, int]:
        """Of the flights, as Spark has counted what it wrote."""
        (flights,) = (t for t in self.facts["etl"]["report"]["tables"] if t["local"] == "flights.flights")
        return {int(shard): rows for shard, rows in flights["rows_per_shard"].items()}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with home_in(tmp_path_factory.mktemp("demo") / "home") as home:
        done = home.run("demo", "--json", "--with-outage", "--port-base", "0", timeout_s=1500)
        assert done.stdout, done.stderr
        with home_in(home.path / "demo") as inner:
            yield Demo(done.returncode, json.loads(done.stdout), done.stderr, inner, home.left())


def shard_of(host: str) -> int:
    shards = CLUSTERS["order_cluster"].shards
    return next(shard.number for shard in shards if host in {replica.host for replica in shard.replicas})


def statements_of(cluster: str) -> dict[int, int]:
    """Version → how many statements its file has."""
    folder = load_folder(ROOT / "migrations" / cluster)
    return {migration.version: len(migration.up.statements) for migration in folder.migrations}


def test_the_demo_succeeds_while_a_node_is_away_and_leaves_nothing_running(demo: Demo) -> None:
    assert demo.code == 0, demo.progress
    assert demo.left == []
    assert demo.facts["succeeded"] is True
    assert "node03 was away while node02 went on, and is back" in demo.progress
    assert len(demo.facts["approved_by_the_demo"]) == 1


def test_every_statement_of_every_migration_is_done_on_every_host_of_its_cluster(demo: Demo) -> None:
    """The matrix of migrations and hosts, statement by statement."""
    assert demo.facts["ledger"].keys() == {"order_cluster", "log_cluster"}
    for cluster, rows in demo.facts["ledger"].items():
        expected = {
            (version, number, host)
            for version, count in statements_of(cluster).items()
            for number in range(1, count + 1)
            for host in HOSTS[cluster]
        }
        assert {(row["version"], row["statement"], row["host"]) for row in rows} == expected
        assert len(rows) == len(expected)
        assert {(row["state"], row["code"], row["migration_state"]) for row in rows} == {
            ("done", 0, "applied")
        }
        entries = {(row["version"], row["statement"]): set[str]() for row in rows}
        for row in rows:
            entries[row["version"], row["statement"]].add(row["entry"])
        assert {len(of_statement) for of_statement in entries.values()} == {1}
        assert len({row["entry"] for row in rows}) == len(entries), "no entry stands for two statements"


def test_replicas_are_equal_and_have_what_spark_wrote(demo: Demo) -> None:
    assert {name: set(digests) for name, digests in demo.facts["schemas"].items()} == HOSTS
    assert [len(set(digests.values())) for digests in demo.facts["schemas"].values()] == [1, 1]
    assert {replica["host"] for replica in demo.facts["data"]} == set(NODES)
    for replica in demo.facts["data"]:
        assert replica["rows"] == demo.rows_per_shard[replica["shard"]], replica
    assert len({(replica["shard"], replica["digest"]) for replica in demo.facts["data"]}) == 2
    report, check = demo.facts["etl"]["report"], demo.facts["etl"]["check"]
    assert report["read"] == 336_776 == report["written"] + report["quarantined"]
    assert sum(demo.rows_per_shard.values()) == report["written"]
    assert (check["passed"], check["problems"]) == (True, [])
    asked = {(item["table"], item["host"]) for item in check["replicas"] if item["shard"]}
    assert asked == {(t["local"], host) for t in report["tables"] for host in NODES}
    assert sum(row["flights"] for row in demo.facts["etl"]["answer"]["rows"]) == report["written"]


def test_whoever_waits_without_a_screen_is_told_how_it_goes(demo: Demo) -> None:
    """Of the longest step there is a line while Spark is at work, and not only at its ends."""
    lines = [line.split() for line in demo.progress.splitlines()]
    loading = [words for words in lines if words[1:4] == ["loading", "with", "Spark"]]
    assert [words[0] for words in loading] == ["·"] * (len(loading) - 1) + ["✓"]
    assert any(words[-2:] == ["tasks", "load"] for words in loading), demo.progress


def pid_of(home: Home, name: str) -> int:
    state = home.state()
    assert state is not None
    return next(entry.pid for entry in state.processes if entry.name == name)


async def test_up_goes_on_with_its_data_and_starts_what_was_killed_again_and_down_leaves_nothing(
    demo: Demo,
) -> None:
    """1. up, where the demo was. 2. Nodes and queue say what the demo has said. 3. kill -9 of a node, which
    is reported and stays away. 4. up brings it back. 5. down, twice."""
    home = demo.home
    up = home.run(*UP)
    assert up.returncode == 0, up.stdout + up.stderr
    told, status = json.loads(up.stdout), home.status()
    assert told | status == told, "what status says, and more"
    assert (status["phase"], status["complete"]) == ("ready", True)
    assert (told["airflow"], told["demo"]) == (None, None)
    assert [p["name"] for p in status["processes"]] == ["ZooKeeper", *NODES]
    ports = [int(p["address"].rpartition(":")[2]) for p in status["processes"]]
    assert not any(is_free(port) for port in ports)

    nodes = {name: HttpAt(url) for name, url in told["nodes"].items()}
    assert nodes.keys() == set(NODES)
    assert_the_nodes_agree(nodes, demo)
    assert_the_ledger_is_true(nodes["node06"], demo)

    killed = pid_of(home, "node03")
    os.kill(killed, signal.SIGKILL)
    await until(lambda: home.status()["complete"] is False)
    ended = [p["name"] for p in home.status()["processes"] if p["state"] == "ended"]
    assert ended == ["node03"]

    again = home.run(*UP)
    assert again.returncode == 0, again.stdout + again.stderr
    assert home.status()["complete"] is True
    assert pid_of(home, "node03") != killed

    down = home.run("down")
    assert down.returncode == 0, down.stdout + down.stderr
    assert home.left() == []
    assert all(is_free(port) for port in ports)
    once_more = home.run("down", "--json")
    assert once_more.returncode == 0
    assert json.loads(once_more.stdout) == {"home": str(home.path), "stopped": False}


def assert_the_nodes_agree(nodes: dict[str, HttpAt], demo: Demo) -> None:
    """Definitions are the same everywhere, rows within a shard."""
    definitions = (
        "SELECT name, replaceRegexpOne(create_table_query, ' UUID \\'[^\\']*\\'', '') FROM system.tables "
        "WHERE database = '{}' ORDER BY name FORMAT TSVRaw"
    )
    for cluster, database in (("order_cluster", "flights"), ("log_cluster", "logs")):
        found = {nodes[host].query(definitions.format(database)) for host in HOSTS[cluster]}
        assert len(found) == 1, found
        assert "CREATE TABLE" in found.pop()
    tables = nodes["node03"].query("SELECT name FROM system.tables WHERE database = 'flights'").split()
    assert "aircraft" in tables and "planes" not in tables and "flights_staging" not in tables
    contents = "SELECT count(), sum(cityHash64(*)) FROM flights.flights"
    found_rows = {(shard_of(host), node.query(contents)) for host, node in nodes.items()}
    assert {(shard, int(text.split()[0])) for shard, text in found_rows} == set(demo.rows_per_shard.items())
    assert len(found_rows) == 2


def assert_the_ledger_is_true(node: HttpAt, demo: Demo) -> None:
    """It says of each entry and host what the queue says, and of no other."""
    queue = node.query(
        "SELECT entry, host, status, exception_code, query_duration_ms FROM system.distributed_ddl_queue"
    )
    of_queue = sorted(tuple(line.split("\t")) for line in queue.splitlines())
    of_ledger = sorted(
        (row["entry"], row["host"], "Finished", str(row["code"]), str(row["duration_ms"]))
        for rows in demo.facts["ledger"].values()
        for row in rows
    )
    assert of_queue == of_ledger
