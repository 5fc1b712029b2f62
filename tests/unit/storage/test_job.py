"""A function on a worker thread runs to its end, and whoever waits for it learns of that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.storage.job import Job


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


async def test_a_job_gives_what_its_function_returns_or_raises_as_often_as_it_is_asked(
    thread: ThreadPoolExecutor,
) -> None:
    def fail() -> None:
        raise ValueError("no")

    good, bad = Job(thread, lambda: 7), Job(thread, fail)
    assert [await good.result(), await good.result()] == [7, 7]
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            await bad.result()
    await bad.end()
    assert bad.is_over


async def test_a_job_goes_on_when_one_of_those_who_wait_is_cancelled(thread: ThreadPoolExecutor) -> None:
    may_end = threading.Event()
    job = Job(thread, lambda: may_end.wait(30))
    first, second = (asyncio.create_task(job.result()) for _ in range(2))
    await job.end(timeout_s=0)  # both wait now
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not job.is_over
    may_end.set()
    assert await second


async def test_a_job_that_waits_for_a_thread_runs_though_its_caller_was_cancelled(
    thread: ThreadPoolExecutor,
) -> None:
    may_end = threading.Event()
    before = Job(thread, lambda: may_end.wait(30))
    behind = Job(thread, lambda: "ran")
    caller = asyncio.create_task(behind.result())
    await before.end(timeout_s=0)
    caller.cancel()
    await asyncio.wait([caller])
    may_end.set()
    assert await behind.result() == "ran"


async def test_waiting_with_a_limit_ends_at_the_limit_or_with_the_job(thread: ThreadPoolExecutor) -> None:
    may_end = threading.Event()
    job = Job(thread, lambda: may_end.wait(30))
    await job.end(timeout_s=0.001)
    assert not job.is_over
    may_end.set()
    await job.end(timeout_s=30)
    assert job.is_over


def test_a_job_that_ends_behind_its_loop_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    may_end = threading.Event()

    async def leave(executor: ThreadPoolExecutor) -> Job[bool]:
        return Job(executor, lambda: may_end.wait(30))

    with ThreadPoolExecutor(1) as executor:
        job = asyncio.run(leave(executor))
        may_end.set()
    assert job.is_over
    assert not caplog.records, "concurrent.futures logs what a callback raises"
