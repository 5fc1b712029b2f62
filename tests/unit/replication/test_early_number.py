"""A block number that is taken while rows are still being written."""

from __future__ import annotations

from engine.replication.commands.insert import Inserted, Inserter, InsertOptions
from tests.unit.replication.replica_bench import Bench, Replica, run

DEDUP = InsertOptions()


async def insert(
    bench: Bench, replica: Replica, value: int, *, partition: str = "all", locks: int
) -> Inserted:
    """`locks` is how many numbers are held when the rows have been written."""
    async with Inserter(replica.ctx) as inserter:
        await inserter.check(DEDUP)
        inserter.rows_are_coming(DEDUP)
        part = await replica.write(value, partition)
        await bench.env.sleep(0.05)
        assert len(bench.locks()) == locks
        (done,) = await inserter.commit([part], DEDUP)
    assert bench.locks() == [] and not replica.ctx.block_locks.held
    return done


async def with_two_inserts(bench: Bench) -> Replica:
    replica = await bench.replica()
    for value in (1, 2):
        await insert(bench, replica, value, locks=0)
    return replica


def test_the_third_insert_into_a_partition_has_its_number_before_its_rows() -> None:
    async def main(bench: Bench) -> None:
        replica = await with_two_inserts(bench)
        assert str((await insert(bench, replica, 3, locks=1)).name) == "all_2_2_0"
        assert replica.values() == [1, 2, 3]

    run(main)


def test_a_block_that_is_known_is_a_duplicate_all_the_same() -> None:
    async def main(bench: Bench) -> None:
        replica = await with_two_inserts(bench)
        again = await insert(bench, replica, 1, locks=1)
        assert again.is_duplicate and str(again.name) == "all_0_0_0"
        assert replica.values() == [1, 2] and not replica.store.staged
        assert bench.inserted() == ["all_0_0_0", "all_1_1_0"]

    run(main)


def test_a_wrong_guess_is_given_up_and_the_next_insert_does_not_guess() -> None:
    async def main(bench: Bench) -> None:
        replica = await with_two_inserts(bench)
        assert str((await insert(bench, replica, 3, partition="b", locks=1)).name) == "b_0_0_0"
        assert str((await insert(bench, replica, 4, locks=0)).name) == "all_3_3_0"
        assert replica.values() == [1, 2, 3, 4]

    run(main)


def test_rows_that_never_come_or_take_long_hold_no_number() -> None:
    async def main(bench: Bench) -> None:
        replica = await with_two_inserts(bench)
        async with Inserter(replica.ctx) as inserter:
            inserter.rows_are_coming(DEDUP)
            await bench.env.sleep(0.05)
            assert len(bench.locks()) == 1
        assert bench.locks() == []
        async with Inserter(replica.ctx) as inserter:
            inserter.rows_are_coming(DEDUP)
            await bench.env.sleep(0.5)
            assert len(bench.locks()) == 1
            await bench.env.sleep(1.0)
            assert bench.locks() == []
            (done,) = await inserter.commit([await replica.write(3)], DEDUP)
        assert str(done.name) == "all_4_4_0" and bench.locks() == []

    run(main)


def test_a_number_of_a_session_that_is_over_is_not_used() -> None:
    async def main(bench: Bench) -> None:
        replica = await with_two_inserts(bench)
        async with Inserter(replica.ctx) as inserter:
            inserter.rows_are_coming(DEDUP)
            await bench.env.sleep(0.05)
            await replica.expire()
            await replica.activate()
            (done,) = await inserter.commit([await replica.write(3)], DEDUP)
        assert not done.is_duplicate and bench.locks() == []
        assert replica.values() == [1, 2, 3]

    run(main)
