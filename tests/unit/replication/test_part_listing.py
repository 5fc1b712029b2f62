"""One listing of `parts/` serves all who ask at the same time, and none is older than its question."""

from __future__ import annotations

import asyncio

from engine.errors import SessionExpired
from engine.keeper.recipes import create_ancestors
from engine.replication.replica.part_listing import PartListing
from tests.unit.replication.replica_bench import Bench, run


def test_who_asks_while_a_listing_is_read_shares_the_next_one() -> None:
    async def main(bench: Bench) -> None:
        keeper = await bench.keeper()
        await create_ancestors(keeper, "/parts/x")
        await keeper.create("/parts/all_0_0_0")
        listings = 0
        children = keeper.children

        async def counted(*args: object, **more: object) -> object:
            nonlocal listings
            listings += 1
            return await children(*args, **more)  # type: ignore[arg-type]

        keeper.children = counted  # type: ignore[method-assign, assignment]
        listing = PartListing("/parts")
        first = asyncio.create_task(listing.get(keeper))
        while not listings:
            await asyncio.sleep(0)
        await keeper.create("/parts/all_1_1_0")
        later = await asyncio.gather(*(listing.get(keeper) for _ in range(30)))
        assert [str(part) for part in await first] == ["all_0_0_0"]
        assert {tuple(map(str, found)) for found in later} == {("all_0_0_0", "all_1_1_0")}
        assert listings <= 3

    run(main)


def test_a_listing_of_a_session_that_is_over_is_not_that_of_the_next() -> None:
    async def main(bench: Bench) -> None:
        old, new = await bench.keeper(), await bench.keeper()
        await create_ancestors(new, "/parts/x")
        listing = PartListing("/parts")
        asked = asyncio.gather(listing.get(old), listing.get(new), return_exceptions=True)
        bench.server.expire_session(old.session_id)
        first, second = await asked
        assert isinstance(first, SessionExpired) and second == []

    run(main)
