"""`oncluster keeper` against a real ZooKeeper."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from engine.cli.main import cli
from engine.env import SystemEnv
from engine.keeper import Create, CreateMode, zookeeper
from engine.keeper.embedded import EmbeddedZooKeeper
from tests.permissions import open_to_others

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = EmbeddedZooKeeper(tmp_path_factory.mktemp("zk"), is_durable=False, ends_with_parent=True)
    running.start_blocking()
    yield running
    running.stop_blocking()


@pytest.fixture(scope="module")
def config(server, tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "node.xml"
    path.write_text(
        "<clickhouse><zookeeper><node><host>127.0.0.1</host>"
        f"<port>{server.client_port}</port></node></zookeeper></clickhouse>"
    )
    return path


@pytest.fixture
def run(config):
    def call(*arguments):
        return CliRunner().invoke(cli, ["keeper", *arguments, "--config", str(config)])

    return call


@pytest.fixture(scope="module", autouse=True)
def nodes(server):
    async def make():
        keeper = await zookeeper.connect(server.config, SystemEnv())
        paths = ["/q", "/q/a", "/q/a/deep", "/q/b", "/gone", "/gone/x", "/gone/x/y"]
        await keeper.multi([Create(path, f"value of {path}\nsecond line".encode()) for path in paths])
        await keeper.close()

    asyncio.run(make())


def test_ls_lists_names(run):
    result = run("ls", "/q")
    assert (result.exit_code, result.stdout) == (0, "a\nb\n")


def test_ls_long_shows_the_bookkeeping(run):
    result = run("ls", "/q", "--long")
    assert re.search(r"^\W*a\s+0\s+1\s+\d+\s+20\d\d-", result.stdout, re.MULTILINE)
    listed = json.loads(run("ls", "/q", "-l", "--json").stdout)
    assert [(each["name"], each["num_children"]) for each in listed] == [("a", 1), ("b", 0)]


def test_get_prints_the_bytes_as_they_are(run):
    assert run("get", "/q/a").stdout == "value of /q/a\nsecond line"
    facts = json.loads(run("get", "/q/a", "--json").stdout)
    assert facts["value"] == "value of /q/a\nsecond line" and facts["stat"]["version"] == 0


def test_what_is_no_text_comes_whole_as_base64(run, server):
    async def make():
        keeper = await zookeeper.connect(server.config, SystemEnv())
        await keeper.create("/binary", b"\\xff\xff")
        await keeper.close()

    asyncio.run(make())
    facts = json.loads(run("get", "/binary", "--json").stdout)
    assert facts["value"] is None
    assert base64.b64decode(facts["value_base64"]) == b"\\xff\xff"
    run("rm", "/binary")


def test_stat_shows_versions_and_times(run):
    assert re.search(r"^num_children\s+2$", run("stat", "/q").stdout, re.MULTILINE)
    assert json.loads(run("stat", "/q", "--json").stdout)["num_children"] == 2


def test_tree_shows_what_is_below(run):
    assert run("tree", "/q").stdout == "/q\n  a\n    deep\n  b\n"
    assert run("tree", "/q", "--depth", "1").stdout == "/q\n  a\n  b\n"
    assert run("tree", "/q", "--depth", "1", "--values").stdout.splitlines()[1] == "  a  value of /q/a…"


def test_tree_is_bounded(run):
    result = run("tree", "/q", "--limit", "2")
    assert result.stdout == "/q\n  a\n" and "more than 2 nodes" in result.stderr
    assert json.loads(run("tree", "/q", "--limit", "2", "--json").stdout)["is_complete"] is False


def test_a_missing_node_is_refused(run):
    for command in ("ls", "get", "stat", "tree", "rm"):
        result = run(command, "/missing")
        assert (result.exit_code, result.stdout) == (5, "")
        assert "No node, path: /missing" in result.stderr


def test_a_path_that_is_none_is_wrong_usage(run):
    assert run("ls", "q").exit_code == run("ls", "/q//a").exit_code == 2


def test_create_set_and_the_version_that_guards(run):
    refused = run("create", "/new/inner", "1")
    assert refused.exit_code == 5
    assert "No node, path: /new\n" in refused.stderr and "--parents" in refused.stderr
    assert run("create", "/new/inner", "1", "--parents").stdout == "/new/inner\n"
    assert run("set", "/new/inner", "2", "--version", "0").stdout == "version 1\n"
    refused = run("set", "/new/inner", "3", "--version", "0")
    assert refused.exit_code == 5 and "Bad version" in refused.stderr
    assert run("get", "/new/inner").stdout == "2"


def test_bytes_of_the_command_line_are_stored_as_they_are(run):
    # What a shell hands over that is no UTF-8 comes as Python's surrogates.
    assert run("create", "/bytes", os.fsdecode(b"\xff\xfe")).exit_code == 0
    assert run("get", "/bytes").stdout_bytes == b"\xff\xfe"
    assert run("set", "/bytes", os.fsdecode(b"a\x80")).exit_code == 0
    assert run("get", "/bytes").stdout_bytes == b"a\x80"


@pytest.mark.parametrize("command", [("ls",), ("get",), ("stat",), ("rm",), ("create",), ("set",)])
def test_a_path_that_is_no_text_is_wrong_usage(run, command):
    result = run(*command, os.fsdecode(b"/\xff"), *(["x"] if command[0] == "set" else []))
    assert result.exit_code == 2 and "is no path of a znode" in result.stderr


def test_rm_says_what_would_go_and_goes_only_with_yes(run):
    result = run("rm", "/gone", "--recursive")
    assert result.stdout == "/gone\n/gone/x\n/gone/x/y\n" and "Would remove" in result.stderr
    assert run("stat", "/gone").exit_code == 0
    for word in ((), ("--yes",)):
        refused = run("rm", "/gone", *word)
        assert refused.exit_code == 5 and "Node has children" in refused.stderr
        assert "--recursive" in refused.stderr and refused.stdout == ""
    assert run("rm", "/gone", "--recursive", "--yes").exit_code == 0
    assert run("stat", "/gone").exit_code == 5
    assert run("rm", "/", "--recursive", "--yes").exit_code == 2


def test_wait_ends_with_the_change_or_in_time(run, server):
    assert run("wait", "/q").exit_code == 0
    assert run("wait", "/missing", "--until", "gone").exit_code == 0
    late = run("wait", "/missing", "--timeout", "0.1")
    assert late.exit_code == 3 and "in vain" in late.stderr


def test_wait_sees_another_session_end(config, server):
    async def story():
        keeper = await zookeeper.connect(server.config, SystemEnv())
        await keeper.create("/brief", mode=CreateMode.EPHEMERAL)
        waiting = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "engine.cli",
            "keeper",
            "wait",
            "/brief",
            "--until",
            "gone",
            "-c",
            str(config),
        )
        await keeper.close()
        async with asyncio.timeout(60):
            assert await waiting.wait() == 0

    asyncio.run(story())


def test_nobody_there_is_unavailable(tmp_path, monkeypatch):
    from engine.keeper import zookeeper as backend

    real = backend.connect
    monkeypatch.setattr(backend, "connect", lambda config, env, **_: real(config, env, connect_timeout_s=0.3))
    path = tmp_path / "node.xml"
    path.write_text(
        "<clickhouse><zookeeper><node><host>127.0.0.1</host><port>1</port></node></zookeeper></clickhouse>"
    )
    result = CliRunner().invoke(cli, ["keeper", "ls", "/", "--config", str(path)])
    assert result.exit_code == 4 and "No session with Keeper at 127.0.0.1:1" in result.stderr


def test_serve_runs_until_it_is_told_to_stop(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "engine.cli", "keeper", "serve", str(tmp_path / "zk"), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        umask=0,
    )
    try:
        line = process.stdout.readline()
        pid = int(re.search(r"serves at 127\.0\.0\.1:\d+ \(pid (\d+)\)", line).group(1))
        os.kill(pid, 0)
        assert open_to_others(tmp_path / "zk") == set()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    finally:
        process.kill()
        process.wait()
