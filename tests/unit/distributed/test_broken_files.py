"""Files that were put aside as broken: sent again if they are whole, dropped only as asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from engine.distributed.broken_files import Restored, drop, restore
from engine.distributed.spool_disk import LocalDisk
from engine.distributed.spool_file import FileHead, write_file
from engine.distributed.spool_names import BROKEN

HEAD = FileHead("token", ("k",), 3, {})

FOR = "shard1_replica2"


async def rows() -> AsyncIterator[bytes]:
    yield b"some rows"


def spool(folder: Path, *broken: int) -> LocalDisk:
    disk = LocalDisk(folder)
    disk.make_directory(f"{FOR}/{BROKEN}")
    for number in broken:
        asyncio.run(write_file(disk, f"{FOR}/{BROKEN}/{number}.bin", HEAD, rows()))
    return disk


def test_a_whole_file_goes_back_under_its_number_and_a_broken_one_stays(tmp_path: Path) -> None:
    disk = spool(tmp_path, 3, 4, 5)
    with (tmp_path / FOR / BROKEN / "4.bin").open("r+b") as file:
        file.seek(20)
        file.write(b"\xff")
    before = disk.read(f"{FOR}/{BROKEN}/3.bin", 0, 10_000)
    assert asyncio.run(restore(disk, FOR)) == Restored((3, 5), (4,))
    assert list(disk.names(FOR)) == ["3.bin", "5.bin"] and list(disk.names(f"{FOR}/{BROKEN}")) == ["4.bin"]
    assert disk.read(f"{FOR}/3.bin", 0, 10_000) == before
    assert asyncio.run(restore(disk, FOR)) == Restored((), (4,))


def test_a_file_that_waits_to_be_sent_is_never_replaced(tmp_path: Path) -> None:
    disk = spool(tmp_path, 3)
    disk.append(f"{FOR}/3.bin", b"another")
    assert asyncio.run(restore(disk, FOR)) == Restored((), (3,))
    assert disk.read(f"{FOR}/3.bin", 0, 100) == b"another"


def test_dropping_takes_broken_files_and_nothing_else(tmp_path: Path) -> None:
    disk = spool(tmp_path, 3, 4)
    disk.append(f"{FOR}/5.bin", b"waits")
    disk.append(f"{FOR}/{BROKEN}/note.txt", b"of a person")
    assert asyncio.run(drop(disk, FOR)) == (3, 4)
    assert list(disk.names(FOR)) == ["5.bin"] and list(disk.names(f"{FOR}/{BROKEN}")) == ["note.txt"]
    assert asyncio.run(drop(disk, FOR)) == ()


def test_without_broken_files_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert asyncio.run(restore(LocalDisk(tmp_path / "none"), FOR)) == Restored((), ())
