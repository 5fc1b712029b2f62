"""`oncluster migrate`: refusals without a cluster, and the whole way on six nodes over a real ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from engine.cli.main import cli
from engine.cli.migrate_place import Place
from engine.cli.migrate_show import show_summary
from engine.client.node_client import NodeClient
from engine.config.model import Topology
from engine.errors import KeeperUnavailable, SessionExpired
from engine.keeper import zookeeper
from engine.keeper.base import Keeper
from engine.migrations.files import Direction
from engine.migrations.model import RunSummary, Step
from engine.migrations.states import RunState
from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import LocalCluster
from tests.migrations.support import SHOP, write
from tests.warm import warm

ROOT = Path(__file__).parents[2]

CONFIG = """
<clickhouse>
  <zookeeper><node><host>127.0.0.1</host><port>1</port></node><session_timeout_ms>2000</session_timeout_ms><operation_timeout_ms>2000</operation_timeout_ms></zookeeper>
  <distributed_ddl><path>/ddl</path></distributed_ddl>
  <remote_servers><shop><shard><replica><host>n1</host><port>9000</port></replica></shard></shop></remote_servers>
</clickhouse>
"""


def call(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    """In this process, without a cluster."""
    (tmp_path / "config.xml").write_text(CONFIG)
    environ = {
        "ONCLUSTER_CONFIG": str(tmp_path / "config.xml"),
        "ONCLUSTER_LEDGER_URL": str(tmp_path / "ledger.db"),
        "ONCLUSTER_HOME": str(tmp_path),
        "ONCLUSTER_MIGRATIONS": str(tmp_path / "migrations"),
    }
    result = CliRunner(env=environ).invoke(cli, ["migrate", *arguments])
    return result.exit_code, result.output


def test_the_folder_is_found_by_the_cluster_s_name_and_the_error_lists_the_names(tmp_path: Path) -> None:
    for name in ("shop", "other"):
        write(tmp_path / "migrations" / name, SHOP)
    code, output = call(tmp_path, "lint", "--cluster", "shp", "--no-parser")
    assert code == 5
    assert "other, shop" in output
    code, output = call(tmp_path, "lint", "--cluster", "shop", "--no-parser", "--json")
    assert (code, json.loads(output)["errors"]) == (0, 0)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("")
    for name, what in (("no-such", "is not there"), ("a-file", "is no folder")):
        code, output = call(tmp_path, "lint", "--dir", str(tmp_path / name), "--cluster", "shop")
        assert code == 5
        assert f"{tmp_path / name} {what}" in output
        assert "--dir" in output


def test_what_is_not_rehearsed_is_shown_with_what_was_said_of_it(tmp_path: Path) -> None:
    """Every host would refuse this DELETE for the reason for which the scratch does."""
    files = {
        "1_t.up.sql": "CREATE TABLE IF NOT EXISTS t (x Int8, PROJECTION p (SELECT x ORDER BY x)) "
        "ENGINE = MergeTree ORDER BY x; DELETE FROM t WHERE x = 1",
        "1_t.down.sql": "DROP TABLE IF EXISTS t",
    }
    write(tmp_path / "migrations" / "shop", files)
    code, output = call(tmp_path, "rehearse")
    assert code == 0
    (told,) = [line for line in output.splitlines() if "not rehearsed" in line]
    assert "1_t.up.sql:1" in told
    assert "(code 344): DELETE query is not allowed" in told


def test_folders_of_other_tools_are_no_clusters(tmp_path: Path) -> None:
    write(tmp_path / "migrations" / "shop", SHOP)
    for name in (".git", "_drafts"):
        (tmp_path / "migrations" / name).mkdir()
    for command in (("lint", "--no-parser"), ("status", "--no-refresh"), ("history",)):
        code, output = call(tmp_path, *command)
        assert code == 0, output


def test_lint_ends_with_1_when_there_are_errors_and_strictly_with_warnings(tmp_path: Path) -> None:
    folder = write(tmp_path / "migrations" / "shop", SHOP)
    assert call(tmp_path, "lint", "--no-parser")[0] == 0
    write(folder, {"4_x.up.sql": "DROP TABLE IF EXISTS s.a;", "4_x.down.sql": "SELECT"})
    assert call(tmp_path, "lint", "--no-parser")[0] == 1
    write(folder, {"4_x.down.sql": "CREATE TABLE IF NOT EXISTS s.a (x Int8) ENGINE = Memory"})
    assert call(tmp_path, "lint", "--no-parser")[0] == 0
    assert call(tmp_path, "lint", "--no-parser", "--strict")[0] == 1


def test_a_folder_that_cannot_be_used_is_refused_with_every_place(tmp_path: Path) -> None:
    write(tmp_path / "migrations" / "shop", {"one.up.sql": "SELECT 1", "1_a.up.sql": "SELECT 'open"})
    for command in ("plan", "status", "apply", "rollback"):
        code, output = call(tmp_path, command)
        assert code == 5
        assert "one.up.sql" in output
        assert "1_a.up.sql:1" in output


@pytest.mark.parametrize("node", ["n1=ftp://u:hunter2@h", "n1=h:8123", "u:hunter2@h", "=http://u:hunter2@h"])
def test_an_address_of_a_node_that_is_none_is_wrong_usage_and_shows_no_password(
    tmp_path: Path, node: str
) -> None:
    write(tmp_path / "migrations" / "shop", SHOP)
    code, output = call(tmp_path, "apply", "--no-rehearse", "--node", node)
    assert code == 2
    assert "--node" in output
    assert "hunter2" not in output


@pytest.mark.parametrize("command", [("mark", "1", "applied", "--reason", "x"), ("unlock",), ("resume",)])
def test_a_mistyped_cluster_is_refused_where_nothing_would_tell_it(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    """A mark would stay in the ledger, and count when a cluster of that name is made."""
    folder = write(tmp_path / "migrations" / "shop", SHOP)
    code, output = call(tmp_path, *command, "--dir", str(folder), "--cluster", "shpo")
    assert code == 5
    assert "'shpo' not found" in output and "shop" in output
    assert not (tmp_path / "ledger.db").exists()


@pytest.mark.parametrize(
    ("direction", "advice"), [(Direction.UP, "or roll it back"), (Direction.DOWN, "may be corrected first")]
)
def test_a_failed_run_says_what_can_be_done_in_its_direction(
    capsys: pytest.CaptureFixture[str], direction: Direction, advice: str
) -> None:
    step = Step(1, "tables", direction, 1, 1)
    show_summary(RunSummary("run", "shop", RunState.FAILED, (step,), ()), Topology({}))
    last = capsys.readouterr().out.rstrip().splitlines()[-1]
    assert "--retry-failed" in last and advice in last


def test_a_node_that_no_cluster_has_is_wrong_usage(tmp_path: Path) -> None:
    write(tmp_path / "migrations" / "shop", SHOP)
    code, output = call(tmp_path, "apply", "--no-rehearse", "--node", "n2=http://127.0.0.1:1")
    assert code == 2
    assert "host n2" in output and "n1" in output


@pytest.mark.parametrize("command", ["status --no-refresh", "history", "resume"])
def test_a_ledger_that_is_not_there_is_told_and_not_made(tmp_path: Path, command: str) -> None:
    write(tmp_path / "migrations" / "shop", SHOP)
    mistyped = tmp_path / "mistyped" / "ledger.db"
    code, output = call(tmp_path, *command.split(), "--ledger-url", str(mistyped))
    assert code == 0
    assert f"There is no ledger at sqlite+pysqlite:///{mistyped} yet" in output
    assert not mistyped.parent.exists()


def test_the_history_of_a_mistyped_cluster_names_those_there_are(tmp_path: Path) -> None:
    write(tmp_path / "migrations" / "shop", SHOP)
    code, output = call(tmp_path, "history", "--cluster", "shpo")
    assert code == 5
    assert "no migrations of 'shpo'" in output and "There are: shop." in output


def test_history_needs_no_cluster(tmp_path: Path) -> None:
    write(tmp_path / "migrations" / "shop", SHOP)
    code, output = call(tmp_path, "history", "--json")
    assert (code, json.loads(output[output.index("{") :])) == (0, {"runs": [], "events": []})


def test_a_session_that_is_lost_on_the_way_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.asynccontextmanager
    async def lost(*_: object, **__: object) -> AsyncIterator[None]:
        raise SessionExpired("The Keeper session is over.", hint="Open another.")
        yield

    monkeypatch.setattr(Place, "runner", lost)
    write(tmp_path / "migrations" / "shop", SHOP)
    for command in (("apply", "--no-rehearse"), ("rollback", "--approve")):
        code, output = call(tmp_path, *command)
        assert code == 6
        assert "Repeat the command" in output


def test_a_run_that_is_interrupted_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.asynccontextmanager
    async def interrupted(*_: object, **__: object) -> AsyncIterator[None]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(Place, "runner", interrupted)
    write(tmp_path / "migrations" / "shop", SHOP)
    for command in (("apply", "--no-rehearse"), ("rollback", "--approve")):
        code, output = call(tmp_path, *command)
        assert code == 130
        assert "Repeat the command" in output


def test_apply_is_refused_when_its_rehearsal_fails_and_asks_no_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not get to Keeper no host sees. The same files without a rehearsal get there."""
    asked: list[object] = []

    async def connect(*arguments: object, **_: object) -> Keeper:
        asked.append(arguments)
        raise KeeperUnavailable("There is no Keeper here.")

    monkeypatch.setattr(zookeeper, "connect", connect)
    files = {
        "1_t.up.sql": "CREATE TABLE IF NOT EXISTS a (x Int8) ENGINE = Memory;",
        "1_t.down.sql": "DROP TABLE IF EXISTS a;",
        "2_bad.up.sql": "ALTER TABLE a DROP COLUMN nowhere;",
        "2_bad.down.sql": "ALTER TABLE a ADD COLUMN IF NOT EXISTS nowhere Int8;",
    }
    write(tmp_path / "migrations" / "shop", files)
    code, output = call(tmp_path, "apply", "--approve")
    assert code == 5
    assert "The rehearsal failed; nothing was sent." in output
    assert "nowhere" in output and "2_bad.up.sql:1: up failed" in output
    assert asked == []
    assert "There is no ledger" in call(tmp_path, "history")[1]
    assert call(tmp_path, "apply", "--approve", "--no-rehearse")[0] == 4
    assert len(asked) == 1


@pytest.mark.slow
def test_without_keeper_apply_ends_with_4_and_status_shows_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = zookeeper.connect
    monkeypatch.setattr(
        zookeeper, "connect", lambda config, env, **_: real(config, env, connect_timeout_s=0.3)
    )
    write(tmp_path / "migrations" / "shop", SHOP)
    assert call(tmp_path, "apply", "--no-rehearse")[0] == 4
    code, output = call(tmp_path, "status")
    assert code == 0
    assert "pending" in output
    assert "as it was last written" in output


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs the real command in processes of their own, as a user does."""

    cluster: LocalCluster
    ledger_url: str

    async def run(self, *arguments: str) -> tuple[int, Any]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "engine.cli", "migrate", *arguments, "--json"),
            env={
                **os.environ,
                "ONCLUSTER_CONFIG": str(self.cluster.config_file),
                "ONCLUSTER_LEDGER_URL": self.ledger_url,
            },
            cwd=ROOT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate()
        text = output.decode() or errors.decode().strip().splitlines()[-1]
        assert process.returncode is not None
        return process.returncode, json.loads(text)

    async def schema(self, name: str) -> str:
        async with NodeClient(self.cluster.node(name).url) as client:
            return await client.query_text(
                "SELECT name, create_table_query FROM system.tables WHERE database = 'flights' ORDER BY name"
            )


def states(status: Any) -> dict[int, str]:
    (cluster,) = status["clusters"]
    return {migration["version"]: migration["state"] for migration in cluster["migrations"]}


@pytest.mark.extended
async def test_the_demo_s_migrations_on_three_nodes_of_which_one_dies_and_comes_back(tmp_path: Path) -> None:
    """The demo does it on six, through Airflow (`tests/process/test_demo`)."""
    file = tmp_path / "cluster.xml"
    file.write_text(clusters_xml({"order_cluster": [["node01", "node02"], ["node03"]]}))
    async with LocalCluster(
        tmp_path / "cluster", cluster_file=file, session_timeout_ms=4000, launch=warm
    ) as cluster:
        shell = Shell(cluster, str(tmp_path / "ledger.db"))
        order = ("--cluster", "order_cluster")
        nodes = [word for node in cluster.nodes.values() for word in ("--node", f"{node.name}={node.url}")]

        code, plan = await shell.run("plan", *order, *nodes)
        assert (code, plan["needs_approval"], plan["problems"]) == (0, True, [])
        assert {h["presence"] for m in plan["migrations"] for s in m["statements"] for h in s["hosts"]} == {
            "active"
        }
        assert (await shell.run("apply", *order, "--no-rehearse"))[0] == 5

        # Up to the first ALTER on all nodes; from then on one is away.
        code, summary = await shell.run("apply", *order, "--target", "4")
        assert (code, summary["state"]) == (0, "done")
        await cluster.node("node02").kill9()
        code, summary = await shell.run("apply", *order, "--approve", "--no-rehearse", "--timeout", "6")
        assert (code, summary["state"]) == (3, "unfinished")
        code, status = await shell.run("status", *order)
        assert (code, states(status)[5], states(status)[6]) == (3, "running", "pending")

        # On without it: all is sent, and waits for it in the queue, up to a change of a replicated table that
        # it has still to make.
        code, failed = await shell.run(
            "apply", *order, "--approve", "--no-rehearse", "--output-mode", "none_only_active"
        )
        assert (code, failed["error"]["kind"]) == (3, "TableNotMade")
        assert "11.up statement 3" in failed["error"]["message"] and "node02" in failed["error"]["message"]
        code, status = await shell.run("status", *order)
        assert {states(status)[version] for version in (5, 6, 7, 8, 9, 10)} == {"waiting"}
        assert states(status)[11] == "running"

        await cluster.node("node02").start()
        code, summary = 6, {}
        while code in (4, 6):  # the session with Keeper may end on a busy machine: both say to repeat it
            code, summary = await shell.run("resume", *order)
        assert (code, summary.get("state")) == (0, "done"), summary
        code, status = await shell.run("status", *order)
        assert (code, set(states(status).values())) == (0, {"applied"})
        rows = [row for migration in status["clusters"][0]["migrations"] for row in migration["rows"]]
        statements = sum(len(migration["statements"]) for migration in plan["migrations"])
        assert len(rows) == statements * 3 > 0
        assert {row["state"] for row in rows} == {"done"}
        # Whoever came back to a statement that was sent has found its entry.
        assert len({row["entry"] for row in rows}) == statements
        async with NodeClient(cluster.node("node01").url) as client:
            entries = "SELECT uniqExact(entry) FROM system.distributed_ddl_queue"
            assert await client.query_text(entries) == f"{statements}\n"
        schemas = {await shell.schema(name) for name in cluster.nodes}
        assert len(schemas) == 1
        assert "tailnum_bloom" in schemas.pop()

        both = await asyncio.gather(*(shell.run("rollback", *order, "--all", "--approve") for _ in range(2)))
        assert sorted(code for code, _ in both) in ([0, 4], [0, 0])
        assert {await shell.schema(name) for name in cluster.nodes} == {""}
        code, history = await shell.run("history", *order)
        fences = [run["fence"] for run in history["runs"]]
        assert fences == sorted(set(fences))

        assert await shell.run("mark", "1", "applied", "--reason", "made by hand", *order) == (
            0,
            {"cluster": "order_cluster", "version": 1, "state": "marked"},
        )
        assert await shell.run("unlock", "--run", "r", *order) == (
            0,
            {"cluster": "order_cluster", "taken_from": None},
        )
