"""Quorum inserts: what they need, what they wait for, how they end, and what a consistent read sees."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import Code, ConnectionLoss, KeeperUnavailable, SqlError
from engine.keeper.base import Keeper
from engine.keeper.faults import Direction
from engine.keeper.session import RequestKind
from engine.replication.commands.consistent_read import max_blocks
from engine.replication.commands.insert import AUTO_QUORUM, Inserted, Inserter, InsertOptions
from engine.replication.part_name import PartName
from engine.replication.quorum import LastQuorumParts, QuorumStatus
from engine.replication.replica.merging.predicate import parts_awaiting_quorum
from engine.replication.replica.quorum import (
    forget_dropped,
    forget_failed,
    give_up,
    is_failed,
    part_is_here,
    report_held,
)
from tests.unit.replication.replica_bench import PATHS, Bench, Replica, run

PARALLEL = InsertOptions(quorum=2, quorum_timeout_s=30)
SERIAL = InsertOptions(quorum=2, quorum_parallel=False, quorum_timeout_s=30)
BOTH = pytest.mark.parametrize("options", [PARALLEL, SERIAL], ids=["parallel", "serial"])
FIRST = PartName.parse("all_0_0_0")


async def trio(bench: Bench) -> tuple[Replica, Replica, Replica]:
    return await bench.replica("r1"), await bench.replica("r2"), await bench.replica("r3")


async def insert(replica: Replica, *values: int, options: InsertOptions) -> list[Inserted]:
    inserter = Inserter(replica.ctx)
    await inserter.check(options)
    return list(await inserter.commit([await replica.write(value) for value in values], options))


def node_of(options: InsertOptions, part: PartName = FIRST) -> str:
    return PATHS.parallel_quorum(part) if options.quorum_parallel else PATHS.quorum_status


async def started(bench: Bench, path: str) -> None:
    while not bench.has(path):
        await bench.env.sleep(0.01)


# --- reaching it ------------------------------------------------------------------------------------------


@BOTH
def test_a_quorum_insert_returns_when_enough_replicas_have_the_part(options: InsertOptions) -> None:
    async def main(bench: Bench) -> None:
        one, two, _ = await trio(bench)
        task = asyncio.create_task(insert(one, 1, options=options))
        await started(bench, node_of(options))
        status = QuorumStatus.from_bytes(bench.data(node_of(options)))
        assert status == QuorumStatus(FIRST, 2, frozenset({"r1"}))
        assert bench.log()[0].quorum == 2 and one.values() == [1]
        await bench.env.sleep(5)
        assert not task.done()
        await two.fetch(FIRST, one)
        await part_is_here(two.ctx, FIRST)
        assert not (await task)[0].is_duplicate
        assert not bench.has(node_of(options))
        last = LastQuorumParts.from_bytes(bench.data(PATHS.quorum_last_part))
        assert last.parts == (() if options.quorum_parallel else (FIRST,))

    run(main)


@BOTH
def test_a_server_that_lags_behind_does_not_make_an_insert_believe_in_its_quorum(
    options: InsertOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The insert waits for its quorum. 2. Its session ends. 3. The next one is with a server that does not
    know of the insert yet."""

    async def main(bench: Bench) -> None:
        one, two, _ = await trio(bench)
        lagging = await bench.keeper("r1")
        bench.server.stale_reads(lagging.session_id)
        task = asyncio.create_task(insert(one, 1, options=options))
        await started(bench, node_of(options))
        await bench.env.sleep(1)

        async def next_session(*, timeout_s: float | None = None) -> Keeper:
            return lagging

        monkeypatch.setattr(one.holder, "get", next_session)
        await one.expire()
        await bench.env.sleep(1)
        await one.activate()
        await bench.env.sleep(1)
        assert not task.done(), "nobody else has the part"
        await two.fetch(FIRST, one)
        await part_is_here(two.ctx, FIRST)
        assert not (await task)[0].is_duplicate

    run(main)


@BOTH
def test_each_replica_counts_once(options: InsertOptions) -> None:
    async def main(bench: Bench) -> None:
        one, two, three = await trio(bench)
        wanted = InsertOptions(quorum=3, quorum_parallel=options.quorum_parallel)
        task = asyncio.create_task(insert(one, 1, options=wanted))
        await started(bench, node_of(options))
        for _ in range(3):
            await part_is_here(two.ctx, FIRST)
        await part_is_here(one.ctx, FIRST)
        status = QuorumStatus.from_bytes(bench.data(node_of(options)))
        assert status.replicas == {"r1", "r2"}
        await part_is_here(three.ctx, FIRST)
        await task

    run(main)


@pytest.mark.parametrize("seed", range(10))
def test_replicas_that_get_the_part_at_the_same_time_are_all_counted(seed: int) -> None:
    async def main(bench: Bench) -> None:
        replicas = [await bench.replica(f"r{number}") for number in range(5)]
        options = InsertOptions(quorum=5, quorum_parallel=bool(seed % 2))
        task = asyncio.create_task(insert(replicas[0], 1, options=options))
        await started(bench, node_of(options))
        async with asyncio.TaskGroup() as group:
            for replica in replicas[1:]:
                group.create_task(part_is_here(replica.ctx, FIRST))
        await task

    run(main, seed=seed)


def test_auto_asks_for_more_than_half() -> None:
    async def main(bench: Bench) -> None:
        one, _, _ = await trio(bench)
        task = asyncio.create_task(insert(one, 1, options=InsertOptions(quorum=AUTO_QUORUM)))
        await started(bench, node_of(PARALLEL))
        assert QuorumStatus.from_bytes(bench.data(node_of(PARALLEL))).required == 2
        task.cancel()

    run(main)


def test_auto_waits_for_keeper_and_then_says_that_nothing_was_inserted() -> None:
    async def main(bench: Bench) -> None:
        one, _, _ = await trio(bench)
        new = await one.write(1)
        bench.server.stop()
        inserting = asyncio.create_task(
            Inserter(one.ctx).commit([new], InsertOptions(quorum=AUTO_QUORUM, max_retries=2))
        )
        with pytest.raises(KeeperUnavailable, match="Nothing was inserted"):
            await inserting
        bench.server.start()
        assert bench.children(PATHS.log) == []

    run(main)


def test_auto_with_a_single_replica_is_no_quorum() -> None:
    async def main(bench: Bench) -> None:
        one = await bench.replica("r1")
        await insert(one, 1, options=InsertOptions(quorum=AUTO_QUORUM))
        assert bench.log()[0].quorum == 0

    run(main)


def test_parallel_quorums_run_beside_each_other_and_serial_ones_after_each_other() -> None:
    async def main(bench: Bench) -> None:
        one, two, _ = await trio(bench)
        parallel = asyncio.create_task(insert(one, 1, 2, options=PARALLEL))
        await started(bench, PATHS.parallel_quorum(PartName.parse("all_1_1_0")))
        assert len(bench.children(PATHS.quorum_parallel)) == 2
        for block in (0, 1):
            await part_is_here(two.ctx, PartName.parse(f"all_{block}_{block}_0"))
        await parallel

        serial = asyncio.create_task(insert(one, 3, 4, options=SERIAL))
        for block in (2, 3):
            await started(bench, PATHS.quorum_status)
            part = PartName.parse(f"all_{block}_{block}_0")
            assert QuorumStatus.from_bytes(bench.data(PATHS.quorum_status)).part == part
            await part_is_here(two.ctx, part)
        await serial

    run(main)


# --- what it needs ----------------------------------------------------------------------------------------


@BOTH
def test_too_few_active_replicas_are_refused_before_anything_is_written(options: InsertOptions) -> None:
    async def main(bench: Bench) -> None:
        one = await bench.replica("r1")
        await bench.replica("r2", active=False)
        for attempt in (Inserter(one.ctx).check(options), insert_only(one, options)):
            with pytest.raises(SqlError) as caught:
                await attempt
            assert caught.value.code == Code.TOO_FEW_LIVE_REPLICAS and "(1) is less" in caught.value.message
        assert not bench.log() and not one.disk.temporary and bench.locks() == []

    run(main)


def test_a_serial_quorum_that_is_pending_refuses_the_next_one_but_not_other_inserts() -> None:
    async def main(bench: Bench) -> None:
        one, two, _ = await trio(bench)
        pending = asyncio.create_task(insert(one, 1, options=SERIAL))
        await started(bench, PATHS.quorum_status)
        for attempt in (Inserter(two.ctx).check(SERIAL), insert_only(two, SERIAL)):
            with pytest.raises(SqlError) as caught:
                await attempt
            assert caught.value.code == Code.UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE
        await insert(two, 5, options=InsertOptions())
        await part_is_here(two.ctx, FIRST)
        await pending
        assert bench.locks() == [] and two.values() == [5] and not two.store.staged

    run(main)


async def insert_only(replica: Replica, options: InsertOptions) -> None:
    await Inserter(replica.ctx).commit([await replica.write(77)], options)


# --- what somebody else has written into its node ---------------------------------------------------------


def test_a_status_that_cannot_be_read_holds_up_serial_quorums_alone_and_is_named() -> None:
    async def main(bench: Bench) -> None:
        one, two, _ = await trio(bench)
        await (await bench.keeper()).create(PATHS.quorum_status, b"garbage")
        with pytest.raises(SqlError, match=r"quorum/status in Keeper cannot be read.*Remove the node"):
            await insert(one, 1, options=SERIAL)
        task = asyncio.create_task(insert(one, 2, options=PARALLEL))
        await started(bench, node_of(PARALLEL))
        await two.fetch(FIRST, one)
        await part_is_here(two.ctx, FIRST)
        assert not (await task)[0].is_duplicate
        await report_held(two.ctx)
        await forget_dropped(two.ctx, FIRST)
        assert await parts_awaiting_quorum(one.ctx, one.ctx.session()) == frozenset()
        assert bench.data(PATHS.quorum_status) == b"garbage"

    run(main)


def test_an_insert_whose_quorum_is_overwritten_does_not_say_that_nothing_was_inserted() -> None:
    async def main(bench: Bench) -> None:
        one, _, _ = await trio(bench)
        task = asyncio.create_task(insert(one, 1, options=SERIAL))
        await started(bench, PATHS.quorum_status)
        await (await bench.keeper()).set(PATHS.quorum_status, b"garbage")
        with pytest.raises(SqlError) as caught:
            await task
        assert caught.value.code == Code.UNKNOWN_STATUS_OF_INSERT and one.values() == [1]

    run(main)


# --- not reaching it --------------------------------------------------------------------------------------


@BOTH
def test_nobody_fetches_it_and_the_outcome_is_319_and_the_row_stays(options: InsertOptions) -> None:
    async def main(bench: Bench) -> None:
        one, _, _ = await trio(bench)
        started_s = bench.env.monotonic_s()
        with pytest.raises(SqlError) as caught:
            await insert(one, 1, options=options)
        assert caught.value.code == Code.UNKNOWN_STATUS_OF_INSERT
        assert "Timeout while waiting for quorum" in caught.value.message
        assert bench.env.monotonic_s() - started_s == pytest.approx(30, abs=1)
        assert one.values() == [1] and bench.has(node_of(options))

    run(main)


@BOTH
def test_a_repeated_insert_waits_for_the_quorum_of_the_first(options: InsertOptions) -> None:
    async def main(bench: Bench) -> None:
        one, two, _ = await trio(bench)
        with pytest.raises(SqlError):
            await insert(one, 1, options=options)
        inserter = Inserter(one.ctx)
        again = asyncio.create_task(
            inserter.commit([await one.write(1)], InsertOptions(quorum=2, quorum_timeout_s=30))
        )
        await bench.env.sleep(10)
        assert not again.done()
        await two.fetch(FIRST, one)
        await part_is_here(two.ctx, FIRST)
        (done,) = await again
        assert done.is_duplicate and done.name == FIRST and one.values() == [1]

    run(main)


def test_a_repeated_insert_with_a_quorum_waits_for_replicas_even_if_the_first_had_none() -> None:
    async def main(bench: Bench) -> None:
        one, two, _ = await trio(bench)
        await insert(one, 1, options=InsertOptions())
        again = asyncio.create_task(insert(one, 1, options=PARALLEL))
        await bench.env.sleep(10)
        assert not again.done()
        await two.fetch(FIRST, one)
        (done,) = await again
        assert done.is_duplicate
        with pytest.raises(SqlError) as caught:
            await insert(one, 1, options=InsertOptions(quorum=3, quorum_timeout_s=5))
        assert caught.value.code == Code.UNKNOWN_STATUS_OF_INSERT

    run(main)


# --- sessions ---------------------------------------------------------------------------------------------


@BOTH
def test_a_session_that_ends_while_waiting_does_not_end_the_insert(options: InsertOptions) -> None:
    async def main(bench: Bench) -> None:
        one, two, _ = await trio(bench)
        task = asyncio.create_task(insert(one, 1, options=options))
        await started(bench, node_of(options))
        await one.expire()
        await two.fetch(FIRST, one)
        await part_is_here(two.ctx, FIRST)
        await bench.env.sleep(5)
        assert not task.done(), "its own part does not count before the replica is active again"
        await one.activate()
        assert not (await task)[0].is_duplicate

    run(main)


def test_a_replica_that_never_comes_back_ends_with_319() -> None:
    async def main(bench: Bench) -> None:
        one, two, _ = await trio(bench)
        task = asyncio.create_task(insert(one, 1, options=PARALLEL))
        await started(bench, node_of(PARALLEL))
        await one.expire()
        await part_is_here(two.ctx, FIRST)
        with pytest.raises(SqlError) as caught:
            await task
        assert caught.value.code == Code.UNKNOWN_STATUS_OF_INSERT and "inactive" in caught.value.message

    run(main)


def test_a_connection_that_hangs_while_waiting_costs_only_time() -> None:
    async def main(bench: Bench) -> None:
        one, two, _ = await trio(bench)
        task = asyncio.create_task(insert(one, 1, options=PARALLEL))
        await started(bench, node_of(PARALLEL))
        bench.server.partition("r1", direction=Direction.BOTH)
        await part_is_here(two.ctx, FIRST)
        await bench.env.sleep(3)
        bench.server.heal("r1")
        await task

    run(main)


# --- giving up --------------------------------------------------------------------------------------------


async def orphan(bench: Bench, options: InsertOptions) -> tuple[Replica, Replica, Replica]:
    """The first replica has inserted with a quorum and is gone before anybody got the part."""
    one, two, three = await trio(bench)
    task = asyncio.create_task(insert(one, 1, options=options))
    await started(bench, node_of(options))
    task.cancel()
    await asyncio.wait([task])
    await one.expire()
    while bench.has(one.ctx.me.is_active):
        await bench.env.sleep(0.5)
    return one, two, three


@BOTH
def test_a_part_that_no_active_replica_has_is_given_up_and_may_be_inserted_again(
    options: InsertOptions,
) -> None:
    async def main(bench: Bench) -> None:
        one, two, three = await orphan(bench, options)
        assert bench.children(PATHS.blocks) != []
        assert await give_up(two.ctx, bench.queued())
        assert await give_up(three.ctx, bench.queued()), "the second finds it done"
        assert await is_failed(two.ctx, FIRST) and not bench.has(node_of(options))
        assert bench.children(PATHS.blocks) == []

        again = asyncio.create_task(insert(two, 1, options=options))
        part = PartName.parse("all_1_1_0")
        await started(bench, node_of(options, part))
        await part_is_here(three.ctx, part)
        assert not (await again)[0].is_duplicate and two.values() == [1]

        await one.activate()
        await forget_failed(one.ctx)
        assert one.values() == [] and "noquorum_all_0_0_0" in one.disk.detached
        assert not bench.has(one.ctx.me.part(FIRST))

    run(main)


@BOTH
def test_nothing_is_given_up_that_an_active_replica_has_or_covers(options: InsertOptions) -> None:
    async def main(bench: Bench) -> None:
        one, two, three = await orphan(bench, options)
        await one.activate()
        assert not await give_up(two.ctx, bench.queued())
        await one.expire()
        keeper = await bench.keeper()
        await keeper.create(three.ctx.me.part(PartName.parse("all_0_4_1")))
        assert not await give_up(two.ctx, bench.queued())
        assert bench.has(node_of(options)) and bench.children(PATHS.blocks) != []

    run(main)


def test_the_replica_that_has_the_part_comes_back_while_it_is_given_up() -> None:
    """Whoever is first wins: either the quorum stands and the part counts, or it is gone everywhere."""
    outcomes: set[bool] = set()
    for seed in range(40):

        async def main(bench: Bench, turns: int = seed) -> None:
            one, two, _ = await orphan(bench, PARALLEL)

            async def come_back() -> None:
                for _ in range(turns):
                    await asyncio.sleep(0)
                await one.activate()
                await forget_failed(one.ctx)  # right after, as a term begins

            activation = asyncio.create_task(come_back())
            gave_up = await give_up(two.ctx, bench.queued())
            await activation
            assert gave_up == bench.has(PATHS.failed_part(FIRST)) == (not bench.has(node_of(PARALLEL)))
            assert one.values() == ([] if gave_up else [1])
            outcomes.add(gave_up)

        run(main, seed=seed)
    assert outcomes == {True, False}


def test_a_part_given_up_is_forgotten_although_the_reply_to_its_removal_was_lost() -> None:
    """Otherwise mutations would wait for the part for ever."""

    async def main(bench: Bench) -> None:
        one, two, _ = await orphan(bench, PARALLEL)
        assert await give_up(two.ctx, bench.queued())
        await one.activate()
        one.ctx.queue.current_parts.add(FIRST)
        one.ctx.queue.add_virtual(FIRST)
        bench.server.lose_next_reply(one.ctx.session().session_id, kind=RequestKind.REMOVE)
        with pytest.raises(ConnectionLoss):
            await forget_failed(one.ctx)
        assert not bench.has(one.ctx.me.part(FIRST))
        assert one.ctx.queue.virtual_parts.get_containing(FIRST) == FIRST

        await forget_failed(one.ctx)
        assert one.ctx.queue.virtual_parts.get_containing(FIRST) is None

    run(main)


async def activate_again(replica: Replica) -> None:
    """As a table does it."""
    await replica.activate()
    await forget_failed(replica.ctx)


@pytest.mark.parametrize("when", ["read-only", "active again", "its reply lost"])
def test_the_insert_that_waits_learns_that_its_quorum_was_given_up(when: str) -> None:
    async def main(bench: Bench) -> None:
        one, two, _ = await trio(bench)
        task = asyncio.create_task(insert(one, 1, options=PARALLEL))
        await started(bench, node_of(PARALLEL))
        if when == "its reply lost":
            # The others believe that the replica is away, and it does not know.
            await two.ctx.session().remove(one.ctx.me.is_active)
            bench.server.lose_next_reply(one.ctx.session().session_id, kind=RequestKind.REMOVE)
        else:
            await one.expire()
            while bench.has(one.ctx.me.is_active):
                await bench.env.sleep(0.1)
        assert await give_up(two.ctx, bench.queued())
        if when == "active again":
            await activate_again(one)
        with pytest.raises(SqlError) as caught:
            await task
        assert caught.value.code == Code.TOO_FEW_LIVE_REPLICAS
        if when == "read-only":
            await activate_again(one)
        assert one.values() == [] and not bench.has(one.ctx.me.part(FIRST))

    run(main)


def test_a_repeated_insert_whose_first_is_given_up_meanwhile_is_stored_itself() -> None:
    async def main(bench: Bench) -> None:
        _, two, three = await orphan(bench, PARALLEL)
        again = asyncio.create_task(insert(two, 1, options=PARALLEL))
        await bench.env.sleep(1)
        assert not again.done()
        assert await give_up(three.ctx, bench.queued(0))
        part = PartName.parse("all_1_1_0")
        await started(bench, node_of(PARALLEL, part))
        await part_is_here(three.ctx, part)
        (done,) = await again
        assert not done.is_duplicate and done.name == part and two.values() == [1]

    run(main)


@BOTH
def test_a_replica_that_fetched_and_crashed_reports_what_it_holds(options: InsertOptions) -> None:
    async def main(bench: Bench) -> None:
        one, two, _ = await trio(bench)
        task = asyncio.create_task(insert(one, 1, options=options))
        await started(bench, node_of(options))
        await two.fetch(FIRST, one)
        await report_held(two.ctx)
        await task

    run(main)


# --- consistent reads -------------------------------------------------------------------------------------


def test_a_consistent_read_needs_all_acknowledged_parts_and_sees_no_others() -> None:
    async def main(bench: Bench) -> None:
        one, two, three = await trio(bench)
        await insert(one, 100, options=InsertOptions())
        assert await max_blocks(one.ctx) == {"all": 0}
        assert await max_blocks(two.ctx) == {}

        task = asyncio.create_task(insert(one, 1, options=SERIAL))
        await started(bench, PATHS.quorum_status)
        assert await max_blocks(one.ctx) == {"all": 0}, "what is not acknowledged is not read"
        part = PartName.parse("all_1_1_0")
        await two.fetch(part, one)
        await part_is_here(two.ctx, part)
        await task
        assert await max_blocks(one.ctx) == {"all": 1} == await max_blocks(two.ctx)
        with pytest.raises(SqlError) as caught:
            await max_blocks(three.ctx)
        assert caught.value.code == Code.REPLICA_IS_NOT_IN_QUORUM

        await insert(one, 101, options=InsertOptions())
        assert await max_blocks(one.ctx) == {"all": 1}, "as in ClickHouse, only up to the last quorum part"
        await one.expire()
        with pytest.raises(SqlError) as caught:
            await max_blocks(one.ctx)
        assert caught.value.code == Code.TABLE_IS_READ_ONLY

    run(main)
