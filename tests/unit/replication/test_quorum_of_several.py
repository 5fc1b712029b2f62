"""An INSERT of several parts that wait for their quorums together: what is said when some are given up."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import Code, SqlError
from engine.replication.part_name import PartName
from engine.replication.replica.quorum import give_up, part_is_here
from tests.unit.replication.replica_bench import PATHS, Bench, Replica, run
from tests.unit.replication.test_quorum import FIRST, PARALLEL, insert, started, trio

SECOND = PartName.parse("all_1_1_0")


async def taken_for_dead(bench: Bench, replica: Replica) -> None:
    """The others believe that the replica is away, and it does not know."""
    await (await bench.keeper()).remove(replica.ctx.me.is_active)


async def of_two_parts(bench: Bench, one: Replica) -> asyncio.Task[object]:
    task = asyncio.create_task(insert(one, 1, 2, options=PARALLEL))
    for part in (FIRST, SECOND):
        await started(bench, PATHS.parallel_quorum(part))
    return task


@pytest.mark.parametrize("given_up", [0, 1])
def test_an_insert_of_which_one_part_was_given_up_does_not_say_that_nothing_was_inserted(
    given_up: int,
) -> None:
    """The other part is there: whoever believed that nothing is would store its rows twice."""

    async def main(bench: Bench) -> None:
        one, two, three = await trio(bench)
        task = await of_two_parts(bench, one)
        kept = (FIRST, SECOND)[1 - given_up]
        await two.fetch(kept, one)
        await part_is_here(two.ctx, kept)
        await taken_for_dead(bench, one)
        assert await give_up(three.ctx, bench.queued(given_up))
        await one.activate()
        with pytest.raises(SqlError) as caught:
            await task
        assert caught.value.code == Code.UNKNOWN_STATUS_OF_INSERT
        assert "1 of 2 parts were inserted" in caught.value.message
        assert one.values() == [2 - given_up]

    run(main)


def test_an_insert_of_which_all_parts_were_given_up_shows_none_of_them() -> None:
    async def main(bench: Bench) -> None:
        one, two, _ = await trio(bench)
        task = await of_two_parts(bench, one)
        await taken_for_dead(bench, one)
        for index in (0, 1):
            assert await give_up(two.ctx, bench.queued(index))
        with pytest.raises(SqlError) as caught:
            await task
        assert caught.value.code == Code.TOO_FEW_LIVE_REPLICAS
        assert one.values() == [] and bench.children(one.ctx.me.parts) == []

    run(main)
