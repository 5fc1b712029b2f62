"""How Spark is started for a load, and what is made of how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.errors import (
    Code,
    ConfigError,
    Corrupt,
    NodeUnavailable,
    OnclusterError,
    SqlError,
    UnknownOutcome,
)
from engine.etl import ending
from engine.etl.launch import (
    SparkFailed,
    SparkRefused,
    SparkSettings,
    command_line,
    run_load,
    with_retries,
)
from engine.processes import is_alive
from tests.unit.etl.loads import REPORT, request


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", "local[1,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2]", "local[2,4]"),
        ("local[2,1]", "local[2,1]"),
        ("spark://host:7077", "spark://host:7077"),
        ("yarn", "yarn"),
    ],
)
def test_a_local_master_gets_the_retries_that_others_have(master: str, expected: str) -> None:
    assert with_retries(master) == expected


def test_the_password_is_not_on_the_command_line(tmp_path: Path) -> None:
    application = tmp_path / "app.py"
    application.touch()
    settings = SparkSettings(
        tmp_path, tmp_path / "c.xml", password="secret", application=application, conf={"spark.x": "y"}
    )
    command = command_line(settings, request())

    assert "secret" not in " ".join(command) and "secret" not in repr(settings)
    assert "spark.x=y" in command
    at = command.index(str(application))
    assert command[at + 1 :][:8] == [
        *("--config", str(tmp_path / "c.xml"), "--cluster", "c"),
        *("--from", "2013-01-01", "--to", "2013-01-31"),
    ]


def test_without_an_application_nothing_is_started(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no Spark application"):
        command_line(SparkSettings(tmp_path, tmp_path, application=tmp_path / "gone.py"), request())


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A spark-submit that is a shell script: what `run_load` does with a process is the same for any."""

    def write(script: str) -> SparkSettings:
        program = tmp_path / "bin" / "spark-submit"
        program.parent.mkdir()
        program.write_text(
            f'#!/bin/sh\nfor report do [ "$before" = --report ] && break; before=$report; done\n{script}\n'
        )
        program.chmod(0o755)
        monkeypatch.setattr("engine.etl.launch.spark_submit", lambda: program)
        application = tmp_path / "app.py"
        application.touch()
        return SparkSettings(tmp_path / "etl", tmp_path / "c.xml", application=application, password="secret")

    return write


async def test_the_report_of_an_application_that_ended_well_is_returned(submit: Any, tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text(json.dumps(REPORT.to_json()))
    lines: list[str] = []
    settings = submit(f'echo "as $ONCLUSTER_USER/$ONCLUSTER_PASSWORD"; cp {tmp_path}/good.json "$report"')

    assert await run_load(settings, request(), on_line=lines.append) == REPORT
    assert lines == ["as default/secret"]


async def test_an_application_that_fails_fails_the_load_with_its_last_words(submit: Any) -> None:
    with pytest.raises(SparkFailed, match="exit code 3") as failed:
        await run_load(submit("echo first; echo 'no such table' >&2; exit 3"), request())
    assert "no such table" in failed.value.hint


async def test_what_the_application_refuses_is_refused_with_its_last_words(submit: Any) -> None:
    script = f"echo 'events has no column x' >&2; exit {ending.REFUSED}"
    with pytest.raises(SparkRefused, match="events has no column x"):
        await run_load(submit(script), request())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("no such folder"), ending.REFUSED),
        (SqlError(Code.NO_SUCH_COLUMN_IN_TABLE, "no column x"), ending.REFUSED),
        (SqlError(Code.MEMORY_LIMIT_EXCEEDED, "too much"), ending.FAILED),
        (NodeUnavailable("nobody answers"), ending.FAILED),
        (UnknownOutcome("no reply"), ending.FAILED),
    ],
)
def test_only_what_no_other_try_would_do_is_refused(error: OnclusterError, code: int) -> None:
    assert ending.exit_code_of(error) == code


async def test_the_last_words_are_no_frames_of_java(submit: Any) -> None:
    frame = "\\tat java.base/java.lang.reflect.Constructor.newInstance(Constructor.java:481)"
    script = f"echo 'All masters are unresponsive'; for i in $(seq 100); do printf '{frame}\\n'; done; exit 1"
    with pytest.raises(SparkFailed) as failed:
        await run_load(submit(script), request())
    assert failed.value.hint == "All masters are unresponsive"


async def test_an_application_that_was_killed_is_told_by_the_signal(submit: Any) -> None:
    with pytest.raises(SparkFailed, match="was ended by SIGKILL"):
        await run_load(submit("kill -9 $$"), request())


async def test_the_report_of_an_earlier_load_is_not_taken_for_this_one(submit: Any) -> None:
    settings = submit("exit 0")
    old = settings.report_file(request())
    old.parent.mkdir()
    old.write_text("{}")
    with pytest.raises(Corrupt, match="left no report"):
        await run_load(settings, request())


async def test_a_line_of_any_length_ends_no_load_that_is_well(submit: Any, tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text(json.dumps(REPORT.to_json()))
    lines: list[str] = []
    long = "head -c 3000000 /dev/zero | tr '\\0' x"
    settings = submit(f'echo a; {long}; echo; printf "\\nb"; cp {tmp_path}/good.json "$report"')

    assert await run_load(settings, request(), on_line=lines.append) == REPORT
    assert lines == ["a", "x" * 2**20, "", "b"]


_CHILD = """
import os, sys, time
if {own_group}:
    os.setpgid(0, 0)
while {outlives} and os.getppid() == int(sys.argv[1]):
    time.sleep(0.01)
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("own_group", "outlives"), [(False, True), (True, False)], ids=["that outlives its parent", "of its own"]
)
async def test_a_load_that_is_cancelled_leaves_no_process(
    submit: Any, tmp_path: Path, own_group: bool, outlives: bool
) -> None:
    """1. `spark-submit` starts a process: it ends before that one, or that one has a group of its own, as
    Spark's Python workers do. 2. The load is cancelled. 3. The process has ended."""
    child = tmp_path / "child.py"
    child.write_text(_CHILD.format(own_group=own_group, outlives=outlives))
    settings = submit(f"{sys.executable} {child} $$ &\n{'exit 0' if outlives else 'wait'}")
    started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    load = asyncio.create_task(
        run_load(settings, request(), on_line=lambda line: started.set_result(int(line)))
    )
    process = psutil.Process(await started)
    load.cancel()
    with pytest.raises(asyncio.CancelledError):
        await load
    try:
        assert not is_alive(process)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def test_the_command_line_refuses_days_in_the_wrong_order(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    program = [sys.executable, "-m", "engine.cli", "etl", "load", "--config", root / "config" / "cluster.xml"]
    shown = subprocess.run(
        [*program, "--from", "2013-03-01", "--to", "2013-02-01"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ONCLUSTER_HOME": str(tmp_path)},
        cwd=root,
    )

    assert shown.returncode == 5, shown.stderr
    assert "before the first" in shown.stderr


def test_the_command_line_shows_what_it_would_start(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    if not (root / "spark_apps" / "load_flights.py").is_file():
        pytest.skip("the application is not there")
    program = [sys.executable, "-m", "engine.cli", "etl", "load", "--config", root / "config" / "cluster.xml"]
    home = tmp_path / "a home"
    shown = subprocess.run(
        [*program, "--print-command", "--master", "local[2]"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ONCLUSTER_HOME": str(home)},
        cwd=root,
    )

    assert shown.returncode == 0, shown.stderr
    words = shlex.split(shown.stdout)
    assert words[words.index("--master") + 1] == "local[2,4]"
    assert Path(words[words.index("--report") + 1]).is_relative_to(home)
