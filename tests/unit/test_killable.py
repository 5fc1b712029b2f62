"""KILL QUERY ends a statement where it waits, and nowhere else."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import Code, SqlError
from engine.killable import Killable, ends_by_kill, is_part_of_another


async def waiting(reached: asyncio.Event) -> None:
    with ends_by_kill():
        reached.set()
        await asyncio.Event().wait()


async def test_a_wait_ends_as_if_it_had_failed_and_the_statement_goes_on_from_there() -> None:
    statement, reached, done = Killable(), asyncio.Event(), []

    async def run() -> None:
        with statement.running():
            try:
                await waiting(reached)
            except SqlError as error:
                await asyncio.sleep(0)  # nothing is cancelled any more
                done.append(error.code)

    task = asyncio.create_task(run())
    await reached.wait()
    statement.kill()
    statement.kill()
    await task
    assert done == [Code.QUERY_WAS_CANCELLED]
    assert task.cancelling() == 0


async def test_what_is_no_wait_is_done_to_its_end() -> None:
    statement, step = Killable(), asyncio.Event()

    async def run() -> str:
        with statement.running():
            await step.wait()
            return "done"

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    statement.kill()
    step.set()
    assert await task == "done"


async def test_a_wait_that_begins_after_the_kill_ends_at_once() -> None:
    statement = Killable()
    statement.kill()
    with statement.running(), pytest.raises(SqlError, match="cancelled"):
        await waiting(asyncio.Event())


async def test_a_task_of_a_statement_is_killed_with_it_and_not_once_it_is_over() -> None:
    statement, reached = Killable(), asyncio.Event()
    with statement.running():
        assert is_part_of_another()
        task = asyncio.create_task(waiting(reached))
        await reached.wait()
        statement.kill()
        with pytest.raises(SqlError):
            await task
        reached.clear()
        begun = asyncio.Event()

        async def later() -> None:
            await begun.wait()
            await waiting(reached)

        task = asyncio.create_task(later())
    assert not is_part_of_another()
    begun.set()
    await reached.wait()
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_who_is_cancelled_otherwise_stays_cancelled() -> None:
    for is_killed_too in (False, True):
        statement, reached = Killable(), asyncio.Event()

        async def run(statement: Killable = statement, reached: asyncio.Event = reached) -> None:
            with statement.running():
                await waiting(reached)

        task = asyncio.create_task(run())
        await reached.wait()
        task.cancel()
        if is_killed_too:
            statement.kill()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_of_waits_within_waits_each_is_one() -> None:
    statement, reached = Killable(), asyncio.Event()

    async def run() -> None:
        with statement.running(), ends_by_kill():
            with ends_by_kill():
                await asyncio.sleep(0)
            reached.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    await reached.wait()
    statement.kill()
    with pytest.raises(SqlError):
        await task
