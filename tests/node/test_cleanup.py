"""`oncluster cleanup` against real nodes and ZooKeeper: one of three nodes dies for good."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from engine.cli.main import cli
from engine.config.load import load_node_config
from engine.env import SystemEnv
from engine.keeper.base import Create
from engine.operations.act import ActState
from engine.operations.carrying_out import carry_out
from engine.operations.cleanup import CleanupKind, CleanupSettings, GoneHost, cleanup_performer, plan_cleanup
from engine.operations.site import open_site
from engine.replication.paths import TablePaths
from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import LocalCluster, blocking_cluster
from tests.node.http_client import HttpAt
from tests.warm import warm

pytestmark = pytest.mark.slow

HOSTS = ("n1", "n2", "n3")
PATH = "/clickhouse/tables/01/t"
DAY_S = 86_400


@dataclass
class Place:
    """A table with three replicas, whose third node is dead."""

    local: LocalCluster
    call: Callable[[Coroutine[Any, Any, Any]], Any]
    records: Path

    def node(self, host: str) -> HttpAt:
        return HttpAt(self.local.node(host).url)

    def run(self, *arguments: str) -> Result:
        result = CliRunner().invoke(
            cli,
            [
                *("cleanup", *arguments),
                *("--config", str(self.local.config_file), "--records-url", str(self.records)),
                *("--cluster", "c"),
                *(f"--node={host}={self.local.node(host).url}" for host in HOSTS),
            ],
        )
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    def json(self, *arguments: str) -> Any:
        result = self.run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("cleanup")
    file = directory / "given.xml"
    file.write_text(clusters_xml({"c": [list(HOSTS)], "one": [["n1"]]}))
    run = directory / "run"
    with blocking_cluster(run, cluster_file=file, hosts=HOSTS, session_timeout_ms=12_000, launch=warm) as (
        local,
        call,
    ):
        made = Place(local, call, directory / "records.db")
        for host in HOSTS:
            made.node(host).query(
                f"CREATE TABLE t (k UInt64) ENGINE = ReplicatedMergeTree('{PATH}', '{host}') ORDER BY k"
            )
        made.node("n1").query("INSERT INTO t SELECT number FROM numbers(10)")
        call(local.node("n3").kill9())
        yield made


def eventually(condition: Callable[[], bool], *, within_s: float = 120.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _gone(place: Place) -> bool:
    return (
        place.node("n1").query("SELECT active_replicas FROM system.replicas WHERE table = 't'").strip() == "2"
    )


@pytest.mark.extended
def test_tasks_that_wait_for_the_dead_node_are_abandoned_and_the_queue_says_by_whom(place: Place) -> None:
    place.node("n1").query("CREATE DATABASE d ON CLUSTER c", distributed_ddl_task_timeout="0")
    # The node's session with the queue may end later than that of its table.
    eventually(lambda: _gone(place) and place.run("abandon", "n3", "--reason", "dead").exit_code == 0)
    refused = place.run("abandon", "n2", "--reason", "a mistake", "--yes")
    assert refused.exit_code == 5 and "n2:9000" in refused.output
    shown = place.run("abandon", "n3", "--reason", "its disk is gone")
    assert "query-0000000000" in shown.output and "add --yes" in shown.output
    report = place.json("abandon", "n3", "--reason", "its disk is gone", "--yes")
    assert [act["state"] for act in report["acts"]] == ["done"]
    status = CliRunner().invoke(
        cli,
        ["ddl", "show", "query-0000000000", "--json", "--config", str(place.local.config_file)],
    )
    states = {host["host"]: host["state"] for host in json.loads(status.stdout)["hosts"]}
    assert states == {"n1": "done", "n2": "done", "n3": "abandoned"}


def test_the_dead_node_s_replica_is_dropped_when_a_person_says_that_it_is_gone(
    place: Place, tmp_path: Path
) -> None:
    eventually(lambda: _gone(place))
    waiting = place.json("plan", "--kind", "replicas")
    assert waiting["acts"] == [] and any("n3:9000" in note for note in waiting["notes"])
    file = tmp_path / "plan.json"
    place.run("plan", "--kind", "replicas", "--gone", "n3=its disk is gone", "--out", str(file))
    refused = place.run("apply", "--plan", str(file))
    assert "approve the plan with --yes" in refused.output
    report = place.json("apply", "--plan", str(file), "--yes", "--run-id", "by-hand")
    assert [(act["kind"], act["state"]) for act in report["acts"]] == [("drop-dead-replica", "done")]
    for host in ("n1", "n2"):
        answer = place.node(host).query("SELECT total_replicas FROM system.replicas WHERE table = 't'")
        assert answer.strip() == "2"
    place.node("n2").query("INSERT INTO t VALUES (99)")
    place.node("n1").query("SYSTEM SYNC REPLICA t")
    assert place.node("n1").query("SELECT count() FROM t").strip() == "11"
    [run] = place.json("status", "--run-id", "by-hand")
    assert run["acts"][0]["state"] == "done" and run["approved_by"]
    again = place.json("apply", "--run-id", "by-hand")
    assert [act["state"] for act in again["acts"]] == ["done"]


def test_parts_that_a_node_set_aside_are_dropped_and_those_of_people_stay(place: Place) -> None:
    n2 = place.node("n2")
    n2.query(
        "CREATE TABLE p (k UInt64) ENGINE = ReplicatedMergeTree('/clickhouse/tables/01/p', 'n2') ORDER BY k"
    )
    n2.query("INSERT INTO p VALUES (1)")
    n2.query("ALTER TABLE p DETACH PARTITION ALL")
    sql = "SELECT name, path FROM system.detached_parts WHERE table = 'p' FORMAT TSV"
    eventually(lambda: bool(n2.query(sql)))
    [(name, path)] = [line.split("\t") for line in n2.query(sql).splitlines()]
    set_aside = Path(path).parent / f"broken-on-start_{name}"
    shutil.copytree(path, set_aside)
    for part in (Path(path), set_aside):
        os.utime(part, (time.time() - 9 * DAY_S,) * 2)

    report = place.json("apply", "--kind", "detached", "--yes")

    assert [(act["state"], act["payload"]["parts"]) for act in report["acts"]] == [("done", [set_aside.name])]
    assert [line.split("\t")[0] for line in n2.query(sql).splitlines()] == [name]


def test_a_half_dropped_table_does_not_keep_anybody_from_making_it(place: Place) -> None:
    paths = TablePaths("/clickhouse/tables/01/half")

    async def clean() -> list[ActState]:
        config = load_node_config(place.local.config_file)
        urls = {host: place.local.node(host).url for host in HOSTS}
        async with open_site(
            "c", config, database_url=place.records, operator="test", urls=urls, env=SystemEnv()
        ) as site:
            await site.keeper.multi(
                [
                    Create(paths.root),
                    Create(paths.columns, b"columns format version: 1\n0 columns:\n"),
                    Create(paths.log),
                    Create(paths.log_entry("log-0000000000")),
                    Create(paths.dropped),
                ]
            )
            # The host that the tests before have killed.
            settings = CleanupSettings(leftover_after_s=0, gone=(GoneHost("n3", "its disk is gone"),))
            plan = await plan_cleanup(site, settings, [CleanupKind.TABLES])
            report = await carry_out(site, plan, cleanup_performer(site), run_id="half", approved_by="test")
            assert await site.keeper.exists(paths.root) is None
            return [result.state for _, result in report.results]

    assert place.call(clean()) == [ActState.DONE]
    place.node("n1").query(
        f"CREATE TABLE half (k UInt64) ENGINE = ReplicatedMergeTree('{paths.root}', 'n1') ORDER BY k"
    )


def test_broken_files_that_are_whole_are_sent_again_and_the_others_dropped(place: Place) -> None:
    n1 = place.node("n1")
    n1.query("CREATE TABLE plain (k UInt64) ENGINE = MergeTree ORDER BY k")
    n1.query("CREATE TABLE spread (k UInt64) ENGINE = Distributed(one, default, plain, k)")
    n1.query("SYSTEM STOP DISTRIBUTED SENDS spread")
    for k in (1, 2):
        n1.query(
            f"INSERT INTO spread VALUES ({k})",
            distributed_foreground_insert="0",
            prefer_localhost_replica="0",
        )
    directory = Path(n1.query("SELECT data_path FROM system.distribution_queue").strip())
    (directory / "broken").mkdir(exist_ok=True)
    whole, damaged = sorted(directory.glob("*.bin"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    for file in (whole, damaged):
        file.rename(directory / "broken" / file.name)

    found = place.json("plan", "--kind", "spool")
    assert found["acts"] == [] and found["findings"][0]["evidence"]["broken_files"] == 2
    n1.query("SYSTEM START DISTRIBUTED SENDS spread")
    report = place.json("apply", "--kind", "spool", "--broken-files", "restore", "--yes")
    assert report["acts"][0]["detail"] == "1 file will be sent again, 1 cannot be read"
    eventually(lambda: n1.query("SELECT groupArray(k) FROM plain").strip() == "[1]")
    report = place.json("apply", "--kind", "spool", "--broken-files", "drop", "--yes")
    assert report["acts"][0]["detail"] == "1 file removed" and not list(directory.glob("broken/*"))
