"""`oncluster ddl` over the memory Keeper: what it prints and how it exits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from engine.cli import ddl_place
from engine.cli.main import cli
from engine.config.model import NodeConfig, Topology
from engine.ddl.status import ExecutionStatus
from engine.env import SystemEnv
from engine.errors import KeeperUnavailable
from engine.keeper.base import Keeper
from engine.keeper.memory import MemoryKeeperServer
from engine.names import HostId
from tests.unit.ddl.support import PATHS, QUEUE, cluster, topology

CREATE = "CREATE TABLE d.t ON CLUSTER c (a Int8)"
CONFIG = NodeConfig(path="", topology=topology("a b"), queues=(QUEUE,))


class Desk:
    """Runs commands; hosts are played by writing their outcomes between two commands."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.config = CONFIG
        self.outcomes: dict[str, ExecutionStatus] = {}
        self.tree: Any = None
        monkeypatch.setattr(ddl_place, "load_config", lambda config: self.config)
        monkeypatch.setattr(ddl_place, "keeper_session", self._session)

    @contextlib.asynccontextmanager
    async def _session(self, _config: object) -> AsyncIterator[Keeper]:
        server = MemoryKeeperServer(SystemEnv())
        if self.tree is not None:
            server.tree = self.tree
        self.tree = server.tree
        hosts = asyncio.create_task(self._play(await server.connect(client="hosts")))
        try:
            yield await server.connect(client="cli")
        finally:
            hosts.cancel()

    async def _play(self, keeper: Keeper) -> None:
        """Each host reports as soon as an entry has its directories."""
        while True:
            for path in [p for p in list(self.tree.nodes) if p.endswith("/finished")]:
                entry = path.split("/")[-2]
                for name, status in self.outcomes.items():
                    target = PATHS.finished(entry, HostId(name, 9000))
                    if target not in self.tree.nodes:
                        await keeper.create(target, status.to_bytes())
            await asyncio.sleep(0.005)

    def run(self, *arguments: str) -> Result:
        # A loop of its own, because the test runner has one running in this thread.
        results: list[Result] = []
        thread = threading.Thread(target=lambda: results.append(CliRunner().invoke(cli, ["ddl", *arguments])))
        thread.start()
        thread.join()
        return results[0]

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    yield Desk(monkeypatch)


def done(*names: str) -> dict[str, ExecutionStatus]:
    return {name: ExecutionStatus() for name in names}


def test_a_statement_that_is_done_everywhere_exits_with_zero(desk: Desk) -> None:
    desk.outcomes = done("a", "b")
    result = desk.run("submit", CREATE)
    assert result.exit_code == 0, result.output
    assert "a:9000" in result.stdout and "done" in result.stdout
    assert "enqueued: query-0000000000" in result.stderr


def test_a_failure_exits_with_one_and_shows_the_error(desk: Desk) -> None:
    desk.outcomes = done("a") | {"b": ExecutionStatus(57, "Code: 57. exists")}
    result = desk.run("submit", CREATE)
    assert result.exit_code == 1
    assert "Code: 57. exists" in result.stdout


class CutOff(Desk):
    """Ctrl-C when the statement is in the queue; asyncio raises it out of its loop."""

    async def _play(self, keeper: Keeper) -> None:
        while not any(path.endswith("/finished") for path in self.tree.nodes):
            await asyncio.sleep(0.005)
        asyncio.get_running_loop().call_soon(self._interrupt)
        await asyncio.Event().wait()

    def _interrupt(self) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_who_is_interrupted_is_told_the_token_that_attaches(
    options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off = CutOff(monkeypatch)
    result = cut_off.run("submit", CREATE, *options)
    assert result.exit_code == 130
    token = found[1] if (found := re.search(r"Repeat it with --token (\S+):", result.stderr)) else ""

    desk = Desk(monkeypatch)
    desk.tree, desk.outcomes = cut_off.tree, done("a", "b")
    again = desk.run("submit", CREATE, "--token", token)
    assert again.exit_code == 0 and "attached: query-0000000000" in again.stderr


def test_who_loses_keeper_is_told_the_token_that_attaches(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_config: object) -> Any:
        raise KeeperUnavailable("Keeper is away.", hint="Look at it.")

    monkeypatch.setattr(ddl_place, "keeper_session", gone)
    result = desk.run("submit", CREATE, "--token", "t1")
    assert result.exit_code == 4
    assert "Look at it. Repeat it with --token t1:" in result.stderr


def test_a_timeout_exits_with_three_and_says_how_to_attach(desk: Desk) -> None:
    desk.outcomes = done("a")
    result = desk.run("submit", CREATE, "--timeout", "0.2", "--token", "t1")
    assert result.exit_code == 3
    assert "oncluster ddl wait query-0000000000" in result.stderr
    desk.outcomes = done("a", "b")
    assert desk.run("wait", "query-0000000000").exit_code == 0
    assert desk.run("wait", "--token", "t1").exit_code == 0


def test_the_same_token_attaches(desk: Desk) -> None:
    desk.outcomes = done("a", "b")
    first, again = (desk.json("submit", CREATE, "--token", "t") for _ in range(2))
    assert (first["outcome"], again["outcome"]) == ("enqueued", "attached")
    assert first["status"]["entry"] == again["status"]["entry"] == "query-0000000000"


def test_a_statement_goes_to_the_queue_of_its_cluster(desk: Desk) -> None:
    logs = replace(QUEUE, name="logs", path="/clickhouse/logs/ddl", clusters=("l",))
    clusters = {"c": cluster("a b"), "l": cluster("a b", name="l")}
    desk.config = replace(CONFIG, queues=(QUEUE, logs), topology=Topology(clusters, {"which": "l"}))
    for number, statement in enumerate((["ON CLUSTER l"], ["ON CLUSTER '{which}'"], ["", "--cluster", "l"])):
        sql, *options = f"DROP TABLE d.t {statement[0]}", *statement[1:]
        result = desk.run("submit", sql, *options, "--timeout", "0.1")
        assert result.exit_code == 3, result.output
        assert f"oncluster ddl wait query-000000000{number} --queue logs" in result.stderr
    assert desk.json("list") == []
    assert len(desk.json("list", "--queue", "logs")) == 3


def test_a_table_gets_one_uuid_for_all_hosts(desk: Desk) -> None:
    """A path in Keeper may be made of it."""
    sql = "CREATE TABLE d.t ON CLUSTER c (a Int8) ENGINE = ReplicatedMergeTree ORDER BY a"
    arguments = ("submit", sql, "--timeout", "0.1", "--token", "t")
    assert re.match(
        r"CREATE TABLE d\.t UUID '[0-9a-f-]{36}' ON CLUSTER c", desk.json(*arguments)["status"]["query"]
    )
    assert desk.json(*arguments)["outcome"] == "attached"


def test_what_is_refused_exits_with_five_and_says_the_code(desk: Desk) -> None:
    result = desk.run("submit", "DROP TABLE d.t ON CLUSTER nope")
    assert result.exit_code == 5
    assert "701" in result.stderr and "Known clusters: c" in result.stderr
    assert desk.run("submit", "SELECT 1").exit_code == 5
    assert desk.run("wait", "--token", "never").exit_code == 5
    assert desk.run("submit", CREATE, "--queue", "other").exit_code == 5


def test_an_entry_that_is_not_there_exits_with_three(desk: Desk) -> None:
    result = desk.run("show", "query-0000000007")
    assert result.exit_code == 3
    assert "341" in result.stderr


def test_an_entry_that_never_was_is_refused(desk: Desk) -> None:
    desk.outcomes = done("a", "b")
    desk.json("submit", CREATE)
    result = desk.run("show", "7")
    assert result.exit_code == 5
    assert "There is no entry query-0000000007." in result.stderr
    assert "the last one is 0" in result.stderr


def test_wrong_usage_exits_with_two(desk: Desk) -> None:
    assert desk.run("wait").exit_code == 2
    assert desk.run("submit", CREATE, "--setting", "nonsense").exit_code == 2


@pytest.mark.parametrize("command", ["show", "wait", "clean"])
@pytest.mark.parametrize(
    "name", ["nonsense", "query-7", "../replicas", "query-0000000000/finished", "-1", "٣"]
)
def test_what_is_no_entry_is_wrong_usage_and_not_said_to_be_cleaned_away(
    desk: Desk, command: str, name: str
) -> None:
    result = desk.run(command, "--", name)
    assert result.exit_code == 2
    assert "is no entry; write query-0000000007, or 7" in result.stderr


def test_an_entry_may_be_given_by_its_number(desk: Desk) -> None:
    desk.run("submit", CREATE, "--timeout", "0")
    assert desk.json("show", "0")["entry"] == "query-0000000000"


def test_the_list_and_one_entry_are_shown_without_secrets(desk: Desk) -> None:
    desk.outcomes = done("a")
    sql = "CREATE TABLE d.t ON CLUSTER c (a Int8) ENGINE = MySQL('h:1', 'd', 't', 'u', 'secret')"
    desk.run("submit", sql, "--timeout", "0.1")
    listed = desk.run("list").stdout
    assert "1 done, 1 waiting" in listed and "c" in listed
    shown = desk.json("show", "query-0000000000")
    assert [host["state"] for host in shown["hosts"]] == ["done", "waiting"]
    for output in (listed, json.dumps(shown), desk.run("show", "query-0000000000").stdout):
        assert "secret" not in output


def test_an_empty_queue_is_said_to_be_empty(desk: Desk) -> None:
    assert "(the queue is empty)" in desk.run("list").stdout
    assert desk.json("list") == []


def test_cleaning_removes_only_what_is_named_and_only_when_told_to(desk: Desk) -> None:
    desk.run("submit", CREATE, "--timeout", "0")
    planned = desk.run("clean", "query-0000000000")
    assert planned.exit_code == 0
    assert "planned" in planned.stdout and "add --yes" in planned.stderr
    removed = desk.json("clean", "query-0000000000", "--yes")
    assert removed["entries"] == [
        {
            "entry": "query-0000000000",
            "reason": "asked",
            "removal": "removed",
            "expired": ["a:9000", "b:9000"],
        }
    ]
    shown = desk.json("show", "query-0000000000")
    assert shown["is_gone"] and [host["state"] for host in shown["hosts"]] == ["expired", "expired"]


def test_a_statement_can_come_from_standard_input_and_be_given_a_cluster(desk: Desk, tmp_path: Path) -> None:
    desk.outcomes = done("a", "b")
    results: list[Result] = []
    arguments = ["ddl", "submit", "-", "--cluster", "c", "--setting", "max_threads=1", "--json"]
    thread = threading.Thread(
        target=lambda: results.append(CliRunner().invoke(cli, arguments, input="DROP TABLE d.t"))
    )
    thread.start()
    thread.join()
    assert results[0].exit_code == 0, results[0].output
    assert json.loads(results[0].stdout)["status"]["query"] == "DROP TABLE d.t ON CLUSTER c"
