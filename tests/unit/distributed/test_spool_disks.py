"""What a sender does when its disk is full, or takes nothing."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.distributed.batches import BatchLimits
from engine.distributed.sender import DirectorySender, Outgoing, SenderOptions
from engine.distributed.spool_disk import LocalDisk
from engine.distributed.spool_file import FileHead
from engine.distributed.spool_names import BROKEN
from engine.distributed.spool_table import SpoolBlock, SpoolOptions, TableSpool
from engine.env import SystemEnv
from engine.errors import ReplyLost, SqlError

HEAD = FileHead("token", ("k",), 1)
TO, OTHER = "shard1_all_replicas", "shard2_all_replicas"
IN_BATCHES = SenderOptions(batch=BatchLimits())
ALONE = SenderOptions()


class FailingDisk(LocalDisk):
    """`is_full`: no byte can be written, no directory made. `is_read_only`: no name changes either."""

    is_full = False
    is_read_only = False

    def make_directory(self, directory: str) -> None:
        if self.is_full and not (self.root / directory).exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        super().make_directory(directory)

    def append(self, path: str, data: bytes) -> None:
        self._check()
        if self.is_full:
            (self.root / path).touch()
            raise OSError(errno.ENOSPC, "No space left on device")
        super().append(path, data)

    def rename(self, path: str, target: str) -> None:
        self._check()
        super().rename(path, target)

    def remove(self, path: str) -> None:
        self._check()
        super().remove(path)

    def _check(self) -> None:
        if self.is_read_only:
            raise OSError(errno.EROFS, "Read-only file system")


async def no_rows() -> AsyncIterator[bytes]:
    yield b""


def test_what_is_acknowledged_is_on_the_disk_with_every_name_on_the_way_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory's name is in its parent: whatever was made since is forced, from the file up."""
    there, forced = tmp_path / "node", set[Path]()
    there.mkdir()
    force = os.fsync

    def noted(descriptor: int) -> None:
        force(descriptor)
        forced.add(Path(f"/proc/self/fd/{descriptor}").resolve())

    monkeypatch.setattr(os, "fsync", noted)
    root = there / "oncluster" / "distributed" / "uuid"
    spool = TableSpool(LocalDisk(root), SpoolOptions(fsync_files=True, fsync_directories=True))

    asyncio.run(spool.put([SpoolBlock((TO,), HEAD, no_rows())]))

    [file] = (root / TO).glob("*.bin")
    directories = {place for place in file.parents if place.is_relative_to(there)}
    assert directories <= forced
    assert any(place.suffix == ".bin" for place in forced), "the file itself, under its first name"


class FailsAtTheLast(LocalDisk):
    """`step` fails of what puts files in their places, when some have theirs: the second name, or forcing."""

    step = ""

    def link(self, path: str, target: str) -> None:
        if self.step == "link" and target.startswith(OTHER):
            raise OSError(errno.ENOSPC, "No space left on device")
        super().link(path, target)

    async def sync_directory(self, directory: str) -> None:
        if self.step == "sync" and directory == OTHER:
            raise OSError(errno.EIO, "Input/output error")
        await super().sync_directory(directory)


@pytest.mark.parametrize("step", ["link", "sync"])
def test_an_insert_that_fails_when_some_of_its_files_have_their_places_leaves_none(
    tmp_path: Path, step: str
) -> None:
    disk = FailsAtTheLast(tmp_path)
    disk.step = step
    spool = TableSpool(disk, SpoolOptions(fsync_directories=True))
    spool.load()
    with pytest.raises(SqlError, match="Cannot keep rows"):
        asyncio.run(spool.put([SpoolBlock((TO,), HEAD, rows()), SpoolBlock((TO, OTHER), HEAD, rows())]))

    assert (spool.pending(TO), spool.pending(OTHER)) == ([], [])
    assert not list(tmp_path.rglob("*.bin"))


class Receiver:
    """What came. `answers`: whether the sender learns of it."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.answers = True

    async def deliver(self, out: Outgoing) -> None:
        self.tokens.append(out.token)
        assert b"".join([chunk async for chunk in out.body()]) == b"x" * out.rows
        if not self.answers:
            raise ReplyLost("no answer")


async def rows() -> AsyncIterator[bytes]:
    yield b"x"


def spool_of(disk: LocalDisk, files: int) -> TableSpool:
    spool = TableSpool(disk, SpoolOptions())
    spool.load()
    for number in range(1, files + 1):
        asyncio.run(spool.put([SpoolBlock((TO,), FileHead(f"token {number}", ("k",), 1), rows())]))
    return spool


def sender_of(spool: TableSpool, receiver: Receiver, options: SenderOptions) -> DirectorySender:
    return DirectorySender(spool, TO, receiver.deliver, SystemEnv(), options)


def test_a_full_disk_that_has_no_room_for_the_record_of_a_batch_drains(tmp_path: Path) -> None:
    disk, receiver = FailingDisk(tmp_path), Receiver()
    spool = spool_of(disk, 3)
    disk.is_full = True
    asyncio.run(sender_of(spool, receiver, IN_BATCHES).send_all())
    assert receiver.tokens == ["token 1", "token 2", "token 3"]
    assert spool.pending_bytes() == 0


def test_what_went_alone_and_was_not_answered_never_goes_with_others(tmp_path: Path) -> None:
    disk, receiver = FailingDisk(tmp_path), Receiver()
    spool = spool_of(disk, 3)
    # 1. The disk is full; the first file is sent, and nobody says that it came.
    disk.is_full, receiver.answers = True, False
    with pytest.raises(ReplyLost):
        asyncio.run(sender_of(spool, receiver, IN_BATCHES).send_all())
    assert spool.pending_bytes() > 0
    # 2. The process ends. There is room now: the others go together, the first one as before.
    disk.is_full, receiver.answers = False, True
    again = TableSpool(disk, SpoolOptions())
    assert list(again.load()) == [TO]
    asyncio.run(sender_of(again, receiver, IN_BATCHES).send_all())
    assert receiver.tokens[:2] == ["token 1", "token 1"]
    assert len(receiver.tokens) == 3
    assert again.pending_bytes() == 0


def test_a_broken_file_on_a_full_disk_holds_up_nobody(tmp_path: Path) -> None:
    disk, receiver = FailingDisk(tmp_path), Receiver()
    spool = spool_of(disk, 2)
    with (tmp_path / TO / "1.bin").open("r+b") as file:
        file.truncate(20)
    disk.is_full = True
    asyncio.run(sender_of(spool, receiver, IN_BATCHES).send_all())
    assert receiver.tokens == ["token 2"]
    assert list(disk.names(f"{TO}/{BROKEN}")) == ["1.bin"]


@pytest.mark.parametrize("options", [ALONE, IN_BATCHES])
def test_what_was_delivered_and_cannot_be_removed_is_not_sent_again(
    tmp_path: Path, options: SenderOptions
) -> None:
    disk, receiver = FailingDisk(tmp_path), Receiver()
    spool = spool_of(disk, 1)

    async def deliver(out: Outgoing) -> None:
        await receiver.deliver(out)
        disk.is_read_only = True

    sender = DirectorySender(spool, TO, deliver, SystemEnv(), options)
    for _ in range(3):
        with pytest.raises(OSError, match="Read-only"):
            asyncio.run(sender.send_all())
    disk.is_read_only = False
    asyncio.run(sender.send_all())
    assert receiver.tokens == ["token 1"]
    assert spool.pending_bytes() == 0


def test_nothing_is_sent_from_a_directory_out_of_which_nothing_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, receiver = LocalDisk(tmp_path), Receiver()
    spool = spool_of(disk, 1)
    sender = sender_of(spool, receiver, ALONE)
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(OSError, match="Permission denied"):
        asyncio.run(sender.send_all())
    assert receiver.tokens == []
    assert "Permission denied" in sender.facts().last_exception
