"""The demo's bad days: one clear line, the right exit code, nothing left running."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.few import few_first
from tests.process.support import PATIENCE_S, Home, cluster_file_in, home_in, interrupt, until
from tests.small_disk import small_disk

pytestmark = pytest.mark.slow

DEMO = ("demo", "--port-base", "0", "--cluster-file")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with home_in(tmp_path / "home") as found:
        yield found


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    """One node will do: none of these demos comes to the end of a migration."""
    return str(cluster_file_in(tmp_path / "cluster.xml", nodes=1))


def errors(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("Error")]


def test_a_port_in_use_is_one_line_with_its_holder(home: Home, cluster: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        done = home.run(*DEMO, cluster, ONCLUSTER_ZOOKEEPER_PORT=str(port))

    assert done.returncode == 4
    assert len(errors(done.stderr)) == 1
    assert f"{port} (for ZooKeeper) by" in done.stderr and f"process {os.getpid()}" in done.stderr
    assert "--port-base 0" in done.stderr
    assert home.left() == []


@pytest.mark.parametrize("victim", few_first(["node01", "ZooKeeper"], few=1))
async def test_a_killed_process_ends_the_demo_at_once_with_its_name(
    home: Home, cluster: str, victim: str
) -> None:
    demo = home.start(*DEMO, cluster)
    found: list[int] = []

    def appeared() -> bool:
        state = home.state("demo")
        found[:] = [e.pid for e in (state.processes if state else ()) if e.name == victim]
        return bool(found)

    await until(appeared, of=demo)

    os.kill(found[0], signal.SIGKILL)

    output, _ = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode != 0
    assert victim.split()[-1] in errors(output)[0], output
    assert "Traceback" not in output
    assert home.left() == []


@pytest.mark.extended
def test_a_scheduler_that_is_killed_while_up_migrates_is_named_and_nothing_stays(
    home: Home, cluster: str
) -> None:
    """`demo` watches in the same way; here the processes are another one's children."""
    up = home.start("up", "--demo", "--port-base", "0", "--cluster-file", cluster)
    assert up.stdout is not None
    begun = next((line for line in iter(up.stdout.readline, "") if "migrating " in line), "")
    state = home.state()
    assert begun and state is not None, "it ended before it migrated"

    os.kill(next(e.pid for e in state.processes if e.name == "Airflow scheduler"), signal.SIGKILL)

    output = up.stdout.read()
    assert up.wait(PATIENCE_S) == 1, output
    assert errors(output) == ["Error: Airflow's scheduler has ended unexpectedly."], output
    assert "Traceback" not in output
    assert home.left() == []
    assert home.status()["phase"] == "stopped"


async def test_a_demo_that_is_interrupted_takes_everything_back(home: Home, cluster: str) -> None:
    """By Ctrl-C; SIGTERM goes the same way, which the tests of `up` send."""
    demo = home.start(*DEMO, cluster)
    await until(lambda: (state := home.state("demo")) is not None and len(state.processes) > 2, of=demo)

    interrupt(demo)

    output, _ = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 130, output
    assert "Traceback" not in output
    assert home.left() == []


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    with small_disk(place, mib=340):
        yield place


def test_a_nearly_full_disk_is_refused_before_anything_starts(disk: Path, cluster: str) -> None:
    with home_in(disk / "home") as home:
        with (disk / "ballast").open("wb") as file:
            file.write(b"\0" * (100 * 2**20))

        done = home.run(*DEMO, cluster)

        assert done.returncode == 4
        assert "MiB left" in errors(done.stderr)[0]
        assert home.left() == []


@pytest.mark.extended
async def test_a_disk_that_becomes_full_ends_the_demo_and_leaves_nothing(disk: Path, cluster: str) -> None:
    with home_in(disk / "home") as home:
        demo = home.start(*DEMO, cluster)
        await until(lambda: (state := home.state("demo")) is not None and len(state.processes) > 1, of=demo)
        with (disk / "ballast").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"\0" * 2**20)
            except OSError as error:
                assert "No space" in str(error)

        output, _ = demo.communicate(timeout=PATIENCE_S)

        assert demo.returncode not in (0, None)
        assert len(errors(output)) == 1, output
        assert " is full." in errors(output)[0]
        assert "Traceback" not in output
        await until(lambda: home.left() == [])  # who was killed may still be giving its memory back
