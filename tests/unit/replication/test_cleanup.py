"""What a replica tidies up, and above all what it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from engine.errors import Code, SqlError
from engine.keeper.base import CreateMode, Keeper, Stat
from engine.keeper.session import RequestKind
from engine.replication.commands.insert import Inserter, InsertOptions
from engine.replication.mutation_entry import MutationEntry
from engine.replication.part_name import PartName
from engine.replication.replica import log_puller
from engine.replication.replica.cleanup import turns as cleanup
from engine.replication.replica.cleanup.blocks import BlockCleanup, forget_blocks, removals_of_blocks
from engine.replication.replica.cleanup.log import clean_log
from engine.replication.replica.cleanup.mutations import clean_mutations
from engine.replication.replica.cleanup.parts import clean_parts
from engine.replication.replica.cleanup.turns import Cleanup, next_delay_s
from engine.replication.replica.cleanup.unknown_locks import remove_unknown_locks
from engine.replication.replica.switches import Activity
from engine.replication.settings import ReplicatedSettings
from tests.unit.replication.replica_bench import PATHS, Bench, Replica, run

KEEP_5_TO_20 = ReplicatedSettings(min_replicated_logs_to_keep=5, max_replicated_logs_to_keep=20)
KEEP_NOTHING = ReplicatedSettings(min_replicated_logs_to_keep=0, max_replicated_logs_to_keep=0)


async def append(bench: Bench, count: int) -> None:
    keeper = await bench.keeper()
    for _ in range(count):
        await keeper.create(PATHS.log_prefix, b"", mode=CreateMode.PERSISTENT_SEQUENTIAL)


def first_entry(bench: Bench) -> int:
    return int(bench.children(PATHS.log)[0][-10:])


async def point(bench: Bench, replica: Replica, number: int) -> None:
    await (await bench.keeper()).set(replica.ctx.me.log_pointer, str(number).encode())


async def gone(bench: Bench, replica: Replica) -> None:
    """Its server is away."""
    await replica.holder.close()
    while bench.has(replica.ctx.me.is_active):
        await bench.env.sleep(0.1)


async def pair(bench: Bench, settings: ReplicatedSettings = KEEP_5_TO_20) -> tuple[Replica, Replica]:
    """Two replicas that are not lost."""
    one, two = await bench.replica("r1", settings), await bench.replica("r2", settings)
    await (await bench.keeper()).set(two.ctx.me.is_lost, b"0")
    return one, two


# --- log --------------------------------------------------------------------------------------------------


def test_entries_go_once_all_have_copied_them_but_for_the_last_few() -> None:
    async def main(bench: Bench) -> None:
        one, two = await pair(bench)
        await append(bench, 12)
        await point(bench, one, 12)
        assert await clean_log(one.ctx) == 0, "the other one has copied nothing"
        await point(bench, two, 4)
        assert await clean_log(one.ctx) == 4
        await point(bench, two, 12)
        assert await clean_log(one.ctx) == 3
        assert len(bench.children(PATHS.log)) == 5
        assert await clean_log(one.ctx) == 0

    run(main)


def test_an_active_replica_is_waited_for_however_far_behind_it_is() -> None:
    async def main(bench: Bench) -> None:
        one, two = await pair(bench)
        await append(bench, 100)
        await point(bench, one, 100)
        await point(bench, two, 3)
        assert await clean_log(one.ctx) == 3
        assert bench.data(two.ctx.me.is_lost) == b"0" and first_entry(bench) == 3

    run(main)


def test_a_table_may_keep_nothing_of_its_log() -> None:
    async def main(bench: Bench) -> None:
        one, two = await pair(bench, KEEP_NOTHING)
        assert await clean_log(one.ctx) == 0, "nothing was ever written"
        await append(bench, 3)
        for replica in (one, two):
            await point(bench, replica, 3)
        assert await clean_log(one.ctx) == 3
        assert await clean_log(one.ctx) == 0
        await append(bench, 2)
        for replica, pointer in ((one, 5), (two, 4)):
            await point(bench, replica, pointer)
        await gone(bench, two)
        assert await clean_log(one.ctx) == 2
        assert bench.data(two.ctx.me.is_lost) == b"1" and bench.data(one.ctx.me.is_lost) == b"0"

    run(main)


def test_who_has_copied_all_of_a_log_of_which_nothing_is_kept_is_not_lost() -> None:
    async def main(bench: Bench) -> None:
        one, two = await pair(bench, KEEP_NOTHING)
        await append(bench, 3)
        for replica in (one, two):
            await point(bench, replica, 3)
        await gone(bench, two)
        assert await clean_log(one.ctx) == 3
        assert bench.data(two.ctx.me.is_lost) == b"0"

    run(main)


def test_an_inactive_replica_is_waited_for_within_the_limit_and_then_lost() -> None:
    async def main(bench: Bench) -> None:
        one, two = await pair(bench)
        await append(bench, 19)
        await point(bench, one, 19)
        await point(bench, two, 1)
        await gone(bench, two)
        assert await clean_log(one.ctx) == 1 and bench.data(two.ctx.me.is_lost) == b"0"
        await append(bench, 11)
        await point(bench, one, 30)
        assert await clean_log(one.ctx) == 24
        assert bench.data(two.ctx.me.is_lost) == b"1" and len(bench.children(PATHS.log)) == 5

    run(main)


def test_the_last_replica_that_knows_anything_is_never_lost() -> None:
    async def main(bench: Bench) -> None:
        one, two = await pair(bench)
        cleaner = one.ctx.session()
        await append(bench, 60)
        await gone(bench, two)
        await cleaner.remove(one.ctx.me.is_active)
        for replica in (one, two):
            await point(bench, replica, 1)
        with pytest.raises(SqlError) as caught:
            await clean_log(one.ctx)
        assert caught.value.code == Code.ALL_REPLICAS_LOST
        assert bench.data(two.ctx.me.is_lost) == b"0" and len(bench.children(PATHS.log)) == 60

    run(main)


def test_a_replica_that_is_being_cloned_keeps_the_log_and_what_it_may_clone_from() -> None:
    """r3 recovers: it may take over the pointer of r2, which is away and far behind."""

    async def main(bench: Bench) -> None:
        one, two = await pair(bench)
        three = await bench.replica("r3", KEEP_5_TO_20)
        assert bench.data(three.ctx.me.is_lost) == b"1"
        await append(bench, 60)
        await point(bench, one, 60)
        await point(bench, two, 7)
        await point(bench, three, 50)
        await gone(bench, two)
        await clean_log(one.ctx)
        assert first_entry(bench) == 7

    run(main)


def test_the_pointer_of_a_replica_that_is_being_cloned_is_respected() -> None:
    async def main(bench: Bench) -> None:
        one, two = await pair(bench)
        await (await bench.keeper()).set(two.ctx.me.is_lost, b"1")
        await append(bench, 60)
        await point(bench, one, 60)
        await point(bench, two, 9)
        assert await clean_log(one.ctx) == 9

    run(main)


def test_a_lost_replica_holds_nothing_up() -> None:
    async def main(bench: Bench) -> None:
        one, two = await pair(bench)
        await (await bench.keeper()).set(two.ctx.me.is_lost, b"1")
        await gone(bench, two)
        await append(bench, 30)
        await point(bench, one, 30)
        assert await clean_log(one.ctx) == 25

    run(main)


@pytest.mark.slow
def test_a_replica_that_comes_back_while_it_is_declared_lost_loses_nothing() -> None:
    """Whenever it comes back, it is not lost and all it needs is there, or lost before it was active."""
    outcomes: set[bytes] = set()
    for turns in range(60):

        async def main(bench: Bench, turns: int = turns) -> None:
            one, two = await pair(bench)
            await append(bench, 60)
            await point(bench, one, 60)
            await point(bench, two, 2)
            await two.expire()
            while bench.has(two.ctx.me.is_active):
                await bench.env.sleep(0.1)

            async def come_back() -> bytes:
                for _ in range(turns):
                    await asyncio.sleep(0)
                await two.activate()
                return (await two.ctx.session().get(two.ctx.me.is_lost)).data

            back = asyncio.create_task(come_back())
            try:
                await clean_log(one.ctx)
            except SqlError as error:
                assert error.code == Code.REPLICA_STATUS_CHANGED
            lost = await back
            assert bench.data(two.ctx.me.is_lost) == lost, "an active replica is not declared lost"
            assert lost == b"1" or first_entry(bench) <= 2
            outcomes.add(lost)

        run(main, seed=turns)
    assert outcomes == {b"0", b"1"}


@pytest.mark.parametrize("is_lost", [b"0", b"1"])
def test_a_replica_that_comes_back_before_anything_is_removed_stops_the_cleaning(is_lost: bytes) -> None:
    """One that is about to be declared lost, and one that is lost and begins to clone."""

    async def main(bench: Bench) -> None:
        one, two = await pair(bench)
        await (await bench.keeper()).set(two.ctx.me.is_lost, is_lost)
        await append(bench, 60)
        await point(bench, one, 60)
        await two.expire()
        while bench.has(two.ctx.me.is_active):
            await bench.env.sleep(0.1)
        before_multi(one.ctx.session(), two.activate)
        with pytest.raises(SqlError) as caught:
            await clean_log(one.ctx)
        assert caught.value.code == Code.REPLICA_STATUS_CHANGED
        assert bench.data(two.ctx.me.is_lost) == is_lost and first_entry(bench) == 0

    run(main)


def test_a_replica_that_joins_while_the_log_is_cleaned_stops_the_cleaning() -> None:
    async def main(bench: Bench) -> None:
        one, _ = await pair(bench)
        await append(bench, 30)
        await point(bench, one, 30)
        await point(bench, bench.replicas["r2"], 30)
        before_multi(one.ctx.session(), lambda: bench.replica("r3", KEEP_5_TO_20))
        with pytest.raises(SqlError) as caught:
            await clean_log(one.ctx)
        assert caught.value.code == Code.REPLICA_STATUS_CHANGED
        assert len(bench.children(PATHS.log)) == 30

    run(main)


def test_replicas_that_clean_at_the_same_time_do_not_disturb_each_other() -> None:
    async def main(bench: Bench) -> None:
        one, two = await pair(bench)
        await append(bench, 230)
        await point(bench, one, 230)
        await point(bench, two, 230)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(clean_log(each.ctx)) for each in (one, two)]
        assert sum(task.result() for task in tasks) <= 225
        while await clean_log(one.ctx):
            pass
        assert len(bench.children(PATHS.log)) == 5

    run(main)


# --- blocks -----------------------------------------------------------------------------------------------


async def insert(replica: Replica, *values: int, partition: str = "all") -> list[bool]:
    parts = [await replica.write(value, partition) for value in values]
    return [each.is_duplicate for each in await Inserter(replica.ctx).commit(parts, InsertOptions())]


def test_a_block_is_known_within_both_windows_and_new_outside_of_one() -> None:
    async def main(bench: Bench) -> None:
        settings = ReplicatedSettings(
            replicated_deduplication_window=3, replicated_deduplication_window_seconds=100
        )
        replica = await bench.replica("r1", settings)
        blocks = BlockCleanup(replica.ctx)
        for value in range(5):
            await insert(replica, value)
            await bench.env.sleep(1)
        assert await blocks.run_once() == 2, "more than three"
        assert await insert(replica, 2, 3, 4) == [True, True, True]
        assert await insert(replica, 0) == [False]
        await bench.env.sleep(200)
        assert await blocks.run_once() == 1
        assert await blocks.run_once() == 0, "nobody inserts, so nothing ages"
        assert await insert(replica, 0) == [True]
        await insert(replica, 9)
        assert await blocks.run_once() == 3, "older than 100 s before the newest"
        assert await insert(replica, 0, 9) == [False, True]

    run(main)


def test_a_block_that_was_dropped_and_inserted_anew_between_two_rounds_is_as_young_as_it_is() -> None:
    async def main(bench: Bench) -> None:
        settings = ReplicatedSettings(replicated_deduplication_window_seconds=100)
        replica = await bench.replica("r1", settings)
        blocks = BlockCleanup(replica.ctx)
        keeper = await bench.keeper()
        await insert(replica, 0)
        assert await blocks.run_once() == 0
        await bench.env.sleep(99)
        await forget_blocks(keeper, replica.ctx.paths, PartName.parse("all_0_0_999999999"))
        assert await insert(replica, 0) == [False]
        await bench.env.sleep(2)
        await insert(replica, 1)
        assert await blocks.run_once() == 0
        assert await insert(replica, 0) == [True]
        await bench.env.sleep(100)
        await insert(replica, 2)
        assert await blocks.run_once() == 1

    run(main)


def test_blocks_go_also_where_another_cleans_or_a_very_old_server_has_left_something_below() -> None:
    async def main(bench: Bench) -> None:
        settings = ReplicatedSettings(replicated_deduplication_window=1)
        one, two = await pair(bench, settings)
        for value in range(4):
            await insert(one, value)
            await bench.env.sleep(1)
        keeper = await bench.keeper()
        nodes = bench.server.tree.nodes
        ids = bench.children(PATHS.blocks)
        by_age = sorted(ids, key=lambda name: nodes[f"{PATHS.blocks}/{name}"].stat().czxid)
        await keeper.create(f"{PATHS.blocks}/{by_age[0]}/checksums")
        await asyncio.gather(BlockCleanup(one.ctx).run_once(), BlockCleanup(two.ctx).run_once())
        assert bench.children(PATHS.blocks) == [by_age[-1]]

    run(main)


def test_a_wrong_clock_of_the_node_removes_no_block() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica("r1")
        await insert(replica, 1)
        bench.env.jump_clock(3 * 3600)
        assert await BlockCleanup(replica.ctx).run_once() == 0
        assert await insert(replica, 1) == [True]

    run(main)


def test_blocks_in_the_directories_of_other_servers_age_too() -> None:
    async def main(bench: Bench) -> None:
        settings = ReplicatedSettings(
            replicated_deduplication_window=1, replicated_deduplication_window_for_async_inserts=2
        )
        replica = await bench.replica("r1", settings)
        keeper = await bench.keeper()
        for directory in (PATHS.async_blocks, PATHS.deduplication_hashes):
            for number in range(3):
                await keeper.create(f"{directory}/all_{number}_{number}", b"all_0_0_0")
        assert await BlockCleanup(replica.ctx).run_once() == 3
        assert bench.children(PATHS.async_blocks) == ["all_1_1", "all_2_2"]
        assert bench.children(PATHS.deduplication_hashes) == ["all_2_2"]

    run(main)


def test_blocks_of_asynchronous_inserts_are_kept_for_a_week() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica("r1")
        keeper = await bench.keeper()
        directories = (PATHS.blocks, PATHS.async_blocks, PATHS.deduplication_hashes)
        for number, pause_s in enumerate((2 * 3600, 7 * 86_400 - 3600, 0)):
            for directory in directories:
                await keeper.create(f"{directory}/all_{number}_{number}", b"all_0_0_0")
            await bench.env.sleep(pause_s)
        await BlockCleanup(replica.ctx).run_once()
        kept = [bench.children(directory) for directory in directories]
        assert kept == [["all_2_2"], ["all_1_1", "all_2_2"], ["all_2_2"]]

    run(main)


def test_blocks_of_dropped_parts_are_forgotten_and_others_are_not() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica("r1")
        await insert(replica, 0, 1, 2, partition="a")
        await insert(replica, 0, partition="b")
        keeper = await bench.keeper()
        dropped = PartName.parse("a_0_1_999999999_999999999")
        ops = await removals_of_blocks(keeper, PATHS, dropped)
        assert sorted(bench.data(op.path) for op in ops) == [b"a_0_0_0", b"a_1_1_0"]
        assert await forget_blocks(keeper, PATHS, dropped) == 2
        assert await forget_blocks(keeper, PATHS, dropped) == 0
        assert await insert(replica, 0, 1, 2, partition="a") == [False, False, True]
        assert await insert(replica, 0, partition="b") == [True]

    run(main)


# --- mutations --------------------------------------------------------------------------------------------


def test_mutations_that_all_replicas_have_done_go_but_for_the_last_few() -> None:
    async def main(bench: Bench) -> None:
        settings = ReplicatedSettings(finished_mutations_to_keep=2)
        one, two = await pair(bench, settings)
        keeper = await bench.keeper()
        for _ in range(6):
            await keeper.create(PATHS.mutation_prefix, b"", mode=CreateMode.PERSISTENT_SEQUENTIAL)
        await keeper.set(one.ctx.me.mutation_pointer, b"0000000005")
        assert await clean_mutations(one.ctx) == 0, "the other has finished none"
        await keeper.set(two.ctx.me.mutation_pointer, b"0000000003")
        assert await clean_mutations(one.ctx) == 2
        assert bench.children(PATHS.mutations) == [f"{number:010}" for number in range(2, 6)]
        before_multi(one.ctx.session(), lambda: bench.replica("r3"))
        await keeper.set(two.ctx.me.mutation_pointer, b"0000000005")
        assert await clean_mutations(one.ctx) == 0, "a replica was added"

    run(main)


def test_whoever_sees_a_mutation_first_tells_all() -> None:
    """The watch on `mutations/` told them only of what nobody had seen before it."""

    async def main(bench: Bench) -> None:
        ctx = (await bench.replica("r1")).ctx
        ctx.merge_wanted.set()
        await ctx.merge_wanted.wait()
        news = ctx.mutation_news.upcoming()
        entry = MutationEntry("2026-01-01 00:00:00", "r1", (("all", 7),), "DELETE WHERE k = 1")
        await (await bench.keeper()).create(PATHS.mutation(0), entry.to_bytes())
        await log_puller.pull(ctx)
        async with asyncio.timeout(1):
            await news.wait()
            await ctx.merge_wanted.wait()
        assert list(ctx.queue.mutations) == [0]

    run(main)


# --- parts and locks --------------------------------------------------------------------------------------


def test_only_nodes_of_parts_that_an_active_one_covers_go() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica("r1")
        await insert(replica, 0, 1, 2)
        keeper = await bench.keeper()
        merged = PartName.parse("all_0_1_1")
        await keeper.create(replica.ctx.me.part(merged))
        assert await clean_parts(replica.ctx) == 0, "the covering part is not here"
        covered = [PartName.parse(f"all_{number}_{number}_0") for number in (0, 1)]
        await replica.store.stage_empty(merged)
        await replica.store.publish([merged], covered)
        async with replica.ctx.in_flight.hold(covered[0]):
            assert await clean_parts(replica.ctx) == 1
        assert await clean_parts(replica.ctx) == 1
        assert bench.children(replica.ctx.me.parts) == ["all_0_1_1", "all_2_2_0"]

    run(main)


def test_a_lock_that_nobody_knows_of_goes_and_known_ones_and_others_stay() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica("r1")
        await insert(replica, 0)
        keeper = replica.ctx.session()
        prefix = PATHS.block_number_prefix("all")
        lost = await keeper.create(prefix, mode=CreateMode.EPHEMERAL_SEQUENTIAL)
        other = await bench.keeper("other")
        theirs = await other.create(prefix, mode=CreateMode.EPHEMERAL_SEQUENTIAL)
        known = await keeper.create(prefix, mode=CreateMode.EPHEMERAL_SEQUENTIAL)
        replica.ctx.block_locks.held.add(known)
        await remove_unknown_locks(replica.ctx, keeper)
        assert bench.has(lost), "nobody has said that there may be one"
        replica.ctx.block_locks.doubtful.add("all")
        await remove_unknown_locks(replica.ctx, keeper)
        assert [bench.has(path) for path in (lost, theirs, known)] == [False, True, True]

    run(main)


def test_a_reply_that_is_lost_while_another_doubt_is_settled_is_not_forgotten() -> None:
    """1. The locks are listed. 2. A request for a number makes a lock, and its reply is lost. 3. What was
    listed is settled; the new lock is not among that. 4. The next look finds it."""

    async def main(bench: Bench) -> None:
        replica = await bench.replica("r1")
        await insert(replica, 0)
        keeper, locks = replica.ctx.session(), replica.ctx.block_locks
        look, lost = keeper.exists_many, list[str]()

        async def look_later(paths: Sequence[str]) -> Sequence[Stat | None]:
            if not lost:
                prefix = PATHS.block_number_prefix("all")
                lost.append(await keeper.create(prefix, mode=CreateMode.EPHEMERAL_SEQUENTIAL))
                locks.doubtful.add("all")
            return await look(paths)

        keeper.exists_many = look_later  # type: ignore[method-assign]
        locks.doubtful.add("all")
        await remove_unknown_locks(replica.ctx, keeper)
        assert bench.has(lost[0])
        await remove_unknown_locks(replica.ctx, keeper)
        assert not bench.has(lost[0])
        assert not locks.doubtful

    run(main)


# --- turns ------------------------------------------------------------------------------------------------


def test_the_loop_cleans_by_itself_survives_lost_connections_and_can_be_stopped() -> None:
    async def main(bench: Bench) -> None:
        one, two = await pair(bench)
        loop = asyncio.create_task(cleanup.run(one.ctx))
        await append(bench, 30)
        for replica in (one, two):
            await point(bench, replica, 30)
        one.ctx.switches.stop(Activity.CLEANUP)
        await bench.env.sleep(120)
        assert len(bench.children(PATHS.log)) == 30
        one.ctx.switches.start(Activity.CLEANUP)
        bench.server.lose_next_request(one.session_id, kind=RequestKind.CHILDREN)
        await bench.env.sleep(120)
        assert len(bench.children(PATHS.log)) == 5
        loop.cancel()

    run(main)


def test_a_table_of_which_nothing_is_to_be_removed_is_looked_at_seldom_until_much_has_happened() -> None:
    async def main(bench: Bench) -> None:
        one, two = await pair(bench)
        settings = one.ctx.settings
        loop = asyncio.create_task(cleanup.run(one.ctx))
        await bench.env.sleep(settings.cleanup_delay_period + settings.cleanup_delay_period_random_add)
        await append(bench, 30)
        for replica in (one, two):
            await point(bench, replica, 30)
        await bench.env.sleep(settings.max_cleanup_delay_period - 45)
        assert len(bench.children(PATHS.log)) == 30
        await bench.env.sleep(60)
        assert len(bench.children(PATHS.log)) == 5
        await bench.env.sleep(settings.cleanup_delay_period)
        await append(bench, 300)
        for replica in (one, two):
            await point(bench, replica, 330)
        one.ctx.log_pointer = 330
        await bench.env.sleep(settings.cleanup_delay_period + settings.cleanup_delay_period_random_add)
        assert len(bench.children(PATHS.log)) == 5
        loop.cancel()

    run(main)


def test_the_delay_of_the_next_round_follows_from_what_was_removed() -> None:
    settings = ReplicatedSettings()
    assert next_delay_s(30, 0, settings) == 300
    assert next_delay_s(300, 150, settings) == 300
    assert next_delay_s(300, 600, settings) == 75
    assert next_delay_s(60, 600, settings) == 30
    assert next_delay_s(60, 100, settings) == 90
    every = ReplicatedSettings(cleanup_thread_preferred_points_per_iteration=0)
    assert next_delay_s(60, 0, every) == 30


def test_a_replica_that_may_not_lead_cleans_only_its_own() -> None:
    async def main(bench: Bench) -> None:
        one, two = await pair(bench)
        await append(bench, 30)
        for replica in (one, two):
            await point(bench, replica, 30)
        one.ctx.is_leader = False
        await Cleanup(one.ctx).run_once()
        assert len(bench.children(PATHS.log)) == 30
        one.ctx.is_leader = True
        await Cleanup(one.ctx).run_once()
        assert len(bench.children(PATHS.log)) == 5

    run(main)


def test_one_kind_that_cannot_be_cleaned_does_not_stop_the_others() -> None:
    async def main(bench: Bench) -> None:
        settings = ReplicatedSettings(
            min_replicated_logs_to_keep=5, max_replicated_logs_to_keep=20, replicated_deduplication_window=1
        )
        one, two = await pair(bench, settings)
        await insert(one, 1, 2, 3)
        await append(bench, 60)
        await gone(bench, two)
        await one.ctx.session().remove(one.ctx.me.is_active)  # so that all would be lost
        await Cleanup(one.ctx).run_once()
        assert len(bench.children(PATHS.log)) == 63 and len(bench.children(PATHS.blocks)) == 1

    run(main)


def test_one_kind_about_which_keeper_refuses_does_not_stop_the_others() -> None:
    async def main(bench: Bench) -> None:
        settings = ReplicatedSettings(min_replicated_logs_to_keep=5, replicated_deduplication_window=1)
        one, two = await pair(bench, settings)
        await insert(one, 1, 2, 3)
        await append(bench, 60)
        for replica in (one, two):
            await point(bench, replica, 63)
        keeper = await bench.keeper()
        await keeper.create(f"{PATHS.log}/{bench.children(PATHS.log)[0]}/something")  # somebody's hand
        await Cleanup(one.ctx).run_once()
        assert len(bench.children(PATHS.log)) == 63 and len(bench.children(PATHS.blocks)) == 1

    run(main)


def before_multi(keeper: Keeper, action) -> None:  # type: ignore[no-untyped-def]
    """Something happens once, right before the session's next multi."""
    plain = keeper.multi

    async def multi(ops):  # type: ignore[no-untyped-def]
        keeper.multi = plain  # type: ignore[method-assign]
        await action()
        return await plain(ops)

    keeper.multi = multi  # type: ignore[method-assign]
