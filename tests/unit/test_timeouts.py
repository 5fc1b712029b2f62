"""A timeout within the cleanup of a task that is being cancelled: this Python's, and that of
`engine.timeouts`."""

from __future__ import annotations

import asyncio

import pytest

from engine.timeouts import enter, leave


@pytest.fixture(params=["this Python's", "ours"])
def timeouts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "ours":
        monkeypatch.setattr(asyncio.Timeout, "__aenter__", enter)
        monkeypatch.setattr(asyncio.Timeout, "__aexit__", leave)


async def cancelled(task: asyncio.Task[None]) -> None:
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.usefixtures("timeouts")
def test_a_timeout_in_a_cleanup_is_a_timeout() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                async with asyncio.timeout(0.001):
                    await asyncio.Event().wait()
            except TimeoutError:
                seen.append("timeout")

    async def main() -> None:
        task = asyncio.ensure_future(work())
        await cancelled(task)
        assert task.cancelled() and seen == ["timeout"]

    asyncio.run(main())


@pytest.mark.usefixtures("timeouts")
def test_a_cancellation_within_a_timeout_is_a_cancellation() -> None:
    async def work() -> None:
        async with asyncio.timeout(1000):
            await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.ensure_future(work())
        await cancelled(task)
        assert task.cancelled()

    asyncio.run(main())


@pytest.mark.usefixtures("timeouts")
def test_a_cancellation_behind_the_expiry_is_not_lost() -> None:
    async def work() -> None:
        async with asyncio.timeout(0):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                raise

    async def main() -> None:
        task = asyncio.ensure_future(work())
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(main())
