"""Who a process is, although numbers are used again and the clock is set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engine.keeper.embedded import EmbeddedZooKeeper
from engine.local.airflow_processes import StartedProcess
from engine.processes import ProcessId


@pytest.fixture
def clock_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux reckons the time of the boot from the clock; psutil reads it at each question."""
    if sys.platform != "linux":
        pytest.skip("elsewhere the time of a process's start does not move")
    before = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: before + 3600)


def me() -> ProcessId:
    found = ProcessId.of(os.getpid())
    assert found is not None
    return found


def test_a_process_is_itself_when_the_clock_was_set(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    mine = me()
    started = StartedProcess("scheduler", mine.pid, mine.started)
    server = EmbeddedZooKeeper(tmp_path)
    (tmp_path / "server.pid").write_text(f"{mine.to_text()}\n")
    request.getfixturevalue("clock_set")

    assert mine.is_alive and ProcessId.of(mine.pid) == mine
    assert started.process() is not None
    assert server.pid == mine.pid


def test_another_process_of_the_same_number_is_somebody_else() -> None:
    assert not ProcessId(os.getpid(), me().started + "0").is_alive
    assert not ProcessId(os.getpid(), "another-boot/" + me().started.rpartition("/")[2]).is_alive


def test_a_process_that_has_ended_is_nobody() -> None:
    child = subprocess.Popen(["sleep", "60"])
    identity = ProcessId.of(child.pid)
    assert identity is not None and identity.is_alive
    child.kill()
    child.wait()
    assert not identity.is_alive and ProcessId.of(child.pid) is None


def test_an_identity_is_one_line() -> None:
    assert ProcessId.from_text(me().to_text() + "\n") == me()
