"""`make venv`: what is run, in which order, and what happens when a step fails."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def make_venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_venv", ROOT / "tools" / "make_venv.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    project = tmp_path / "a project"
    project.mkdir()
    (project / "requirements.lock").write_text("uv==1.2.3\nclick==8.0\n")
    (project / "pyproject.toml").write_text("[project]\n")
    monkeypatch.setattr(module, "ROOT", project)
    return module


Runs = list[list[str]]


def steps(module: ModuleType, monkeypatch: pytest.MonkeyPatch, fails: Callable[[list[str]], bool]) -> Runs:
    """Replace the running of programs, which is the edge of this script, by a list of what was to be run."""
    runs: Runs = []

    def run(_title: str, command: list[str]) -> bool:
        runs.append(command)
        if "uv==1.2.3" in command and not fails(command):
            (Path(command[0]).parent / "uv").touch()
        return not fails(command)

    monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(module, "create", lambda venv: (venv / "bin").mkdir(parents=True))
    return runs


def test_packages_are_installed_with_the_locked_uv_and_the_stamp_comes_last(
    make_venv: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = steps(make_venv, monkeypatch, lambda command: False)
    venv = tmp_path / "the venv"
    monkeypatch.setattr(sys, "argv", ["make_venv.py", str(venv)])

    make_venv.main()

    assert "uv==1.2.3" in runs[0]
    assert runs[1][0] == str(venv / "bin" / "uv") and "requirements.lock" in runs[1][-1]
    assert runs[2][-2:] == ["--editable", str(make_venv.ROOT)]
    assert (venv / "oncluster-stamp").exists()

    runs.clear()
    make_venv.main()
    assert runs == []

    (make_venv.ROOT / "requirements.lock").write_text("uv==1.2.3\nclick==9.0\n")
    monkeypatch.setattr(make_venv, "create", lambda venv: None)
    make_venv.main()
    assert len(runs) == 2


def test_without_uv_pip_installs(
    make_venv: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = steps(make_venv, monkeypatch, lambda command: "uv==1.2.3" in command or command[0].endswith("/uv"))
    monkeypatch.setattr(sys, "argv", ["make_venv.py", str(tmp_path / "venv")])

    make_venv.main()

    assert [command[1:3] for command in runs] == [["-m", "pip"]] * 3
    assert "--use-pep517" in runs[1], "an old pip would leave no list of a package's files"


def test_a_failed_installation_leaves_no_stamp_and_says_what_to_look_at(
    make_venv: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps(make_venv, monkeypatch, lambda command: True)
    monkeypatch.setattr(sys, "argv", ["make_venv.py", str(tmp_path / "venv")])

    with pytest.raises(SystemExit):
        make_venv.main()

    assert not (tmp_path / "venv" / "oncluster-stamp").exists()
    assert "could not be installed" in capsys.readouterr().err


def test_a_step_that_fails_shows_what_it_printed(
    make_venv: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        make_venv.run("a step", [sys.executable, "-c", "print('the reason'); raise SystemExit(3)"]) is False
    )
    shown = capsys.readouterr().err
    assert "the reason" in shown and "exit code 3" in shown


def test_make_says_which_python_it_needs(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.8.1\nexit 1\n')
    old.chmod(0o755)
    done = subprocess.run(
        ["make", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}", "venv"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "no Python 3.11 to 3.14 found" in done.stderr and "Python 3.8.1" in done.stderr
