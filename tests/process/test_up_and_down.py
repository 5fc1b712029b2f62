"""`oncluster up`, `status`, `down`: everything starts, everything can be hurt, nothing stays."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.testing.ports import is_free
from tests.process.support import Home, home_in, interrupt, until, until_gone

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


def test_up_starts_everything_and_down_leaves_nothing(home: Home) -> None:
    up = home.run(*UP)
    assert up.returncode == 0, up.stdout + up.stderr
    status = home.status()
    assert (status["phase"], status["complete"]) == ("ready", True)
    assert [p["name"] for p in status["processes"]] == ["ZooKeeper", *(f"node0{n}" for n in range(1, 7))]
    ports = [int(p["address"].rpartition(":")[2]) for p in status["processes"]]
    assert not any(is_free(port) for port in ports)

    down = home.run("down")

    assert down.returncode == 0, down.stdout + down.stderr
    assert home.left() == []
    assert all(is_free(port) for port in ports)
    again = home.run("down")
    assert again.returncode == 0
    assert "Nothing is running" in again.stdout


async def test_a_killed_node_is_reported_stays_away_and_comes_back_with_up(home: Home) -> None:
    assert home.run(*UP).returncode == 0
    killed = pid_of(home, "node03")
    os.kill(killed, signal.SIGKILL)
    await until(lambda: home.status()["complete"] is False)
    ended = [p["name"] for p in home.status()["processes"] if p["state"] == "ended"]
    assert ended == ["node03"]

    again = home.run(*UP)

    assert again.returncode == 0, again.stdout + again.stderr
    assert home.status()["complete"] is True
    assert pid_of(home, "node03") != killed
    home.run("down")
    assert home.left() == []


async def test_a_killed_owner_leaves_nothing_and_up_works_again(home: Home) -> None:
    """1. up. 2. kill -9 of the supervisor. 3. Every process ends by itself. 4. status says so; up works."""
    assert home.run(*UP).returncode == 0
    state = home.state()
    assert state is not None

    os.kill(state.owner.pid, signal.SIGKILL)

    await until_gone([entry.id for entry in state.processes])
    assert home.status()["phase"] == "failed"
    assert home.run(*UP).returncode == 0
    assert home.run("down").returncode == 0
    assert home.left() == []


@pytest.mark.parametrize("how", ["ctrl-c", "sigterm"])
async def test_up_that_is_interrupted_takes_everything_back(home: Home, how: str) -> None:
    up = home.start(*UP)
    await until(lambda: (state := home.state()) is not None and state.processes, of=up)

    interrupt(up) if how == "ctrl-c" else up.terminate()

    output, _ = up.communicate(timeout=60)
    assert up.returncode == (130 if how == "ctrl-c" else 143), output
    assert "Traceback" not in output
    assert home.left() == []


def test_two_stacks_run_side_by_side(home: Home, tmp_path: Path) -> None:
    with home_in(tmp_path / "other") as other:
        assert home.run(*UP).returncode == 0
        assert other.run(*UP).returncode == 0
        assert other.run("down").returncode == 0
        assert home.status()["complete"] is True
        assert home.run("down").returncode == 0
        assert home.left() == other.left() == []
