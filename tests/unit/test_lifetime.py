"""How work in the background goes on, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from engine.errors import ConnectionLoss, SqlError
from engine.lifetime import end_if_cancelled, until_done
from engine.testing.simulation import SimulationEnv, run_simulation


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


def test_work_in_the_background_is_tried_again_after_any_error_and_ends_with_the_first_that_has_none() -> (
    None
):
    errors: list[Exception] = [
        ConnectionLoss("lost"),
        SqlError(60, "?"),
        OSError("disk"),
        ValueError("a defect"),
    ]

    async def step() -> None:
        if errors:
            raise errors.pop()

    async def main(env: SimulationEnv) -> float:
        await until_done(step, "work", env=env, pause_s=2.0)
        return env.monotonic_s()

    assert run_simulation(1, main) == 8.0
    assert errors == []


def test_work_in_the_background_ends_when_it_is_cancelled() -> None:
    async def step() -> None:
        raise ValueError("a defect")

    async def main(env: SimulationEnv) -> bool:
        working = asyncio.create_task(until_done(step, "work", env=env, pause_s=2.0))
        await env.sleep(5)
        working.cancel()
        await asyncio.wait([working], timeout=1)
        return working.cancelled()

    assert run_simulation(1, main)
