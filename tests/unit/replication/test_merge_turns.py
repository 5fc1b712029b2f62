"""Merges that one replica makes and the others fetch: recompression, and large ones that are late."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engine.replication.log_actions import MergeParts, MergeType
from engine.replication.part_name import PartName, merged
from engine.replication.replica.merging.assigner import Assigned, assign
from engine.replication.replica.merging.predicate import load_predicate
from engine.replication.replica.merging.turns import LOOK_S
from engine.replication.replica.switches import Activity
from engine.replication.settings import ReplicatedSettings
from tests.unit.replication.live_support import NO_OWN_MERGES, Live, LiveReplica, P, run

SOURCES = (P("all_0_0_0"), P("all_1_1_0"))
RESULT = "all_0_1_1"


async def pair(live: Live, settings: ReplicatedSettings = NO_OWN_MERGES) -> tuple[LiveReplica, LiveReplica]:
    """Both with the two sources, and nothing to do."""
    first, second = await live.cluster(2, settings)
    await first.insert(0)
    await first.insert(1)
    await live.quiet()
    return first, second


async def assigned(
    replica: LiveReplica,
    merge_type: MergeType = MergeType.TTL_RECOMPRESS,
    sources: tuple[PartName, ...] = SOURCES,
) -> None:
    action = MergeParts(sources, merged(sources), merge_type=merge_type)
    ctx = replica.ctx
    assert isinstance(await assign(ctx, ctx.session(), await load_predicate(ctx), [action]), Assigned)


async def reason(live: Live, replica: LiveReplica) -> str:
    """Why its only entry waits, as soon as it does."""
    async with asyncio.timeout(60):
        while not any(queued.postpone_reason for queued in replica.ctx.queue.entries):
            await live.env.sleep(0.1)
    (queued,) = replica.ctx.queue.entries
    assert not queued.is_executing and queued.num_tries == 0
    return queued.postpone_reason


def test_who_did_not_assign_a_recompression_fetches_it_as_soon_as_it_is_made() -> None:
    async def main(live: Live) -> None:
        first, second = await pair(live)
        first.store.faults.write_s = (10 * LOOK_S + 30, 10 * LOOK_S + 30)
        began_s = live.env.monotonic_s()
        await assigned(first)
        assert await reason(live, second) == (
            "Not executing merge for the part all_0_1_1, waiting for r1 to execute merge"
        )
        while RESULT not in first.parts_in_keeper():
            assert second.parts() == ["all_0_0_0", "all_1_1_0"]
            await live.env.sleep(1)
        assert live.env.monotonic_s() - began_s > 10 * LOOK_S
        made_s = live.env.monotonic_s()
        await live.quiet(second)
        assert live.env.monotonic_s() - made_s < LOOK_S / 4  # a watch tells, not the next look
        assert second.parts() == [RESULT]
        assert (len(first.store.merges), len(second.store.merges)) == (1, 0)
        assert ("r1", "r2", P(RESULT)) in live.network.fetches

    run(main)


def test_every_replica_makes_merges_of_other_kinds() -> None:
    async def main(live: Live) -> None:
        first, second = await pair(live)
        await assigned(first, MergeType.TTL_DELETE)
        await live.quiet()
        assert (len(first.store.merges), len(second.store.merges)) == (1, 1)

    run(main)


def test_recompression_is_not_left_to_a_replica_that_is_gone() -> None:
    """1. r1 is to make it, and cannot. 2. r2 waits. 3. r1 goes away: r2 makes it at once."""

    async def main(live: Live) -> None:
        first, second = await pair(live)
        first.ctx.switches.stop(Activity.MERGES)
        await assigned(first)
        await reason(live, second)
        await first.stop()
        gone_s = live.env.monotonic_s()
        await live.quiet(second)
        assert live.env.monotonic_s() - gone_s < LOOK_S / 4
        assert (second.parts(), len(second.store.merges)) == ([RESULT], 1)

    run(main)


def test_recompression_is_awaited_no_longer_than_the_timeout() -> None:
    async def main(live: Live) -> None:
        first, second = await pair(live, replace(NO_OWN_MERGES, try_fetch_recompressed_part_timeout=600.0))
        first.ctx.switches.stop(Activity.MERGES)
        await assigned(first)
        await live.env.sleep(590)
        assert len(second.store.merges) == 0
        await live.quiet(second)
        assert len(second.store.merges) == 1
        first.ctx.switches.start(Activity.MERGES)
        first.ctx.queue_changed.set()
        await live.quiet()
        assert first.parts() == second.parts() == [RESULT]

    run(main)


def test_a_third_replica_that_has_it_is_enough() -> None:
    """1. r1 is to make it, and cannot; r2 and r3 wait. 2. r2 is told not to wait. 3. r3 fetches r2's."""

    async def main(live: Live) -> None:
        first, second, third = await live.cluster(3)
        await first.insert(0)
        await first.insert(1)
        await live.quiet()
        first.ctx.switches.stop(Activity.MERGES)
        await assigned(first)
        await reason(live, third)
        second.ctx.settings = replace(NO_OWN_MERGES, try_fetch_recompressed_part_timeout=0)
        await live.quiet(second, third)
        assert [len(replica.store.merges) for replica in (first, second, third)] == [0, 1, 0]
        assert ("r2", "r3", P(RESULT)) in live.network.fetches

    run(main)


def test_a_merge_waits_for_nobody_because_the_clock_of_who_assigned_it_is_ahead() -> None:
    """Merges are made by all. By its name the part would be r1's, which cannot make it."""

    async def main(live: Live) -> None:
        first, second = await pair(live)
        first.ctx.switches.stop(Activity.MERGES)
        first.ctx.env = live.env.fork(clock_offset_s=3600.0)
        await assigned(first, MergeType.REGULAR)
        began_s = live.env.monotonic_s()
        await live.quiet(second)
        assert live.env.monotonic_s() - began_s < LOOK_S
        assert len(second.store.merges) == 1

    run(main)


ON_ONE = replace(NO_OWN_MERGES, execute_merges_on_single_replica_time_threshold=600.0)


def test_where_one_replica_makes_each_merge_both_replicas_take_their_share() -> None:
    async def main(live: Live) -> None:
        first, second = await live.cluster(2, ON_ONE)
        for number in range(16):
            await first.insert(number)
        await live.quiet()
        for number in range(0, 16, 2):
            await assigned(
                first,
                MergeType.REGULAR,
                (P(f"all_{number}_{number}_0"), P(f"all_{number + 1}_{number + 1}_0")),
            )
        await live.quiet()
        assert first.parts() == second.parts() == [f"all_{n}_{n + 1}_1" for n in range(0, 16, 2)]
        made = [len(replica.store.merges) for replica in (first, second)]
        # CityHash64 of path and part decides: the same on every server.
        assert made == [4, 4]

    run(main)


def test_a_merge_is_not_left_to_a_replica_that_is_not_there() -> None:
    async def main(live: Live) -> None:
        first, second = await pair(live, ON_ONE)
        await second.stop()
        await assigned(first, MergeType.REGULAR)
        await live.quiet(first)
        assert (first.parts(), len(first.store.merges)) == ([RESULT], 1)

    run(main)


def test_a_merge_is_left_to_another_replica_for_no_longer_than_the_threshold() -> None:
    """By its name the part is r1's, which cannot make it; r2 does when the time is over."""

    async def main(live: Live) -> None:
        first, second = await pair(live, ON_ONE)
        first.ctx.switches.stop(Activity.MERGES)
        await assigned(first, MergeType.REGULAR)
        assert "waiting for r1 to execute merge" in await reason(live, second)
        await live.env.sleep(590)
        assert len(second.store.merges) == 0
        await live.quiet(second)
        assert len(second.store.merges) == 1

    run(main)


@pytest.mark.parametrize(("late_s", "size_bytes", "expected"), [(1, 0, 1), (4000, 1 << 40, 1), (4000, 1, 0)])
def test_a_large_merge_that_is_late_is_fetched(late_s: float, size_bytes: int, expected: int) -> None:
    async def main(live: Live) -> None:
        settings = replace(NO_OWN_MERGES, prefer_fetch_merged_part_size_threshold=size_bytes)
        first, second = await pair(live, settings)
        second.ctx.switches.stop(Activity.QUEUES)
        await assigned(first, MergeType.TTL_DELETE)
        await live.quiet(first)
        await live.env.sleep(late_s)
        second.ctx.switches.start(Activity.QUEUES)
        second.ctx.queue_changed.set()
        await live.quiet()
        assert second.parts() == [RESULT]
        assert (len(first.store.merges), len(second.store.merges)) == (1, expected)

    run(main)
