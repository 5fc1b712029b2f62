"""Sending a directory of a spool: nothing twice, and what happens when a batch breaks in the middle."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.distributed.batches import BatchRecord, can_join
from engine.distributed.sender import DirectorySender, Outgoing, SenderOptions
from engine.distributed.spool_disk import LocalDisk
from engine.distributed.spool_file import FileHead
from engine.distributed.spool_names import BROKEN, CURRENT_BATCH, SENT_BATCH
from engine.distributed.spool_table import SpoolOptions, TableSpool
from engine.env import SystemEnv
from engine.errors import Code, Corrupt, ReplyLost, SqlError
from tests.unit.distributed.test_spool_disks import (
    ALONE,
    IN_BATCHES,
    TO,
    Receiver,
    sender_of,
    spool_of,
)

SPLIT = SenderOptions(batch=IN_BATCHES.batch, splits_on_failure=True)


def started_again(disk: LocalDisk, receiver: Receiver, options: SenderOptions) -> DirectorySender:
    """The sender of the next process."""
    spool = TableSpool(disk, SpoolOptions())
    assert list(spool.load()) == [TO]
    return sender_of(spool, receiver, options)


@pytest.mark.parametrize("options", [ALONE, IN_BATCHES], ids=["alone", "in batches"])
def test_who_flushes_while_files_are_being_sent_does_not_send_them_too(
    tmp_path: Path, options: SenderOptions
) -> None:
    spool, tokens = spool_of(LocalDisk(tmp_path), 2), list[str]()

    async def scenario() -> None:
        answers = asyncio.Event()
        asked = asyncio.Event()

        async def deliver(out: Outgoing) -> None:
            tokens.append(out.token)
            asked.set()
            await answers.wait()

        sender = DirectorySender(spool, TO, deliver, SystemEnv(), options)
        rounds = [asyncio.create_task(sender.send_all()) for _ in range(2)]
        await asked.wait()
        for _ in range(20):  # the second has all the turns that it needs to get there, too
            await asyncio.sleep(0)
        answers.set()
        await asyncio.gather(*rounds)

    asyncio.run(scenario())
    assert len(tokens) == len(set(tokens)) == (2 if options is ALONE else 1)
    assert spool.pending_bytes() == 0


def truncated(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(20)


@pytest.mark.parametrize("damage", [truncated, Path.unlink], ids=["broken", "missing"])
def test_of_a_batch_that_may_have_arrived_no_file_is_sent_without_the_others(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    disk, receiver = LocalDisk(tmp_path), Receiver()
    spool = spool_of(disk, 3)
    receiver.answers = False
    with pytest.raises(ReplyLost):
        asyncio.run(sender_of(spool, receiver, IN_BATCHES).send_all())
    damage(tmp_path / TO / "2.bin")
    receiver.answers = True
    again = started_again(disk, receiver, IN_BATCHES)
    with pytest.raises(Corrupt) as raised:
        asyncio.run(again.send_all())
    assert raised.value.code == Code.DISTRIBUTED_BROKEN_BATCH_INFO
    asyncio.run(again.send_all())
    assert len(receiver.tokens) == 1, "the batch, once"
    aside = {"1.bin", "2.bin", "3.bin"} if damage is truncated else {"1.bin", "3.bin"}
    assert set(disk.names(f"{TO}/{BROKEN}")) == aside


def test_a_batch_that_was_confirmed_is_neither_sent_again_nor_called_broken(tmp_path: Path) -> None:
    """1. The receiver confirms. 2. One of the files goes, and the process ends. 3. The next one starts."""

    class Ending(LocalDisk):
        def remove(self, path: str) -> None:
            if path.endswith("/2.bin"):
                raise OSError(errno.EIO, "the process ends here")
            super().remove(path)

    receiver = Receiver()
    spool = spool_of(LocalDisk(tmp_path), 3)
    ending = TableSpool(Ending(tmp_path), SpoolOptions())
    with pytest.raises(OSError, match="ends here"):
        asyncio.run(sender_of(ending, receiver, IN_BATCHES).send_all())
    assert spool.pending(TO) == [2, 3]

    disk = LocalDisk(tmp_path)
    asyncio.run(started_again(disk, receiver, IN_BATCHES).send_all())
    assert len(receiver.tokens) == 1
    assert list(disk.names(f"{TO}/{BROKEN}")) == [] and spool.pending_bytes() == 0
    assert not {CURRENT_BATCH, SENT_BATCH} & set(disk.names(TO))


@pytest.mark.parametrize("code", [Code.UNKNOWN_STATUS_OF_INSERT, Code.TIMEOUT_EXCEEDED, Code.UNKNOWN_TABLE])
def test_a_batch_that_may_be_there_in_spite_of_the_error_is_not_split(tmp_path: Path, code: int) -> None:
    """The receiver would not know the tokens of its files."""
    spool, sent = spool_of(LocalDisk(tmp_path), 3), list[int]()

    async def deliver(out: Outgoing) -> None:
        sent.append(out.rows)
        raise SqlError(code, "not now")

    sender = DirectorySender(spool, TO, deliver, SystemEnv(), SPLIT)
    for _ in range(2):
        with pytest.raises(SqlError, match="not now"):
            asyncio.run(sender.send_all())
    assert sent == [3, 3] and spool.pending(TO) == [1, 2, 3]


def test_a_file_that_is_too_large_by_itself_stays_until_it_is_taken(tmp_path: Path) -> None:
    spool, sent = spool_of(LocalDisk(tmp_path), 2), list[int]()

    async def deliver(out: Outgoing) -> None:
        sent.append(out.rows)
        raise SqlError(Code.MEMORY_LIMIT_EXCEEDED, "too much")

    sender = DirectorySender(spool, TO, deliver, SystemEnv(), SPLIT)
    with pytest.raises(SqlError, match="too much"):
        asyncio.run(sender.send_all())
    assert sent == [2, 1] and spool.pending(TO) == [1, 2]


@pytest.mark.parametrize("record", [CURRENT_BATCH, SENT_BATCH])
def test_a_record_that_cannot_be_read_keeps_no_spool_from_starting(tmp_path: Path, record: str) -> None:
    disk, receiver = LocalDisk(tmp_path), Receiver()
    spool_of(disk, 2)
    (tmp_path / TO / record).write_text("2\n1\n")
    again = started_again(disk, receiver, IN_BATCHES)
    with pytest.raises(Corrupt):
        asyncio.run(again.send_all())
    assert receiver.tokens == [] and set(disk.names(f"{TO}/{BROKEN}")) == {"1.bin", "2.bin"}


ONE = FileHead("one", ("k", "v"), 1, {"insert_quorum": "2"})


@pytest.mark.parametrize(
    "other",
    [
        FileHead("other", ("v", "k"), 1, {"insert_quorum": "2"}),
        FileHead("other", ("k", "v"), 1, {"insert_quorum": "3"}),
        FileHead("other", ("k", "v"), 1),
        FileHead("other", ("k", "v"), 1, {"insert_quorum": "2"}, is_repeatable=True),
    ],
    ids=["columns", "settings", "no settings", "repeatable"],
)
def test_files_that_would_not_be_the_same_insert_go_apart(other: FileHead) -> None:
    assert not can_join(ONE, other) and not can_join(other, ONE)
    assert can_join(ONE, FileHead("another", ONE.columns, 5, ONE.settings))


@pytest.mark.parametrize("text", ["", "1\n", "1\n3", "x\n3\n", "1\n3\n\n", "1\n-3\n", "0\n3\n"])
def test_a_record_that_is_not_whole_is_no_record(tmp_path: Path, text: str) -> None:
    (tmp_path / TO).mkdir()
    (tmp_path / TO / CURRENT_BATCH).write_text(text)
    with pytest.raises(Corrupt):
        BatchRecord(LocalDisk(tmp_path), TO).current()
