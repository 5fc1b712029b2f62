"""Tests that run in forked processes are told of as if they had run in this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
GOOD = """
import os, pathlib, pytest, warnings

@pytest.fixture(scope="session", autouse=True)
def session(tmp_path_factory):
    yield
    place = pathlib.Path(__file__).parent
    (place / f"ended-{os.getpid()}").write_text(str(tmp_path_factory.getbasetemp()))

@pytest.mark.parametrize("n", range(3))
def test_passes(n, tmp_path):
    assert tmp_path.is_dir()

def test_fails():
    print("what it printed")
    warnings.warn("what it warned of")
    assert [1, 2] == [1, 3]

@pytest.mark.skip(reason="not today")
def test_skipped(): ...
"""
CRASH = """
import os, signal

def test_before(): ...
def test_ends_the_process(): os.kill(os.getpid(), signal.SIGKILL)
def test_behind(): ...
"""


def run(directory: Path, files: dict[str, str], *arguments: str) -> tuple[int, str]:
    for name, text in files.items():
        (directory / name).write_text(text)
    (directory / "pytest.ini").touch()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:xdist",
        "-p",
        "tests.forks",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, "--forks", "2", "-rA", f"--basetemp={directory / 'temporary'}", *arguments],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


def test_every_outcome_is_told_with_what_was_printed(tmp_path: Path) -> None:
    files = {f"test_{name}.py": GOOD for name in "abc"}
    code, text = run(tmp_path, files)
    assert code == 1
    assert "3 failed, 9 passed, 3 skipped, 3 warnings" in text
    for name in "abc":
        assert f"PASSED test_{name}.py::test_passes[2]" in text
        assert f"FAILED test_{name}.py::test_fails - assert [1, 2] == [1, 3]" in text
    assert text.count("what it printed") >= 3
    assert text.count("UserWarning: what it warned of") == 3
    ends = [file.read_text() for file in tmp_path.glob("ended-*")]
    assert len(ends) == len(set(ends)) == 2


def test_a_process_that_ends_fails_its_test_and_what_was_not_run_is_counted(tmp_path: Path) -> None:
    code, text = run(tmp_path, {"test_a.py": CRASH, "test_b.py": "def test_good(): ..."})
    assert code not in (0, 5)
    assert "FAILED test_a.py::test_ends_the_process" in text
    assert "ended here with signal 9" in text
    assert "PASSED test_b.py::test_good" in text
    assert "2 tests were not run, as a worker had ended: test_a.py::test_ends_the_process" in text


def test_a_run_that_stops_at_its_first_failure_finishes_the_tests_that_have_begun(tmp_path: Path) -> None:
    waits = """
import time, pathlib
here = pathlib.Path(__file__).parent

def test_waits():
    while not (here / "failed").exists(): time.sleep(0.01)

def test_others(): ...
"""
    fails = """
import pathlib

def test_bad():
    (pathlib.Path(__file__).parent / "failed").touch()
    assert 0

def test_behind(): ...
"""
    code, text = run(tmp_path, {"test_a.py": waits, "test_b.py": fails}, "-x")
    assert code == 1
    assert "stopping after 1 failures" in text
