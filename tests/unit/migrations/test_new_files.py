"""`oncluster migrate new`: names, versions, and what it does not touch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.cli.exits import ExitCode
from engine.cli.main import cli
from engine.migrations.errors import MigrationRefused
from engine.migrations.files import MAX_VERSION, read_folder
from engine.migrations.new_files import write_new

NOW_S = 1_798_761_600.5
"""2027-01-01 00:00:00 UTC, and half a second."""


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (None, "0001_add_gates"),
        ("0009_x.up.sql", "0010_add_gates"),
        ("9_x.down.sql", "10_add_gates"),
        ("000099_x.up.sql", "000100_add_gates"),
        ("20240131_x.up.sql", "20270101_add_gates"),
        ("202401312359_x.up.sql", "202701010000_add_gates"),
        ("20240131235959_x.up.sql", "20270101000000_add_gates"),
        ("1700000000_x.up.sql", "1798761600_add_gates"),
        ("20990101_x.up.sql", "20990102_add_gates"),  # of somebody whose clock is ahead
    ],
)
def test_the_version_is_the_next_of_its_kind(tmp_path: Path, last: str | None, expected: str) -> None:
    folder = tmp_path / "order_cluster"
    if last is not None:
        folder.mkdir()
        (folder / last).write_text("SELECT 1")
        (folder / "README.md").write_text("99999_no_migration")
    up, down = write_new(folder, "add gates", now_s=NOW_S)
    assert (up.name, down.name) == (f"{expected}.up.sql", f"{expected}.down.sql")
    migrations, problems = read_folder(folder)
    assert problems == ()
    newest = migrations.migrations[-1]
    assert newest.title == "add_gates"
    assert newest.up is not None
    assert newest.up.statements == ()  # which lint reports until somebody writes one


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Add  gates, to flights!", "add_gates_to_flights"),
        ("a/../b", "a_b"),
        ("Größe_ändern", "größe_ändern"),
    ],
)
def test_a_title_becomes_part_of_a_file_name(tmp_path: Path, title: str, name: str) -> None:
    up, _ = write_new(tmp_path, title, now_s=NOW_S)
    assert up == tmp_path / f"0001_{name}.up.sql"


def test_what_cannot_be_named_or_written_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(MigrationRefused, match="no letters and no digits"):
        write_new(tmp_path / "a", "?!", now_s=NOW_S)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / f"{MAX_VERSION}_last.up.sql").write_text("SELECT 1")
    with pytest.raises(MigrationRefused, match="there is none behind it"):
        write_new(tmp_path, "more", now_s=NOW_S)
    (tmp_path / "file").write_text("")
    with pytest.raises(MigrationRefused, match="cannot be written"):
        write_new(tmp_path / "file", "more", now_s=NOW_S)


def test_the_command_says_which_files_it_has_written(tmp_path: Path) -> None:
    asked = ["migrate", "new", "--dir", str(tmp_path), "--cluster", "new_cluster", "add", "gates"]
    first = CliRunner().invoke(cli, asked)
    assert first.exit_code == ExitCode.OK, first.output
    assert first.output.split() == [
        str(tmp_path / "new_cluster" / f"0001_add_gates.{direction}.sql") for direction in ("up", "down")
    ]
    again = CliRunner().invoke(cli, [*asked, "--json"])
    assert json.loads(again.output) == {
        "files": [
            str(tmp_path / "new_cluster" / f"0002_add_gates.{direction}.sql") for direction in ("up", "down")
        ]
    }
