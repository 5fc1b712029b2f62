"""Tables that Keeper has lost: made anew from what the replicas have."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from engine.errors import BadArguments, Code, SessionExpired, SqlError
from engine.keeper.base import Op, OpResult
from engine.keeper.recipes import create_ancestors, remove_recursive
from engine.replication.commands import partitions
from engine.replication.commands.create import Created, create_replica
from engine.replication.commands.drop import drop_replica
from engine.replication.commands.insert import Inserter, InsertOptions
from engine.replication.commands.partitions import RangeFate, Sync
from engine.replication.commands.restore import (
    Structure,
    attach_restored,
    give_up_restoring,
    is_founder,
    restore_replica,
)
from engine.replication.part_name import PartName
from engine.replication.part_store import NewPart, Part
from engine.replication.replica.switches import Activity
from engine.replication.settings import ReplicatedSettings
from engine.testing.replication.disk import Damage, model_definition
from tests.unit.replication.create_support import fail_after
from tests.unit.replication.live_support import Live, LiveReplica, check_equal, staged
from tests.unit.replication.live_support import run as run_live
from tests.unit.replication.replica_bench import PATHS, Bench, Replica, new_replica, run


async def lose_keepers_data(bench: Bench, *replicas: Replica) -> None:
    """The table is gone from Keeper; the replicas are read-only, as after a failed activation."""
    keeper = await bench.keeper()
    for replica in replicas:
        await replica.expire()
        await drop_replica(keeper, PATHS, replica.ctx.me)
    assert not bench.has(PATHS.root)


def test_a_table_that_keeper_has_lost_is_made_anew_with_all_rows() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica("r1")
        for value in range(4):
            await Inserter(replica.ctx).commit([await replica.write(value)], InsertOptions())
        await lose_keepers_data(bench, replica)
        made = await restore_replica(
            replica.ctx, await replica.holder.get(), new_replica(1), model_definition()
        )
        assert made is Created.TABLE and replica.values() == []
        await replica.activate()
        assert await attach_restored(replica.ctx) == 4
        assert replica.values() == [0, 1, 2, 3] and not replica.disk.detached
        assert await attach_restored(replica.ctx) == 0
        assert len(bench.log()) == 4

    run(main)


def test_a_restore_that_crashes_anywhere_is_finished_without_doubling_rows() -> None:
    for requests in range(1, 60, 2):

        async def main(bench: Bench, requests: int = requests) -> None:
            replica = await bench.replica("r1")
            for value in range(3):
                await Inserter(replica.ctx).commit([await replica.write(value)], InsertOptions())
            await lose_keepers_data(bench, replica)
            fail_after(await replica.holder.get(), requests)
            for _ in range(2):
                try:
                    await restore_replica(
                        replica.ctx, await replica.holder.get(), new_replica(1), model_definition()
                    )
                    await replica.activate()
                    await replica.settle_staged()
                    await asyncio.wait_for(attach_restored(replica.ctx), 5)
                    break
                except (SessionExpired, TimeoutError):
                    await (await replica.holder.get()).close()  # the crash
                    replica.ctx.keeper = None
            else:
                raise AssertionError("not restored")
            assert replica.values() == [0, 1, 2] and bench.locks() == []

        run(main)


def test_only_a_read_only_replica_that_keeper_does_not_know_is_restored() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica("r1")
        with pytest.raises(SqlError) as caught:
            await restore_replica(replica.ctx, await replica.holder.get(), new_replica(1), model_definition())
        assert caught.value.code == Code.BAD_ARGUMENTS
        await replica.expire()
        with pytest.raises(SqlError) as caught:
            await restore_replica(replica.ctx, await replica.holder.get(), new_replica(1), model_definition())
        assert caught.value.code == Code.BAD_ARGUMENTS

    run(main)


def test_a_table_removed_by_hand_under_living_replicas_can_be_restored() -> None:
    """Who assigns merges makes `leader_election` anew when it is empty, in the middle of the removal."""

    async def main(live: Live) -> None:
        replica = await live.replica(settings=ReplicatedSettings())
        await replica.insert(1)
        keeper = await live.keeper()
        mark = f"{PATHS.leader_election}/leader_election-0"
        await keeper.remove(mark)
        await live.env.sleep(60)
        assert live.has(mark), "somebody has to lead"
        await remove_recursive(keeper, PATHS.root, keep_child="leader_election")
        await keeper.create(mark, b"all")
        await create_ancestors(keeper, f"{PATHS.partition_block_numbers('all')}/x")  # by an INSERT
        await live.env.sleep(60)
        assert live.children(PATHS.root) == ["block_numbers", "leader_election"]
        await replica.table.stop()
        made = await restore_replica(
            replica.ctx, await replica.ctx.holder.get(), new_replica(1), model_definition()
        )
        assert made is Created.TABLE

    run_live(main)


@pytest.mark.parametrize("other", ["more", "log/replicas/r1", "blocks/metadata/replicas"])
def test_what_is_no_leftover_of_a_table_stays(other: str) -> None:
    async def main(bench: Bench) -> None:
        keeper = await bench.keeper()
        await create_ancestors(keeper, f"{PATHS.leader_election}/x")
        await create_ancestors(keeper, f"{PATHS.root}/{other}/x")
        with pytest.raises(SqlError, match="no replicated table"):
            await create_replica(keeper, PATHS, PATHS.replica("r1"), new_replica(1), model_definition())
        assert bench.has(f"{PATHS.root}/{other}") and bench.has(PATHS.leader_election)

    run(main)


def test_two_that_find_leftovers_of_a_table_make_one_table() -> None:
    async def main(bench: Bench) -> None:
        keeper = await bench.keeper()
        await create_ancestors(keeper, f"{PATHS.leader_election}/x")
        await keeper.create(f"{PATHS.leader_election}/leader_election-0", b"all")
        sessions = [await bench.keeper() for _ in range(4)]
        made = await asyncio.gather(
            *(
                create_replica(session, PATHS, PATHS.replica(f"r{n}"), new_replica(n), model_definition())
                for n, session in enumerate(sessions, 1)
            )
        )
        assert sorted(each.value for each in made) == ["replica", "replica", "replica", "table"]

    run(main)


def test_readers_keep_their_rows_where_something_else_is_in_the_tables_place() -> None:
    """1. Keeper has lost half of the table. 2. A restore is refused. 3. The rest is removed by hand."""

    async def main(bench: Bench) -> None:
        replica = await bench.replica("r1")
        await Inserter(replica.ctx).commit([await replica.write(1)], InsertOptions())
        await lose_keepers_data(bench, replica)
        keeper = await bench.keeper()
        await create_ancestors(keeper, f"{PATHS.root}/log/log-0000000000")
        for _ in range(2):
            with pytest.raises(SqlError) as caught:
                await restore_replica(replica.ctx, keeper, new_replica(1), model_definition())
            assert caught.value.code == Code.REPLICA_ALREADY_EXISTS
            assert replica.values() == [1] and not replica.disk.detached
        await remove_recursive(keeper, PATHS.root)
        await restore_replica(replica.ctx, await replica.holder.get(), new_replica(1), model_definition())
        await replica.activate()
        assert await attach_restored(replica.ctx) == 1
        assert replica.values() == [1]

    run(main)


@pytest.mark.parametrize("structure", list(Structure))
def test_readers_keep_their_rows_where_a_table_of_another_structure_is_in_their_place(
    structure: Structure,
) -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica("r1")
        await Inserter(replica.ctx).commit([await replica.write(1)], InsertOptions())
        await lose_keepers_data(bench, replica)
        keeper = await bench.keeper()
        other = model_definition(partition_key="k")
        new = replace(new_replica(2), metadata=other.metadata.to_bytes())
        await create_replica(keeper, PATHS, PATHS.replica("r2"), new, other)
        with pytest.raises(SqlError) as caught:
            await restore_replica(
                replica.ctx, keeper, new_replica(1), model_definition(), structure=structure
            )
        assert caught.value.code == Code.METADATA_MISMATCH
        assert replica.values() == [1] and not replica.disk.detached

    run(main)


def test_a_replica_that_joins_a_restored_table_keeps_its_parts_for_the_clone() -> None:
    async def main(bench: Bench) -> None:
        one, two = await bench.replica("r1"), await bench.replica("r2")
        (done,) = await Inserter(one.ctx).commit([await one.write(1)], InsertOptions())
        await two.fetch(done.name, one)
        await lose_keepers_data(bench, one, two)
        await restore_replica(one.ctx, await one.holder.get(), new_replica(1), model_definition())
        assert (
            await restore_replica(two.ctx, await two.holder.get(), new_replica(2), model_definition())
            is Created.REPLICA
        )
        await two.activate()
        assert not await is_founder(two.ctx, two.ctx.session())
        assert await attach_restored(two.ctx) == 0
        await give_up_restoring(two.ctx, two.ctx.session())
        assert list(two.disk.detached) == ["all_0_0_0"]

    run(main)


def test_what_a_killed_attach_has_attached_is_not_there_to_be_attached_again_behind_a_restore() -> None:
    """1. A part is attached, and its directory is still there when the node is killed. 2. Keeper loses the
    table before the node starts again. 3. It is restored."""

    async def main(live: Live) -> None:
        (one,) = await live.cluster(1)
        await one.insert(1)
        await partitions.drop_partition(one.ctx, "all", fate=RangeFate.DETACH)
        detached = dict(one.disk.detached)
        (name,) = await partitions.attach_partition(one.ctx, "all")
        await one.stop()
        one.disk.detached |= detached
        one.disk.attaching |= dict.fromkeys(detached, name)
        live.lose_table(PATHS)
        one.begin()
        await one.table.start()
        await one.table.restore(UUID(int=7))
        assert await one.table.wait_until_active(timeout_s=60)
        await attach_restored(one.ctx)
        assert await partitions.attach_partition(one.ctx, "all") == []
        assert one.keys() == [1]

    run_live(main)


def test_a_part_that_only_the_lost_replica_has_and_never_showed_is_found_by_its_entry() -> None:
    """1. REPLACE PARTITION is in the log, and its node ends before it shows the part. 2. Keeper loses the
    replica, and the other table goes. 3. The replica is restored."""

    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        await one.insert(1)
        await live.quiet()
        await live.plain_table("source", ("all", [{"k": 10, "v": 0}]))
        for replica in (one, two):
            replica.ctx.switches.stop(Activity.QUEUES)
        await partitions.replace_partition(two.ctx, "all", "d", "source", sync=Sync.NONE)
        assert two.keys() == [1] and len(staged(two)) == 1
        live.others.clear()
        await two.stop()
        await remove_recursive(await live.keeper(), two.ctx.me.root)
        two.begin()
        await two.table.start()
        await two.table.restore(UUID(int=7))
        await two.start()
        one.ctx.switches.start(Activity.QUEUES)
        one.ctx.queue_changed.set()
        await live.quiet()
        check_equal(one, two)
        assert two.keys() == [10]

    run_live(main)


def test_a_part_that_is_about_to_be_shown_is_put_aside_with_the_others() -> None:
    """1. An INSERT is in the log, and shows its part late. 2. Keeper loses the table. 3. It is restored."""

    async def main(live: Live) -> None:
        (one,) = await live.cluster(1)
        publish, shown = one.store.publish, asyncio.Event()

        async def late(add: Sequence[PartName], remove: Sequence[PartName] = ()) -> None:
            await shown.wait()
            await publish(add, remove)

        one.store.publish = late  # type: ignore[method-assign]
        inserting = asyncio.create_task(one.insert(1))
        async with asyncio.timeout(60):
            while not live.children(one.ctx.me.parts):
                await live.env.sleep(0.01)
        live.lose_table(PATHS)
        async with asyncio.timeout(60):
            while not one.ctx.is_readonly:
                await live.env.sleep(0.01)
        restoring = asyncio.create_task(one.table.restore(UUID(int=7)))
        await live.env.sleep(5)
        shown.set()
        await inserting
        await restoring
        assert one.keys() == [] and len(one.disk.detached) == 1
        assert await one.table.wait_until_active(timeout_s=60)
        await attach_restored(one.ctx)
        await live.quiet()
        check_equal(one)
        assert one.keys() == [1] and one.parts() == ["all_0_0_0"]

    run_live(main)


def test_an_insert_whose_part_was_put_aside_takes_none_that_has_its_name_in_the_new_table() -> None:
    """1. An INSERT's number is taken away; it is to give its part another. 2. Keeper loses the table, which
    is restored: the part is put aside. 3. Another INSERT stages a part, which gets that name."""

    async def main(live: Live) -> None:
        (one,) = await live.cluster(1)
        await one.insert(1)
        await partitions.drop_partition(one.ctx, "all")
        stage, rename, keep = one.store.stage_inserted, one.store.rename_staged, one.ctx.in_flight.keep
        is_staged, is_settled, is_next = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def stage_and_lose_the_number(new: NewPart, name: PartName) -> Part:
            part = await stage(new, name)
            keeper = await live.keeper()
            for number in live.children(PATHS.partition_block_numbers("all")):
                await keeper.remove(f"{PATHS.partition_block_numbers('all')}/{number}")
            return part

        def keep_and_lose_the_table(part: PartName, owner: object) -> None:
            keep(part, owner)
            live.lose_table(PATHS)

        async def stage_and_wait(new: NewPart, name: PartName) -> Part:
            part = await stage(new, name)
            is_staged.set()
            await is_settled.wait()
            return part

        async def rename_late(before: PartName, after: PartName) -> Part:
            is_next.set()
            await is_staged.wait()
            return await rename(before, after)

        one.store.stage_inserted = stage_and_lose_the_number  # type: ignore[method-assign]
        one.store.rename_staged = rename_late  # type: ignore[method-assign]
        one.ctx.in_flight.keep = keep_and_lose_the_table  # type: ignore[method-assign]
        first = asyncio.create_task(one.insert(2))
        async with asyncio.timeout(60):
            while not one.ctx.is_readonly:
                await live.env.sleep(0.01)
        await one.table.restore(UUID(int=7))
        assert [each.directory for each in one.disk.list_detached()] == ["ignored_all_2_2_0"]
        one.store.stage_inserted = stage  # type: ignore[method-assign]
        assert await one.table.wait_until_active(timeout_s=60)
        async with asyncio.timeout(60):
            while not (is_next.is_set() or first.done()):
                await live.env.sleep(0.01)
        assert await one.insert(3) == "all_1_1_0"
        one.store.stage_inserted = stage_and_wait  # type: ignore[method-assign]
        second = asyncio.create_task(one.insert(4))
        await is_staged.wait()
        await asyncio.wait([first])
        is_settled.set()
        assert await second == "all_2_2_0"
        with pytest.raises(SqlError, match="put aside"):
            await first
        await live.quiet()
        check_equal(one)
        assert one.keys() == [3, 4]

    run_live(main)


# -- the replica is in Keeper again as it was, and RESTORE had begun ----------------------------------------


async def begin_to_restore(live: Live, replica: LiveReplica) -> None:
    """1. The node is started with another, empty Keeper. 2. RESTORE puts the parts aside, and Keeper fails.
    3. It is started with its own Keeper again."""
    await replica.stop()
    live.with_another_keeper(replica)
    await replica.table.start()
    keeper = await replica.holder.get()

    async def full(ops: Sequence[Op]) -> list[OpResult]:
        raise BadArguments(ops[0].path, "full")

    keeper.multi = full  # type: ignore[method-assign]
    with pytest.raises(BadArguments):
        await replica.table.restore(UUID(int=7))
    assert len(replica.disk.detached) == 3 and not replica.disk.active
    await replica.table.stop()
    live.with_its_keeper(replica)


def test_what_a_restore_has_put_aside_is_in_its_place_again_when_keeper_has_the_replica_as_before() -> None:
    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        for value in range(3):
            await one.insert(value)
        await live.quiet()
        for replica in (one, two):  # the one that made the table, and one that did not
            await begin_to_restore(live, replica)
            live.network.fetches.clear()
            await replica.start()
            await live.quiet()
            check_equal(one, two)
            assert replica.keys() == [0, 1, 2] and not replica.disk.detached
            assert live.network.fetches == []

    run_live(main)


def test_a_restore_killed_between_copies_and_removal_leaves_nothing_when_keeper_has_the_replica() -> None:
    async def main(live: Live) -> None:
        (one,) = await live.cluster(1)
        await one.insert(1)
        await one.stop()
        (name,) = one.disk.active
        one.disk.detached[f"restoring_{name}"] = one.disk.active[name]
        one.begin()
        await one.start()
        await live.quiet()
        check_equal(one)
        assert one.keys() == [1] and not one.disk.detached

    run_live(main)


@pytest.mark.parametrize("damage", [None, Damage.BIT_FLIP], ids=["another part", "a damaged part"])
def test_what_is_not_the_part_that_keeper_knows_is_fetched_and_stays_aside(damage: Damage | None) -> None:
    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        for value in range(3):
            await one.insert(value)
        await live.quiet()
        await begin_to_restore(live, one)
        aside = one.disk.detached
        if damage is None:
            aside["restoring_all_0_0_0"] = aside["restoring_all_1_1_0"]
        else:
            aside["restoring_all_0_0_0"] = aside["restoring_all_0_0_0"].damaged(damage, 3)
        await one.start()
        await live.quiet()
        check_equal(one, two)
        assert one.keys() == [0, 1, 2] and list(one.disk.detached) == ["all_0_0_0"]

    run_live(main)


def test_a_damaged_part_is_put_aside_as_broken_and_the_restore_is_over() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica("r1")
        for value in range(2):
            await Inserter(replica.ctx).commit([await replica.write(value)], InsertOptions())
        await lose_keepers_data(bench, replica)
        await restore_replica(replica.ctx, await replica.holder.get(), new_replica(1), model_definition())
        aside = replica.disk.detached
        aside["restoring_all_0_0_0"] = aside["restoring_all_0_0_0"].damaged(Damage.BIT_FLIP, 3)
        await replica.activate()
        assert bench.has(replica.ctx.me.restoring)
        assert await attach_restored(replica.ctx) == 1
        assert replica.values() == [1] and list(aside) == ["broken_all_0_0_0"]
        assert not bench.has(replica.ctx.me.restoring)

    run(main)
