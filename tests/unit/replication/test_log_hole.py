"""Entries that somebody has removed from the log before all replicas have copied them: no replica stands
still at the hole, or goes on without what the others have."""

from __future__ import annotations

import asyncio

import pytest

from engine.replication.commands.alter import alter_table
from engine.replication.commands.drop_range import drop_partition
from engine.replication.commands.waiting import Sync
from engine.replication.replica.switches import Activity
from tests.unit.replication.live_support import PATHS, Live, LiveReplica, check_equal, run


def stop_pulling(*replicas: LiveReplica) -> None:
    for replica in replicas:
        replica.ctx.switches.stop(Activity.PULLING)


async def pull_again(live: Live, *replicas: LiveReplica) -> None:
    for replica in replicas:
        replica.ctx.switches.start(Activity.PULLING)
        replica.ctx.log_changed.set()
    async with asyncio.timeout(600):
        await live.quiet()
        while any(replica.ctx.is_readonly for replica in replicas):
            await live.env.sleep(0.5)


async def remove_entries(live: Live, *numbers: int) -> None:
    keeper = await live.keeper()
    for number in numbers:
        await keeper.remove(f"{PATHS.log_prefix}{number:010}")


@pytest.mark.parametrize("missing", [(1,), (2,), (1, 2, 3), (1, 3)])
def test_a_replica_becomes_a_copy_of_one_that_has_copied_what_is_missing(missing: tuple[int, ...]) -> None:
    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        await one.insert(1)
        await live.quiet()
        stop_pulling(two)
        for key in range(2, 6):
            await (one if key % 2 else two).insert(key)
        await live.quiet(one)
        await remove_entries(live, *missing)
        await pull_again(live, two)
        check_equal(one, two)
        assert two.keys() == [1, 2, 3, 4, 5]

    run(main)


@pytest.mark.parametrize("missing", [(1,), (2,), (1, 2, 3), (1, 3)])
def test_where_nobody_has_copied_what_is_missing_replicas_take_over_each_others_parts(
    missing: tuple[int, ...],
) -> None:
    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        await one.insert(1)
        await live.quiet()
        stop_pulling(one, two)
        for key in range(2, 6):
            await (one if key % 2 else two).insert(key)
        await remove_entries(live, *missing)
        await pull_again(live, one, two)
        check_equal(one, two)
        assert two.keys() == [1, 2, 3, 4, 5]

    run(main)


def test_what_is_to_be_dropped_is_not_taken_over() -> None:
    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        await one.insert(1)
        await live.quiet()
        stop_pulling(two)
        await drop_partition(one.ctx, "all")
        await live.quiet(one)
        stop_pulling(one)
        await two.insert(2)
        await remove_entries(live, 2)
        await two.insert(3)
        await pull_again(live, one, two)
        check_equal(one, two)
        assert two.keys() == [2, 3]

    run(main)


def test_a_replica_before_a_hole_is_not_copied_by_one_before_an_earlier_hole_that_has_more() -> None:
    """1. r2 stops copying at entry 1, r1 at entry 3. 2. r2 inserts entry 3, and entries 2 and 3 are removed.
    3. r2, at entry 2, waits until r1, at entry 3, has taken over what was inserted by r2."""

    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        await one.insert(1)
        await live.quiet()
        stop_pulling(two)
        await one.insert(2)
        await one.insert(3)
        await live.quiet(one)
        stop_pulling(one)
        await two.insert(4)
        await remove_entries(live, 2, 3)
        await one.insert(5)
        await pull_again(live, two, one)
        check_equal(one, two)
        assert two.keys() == [1, 2, 3, 4, 5]

    run(main)


def test_an_alter_that_is_missing_is_made_up_for() -> None:
    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        await one.insert(1)
        await live.quiet()
        stop_pulling(one, two)
        await alter_table(one.ctx, "ADD COLUMN w UInt64", sync=Sync.NONE)
        await remove_entries(live, 1)
        await one.insert(2)
        await pull_again(live, one, two)
        for replica in (one, two):
            assert list(replica.disk.definition.columns.by_name) == ["k", "v", "w"]
            assert live.data(replica.ctx.me.metadata_version) == b"1"
        await alter_table(two.ctx, "ADD COLUMN x UInt64", sync=Sync.ALL)
        assert one.keys() == two.keys() == [1, 2]

    run(main)
