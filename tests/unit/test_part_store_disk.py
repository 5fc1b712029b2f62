"""Which files are waited for when a part is forced to disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.part_storage import Durability, disk

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
