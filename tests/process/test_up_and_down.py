"""`oncluster up`, `status`, `down` where things go wrong: nothing stays. `test_demo` has the good days."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.permissions import open_to_others
from tests.process.support import PATIENCE_S, Home, cluster_file_in, home_in, until, until_gone

pytestmark = pytest.mark.slow

UP = ("up", "--no-airflow", "--port-base", "0")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with home_in(tmp_path / "home") as found:
        yield found


@pytest.mark.extended
async def test_two_stacks_run_side_by_side_and_a_killed_owner_leaves_nothing(
    home: Home, tmp_path: Path
) -> None:
    """1. Two stacks, whose files are their user's alone. 2. kill -9 of one's supervisor. 3. Every process of
    that one ends by itself, and status says so. 4. up works there again; what the running one has not got is
    refused. 5. down ends one stack and not the other."""
    up = (*UP, "--cluster-file", str(cluster_file_in(tmp_path / "cluster.xml", nodes=2)))
    with home_in(tmp_path / "other") as other:
        assert home.run(*up).returncode == 0
        assert other.run(*up).returncode == 0
        assert open_to_others(home.path) == set()
        state = other.state()
        assert state is not None

        os.kill(state.owner.pid, signal.SIGKILL)

        await until_gone([entry.id for entry in state.processes])
        assert other.status()["phase"] == "failed"
        assert other.run(*up).returncode == 0
        demo = other.run("up", "--demo")
        assert (demo.returncode, demo.stdout) == (4, "")
        assert "runs without Airflow" in demo.stderr and "Say --no-airflow here, too" in demo.stderr
        assert other.status()["complete"] is True
        assert other.run("down").returncode == 0
        assert home.status()["complete"] is True
        assert json.loads(home.run("down", "--json").stdout)["stopped"] is True
        assert home.left() == other.left() == []


async def test_up_that_is_terminated_takes_everything_back(home: Home) -> None:
    """Ctrl-C goes the same way; the demo's tests send it."""
    up = home.start(*UP)
    await until(lambda: (state := home.state()) is not None and state.processes, of=up)

    up.terminate()

    output, _ = up.communicate(timeout=PATIENCE_S)
    assert up.returncode == 143, output
    assert "Traceback" not in output
    assert home.left() == []
