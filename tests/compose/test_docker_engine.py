"""What the tests of docker-compose.yaml leave behind: nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.compose.compose_stack import ROOT

pytestmark = pytest.mark.slow

TESTS = """
import signal
import pytest
from tests.compose.docker_engine import ended_in_order

@pytest.fixture(scope="session")
def containers():
    with ended_in_order():
        yield
        print("removed", flush=True)

def test_that_waits(containers):
    print("up", flush=True)
    signal.pause()
"""


def test_tests_that_are_terminated_remove_what_they_have_started(tmp_path: Path) -> None:
    (tmp_path / "test_stack.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-c", "/dev/null", "--rootdir", tmp_path, tmp_path]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        assert any(line == "up\n" for line in tests.stdout)
        tests.terminate()
        assert any("removed" in line for line in tests.stdout)
