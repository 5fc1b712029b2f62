"""An INSERT that reads its rows from a pipe, on a thread of its own, while they come.

The end of the pipe is the end of the rows to chDB. So an INSERT whose rows stop coming is killed before the
pipe is closed: it sees no end, and what it has read of its last block is not written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from engine.errors import Code, SqlError
from engine.storage.errors import translated
from engine.storage.job import Job
from engine.storage.pipe import ChdbEnd, FeedEnd, open_feed
from engine.storage.threads import Threads

T = TypeVar("T")

_AGAIN_S = 0.01
"""How long a statement that has begun may be on its way to where it can be killed."""


async def feed(
    threads: Threads,
    read: Callable[[str], T],
    first: list[bytes],
    others: AsyncIterator[list[bytes]],
    *,
    give_up: Callable[[Job[Any]], None],
) -> T:
    """What `read` returns of a pipe, by its path, with these rows in it. Those that it leaves unread are
    dropped. Raises what `read` or `others` raises, when `read` has ended; `give_up` is called if the caller
    does not wait for that."""
    source, feeder = open_feed()

    def work() -> T:
        if not source.take():
            raise SqlError(Code.ABORTED, "The rows of the INSERT will not come")
        try:
            return read(source.path)
        finally:
            source.close()

    job = threads.start_reader(lambda: translated(work))
    try:
        for chunk in first:
            await feeder.write(chunk)
        async for piece in others:
            for chunk in piece:
                if not await feeder.write(chunk):
                    await job.result()
        feeder.close()
        return await job.result()
    except BaseException:  # also a cancellation
        threads.finish_later(_stop(threads, job, source, feeder))
        try:
            await job.end()
        except asyncio.CancelledError:
            give_up(job)
            raise
        raise


async def _stop(threads: Threads, job: Job[Any], source: ChdbEnd, feeder: FeedEnd) -> None:
    source.drop()
    while source.is_taken and not job.is_over and not await threads.kill_reader(source.path):
        await job.end(timeout_s=_AGAIN_S)
    feeder.close()
    await job.end()
