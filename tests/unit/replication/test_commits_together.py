"""Parts that were fetched at one time go into Keeper together; what is against one is so for it alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from engine.keeper.recipes import try_remove
from engine.keeper.session import RequestKind
from engine.replication.replica.switches import Activity
from engine.replication.replica.together import Together
from tests.unit.replication.support import PATHS, Bench, Replica, simulated

PARTS = 8


@asynccontextmanager
async def all_fetched(bench: Bench) -> AsyncIterator[Replica]:
    """The second of two replicas, when it has fetched the parts of several entries and commits none of them
    yet. After the block it has come to an end with all of them."""
    one, two = await bench.cluster(2)
    two.ctx.switches.stop(Activity.FETCHES)
    for key in range(PARTS):
        await one.insert(key)
    await bench.until(lambda: len(two.ctx.queue.entries) == PARTS)
    async with two.ctx.commits._turn:
        two.ctx.switches.start(Activity.FETCHES)
        two.ctx.queue_changed.set()
        await bench.until(lambda: len(two.ctx.store.staged) == PARTS)
        yield two
    await bench.until(lambda: not two.ctx.queue.entries)
    assert two.values == list(range(PARTS))
    assert await bench.parts("r2") == two.active
    assert not two.staged


@simulated
async def test_parts_that_wait_are_committed_in_one_transaction(bench: Bench) -> None:
    async with all_fetched(bench):
        before = bench.server.operations["r2"]["multi"]
    # The other transactions remove entries of the queue, eight of them at a time or fewer.
    assert bench.server.operations["r2"]["multi"] - before < PARTS


@simulated
async def test_a_lost_reply_about_several_is_looked_after_for_each(bench: Bench) -> None:
    async with all_fetched(bench) as two:
        bench.server.lose_next_reply(two.ctx.session().session_id, kind=RequestKind.MULTI)


@simulated
async def test_a_part_that_its_source_loses_meanwhile_holds_up_no_other(bench: Bench) -> None:
    """1. r2 has fetched several parts. 2. r1's node of one of them goes. 3. The transaction about all is
    refused, and each is committed by itself: that one, which nobody else has any more, as such."""
    async with all_fetched(bench) as two:
        await try_remove(bench.admin, PATHS.replica("r1").part(min(two.ctx.store.staged)))


async def test_the_first_is_served_at_once_and_those_that_come_meanwhile_together() -> None:
    served: list[Sequence[int]] = []
    goes_on = asyncio.Event()

    async def serve_all(items: Sequence[int]) -> bool:
        served.append(items)
        await goes_on.wait()
        return True

    together: Together[int] = Together()
    tasks = [asyncio.create_task(together.serve(number, serve_all)) for number in (0, 1)]
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(together.serve(number, serve_all)) for number in (2, 3)]
    await asyncio.sleep(0)
    goes_on.set()
    assert await asyncio.gather(*tasks) == [True] * 4
    assert served == [[0], [1, 2, 3]]


async def test_who_leaves_takes_its_own_along_and_leaves_the_others_to_themselves() -> None:
    began = asyncio.Event()

    async def never(items: Sequence[str]) -> bool:
        began.set()
        await asyncio.Event().wait()
        return True

    async def at_once(items: Sequence[str]) -> bool:
        assert list(items) == ["later"]
        return True

    together: Together[str] = Together()
    await together._turn.acquire()
    first, second, third = (
        asyncio.create_task(together.serve(name, never)) for name in ("first", "second", "third")
    )
    await asyncio.sleep(0)
    third.cancel()
    together._turn.release()
    await began.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await second is False
    assert await together.serve("later", at_once)
