"""Who counts for a quorum and who does not, and what giving one up leaves of others."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engine.replication.commands.insert import InsertOptions
from engine.replication.part_name import PartName
from engine.replication.quorum import LastQuorumParts, QuorumStatus
from engine.replication.replica.queue.queue import QueuedEntry
from engine.replication.replica.quorum import (
    forget_dropped,
    give_up,
    holders,
    is_failed,
    part_is_here,
    report_held,
    set_failed_aside,
)
from engine.replication.replica.quorum_waiting import wait_until_active
from tests.unit.replication.replica_bench import PATHS, Bench, run
from tests.unit.replication.test_quorum import (
    BOTH,
    FIRST,
    PARALLEL,
    SERIAL,
    insert,
    node_of,
    orphan,
    started,
    trio,
)

SECOND = PartName.parse("all_1_1_0")


# --- counting ---------------------------------------------------------------------------------------------


def test_a_replica_that_has_another_part_does_not_count() -> None:
    async def main(bench: Bench) -> None:
        one, two, _ = await trio(bench)
        await insert(one, 1, options=InsertOptions())
        task = asyncio.create_task(insert(one, 2, options=SERIAL))
        await started(bench, PATHS.quorum_status)
        await two.fetch(FIRST, one)
        await part_is_here(two.ctx, FIRST)
        await report_held(two.ctx)
        status = QuorumStatus.from_bytes(bench.data(PATHS.quorum_status))
        assert status == QuorumStatus(SECOND, 2, frozenset({"r1"}))
        await two.fetch(SECOND, one)
        await part_is_here(two.ctx, SECOND)
        await task

    run(main)


@BOTH
def test_a_part_on_the_disk_that_keeper_does_not_know_does_not_count(options: InsertOptions) -> None:
    """A part is set aside where its node in `parts` is missing: whoever counted it would have lost it."""

    async def main(bench: Bench) -> None:
        one, two, three = await trio(bench)
        task = asyncio.create_task(insert(one, 1, options=options))
        await started(bench, node_of(options))
        await two.fetch(FIRST, one)
        await two.ctx.session().remove(two.ctx.me.part(FIRST))
        for replica in (two, three):
            await report_held(replica.ctx)
        status = QuorumStatus.from_bytes(bench.data(node_of(options)))
        assert status.replicas == {"r1"} and not task.done()
        await three.fetch(FIRST, one)
        await report_held(three.ctx)
        await task

    run(main)


@pytest.mark.parametrize("seed", range(6))
def test_of_several_that_complete_it_at_the_same_time_all_come_to_an_end(seed: int) -> None:
    options = replace(SERIAL if seed % 2 else PARALLEL, quorum_timeout_s=5)

    async def main(bench: Bench) -> None:
        replicas = [await bench.replica(f"r{number}") for number in range(5)]
        task = asyncio.create_task(insert(replicas[0], 1, options=options))
        await started(bench, node_of(options))
        async with asyncio.TaskGroup() as group:
            for replica in replicas[1:]:
                group.create_task(part_is_here(replica.ctx, FIRST))
        assert not (await task)[0].is_duplicate and not bench.has(node_of(options))
        last = LastQuorumParts.from_bytes(bench.data(PATHS.quorum_last_part))
        assert last.parts == (() if options.quorum_parallel else (FIRST,))

    run(main, seed=seed)


def test_who_has_other_parts_is_no_holder_and_neither_is_who_is_dropped_by_half() -> None:
    async def main(bench: Bench) -> None:
        one, two, three = await trio(bench)
        await insert(one, 1, options=InsertOptions())
        await insert(two, 2, options=InsertOptions())
        keeper = await bench.keeper()
        await keeper.remove(three.ctx.me.parts)
        assert await holders(keeper, PATHS, FIRST) == ["r1"]
        assert await holders(keeper, PATHS, SECOND) == ["r2"]

    run(main)


def test_another_server_under_the_name_of_the_replica_does_not_make_it_active() -> None:
    """What the insert has stored is on this server; the other one has none of it."""

    async def main(bench: Bench) -> None:
        one, _, _ = await trio(bench)
        deadline_s = bench.env.monotonic_s() + 5
        assert await wait_until_active(one.ctx, deadline_s=deadline_s)
        other = await bench.keeper("another server")
        await other.remove(one.ctx.me.is_active)
        await other.create(one.ctx.me.is_active, b"another")
        assert not await wait_until_active(one.ctx, deadline_s=deadline_s)

    run(main)


# --- giving up --------------------------------------------------------------------------------------------


def of_a_clone(queued: QueuedEntry) -> QueuedEntry:
    """The entry as a clone or a check makes it, which knows of no block and no quorum."""
    entry = replace(queued.entry, block_id="", quorum=0)
    return QueuedEntry(queued.name, entry, entry.to_bytes())


@BOTH
def test_an_entry_that_names_no_block_gives_up_a_quorum_with_its_block_all_the_same(
    options: InsertOptions,
) -> None:
    async def main(bench: Bench) -> None:
        _, two, three = await orphan(bench, options)
        assert bench.children(PATHS.blocks) != []
        assert await give_up(two.ctx, of_a_clone(bench.queued()))
        assert bench.children(PATHS.blocks) == []

        again = asyncio.create_task(insert(two, 1, options=options))
        await started(bench, node_of(options, SECOND))
        await part_is_here(three.ctx, SECOND)
        assert not (await again)[0].is_duplicate and two.values() == [1]

    run(main)


def test_a_block_that_names_another_part_by_now_stays() -> None:
    """Else a repetition of the insert that has it would be stored twice."""

    async def main(bench: Bench) -> None:
        _, two, _ = await orphan(bench, PARALLEL)
        (block,) = bench.children(PATHS.blocks)
        await two.ctx.session().set(f"{PATHS.blocks}/{block}", b"all_7_7_0")
        assert await give_up(two.ctx, bench.queued())
        assert bench.children(PATHS.blocks) == [block]

    run(main)


def test_a_part_without_a_quorum_does_not_give_up_the_quorum_of_another() -> None:
    async def main(bench: Bench) -> None:
        one, two, _ = await trio(bench)
        await insert(one, 1, options=InsertOptions())
        of_first = bench.queued()
        task = asyncio.create_task(insert(two, 2, options=SERIAL))
        await started(bench, PATHS.quorum_status)
        await one.expire()
        while bench.has(one.ctx.me.is_active):
            await bench.env.sleep(0.5)
        assert not await give_up(two.ctx, of_first)
        assert not await is_failed(two.ctx, FIRST)
        assert QuorumStatus.from_bytes(bench.data(PATHS.quorum_status)).part == SECOND
        task.cancel()

    run(main)


def test_a_quorum_is_given_up_past_a_replica_that_was_dropped_by_half() -> None:
    async def main(bench: Bench) -> None:
        _, two, three = await orphan(bench, PARALLEL)
        keeper = await bench.keeper()
        await three.expire()
        for node in (three.ctx.me.host, three.ctx.me.parts):
            await keeper.remove(node)
        assert await give_up(two.ctx, bench.queued())
        assert await is_failed(two.ctx, FIRST)

    run(main)


@BOTH
def test_a_dropped_range_takes_the_quorums_inside_it_and_no_others(options: InsertOptions) -> None:
    async def main(bench: Bench) -> None:
        one, two, _ = await trio(bench)
        task = asyncio.create_task(insert(one, 1, options=options))
        await started(bench, node_of(options))
        await forget_dropped(two.ctx, PartName.parse("all_1_5_999999999"))
        assert bench.has(node_of(options))
        await forget_dropped(two.ctx, PartName.parse("all_0_5_999999999"))
        assert not bench.has(node_of(options))
        await task

    run(main)


def test_a_staged_part_whose_quorum_was_given_up_is_thrown_away() -> None:
    """Left by an insert without an answer; at the next start it would be shown, and nobody else has it."""

    async def main(bench: Bench) -> None:
        one, _, _ = await trio(bench)
        new = await one.write(1)
        await one.store.stage_inserted(new, FIRST)
        await one.ctx.session().create(one.ctx.me.part(FIRST))
        await set_failed_aside(one.ctx, FIRST)
        assert not one.store.staged and one.values() == [] and not bench.has(one.ctx.me.part(FIRST))

    run(main)
