"""Power is lost at each step of sending, and at each step of the next start: every row arrives once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from itertools import count

import pytest

from engine.distributed.batches import BatchLimits
from engine.distributed.sender import DirectorySender, Outgoing, SenderOptions
from engine.distributed.spool_file import FileHead
from engine.distributed.spool_names import BROKEN
from engine.distributed.spool_table import SpoolBlock, SpoolOptions, TableSpool
from engine.env import SystemEnv
from engine.errors import Code, ReplyLost, SqlError
from engine.testing.spool_disk import Killed, ModelDisk

TO = "shard1_all_replicas"
FILES = 3
FORCED = SpoolOptions(fsync_files=True, fsync_directories=True)
SEEDS = 2
"""What is lost with the power is drawn: of what was not forced, the later part."""


class Receiver:
    """Stores what comes under a token that it does not know. `answers`: whether the sender learns of it."""

    def __init__(self) -> None:
        self.rows: Counter[bytes] = Counter()
        self.tokens: set[str] = set()
        self.answers = True
        self.largest = FILES

    async def deliver(self, out: Outgoing) -> None:
        if out.rows > self.largest:
            raise SqlError(Code.TOO_MANY_ROWS, "too much")
        rows = b"".join([chunk async for chunk in out.body()])
        if out.token not in self.tokens:
            self.tokens.add(out.token)
            self.rows.update(rows.split())
        if not self.answers:
            raise ReplyLost("no answer")


class Run:
    """A spool with a few files on a disk that forgets what was not forced."""

    def __init__(self, options: SenderOptions, seed: int) -> None:
        self.disk = ModelDisk(random.Random(seed))
        self.receiver = Receiver()
        self.options = options

    async def put(self) -> None:
        async def row(number: int) -> AsyncIterator[bytes]:
            yield b"%d\n" % number

        spool = TableSpool(self.disk, FORCED)
        spool.load()
        for number in range(FILES):
            head = FileHead(f"token {number}", ("k",), 1)
            await spool.put([SpoolBlock((TO,), head, row(number))])

    async def life(self, killed_at: int | None) -> bool:
        """A process that sends what is there; whether it came to its end. Then the power is lost."""
        self.disk.steps_until_kill = killed_at
        try:
            spool = TableSpool(self.disk, FORCED)
            spool.load()
            sender = DirectorySender(spool, TO, self.receiver.deliver, SystemEnv(), self.options)
            await sender.send_all()
        except Killed:
            return False
        except ReplyLost:
            pass
        finally:
            self.disk.revive(power_was_lost=True)
        return True

    def check(self) -> None:
        assert self.receiver.rows == Counter(b"%d" % number for number in range(FILES))
        assert not self.disk.names(f"{TO}/{BROKEN}")


WAYS = {
    "one by one": SenderOptions(fsync_directories=True),
    "in batches": SenderOptions(batch=BatchLimits()),
    "batches that are split": SenderOptions(batch=BatchLimits(), splits_on_failure=True),
    "alone, the disk is full": SenderOptions(batch=BatchLimits()),
}


@pytest.mark.parametrize("answers", [True, False], ids=["answered", "no answer"])
@pytest.mark.parametrize("way", WAYS)
def test_every_row_arrives_once(way: str, answers: bool) -> None:
    async def twice_interrupted(first: int, second: int, seed: int) -> tuple[bool, bool]:
        run = Run(WAYS[way], seed)
        await run.put()
        run.receiver.answers = answers
        run.receiver.largest = 1 if "split" in way else FILES
        run.disk.is_full = "full" in way
        first_ended = await run.life(first)
        run.disk.is_full = False
        run.receiver.answers, run.receiver.largest = True, FILES
        second_ended = await run.life(second)
        for _ in range(2):
            await run.life(None)
        run.check()
        return first_ended, second_ended

    async def scenario() -> int:
        for first in count(1):
            for second in count(1):
                ended = [await twice_interrupted(first, second, seed) for seed in range(SEEDS)]
                if all(second_ended for _, second_ended in ended):
                    break
            if all(first_ended for first_ended, _ in ended):
                return first + second
        raise AssertionError

    assert asyncio.run(scenario()) > 5, "there was something to interrupt"
