"""`oncluster up --demo` while it migrates: what ends is named, and what the command started is taken back.

Programs that only sleep stand for the supervisor and its processes; they are started, watched and ended for
real.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from engine.cli.main import cli
from engine.errors import NodeUnavailable
from engine.local import demo_that_stays, preflight, supervisor
from engine.local.demo import MigrationRunFailed
from engine.local.demo_that_stays import up_with_demo
from engine.local.progress import StepEvent
from engine.local.stack_options import StackOptions
from engine.local.state import Phase, ProcessEntry, StackState, read_state, write_state
from engine.processes import ProcessId
from engine.testing.processes import MARK

NAMES = ("ZooKeeper", "node01", "node02", "Airflow scheduler")


@dataclass
class Background:
    """Stands in for what the supervisor starts; `children` are ours to reap, by the name in the state."""

    home: Path
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def spawn(self, options: StackOptions, log_file: Path) -> subprocess.Popen[bytes]:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        (log_file.parent / "node01.log").write_text("first\nlast words of node01\n")
        mark = f"test-{os.getpid()}-{len(self.children)}"
        for name in ("owner", *NAMES):
            environ = {**os.environ, MARK: mark}
            self.children[name] = subprocess.Popen(["sleep", "3600"], env=environ)
        entries = [self._entry(name) for name in ("owner", *NAMES)]
        state = StackState(
            mark=mark,
            owner=entries[0],
            phase=Phase.READY,
            zookeeper="127.0.0.1:1",
            config_file="/c.xml",
            migrations="/m",
            ledger_url="sqlite:////l.db",
            airflow_url="http://127.0.0.1:2",
            processes=tuple(entries[1:]),
        )
        write_state(self.home, state)
        return self.children["owner"]

    def _entry(self, name: str) -> ProcessEntry:
        identity = ProcessId.of(self.children[name].pid)
        assert identity is not None
        return ProcessEntry(name, identity.pid, identity.started)

    def running(self) -> list[str]:
        return [name for name, child in self.children.items() if child.poll() is None]

    def up(self) -> Result:
        return CliRunner().invoke(cli, ["up", "--demo", "--home", str(self.home), "--port-base", "0"])


@pytest.fixture
def background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Background]:
    found = Background(tmp_path)
    monkeypatch.setattr(supervisor, "_spawn", found.spawn)
    try:
        yield found
    finally:
        for child in found.children.values():
            child.kill()
            child.wait()


Migrate = Callable[[], Awaitable[None]]


@pytest.fixture
def migrating(monkeypatch: pytest.MonkeyPatch) -> Callable[[Migrate], None]:
    """What happens while the stack is migrated; the run itself never ends."""

    def install(meanwhile: Migrate) -> None:
        async def migrate_all(*_: object, **__: object) -> None:
            await meanwhile()
            await asyncio.Event().wait()

        monkeypatch.setattr(demo_that_stays, "migrate_all", migrate_all)

    return install


def errors(done: Result) -> list[str]:
    return [line for line in done.output.splitlines() if line.startswith("Error")]


@pytest.mark.parametrize(
    ("victim", "called"),
    [
        ("ZooKeeper", "ZooKeeper"),
        ("node01", "node01"),
        ("Airflow scheduler", "Airflow's scheduler"),
        ("owner", "supervisor"),
    ],
)
def test_a_process_that_ends_while_it_migrates_is_named_and_nothing_is_left(
    background: Background, migrating: Callable[[Migrate], None], victim: str, called: str
) -> None:
    async def kill() -> None:
        background.children[victim].kill()

    migrating(kill)

    done = background.up()

    assert done.exit_code == 1, done.output
    assert errors(done) == [f"Error: {called} has ended unexpectedly."]
    assert ("last words of node01" in done.output) is (victim == "node01")
    assert background.running() == []
    state = read_state(background.home)
    assert state is not None and state.phase is Phase.STOPPED


def test_a_server_that_refuses_because_it_was_killed_is_named_and_not_its_refusal(
    background: Background, migrating: Callable[[Migrate], None]
) -> None:
    async def refuse() -> None:
        background.children["Airflow scheduler"].kill()
        background.children["Airflow scheduler"].wait()
        raise NodeUnavailable("Airflow does not answer")

    migrating(refuse)

    done = background.up()

    assert errors(done) == ["Error: Airflow's scheduler has ended unexpectedly."]
    assert background.running() == []


def test_a_disk_that_becomes_full_while_it_migrates_is_said_and_nothing_is_left(
    background: Background, migrating: Callable[[Migrate], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fill() -> None:
        monkeypatch.setattr(preflight, "_FULL_BYTES", 2**62)

    migrating(fill)

    done = background.up()

    assert done.exit_code == 4, done.output
    assert errors(done) == [f"Error: The disk of {background.home} is full."]
    assert background.running() == []


def test_a_stack_that_ran_before_is_not_ours_to_stop(
    background: Background, migrating: Callable[[Migrate], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. It runs. 2. up finds that. 3. A node ends while it migrates. 4. It is named, the others stay."""
    options = StackOptions(home=background.home)
    background.spawn(options, background.home / "logs" / "supervisor.log")

    async def found_running(*_: object, **__: object) -> StackState:
        state = read_state(background.home)
        assert state is not None
        return state

    async def kill() -> None:
        background.children["node01"].kill()

    monkeypatch.setattr(supervisor, "up", found_running)
    migrating(kill)

    done = background.up()

    assert done.exit_code == 1, done.output
    assert errors(done) == ["Error: node01 has ended unexpectedly."]
    assert "`oncluster up` starts it again" in done.output
    assert background.running() == ["owner", "ZooKeeper", "node02", "Airflow scheduler"]


def test_a_stack_whose_migration_failed_is_left_running_to_be_looked_at(
    background: Background, migrating: Callable[[Migrate], None]
) -> None:
    async def fail() -> None:
        raise MigrationRunFailed("Migrating order_cluster failed.")

    migrating(fail)

    done = background.up()

    assert done.exit_code == 1, done.output
    assert errors(done) == ["Error: Migrating order_cluster failed."]
    assert "left running" in done.output and "http://127.0.0.1:2" in done.output
    assert background.running() == ["owner", *NAMES]


@pytest.mark.parametrize("now", [{"phase": Phase.STOPPING}, {"mark": "of a stack that was started since"}])
def test_a_stack_that_is_stopped_meanwhile_did_not_die(
    background: Background, migrating: Callable[[Migrate], None], now: dict[str, Any]
) -> None:
    async def stop() -> None:
        state = read_state(background.home)
        assert state is not None
        write_state(background.home, replace(state, **now))
        background.children["node01"].send_signal(signal.SIGTERM)

    migrating(stop)

    done = background.up()

    assert done.exit_code == 1, done.output
    assert errors(done) == [f"Error: The stack in {background.home} was stopped while it was migrated."]
    assert "left running" not in done.output


class Silent:
    def show(self, event: StepEvent) -> None:
        pass


async def test_an_interrupted_migration_takes_back_what_the_command_started(
    background: Background, migrating: Callable[[Migrate], None]
) -> None:
    begun = asyncio.Event()

    async def begin() -> None:
        begun.set()

    migrating(begin)
    command = asyncio.create_task(up_with_demo(StackOptions(home=background.home, port_base=0), Silent()))
    await begun.wait()

    command.cancel()

    with pytest.raises(asyncio.CancelledError):
        await command
    assert background.running() == []
