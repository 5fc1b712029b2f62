"""`oncluster up`, `status`, `down`: everything starts, everything can be hurt, nothing stays."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.testing.ports import is_free
from tests.process.support import Home, cluster_file_in, home_in, until, until_gone

pytestmark = pytest.mark.slow

UP = ("up", "--no-airflow", "--port-base", "0")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with home_in(tmp_path / "home") as found:
        yield found


def pid_of(home: Home, name: str) -> int:
    state = home.state()
    assert state is not None
    return next(entry.pid for entry in state.processes if entry.name == name)


async def test_up_starts_everything_and_what_was_killed_again_and_down_leaves_nothing(home: Home) -> None:
    """1. up. 2. kill -9 of a node, which is reported and stays away. 3. up brings it back. 4. down, twice."""
    up = home.run(*UP)
    assert up.returncode == 0, up.stdout + up.stderr
    status = home.status()
    assert (status["phase"], status["complete"]) == ("ready", True)
    assert [p["name"] for p in status["processes"]] == ["ZooKeeper", *(f"node0{n}" for n in range(1, 7))]
    ports = [int(p["address"].rpartition(":")[2]) for p in status["processes"]]
    assert not any(is_free(port) for port in ports)

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
    once_more = home.run("down")
    assert once_more.returncode == 0
    assert "Nothing is running" in once_more.stdout


async def test_two_stacks_run_side_by_side_and_a_killed_owner_leaves_nothing(
    home: Home, tmp_path: Path
) -> None:
    """1. Two stacks. 2. kill -9 of one's supervisor. 3. Every process of that one ends by itself, and status
    says so. 4. up works there again. 5. down ends one stack and not the other."""
    up = (*UP, "--cluster-file", str(cluster_file_in(tmp_path / "cluster.xml", nodes=2)))
    with home_in(tmp_path / "other") as other:
        assert home.run(*up).returncode == 0
        assert other.run(*up).returncode == 0
        state = other.state()
        assert state is not None

        os.kill(state.owner.pid, signal.SIGKILL)

        await until_gone([entry.id for entry in state.processes])
        assert other.status()["phase"] == "failed"
        assert other.run(*up).returncode == 0
        assert other.run("down").returncode == 0
        assert home.status()["complete"] is True
        assert home.run("down").returncode == 0
        assert home.left() == other.left() == []


async def test_up_that_is_terminated_takes_everything_back(home: Home) -> None:
    """Ctrl-C goes the same way; the demo's tests send it."""
    up = home.start(*UP)
    await until(lambda: (state := home.state()) is not None and state.processes, of=up)

    up.terminate()

    output, _ = up.communicate(timeout=120)
    assert up.returncode == 143, output
    assert "Traceback" not in output
    assert home.left() == []
