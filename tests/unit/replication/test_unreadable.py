"""What somebody else has written into znodes of a table: it is named, and stops nobody who can go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from engine.errors import Code, MalformedEntry, SqlError
from engine.keeper.base import CreateMode
from engine.node.replicated.parts.parts_view import mutation_rows
from engine.replication.commands.consistent_read import max_blocks
from engine.replication.commands.insert import InsertOptions
from engine.replication.commands.mutate import create_mutation, kill_mutation, wait_for_mutation
from engine.replication.commands.optimize import Extent, OptimizeOptions, optimize
from engine.replication.commands.waiting import Sync
from engine.replication.quorum import LastQuorumParts
from engine.replication.replica.cleanup.log import clean_log
from engine.replication.replica.switches import Activity
from engine.replication.settings import ReplicatedSettings
from tests.unit.replication.live_support import PATHS, Live, LiveReplica, P, check_equal, run

FEW_ENTRIES = ReplicatedSettings(
    max_bytes_to_merge_at_max_space_in_pool=1, min_replicated_logs_to_keep=0, max_replicated_logs_to_keep=1
)
GARBAGE = b"garbage\xff"


async def until(live: Live, is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(600):
        while not is_so():
            await live.env.sleep(0.5)


def test_a_log_pointer_that_is_no_number_stops_its_own_replica_alone_and_keeps_the_log() -> None:
    async def main(live: Live) -> None:
        one, two, three = await live.cluster(3, FEW_ENTRIES)
        await (await live.keeper()).set(one.ctx.me.log_pointer, GARBAGE)
        await two.insert(1)
        await until(live, lambda: "which is no number" in one.ctx.readonly_reason)
        await until(live, lambda: three.keys() == [1])
        assert await clean_log(two.ctx) == 0
        await live.env.sleep(400)
        assert two.table.program_errors == three.table.program_errors == []
        assert not two.ctx.is_readonly and len(live.children(PATHS.log)) == 1

    run(main)


@pytest.mark.parametrize("which", ["host", "parts/all_0_0_0"])
def test_a_part_is_fetched_from_another_replica_than_the_one_of_which_nothing_can_be_read(which: str) -> None:
    async def main(live: Live) -> None:
        one, two, three = await live.cluster(3)
        three.ctx.switches.stop(Activity.FETCHES)
        await one.insert(1, options=InsertOptions(quorum=2))
        await (await live.keeper()).set(f"{one.ctx.me.root}/{which}", GARBAGE)
        three.ctx.switches.start(Activity.FETCHES)
        three.ctx.queue_changed.set()
        await until(live, lambda: three.keys() == [1])
        assert two.keys() == [1]

    run(main)


async def with_a_node(live: Live, replica: LiveReplica, path: str) -> None:
    await (await live.keeper()).create(path, GARBAGE)
    live.server.crash_client(replica.name)
    live._holders.pop(replica.name)
    await replica.table.stop()
    replica.begin()
    live.network.attach(replica.name, replica.ctx.me, replica.store)
    await replica.table.start()


@pytest.mark.parametrize("left", [(), ("queue", "metadata"), ("parts",)])
def test_a_replica_that_was_dropped_by_half_keeps_nobody_from_merging(left: tuple[str, ...]) -> None:
    """SYSTEM DROP REPLICA was killed in the middle: everything made by anybody is compared with what all
    other replicas have, and this one has no node to look into."""

    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        for key in range(2):
            await one.insert(key)
        keeper = await live.keeper()
        for path in ("", *(f"/{child}" for child in left)):
            await keeper.create(f"{PATHS.replica('r9').root}{path}")
        number = await create_mutation(one.ctx, "UPDATE v = 5 WHERE k = 1")
        async with asyncio.timeout(600):
            await wait_for_mutation(one.ctx, number)
        await optimize(two.ctx, OptimizeOptions(extent=Extent.FINAL))
        await live.quiet()
        assert one.parts() == two.parts() == ["all_0_1_1_2"] and one.rows() == [(0, 0), (1, 5)]

    run(main)


def test_what_is_no_parts_name_among_the_parts_is_passed_over() -> None:
    async def main(live: Live) -> None:
        (one,) = await live.cluster(1)
        await one.insert(1)
        await with_a_node(live, one, f"{one.ctx.me.parts}/notes")
        assert await one.table.wait_until_active(timeout_s=60)
        assert one.keys() == [1] and "notes" in live.children(one.ctx.me.parts)

    run(main)


def test_an_entry_of_its_own_queue_that_a_replica_stands_still_at_is_named() -> None:
    async def main(live: Live) -> None:
        (one,) = await live.cluster(1)
        await with_a_node(live, one, f"{one.ctx.me.queue}/queue-0000000700")
        await until(live, lambda: "Cannot parse input" in one.ctx.readonly_reason)
        assert "queue-0000000700" in one.ctx.readonly_reason
        await (await live.keeper()).remove(f"{one.ctx.me.queue}/queue-0000000700")
        assert await one.table.wait_until_active(timeout_s=60)

    run(main)


@pytest.mark.parametrize("data", [b"", GARBAGE, b"format version: 9\n"])
def test_a_mutation_that_nobody_can_read_holds_up_what_comes_after_it_and_no_inserts(data: bytes) -> None:
    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        await one.insert(1)
        before = await create_mutation(one.ctx, "UPDATE v = 5 WHERE k = 1")
        keeper = await live.keeper()
        path = await keeper.create(PATHS.mutation_prefix, data, mode=CreateMode.PERSISTENT_SEQUENTIAL)
        await live.crash("r1")
        await two.insert(2)
        await one.insert(3)
        await wait_for_mutation(two.ctx, before, sync=Sync.ALL)
        after = await create_mutation(two.ctx, "UPDATE v = 7 WHERE k = 2")
        with pytest.raises(
            SqlError, match=f"KILL MUTATION, or removing or mending {path} in Keeper"
        ) as failed:
            await wait_for_mutation(two.ctx, after)
        assert failed.value.code == Code.UNFINISHED
        with pytest.raises(SqlError, match="merges nothing"):
            await optimize(one.ctx, OptimizeOptions(extent=Extent.FINAL, throw_if_noop=True))
        await live.quiet()
        assert one.rows() == two.rows() == [(1, 5), (2, 0), (3, 0)]
        assert path in one.ctx.last_pull_error
        shown = {row["mutation_id"]: row["latest_fail_reason"] for row in mutation_rows(one.ctx)}
        assert [number for number, reason in shown.items() if path in str(reason)] == [path[-10:]]

        assert await kill_mutation(one.ctx, int(path[-10:]))
        await wait_for_mutation(two.ctx, after, sync=Sync.ALL)
        await optimize(one.ctx, OptimizeOptions(extent=Extent.FINAL))
        await live.quiet()
        assert one.rows() == two.rows() == [(1, 5), (2, 7), (3, 0)] and len(one.parts()) == 1
        assert not one.ctx.last_pull_error

    run(main)


def test_what_a_mutation_makes_is_fetched_by_a_replica_that_cannot_read_it_until_it_is_mended() -> None:
    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        await one.insert(1)
        await live.quiet()
        await one.table.stop()
        two.ctx.switches.stop(Activity.MERGES)
        number = await create_mutation(two.ctx, "UPDATE v = 5 WHERE k = 1")
        keeper, path = await live.keeper(), PATHS.mutation(number)
        good = live.data(path)
        await keeper.set(path, GARBAGE)
        one.begin()
        await one.start()
        await until(live, lambda: number in one.ctx.queue.unreadable_mutations)
        two.ctx.switches.start(Activity.MERGES)
        await until(live, lambda: one.parts() == ["all_0_0_0_1"])
        assert one.rows() == [(1, 5)]
        await keeper.set(path, good)
        await wait_for_mutation(two.ctx, number, sync=Sync.ALL)

    run(main)


SERIAL = InsertOptions(quorum=2, quorum_parallel=False, quorum_timeout_s=30)


def test_a_quorum_is_reached_beside_a_last_part_that_nobody_can_read_and_readers_are_told() -> None:
    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        await one.insert(1, options=SERIAL)
        await (await live.keeper()).set(PATHS.quorum_last_part, GARBAGE)
        await one.insert(2, options=SERIAL)
        assert not live.has(PATHS.quorum_status) and live.data(PATHS.quorum_last_part) == GARBAGE
        with pytest.raises(
            MalformedEntry, match=f"mend {PATHS.quorum_last_part} in Keeper, or make it empty"
        ):
            await max_blocks(two.ctx)
        await (await live.keeper()).set(PATHS.quorum_last_part, b"")
        await one.insert(3, options=SERIAL)
        assert await max_blocks(two.ctx) == {"all": 2}

    run(main)


def test_a_last_part_that_was_removed_is_made_anew_by_the_next_quorum() -> None:
    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        await one.insert(1, options=SERIAL)
        await (await live.keeper()).remove(PATHS.quorum_last_part)
        assert await max_blocks(two.ctx) == {"all": 0}
        await one.insert(2, options=SERIAL)
        assert LastQuorumParts.from_bytes(live.data(PATHS.quorum_last_part)).parts == (P("all_1_1_0"),)

    run(main)


@pytest.mark.parametrize("data", [b"", GARBAGE, b"format version: 99\n"])
def test_a_replica_that_cannot_read_its_queue_makes_itself_a_copy_of_another_one(data: bytes) -> None:
    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        await one.insert(1)
        await live.quiet()
        one.ctx.switches.stop(Activity.FETCHES)
        await two.insert(2)
        await one.insert(3)
        await until(live, lambda: len(live.children(one.ctx.me.queue)) == 1)
        (entry,) = live.children(one.ctx.me.queue)
        await (await live.keeper()).set(one.ctx.me.queue_entry(entry), data)
        await live.crash("r1")
        await live.quiet()
        check_equal(one, two)
        assert one.keys() == [1, 2, 3]

    run(main)


def test_two_replicas_that_cannot_read_their_queues_do_not_both_rely_on_the_other() -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        keeper = await live.keeper()
        for replica in replicas:
            await with_a_node(live, replica, f"{replica.ctx.me.queue}/queue-0000000700")
        await until(live, lambda: all("queue-0000000700" in each.ctx.readonly_reason for each in replicas))
        assert [live.data(replica.ctx.me.is_lost) for replica in replicas] == [b"0", b"0"]
        await keeper.remove(f"{replicas[0].ctx.me.queue}/queue-0000000700")
        for replica in replicas:
            assert await replica.table.wait_until_active(timeout_s=60)

    run(main)


NO_DATE = (
    b"format version: 4\ncreate_time: 2026-02-30 00:00:00\nsource replica: r1\nblock_id: \nget\nall_9_9_0\n"
)


@pytest.mark.parametrize("data", [b"", GARBAGE, b"format version: 99\n", NO_DATE])
def test_behind_an_entry_of_the_log_that_nobody_can_read_all_but_copying_goes_on(data: bytes) -> None:
    """1. The entry comes. 2. r1 starts anew, and r3 is made. 3. It is removed, and all replicas go on."""

    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        await one.insert(1)
        await live.quiet()
        keeper = await live.keeper()
        path = await keeper.create(PATHS.log_prefix, data, mode=CreateMode.PERSISTENT_SEQUENTIAL)
        await live.crash("r1")
        three = await live.replica("r3")
        for key, replica in enumerate((one, two, three), 2):
            await replica.insert(key)
        await until(live, lambda: path in one.ctx.last_pull_error and path in three.ctx.last_pull_error)
        await until(live, lambda: not live.children(three.ctx.me.queue))
        assert (one.keys(), two.keys(), three.keys()) == ([1, 2], [1, 3], [1, 4])
        await keeper.remove(path)
        await until(live, lambda: one.keys() == two.keys() == three.keys() == [1, 2, 3, 4])
        await live.quiet()
        check_equal(one, two, three)

    run(main)
