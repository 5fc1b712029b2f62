"""How a loop in the background ends."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from engine.errors import ConnectionLoss
from engine.lifetime import end_if_cancelled


class Requests:
    """Waits for ever; the first that is cancelled ends with a lost connection instead."""

    def __init__(self) -> None:
        self.lost = 0

    async def one(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self.lost:
                raise
            self.lost += 1
            raise ConnectionLoss("the request was under way") from None


async def loop(requests: Requests, *, asks: bool) -> None:
    while True:
        try:
            await asyncio.gather(requests.one(), asyncio.Event().wait())
        except ConnectionLoss:
            if asks:
                end_if_cancelled()


@pytest.mark.parametrize("asks", [True, False])
async def test_a_loop_that_asks_ends_although_its_cancellation_became_an_error(asks: bool) -> None:
    requests = Requests()
    task = asyncio.create_task(loop(requests, asks=asks))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert requests.lost == 1
    assert task.done() is asks
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_nothing_ends_that_was_not_cancelled() -> None:
    end_if_cancelled()
