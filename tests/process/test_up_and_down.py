"""`oncluster up`, `status`, `down` where things go wrong: nothing stays. `test_demo` has the good days."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.local.progress import StepEvent, Steps
from engine.local.stack import Stack
from engine.local.stack_options import StackOptions
from engine.local.state import Phase
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


class Deaf:
    """Where steps are told that nobody reads any more, once it `is_closed`."""

    def __init__(self) -> None:
        self.is_closed = False
        self.stops_cluster = asyncio.Event()

    def show(self, event: StepEvent) -> None:
        if event.text == "nodes and ZooKeeper":
            self.stops_cluster.set()
        if self.is_closed:
            raise BrokenPipeError(event.text)


async def test_a_stack_stops_as_a_whole_though_nobody_hears_of_it_and_says_so_only_then(
    tmp_path: Path,
) -> None:
    """1. The stop is interrupted, as by a second Ctrl-C, while nodes end: the guard stays for what is left.
    2. Again, and the terminal has gone meanwhile."""
    options = StackOptions(
        home=tmp_path / "home",
        port_base=0,
        cluster_file=cluster_file_in(tmp_path / "cluster.xml", nodes=1),
        with_airflow=False,
    )
    deaf = Deaf()
    stack, steps = Stack(options), Steps(deaf)
    await stack.start(steps)
    started = stack.state().processes
    assert [entry.name for entry in started] == ["ZooKeeper", "node01"]
    try:
        stopping = asyncio.create_task(stack.stop(steps))
        await deaf.stops_cluster.wait()
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert [entry.name for entry in started if entry.id.is_alive] == ["ZooKeeper"]
        assert stack.state().phase is Phase.STOPPING

        deaf.is_closed = True
        with pytest.raises(BrokenPipeError):
            await stack.stop(steps)
        assert not [entry.name for entry in started if entry.id.is_alive]
        assert stack.state().phase is Phase.STOPPED
    finally:
        deaf.is_closed = False
        await stack.stop(steps)
