"""Which files are waited for when a part is forced to disk."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.part_storage import Durability, disk
from engine.part_storage.detached import DetachedParts
from engine.replication.part_name import PartName

FILES = ("a.bin", "b.bin", "p.proj/c.bin")


@pytest.fixture
def part(tmp_path: Path) -> Path:
    for name in FILES:
        file = tmp_path / "part" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    return tmp_path / "part"


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch, part: Path) -> list[str]:
    """Names of what fsync was called for, in order."""
    names: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        names.append(str(path.relative_to(part.parent)))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return names


def on(file_system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_file_system", lambda device: file_system)


def test_with_one_log_only_its_youngest_entry_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, part: Path, forced: list[str]
) -> None:
    on("ext4", monkeypatch)
    os.utime(part, (1, 1))
    disk.force_to_disk(part, Durability.POWER_LOSS, parent=part.parent)
    assert forced == ["part"]
    assert part.stat().st_mtime > 1  # changed after everything else


@pytest.mark.parametrize("file_system", ["btrfs", "zfs", ""])
def test_elsewhere_every_file_and_directory_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, part: Path, forced: list[str], file_system: str
) -> None:
    on(file_system, monkeypatch)
    disk.force_to_disk(part, Durability.POWER_LOSS, parent=part.parent)
    assert sorted(forced) == sorted([".", "part", "part/p.proj", *(f"part/{name}" for name in FILES)])


def test_a_system_that_cannot_write_ahead_waits_for_every_file(
    monkeypatch: pytest.MonkeyPatch, part: Path, forced: list[str]
) -> None:
    on("ext4", monkeypatch)
    monkeypatch.setattr(disk, "_sync_file_range", lambda descriptor, flags: False)
    disk.force_to_disk(part, Durability.POWER_LOSS)
    assert {f"part/{name}" for name in FILES} < set(forced)


def test_a_node_that_need_not_survive_the_loss_of_power_waits_for_nothing(
    part: Path, forced: list[str]
) -> None:
    disk.force_to_disk(part, Durability.PROCESS, parent=part.parent)
    disk.write_durably(part / "x", b"1", Durability.PROCESS)
    assert forced == []
    assert (part / "x").read_bytes() == b"1"


def test_the_file_system_of_a_directory_is_known() -> None:
    assert disk._file_system(Path("/proc").stat().st_dev) == "proc"
    assert disk._file_system(2**60) == ""


def test_an_error_of_one_file_is_raised_when_all_have_been_waited_for(
    monkeypatch: pytest.MonkeyPatch, part: Path, forced: list[str]
) -> None:
    on("", monkeypatch)
    fsync = os.fsync

    def failing(descriptor: int) -> None:
        fsync(descriptor)
        if forced[-1].endswith("a.bin"):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk, "_AT_ONCE", 1)
    disk._threads.cache_clear()
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="Input/output"):
        disk.force_to_disk(part, Durability.POWER_LOSS)
    disk._threads.cache_clear()
    assert len(forced) == len(FILES) + 2


@pytest.mark.parametrize(("task", "expected"), [("<none>\n", True), ("211\n", False), (None, False)])
def test_an_ext_file_system_without_its_log_is_known_by_what_the_kernel_says(
    tmp_path: Path, task: str | None, expected: bool
) -> None:
    device = os.makedev(254, 1)
    block = tmp_path / "devices" / "vda1"
    block.mkdir(parents=True)
    (tmp_path / "dev" / "block").mkdir(parents=True)
    (tmp_path / "dev" / "block" / "254:1").symlink_to(block)
    if task is not None:
        said = tmp_path / "fs" / "ext4" / "vda1" / "journal_task"
        said.parent.mkdir(parents=True)
        said.write_text(task)
    assert disk.is_without_journal(device, kernel=tmp_path) is expected


@pytest.mark.parametrize("file_system", ["ext4", "btrfs"])
def test_a_frozen_part_has_its_name_only_when_all_of_it_is_on_the_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: Path, file_system: str
) -> None:
    """After a loss of power it would be taken for a whole one; and what was said to be frozen is there."""
    on(file_system, monkeypatch)
    names = [PartName.parse(f"all_{number}_{number}_0") for number in range(3)]
    made_at = tmp_path / "store" / "staged" / "frozen"
    made_at.parent.mkdir(parents=True)
    state: Any = SimpleNamespace(
        data=tmp_path / "store" / "t",
        pool_path=tmp_path,
        active={name: SimpleNamespace(directory=part) for name in names},
        durability=Durability.POWER_LOSS,
        temporary=lambda purpose, number: made_at,
    )
    events: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def noted_fsync(descriptor: int) -> None:
        events.append(str(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(tmp_path)))
        fsync(descriptor)

    def noted_rename(source: Path, target: Path) -> Path:
        events.append(f"> {target.name}")
        return rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    DetachedParts(state).freeze(None, "backup", 1)
    frozen = tmp_path / "shadow" / "backup" / "store" / "t"
    assert sorted(each.name for each in frozen.iterdir()) == [str(name) for name in names]
    assert not made_at.exists()
    first = events.index(f"> {names[0]}")
    last = max(at for at, event in enumerate(events) if event.startswith("> "))
    made = "store/staged/frozen"
    inside = {f"{made}/{name}{below}" for name in names for below in ("", "/p.proj")}
    assert set(events[:first]) == ({made} if file_system == "ext4" else {made, *inside})
    on_the_way = {"shadow/backup/store/t", "shadow/backup/store", "shadow/backup", "shadow", "."}
    assert set(events[last + 1 :]) == on_the_way
