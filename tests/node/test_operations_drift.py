"""Schema drift, a standby cluster and a Keeper that lost its data, on real nodes and a real ZooKeeper, by way
of the command line."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner, Result

from engine.cli.main import cli
from engine.client import NodeClient
from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import LocalCluster
from spark_apps.clickhouse_cluster.staging import DATABASE as SPARK
from tests.warm import warm

pytestmark = pytest.mark.slow

T = TypeVar("T")
HOSTS = ("n1", "n2", "n3")
"""n1 and n2 are the two replicas of `main`; n3 is `second`, which stands by."""

SCHEMA = (
    "CREATE DATABASE shop",
    """CREATE TABLE shop.plain (a Int32, b String DEFAULT 'x', INDEX i a TYPE minmax GRANULARITY 1)
    ENGINE = MergeTree ORDER BY a""",
    """CREATE TABLE shop.flights (day Date, n Int32, note Nullable(String),
    few LowCardinality(UInt8) DEFAULT 1)
    ENGINE = ReplicatedMergeTree('/tables/{path}/flights', '{{replica}}') PARTITION BY day ORDER BY n""",
    "CREATE TABLE shop.far AS shop.flights ENGINE = Distributed('{cluster}', 'shop', 'flights', n)",
    "CREATE VIEW shop.days AS SELECT day, count() AS c FROM shop.flights GROUP BY day",
)
MAY = {"allow_suspicious_low_cardinality_types": "1"}
"""What `few` needs, and no definition shows."""
ROWS = (
    "INSERT INTO shop.flights (day, n, note) "
    "SELECT toDate('2024-01-01') + number % 3, number, if(number % 5, 'x', NULL) "
)


@dataclass
class Place:
    runner: asyncio.Runner
    cluster: LocalCluster
    directory: Path

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def command(self, host: str, *statements: str) -> str:
        async def send() -> str:
            async with NodeClient(self.cluster.node(host).url) as client:
                return [await client.command(sql, settings=MAY) for sql in statements][-1]

        return self.run(send())

    def cli(self, *arguments: str, code: int = 0) -> Any:
        """The command's JSON."""
        result = self._invoke(*arguments)
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    def steps(self, *arguments: str, states: list[str]) -> None:
        """The switch comes to stand so: queues of replicas empty themselves a moment after an insert."""
        deadline_s = time.monotonic() + 120
        while True:
            steps = json.loads(self._invoke("standby", "switch-plan", *arguments).stdout)["steps"]
            if [step["state"] for step in steps] == states:
                return
            assert time.monotonic() < deadline_s, steps
            time.sleep(0.2)

    def _invoke(self, *arguments: str) -> Result:
        records = str(self.directory / "records.db")
        place = ["--config", str(self.cluster.config_file), "--records-url", records, "--patience", "60"]
        return CliRunner().invoke(cli, [*arguments, *place, "--json"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("drift")
    file = directory / "given.xml"
    file.write_text(clusters_xml({"main": [["n1", "n2"]], "second": [["n3"]]}))
    with asyncio.Runner() as runner:
        cluster = LocalCluster(directory / "run", cluster_file=file, hosts=HOSTS, launch=warm)
        runner.run(cluster.start())
        try:
            yield Place(runner, cluster, directory)
        finally:
            runner.run(cluster.stop())


@pytest.fixture(scope="module")
def made(place: Place) -> Place:
    for host, name in (("n1", "main"), ("n2", "main"), ("n3", "second")):
        place.command(host, *(sql.format(path=name, cluster=name) for sql in SCHEMA))
    place.command("n1", ROWS + "FROM numbers(1000)")
    # As a load with Spark leaves it, on the replicas that it has used.
    place.command("n1", f"CREATE DATABASE {SPARK}", f"CREATE VIEW {SPARK}.done_1 AS SELECT 1")
    place.command("n2", "SYSTEM SYNC REPLICA shop.flights")
    # Other blocks in another order: the rows are the same, the parts are not.
    place.command("n3", ROWS + "FROM numbers(500, 500)", ROWS + "FROM numbers(500)")
    return place


def test_drift_is_found_and_only_the_host_that_is_apart_is_repaired(made: Place) -> None:
    report = made.cli("drift", "check", "--cluster", "main")
    assert report["is_equal"] and report["objects"] == 5, report
    made.command(
        "n2",
        "DROP VIEW shop.days",
        "ALTER TABLE shop.plain DROP INDEX i",
        "ALTER TABLE shop.plain DROP COLUMN b",
        "ALTER TABLE shop.plain ADD COLUMN own String",
    )
    report = made.cli("drift", "check", "--cluster", "main", code=10)
    found = {
        (drift["host"], drift["object"], drift["kind"], *(part["part"] for part in drift["parts"]))
        for drift in report["drifts"]
    }
    assert found == {
        ("n2:9000", "shop.days", "missing"),
        ("n2:9000", "shop.plain", "differs", "column b", "index i", "column own"),
    }
    plan = made.cli("drift", "repair-plan", "--cluster", "main")
    assert [act["host"] for act in plan["acts"]] == ["n2:9000"] * 3
    assert any("column own" in note for note in plan["notes"]), plan["notes"]
    done = made.cli("drift", "repair", "--cluster", "main", "--yes")
    assert [act["state"] for act in done["acts"]] == ["done"] * 3, done
    # What n2 has too much stays, and is said: only a person drops it.
    report = made.cli("drift", "check", "--cluster", "main", code=10)
    assert [part["part"] for drift in report["drifts"] for part in drift["parts"]] == ["column own"]
    made.command("n2", "ALTER TABLE shop.plain DROP COLUMN own")
    assert made.cli("drift", "check", "--cluster", "main")["is_equal"]


def test_a_replica_that_a_host_lacks_is_made_and_fetches_its_data(made: Place) -> None:
    made.command("n2", "DROP TABLE shop.flights SYNC")
    report = made.cli("drift", "check", "--cluster", "main", code=10)
    assert [(drift["object"], drift["kind"]) for drift in report["drifts"]] == [("shop.flights", "missing")]
    made.cli("drift", "repair", "--cluster", "main", "--yes")
    assert made.cli("drift", "check", "--cluster", "main")["is_equal"]
    rows = made.command("n2", "SYSTEM SYNC REPLICA shop.flights", "SELECT count() FROM shop.flights")
    assert rows == "1000\n"


def standby_of(place: Place) -> tuple[str, ...]:
    clusters = ("--cluster", "main", "--standby-cluster", "second")
    return *clusters, "--standby-config", str(place.cluster.config_file)


@pytest.mark.extended
def test_rows_masked_by_a_delete_do_not_count_and_all_types_are_compared(made: Place) -> None:
    for host in HOSTS:
        made.command(
            host,
            """CREATE TABLE shop.odd (k Int8, n SimpleAggregateFunction(sum, UInt64), doc JSON, any Dynamic)
            ENGINE = MergeTree ORDER BY k""",
            """INSERT INTO shop.odd VALUES (1, 2, '{"a": [1, {"b": 2}]}', 5), (2, 3, '{}', 'five')""",
        )
    made.command("n1", "INSERT INTO shop.odd (k) VALUES (9)", "DELETE FROM shop.odd WHERE k = 9")
    for depth in ((), ("--counts",)):
        report = made.cli("standby", "check", *standby_of(made), *depth)
        assert report["is_equal"] and report["rows"] == 1002, report
    for other in ("n = 4", """doc = '{"a": [1, {"b": "2"}]}'""", "any = CAST('5', 'Dynamic')"):
        made.command("n3", f"ALTER TABLE shop.odd UPDATE {other} WHERE k = 1 SETTINGS mutations_sync = 2")
        [difference] = made.cli("standby", "check", *standby_of(made), code=10)["data"]
        assert difference["table"] == "shop.odd"
        made.command(
            "n3", "TRUNCATE TABLE shop.odd", "INSERT INTO shop.odd SELECT * FROM remote('n1', shop.odd)"
        )
    for host in HOSTS:
        made.command(host, "DROP TABLE shop.odd SYNC")


@pytest.mark.extended
def test_the_standby_is_compared_row_by_row_and_the_switch_is_followed(made: Place) -> None:
    standby = standby_of(made)
    report = made.cli("standby", "check", *standby)
    assert report["is_equal"] and report["rows"] == 1000, report
    writers = ("--writers", made.cluster.node("n3").url, "--watch", "0.5")
    made.steps(*standby, *writers, states=["done"] * 7)
    old = ("--writers", made.cluster.node("n1").url, "--watch", "0.5")
    made.steps(*standby, *old, states=["done"] * 6 + ["open"])

    # One row of a thousand differs, and numbers are equal.
    made.command("n1", "INSERT INTO shop.flights (day, n, note) VALUES ('2024-01-01', 5000, 'left')")
    made.command("n2", "SYSTEM SYNC REPLICA shop.flights")
    made.command("n3", "INSERT INTO shop.flights (day, n, note) VALUES ('2024-01-01', 5000, NULL)")
    assert made.cli("standby", "check", *standby, "--counts")["is_equal"]
    report = made.cli("standby", "check", *standby, code=10)
    [difference] = report["data"]
    assert (difference["table"], difference["partition"]) == ("shop.flights", "20240101")
    made.command("n3", "DROP VIEW shop.days")
    report = made.cli("standby", "check", *standby, code=10)
    assert [each["what"] for each in report["schema"]] == ["shop.days is not on n3:9000 of the standby."]
    made.steps(*standby, *writers, states=["done"] * 4 + ["open"] + ["later"] * 2)


@pytest.mark.extended
def test_after_keeper_lost_all_data_a_restored_backup_lets_everything_go_on(made: Place) -> None:
    made.command("n1", "CREATE DATABASE IF NOT EXISTS again ON CLUSTER main")
    columns = "(k Int32, v String) ENGINE = ReplicatedMergeTree('/tables/again', '{replica}') ORDER BY k"
    made.command("n1", f"CREATE TABLE again.t ON CLUSTER main {columns}")
    insert = "INSERT INTO again.t (k, v) SELECT number, 'x' FROM "
    made.command("n1", insert + "numbers(100)")
    made.command("n1", "ALTER TABLE again.t ON CLUSTER main ADD COLUMN w Int32 DEFAULT 3")
    # The one replica of a shard that executes an ALTER is not the only one that has to have it: a block is
    # known again by all of its columns.
    made.command("n1", "SYSTEM SYNC REPLICA again.t", insert + "numbers(100, 100)")
    for host in ("n1", "n2"):
        made.command(host, "SYSTEM SYNC REPLICA again.t")
    file = made.directory / "tree.keeper.zst"
    config = ["--config", str(made.cluster.config_file)]
    before = CliRunner().invoke(cli, ["ddl", "list", *config, "--json"])
    assert CliRunner().invoke(cli, ["keeper", "dump", str(file), *config]).exit_code == 0

    for host in HOSTS:
        made.run(made.cluster.node(host).stop())
    made.run(made.cluster.zookeeper.lose_data())
    restored = CliRunner().invoke(cli, ["keeper", "restore", str(file), *config])
    assert restored.exit_code == 0 and "Equal" in restored.output, restored.output
    for host in ("n1", "n2"):
        made.run(made.cluster.node(host).start())

    # A block that was inserted before is known; new ones get numbers that were never used.
    made.command("n2", insert + "numbers(100, 100)", insert + "numbers(200, 100)")
    # The version of the table's metadata is the one that its replicas have: an ALTER is taken.
    made.command("n2", "ALTER TABLE again.t ON CLUSTER main ADD COLUMN z Int32 DEFAULT 4")
    for host in ("n1", "n2"):
        made.command(host, "SYSTEM SYNC REPLICA again.t")
        assert made.command(host, "SELECT count(), sum(w), sum(z) FROM again.t") == "300\t900\t1200\n"
    after = CliRunner().invoke(cli, ["ddl", "list", *config, "--json"])
    names = [[entry["entry"] for entry in json.loads(listed.stdout)] for listed in (before, after)]
    last = int(names[0][-1].removeprefix("query-"))
    assert names[1] == [*names[0], f"query-{last + 1:010d}"]
