"""The file by which all tables of `default` are found, whatever ends a node's first start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.env import SystemEnv
from engine.errors import ConfigError
from engine.storage.layout import ChdbSettings, prepare

UUID = "00000000-0000-0000-0000-000000000007"


def made(path: Path, settings: ChdbSettings | None = None) -> str:
    prepare(path, settings or ChdbSettings(), SystemEnv())
    return (path / "metadata" / "default.sql").read_text()


def test_it_is_on_the_disk_before_it_has_its_name_and_its_name_is_before_there_is_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that a loss of power in the half minute after the first start leaves an empty file, and chDB
    does not start with it."""
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        events.append(str(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(tmp_path)))
        fsync(descriptor)

    def noted_replace(source: Path, target: Path) -> Path:
        events.append(f"{source.relative_to(tmp_path)} -> {target.relative_to(tmp_path)}")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    text = made(tmp_path)
    own, file = "oncluster/default.sql", "metadata/default.sql"
    assert events == [own, f"{own} -> {file}", "metadata", "."]
    assert made(tmp_path) == text and len(events) == 4
    made(tmp_path / "of_a_moment", ChdbSettings(fsync=False))
    assert [event for event in events[4:] if "->" not in event] == []


@pytest.mark.parametrize("leaves_link", [True, False])
def test_an_empty_one_is_made_again_only_where_it_can_be_told_what_was_in_it(
    tmp_path: Path, leaves_link: bool
) -> None:
    (tmp_path / "store" / UUID[:3] / UUID).mkdir(parents=True)
    metadata = tmp_path / "metadata"
    metadata.mkdir()
    (metadata / "default.sql").touch()
    if leaves_link:
        (metadata / "default").symlink_to(f"../store/{UUID[:3]}/{UUID}")
    assert made(tmp_path) == (f"ATTACH DATABASE _ UUID '{UUID}'\nENGINE = Atomic\n" if leaves_link else "")


def test_an_empty_one_of_a_node_that_has_nothing_yet_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "default.sql").touch()
    assert "ENGINE = Atomic" in made(tmp_path)


@pytest.mark.parametrize("name", ["a?b", "a&b", "a\\b"])
def test_a_path_that_chdb_would_take_for_another_one_is_refused_before_anything_is_made(
    tmp_path: Path, name: str
) -> None:
    """It worked in the directory `a`, or without its configuration, and said that `_local` does not exist."""
    with pytest.raises(ConfigError, match="cannot have its data in"):
        prepare(tmp_path / name, ChdbSettings(), SystemEnv())
    assert list(tmp_path.iterdir()) == []
