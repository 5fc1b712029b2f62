"""INSERT: what is committed, what is a duplicate, and which numbers parts get."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engine.errors import Code, SqlError
from engine.keeper import Create, CreateMode, SetData
from engine.replication.block_id import BlockId
from engine.replication.commands.insert import Inserter, InsertOptions
from engine.replication.part_header import PartHeader
from engine.replication.replica.block_numbers import (
    BlockNumber,
    Known,
    Wanted,
    allocate,
    allocate_all,
    allocate_everywhere,
    committing,
)
from engine.replication.settings import ReplicatedSettings
from tests.unit.replication.insert_support import DEDUP, PLAIN, insert, name
from tests.unit.replication.replica_bench import PATHS, Bench, run

# --- what an insert leaves --------------------------------------------------------------------------------


def test_an_insert_is_one_entry_one_block_one_part_and_no_lock() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        (done,) = await insert(replica, 1)
        assert (str(done.name), done.is_duplicate) == ("all_0_0_0", False)
        (entry,) = bench.log()
        assert (entry.source_replica, entry.quorum, bench.inserted()) == ("r1", 0, ["all_0_0_0"])
        assert bench.children(PATHS.blocks) == [entry.block_id]
        assert bench.data(f"{PATHS.blocks}/{entry.block_id}") == b"all_0_0_0"
        assert entry.block_id == str(
            BlockId(
                "all",
                int.from_bytes(done.new.data_hash[:8], "little"),
                int.from_bytes(done.new.data_hash[8:], "little"),
            )
        )
        header = PartHeader.from_bytes(bench.data(replica.ctx.me.part(name("all_0_0_0"))))
        assert header == replica.store.active[name("all_0_0_0")].header
        assert bench.locks() == [] and replica.values() == [1] and not replica.store.staged
        assert name("all_0_0_0") in replica.ctx.queue.virtual_parts

    run(main)


def test_parts_of_several_partitions_are_committed_at_one_moment() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        parts = [await replica.write(1, "a"), await replica.write(2, "b"), await replica.write(3, "a")]
        done = await Inserter(replica.ctx).commit(parts, DEDUP)
        assert [str(each.name) for each in done] == ["a_0_0_0", "b_0_0_0", "a_1_1_0"]
        nodes = [bench.server.tree.nodes[replica.ctx.me.part(each.name)] for each in done]
        assert len({node.czxid for node in nodes}) == 1

    run(main)


def test_more_parts_than_fit_into_one_transaction_are_all_inserted_in_order() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        done = await insert(replica, *range(100))
        assert [each.name.min_block for each in done] == list(range(100))
        assert replica.values() == list(range(100)) and bench.locks() == []

    run(main)


# --- duplicates -------------------------------------------------------------------------------------------


def test_the_same_rows_again_are_stored_once_and_succeed() -> None:
    async def main(bench: Bench) -> None:
        replica, other = await bench.replica("r1"), await bench.replica("r2")
        await insert(replica, 1)
        (again,) = await insert(replica, 1)
        (elsewhere,) = await insert(other, 1)
        assert again.is_duplicate and elsewhere.is_duplicate
        assert str(again.name) == str(elsewhere.name) == "all_0_0_0"
        assert len(bench.log()) == 1 and replica.values() == [1] and other.values() == []
        assert not other.disk.temporary and not replica.disk.temporary

    run(main)


def test_without_deduplication_the_same_rows_are_stored_twice() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        await insert(replica, 1, options=PLAIN)
        await insert(replica, 1, options=PLAIN)
        assert replica.values() == [1, 1] and bench.children(PATHS.blocks) == []

        no_window = await bench.replica("r2", ReplicatedSettings(replicated_deduplication_window=0))
        assert not (await insert(no_window, 1))[0].is_duplicate

    run(main)


def test_a_token_stands_for_the_whole_insert_whatever_its_rows() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        options = InsertOptions(token="x")
        first = await insert(replica, 1, 1, options=options)
        assert [each.is_duplicate for each in first] == [False, False], "the token counts the parts"
        again = await insert(replica, 5, 6, options=options)
        assert [each.is_duplicate for each in again] == [True, True]
        assert replica.values() == [1, 1]
        assert bench.has(PATHS.block(BlockId.of_token("all", "x_1")))

    run(main)


def test_equal_rows_twice_in_one_insert_are_stored_once() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        done = await insert(replica, 1, 1, 2)
        assert [each.is_duplicate for each in done] == [False, True, False]
        assert replica.values() == [1, 2]

    run(main)


def test_an_insert_with_known_and_new_blocks_stores_the_new_ones() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        await insert(replica, 1, 3)
        done = await insert(replica, 1, 2, 3)
        assert [each.is_duplicate for each in done] == [True, False, True]
        assert replica.values() == [1, 2, 3] and bench.locks() == []

    run(main)


@pytest.mark.parametrize("seed", range(8))
def test_many_equal_inserts_at_once_store_one(seed: int) -> None:
    async def main(bench: Bench) -> None:
        replicas = [await bench.replica(f"r{number}") for number in range(3)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(insert(replica, 1)) for replica in replicas * 2]
        done = [task.result()[0] for task in tasks]
        assert sorted(each.is_duplicate for each in done) == [False] + [True] * 5
        assert len({each.name for each in done}) == 1
        assert len(bench.log()) == 1 and bench.locks() == []
        assert not any(replica.store.staged for replica in replicas)

    run(main, seed=seed)


# --- too many parts ---------------------------------------------------------------------------------------


def test_many_parts_slow_inserts_down_and_too_many_refuse_them() -> None:
    async def main(bench: Bench) -> None:
        settings = ReplicatedSettings(parts_to_delay_insert=3, parts_to_throw_insert=5, max_delay_to_insert=2)
        replica = await bench.replica(settings=settings)
        waited = []
        for value in range(5):
            started_s = bench.env.monotonic_s()
            await Inserter(replica.ctx).check(DEDUP)
            waited.append(bench.env.monotonic_s() - started_s)
            await insert(replica, value)
        assert waited == [0, 0, 0, 1, 2]
        with pytest.raises(SqlError) as caught:
            await Inserter(replica.ctx).check(DEDUP)
        assert caught.value.code == Code.TOO_MANY_PARTS
        await insert(replica, 9, partition="other")  # what is committed already is not refused

    run(main)


def test_many_parts_that_are_large_are_no_reason_to_slow_anybody_down() -> None:
    async def main(bench: Bench) -> None:
        given = {"parts_to_delay_insert": "1", "parts_to_throw_insert": "2", "max_delay_to_insert": "2"}
        limits = ReplicatedSettings.of(given)
        replica = await bench.replica(settings=limits)
        for value in range(3):
            await insert(replica, value)
        sizes = [part.size_bytes for part in replica.store.active.values()]
        average = sum(sizes) // len(sizes)
        replica.ctx.settings = limits.changed({"max_avg_part_size_for_too_many_parts": str(average - 1)})
        started_s = bench.env.monotonic_s()
        await Inserter(replica.ctx).check(DEDUP)
        assert bench.env.monotonic_s() == started_s
        for none_is_large in (str(average + 1), "0"):
            replica.ctx.settings = limits.changed({"max_avg_part_size_for_too_many_parts": none_is_large})
            with pytest.raises(SqlError, match="Too many parts"):
                await Inserter(replica.ctx).check(DEDUP)

    run(main)


def test_an_insert_that_is_slowed_down_waits_a_least_time() -> None:
    async def main(bench: Bench) -> None:
        given = {"parts_to_delay_insert": "1", "max_delay_to_insert": "0", "min_delay_to_insert_ms": "500"}
        replica = await bench.replica(settings=ReplicatedSettings.of(given))
        await insert(replica, 1)
        started_s = bench.env.monotonic_s()
        await Inserter(replica.ctx).check(DEDUP)
        assert bench.env.monotonic_s() - started_s == 0.5

    run(main)


def test_a_table_has_a_limit_for_the_parts_of_all_its_partitions() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica(settings=ReplicatedSettings.of({"max_parts_in_total": "3"}))
        for value, partition in enumerate("abc"):
            await Inserter(replica.ctx).check(DEDUP)
            await insert(replica, value, partition=partition)
        with pytest.raises(SqlError, match=r"Too many parts \(3\) in all partitions") as caught:
            await Inserter(replica.ctx).check(replace(DEDUP, parts_to_throw=100))
        assert caught.value.code == Code.TOO_MANY_PARTS
        full = await bench.replica("full", settings=ReplicatedSettings.of({"max_parts_in_total": "0"}))
        with pytest.raises(SqlError, match=r"Too many parts \(0\) in all partitions"):
            await Inserter(full.ctx).check(DEDUP)
        closed = await bench.replica("closed", settings=ReplicatedSettings.of({"parts_to_throw_insert": "0"}))
        with pytest.raises(SqlError, match=r"Too many parts \(0 in one partition"):
            await Inserter(closed.ctx).check(DEDUP)

    run(main)


def test_a_statement_may_have_limits_of_its_own_for_the_number_of_parts() -> None:
    async def main(bench: Bench) -> None:
        settings = ReplicatedSettings(parts_to_delay_insert=1, parts_to_throw_insert=2, max_delay_to_insert=2)
        replica = await bench.replica(settings=settings)
        for value in range(3):
            await insert(replica, value)
        with pytest.raises(SqlError):
            await Inserter(replica.ctx).check(DEDUP)
        started_s = bench.env.monotonic_s()
        await Inserter(replica.ctx).check(replace(DEDUP, parts_to_delay=4, parts_to_throw=5))
        assert bench.env.monotonic_s() == started_s
        await Inserter(replica.ctx).check(replace(DEDUP, parts_to_delay=3, parts_to_throw=5))
        assert bench.env.monotonic_s() == started_s + 1
        with pytest.raises(SqlError) as caught:
            await Inserter(replica.ctx).check(replace(DEDUP, parts_to_throw=3))
        assert caught.value.code == Code.TOO_MANY_PARTS

    run(main)


# --- numbers ----------------------------------------------------------------------------------------------


def test_numbers_rise_and_are_never_given_twice() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        first = await allocate(replica.ctx, "p")
        second = await allocate(replica.ctx, "p")
        assert (first.number, second.number) == (0, 1)
        assert await committing(replica.ctx) == {"p": {0, 1}}
        await first.abandon()
        await second.abandon()
        assert await committing(replica.ctx) == {}
        assert (await allocate(replica.ctx, "p")).number == 2

    run(main)


def test_a_known_block_gets_no_number_and_the_others_do() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        (done,) = await insert(replica, 1)
        (entry,) = bench.log()
        known = BlockId.parse(entry.block_id)
        found = await allocate_all(
            replica.ctx, [Wanted("b"), Wanted("all", known), Wanted("a", BlockId("a", 1, 2))]
        )
        assert found[1] == Known(known, done.name)
        assert [each.number for each in found if isinstance(each, BlockNumber)] == [0, 0]
        assert bench.locks() == ["a/block-0000000000", "b/block-0000000000"]

    run(main)


def test_numbers_everywhere_miss_no_partition_that_is_added_meanwhile() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        assert (await allocate_everywhere(replica.ctx, replica.ctx.session())).numbers == {}
        for partition in ("a", "b"):
            await insert(replica, 1, partition=partition)
        numbers = await allocate_everywhere(replica.ctx, replica.ctx.session())
        assert numbers.numbers == {"a": 1, "b": 1}
        await numbers.release()
        chosen = await allocate_everywhere(replica.ctx, replica.ctx.session(), ["b", "new"])
        assert chosen.numbers == {"b": 2, "new": 0}
        assert bench.locks() == ["b/block-0000000002", "new/block-0000000000"]

    run(main)


def test_numbers_of_more_partitions_than_one_request_carries_are_taken_and_given_up() -> None:
    partitions = [f"{number:05}" for number in range(6000)]

    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        numbers = await allocate_everywhere(replica.ctx, replica.ctx.session(), partitions)
        assert list(numbers.numbers) == partitions and len(bench.locks()) == len(partitions)
        again = await allocate_everywhere(replica.ctx, replica.ctx.session())
        assert again.numbers == dict.fromkeys(partitions, 1)
        await asyncio.gather(numbers.release(), again.release())
        assert not bench.locks() and not replica.ctx.block_locks.held

    run(main)


def test_a_partition_added_between_two_requests_for_numbers_has_them_asked_for_anew() -> None:
    partitions = [f"{number:05}" for number in range(6000)]

    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        await (await allocate_everywhere(replica.ctx, replica.ctx.session(), partitions)).release()
        keeper = await bench.keeper()
        asking = asyncio.create_task(allocate_everywhere(replica.ctx, replica.ctx.session()))
        while not bench.locks():
            await asyncio.sleep(0)
        assert len(bench.locks()) < len(partitions)
        added = [Create(PATHS.partition_block_numbers("new")), SetData(PATHS.block_numbers, b"")]
        await keeper.multi(added)
        numbers = await asking
        assert list(numbers.numbers) == [*partitions, "new"]
        assert set(numbers.numbers.values()) == {0, 1, 2}, "of the second request, and of a third"
        assert len(bench.locks()) == len(numbers.held), "those of the first try are given up"

    run(main)


def test_an_old_servers_lock_counts_while_its_holder_lives() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        keeper = await bench.keeper()
        await allocate(replica.ctx, "p")
        holder = f"{PATHS.temp}/abandonable_lock-0000000001"
        await keeper.create(holder, mode=CreateMode.EPHEMERAL)
        await keeper.create(f"{PATHS.block_numbers}/p/block-0000000007", holder.encode())
        assert await committing(replica.ctx) == {"p": {0, 7}}
        await keeper.remove(holder)
        assert await committing(replica.ctx) == {"p": {0}}

    run(main)


def test_a_number_that_no_session_holds_keeps_no_parts_apart() -> None:
    """Of a copy of Keeper's tree: merges and mutations across the number would wait for good."""

    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        keeper = await bench.keeper()
        await allocate(replica.ctx, "p")
        await keeper.create(f"{PATHS.block_numbers}/p/block-0000000007", PATHS.insert_lock_holder.encode())
        holder = f"{PATHS.temp}/abandonable_lock-0000000001"
        await keeper.create(holder)
        await keeper.create(f"{PATHS.block_numbers}/p/block-0000000008", holder.encode())
        assert await committing(replica.ctx) == {"p": {0}}

    run(main)
