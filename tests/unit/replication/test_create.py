"""Tables and replicas in Keeper: made, joined, refused; and again after a crash at any step."""

from __future__ import annotations

import asyncio
import random

import pytest

from engine.errors import Code, OnclusterError, SqlError, UnknownOutcome
from engine.keeper.base import CreateMode
from engine.keeper.faults import FaultPlan
from engine.keeper.recipes import create_ancestors
from engine.replication.commands.create import Created, Leadership, complete_table, open_leadership
from engine.replication.commands.drop import drop_replica
from engine.replication.creation import ALL_LEAD, later_nodes, pristine_checks
from engine.testing.replication.disk import model_definition
from tests.unit.replication.create_support import R1, R2, create
from tests.unit.replication.replica_bench import PATHS, Bench, new_replica, run


def test_the_first_replica_makes_the_table_and_the_second_joins_it_as_lost() -> None:
    async def main(bench: Bench) -> None:
        keeper = await bench.keeper()
        assert await create(keeper, 1) is Created.TABLE
        assert await create(keeper, 2) is Created.REPLICA
        assert bench.children(PATHS.replicas) == ["r1", "r2"]
        assert (bench.data(R1.is_lost), bench.data(R2.is_lost)) == (b"0", b"1")
        assert bench.data(PATHS.replicas) == b"last added replica: r2"
        assert bench.data(f"{PATHS.leader_election}/leader_election-0") == ALL_LEAD
        assert all(bench.has(node.path) for node in later_nodes(PATHS, new_replica()))

    run(main)


@pytest.mark.parametrize("seed", range(10))
def test_replicas_created_at_the_same_time_all_exist_and_one_is_the_first(seed: int) -> None:
    async def main(bench: Bench) -> None:
        keepers = [await bench.keeper(f"c{number}") for number in range(5)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(create(keeper, number)) for number, keeper in enumerate(keepers)]
        made = [task.result() for task in tasks]
        assert sorted(made, key=str) == [Created.REPLICA] * 4 + [Created.TABLE]
        assert [bench.data(PATHS.replica(f"r{number}").is_lost) for number in range(5)].count(b"0") == 1

    run(main, seed=seed)


def test_a_joining_replica_takes_the_version_of_the_tables_metadata() -> None:
    async def main(bench: Bench) -> None:
        keeper = await bench.keeper()
        await create(keeper, 1)
        await keeper.set(PATHS.metadata, bench.data(PATHS.metadata))
        await create(keeper, 2)
        assert (bench.data(R1.metadata_version), bench.data(R2.metadata_version)) == (b"0", b"1")

    run(main)


def test_another_structure_is_refused_and_nothing_is_left_and_shards_are_hinted_at() -> None:
    async def main(bench: Bench) -> None:
        keeper = await bench.keeper()
        await create(keeper, 1)
        for definition, code in (
            (model_definition("k", "other"), Code.INCOMPATIBLE_COLUMNS),
            (model_definition(partition_key="k"), Code.METADATA_MISMATCH),
        ):
            with pytest.raises(SqlError) as caught:
                await create(keeper, 2, definition=definition)
            assert caught.value.code == code and "{shard}" in str(caught.value)
        assert bench.children(PATHS.replicas) == ["r1"]

    run(main)


def test_a_name_that_is_taken_is_refused_with_a_hint_about_shards() -> None:
    async def main(bench: Bench) -> None:
        keeper = await bench.keeper()
        await create(keeper, 1)
        with pytest.raises(SqlError) as caught:
            await create(keeper, 1, table_uuid=8)
        assert caught.value.code == Code.REPLICA_ALREADY_EXISTS
        assert "{shard}" in str(caught.value) and "{replica}" in str(caught.value)

    run(main)


def test_the_same_statement_again_finds_its_own_replica_until_it_was_used() -> None:
    async def main(bench: Bench) -> None:
        keeper = await bench.keeper()
        await create(keeper, 1)
        assert await create(keeper, 1) is Created.REUSED
        for check in pristine_checks(R1):
            await keeper.set(check.path, bench.data(check.path))
            with pytest.raises(SqlError) as caught:
                await create(keeper, 1)
            assert caught.value.code == Code.REPLICA_ALREADY_EXISTS
            await drop_replica(keeper, PATHS, R1)
            await create(keeper, 1)

    run(main)


def test_a_path_with_something_else_is_refused_and_left_alone() -> None:
    async def main(bench: Bench) -> None:
        keeper = await bench.keeper()
        await create_ancestors(keeper, f"{PATHS.root}/another/table")
        with pytest.raises(SqlError) as caught:
            await create(keeper, 1)
        assert caught.value.code == Code.REPLICA_ALREADY_EXISTS
        assert bench.children(PATHS.root) == ["another"]

    run(main)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_create_is_repeatable_after_a_crash_at_any_moment(seed: int) -> None:
    """Every request may be lost, and its session may end; whoever repeats the same statement gets there."""

    async def main(bench: Bench) -> None:
        calm = await bench.keeper("calm")
        if seed % 2:
            await create(calm, 2)
        bench.server.faults = plan = FaultPlan.rough(random.Random(seed), rate=0.08)
        for _ in range(200):
            try:
                keeper = await bench.keeper("creator")
                made = await create(keeper, 1)
                break
            except (UnknownOutcome, OnclusterError) as error:
                assert not isinstance(error, SqlError), error
        else:
            raise AssertionError("never made")
        plan.calm()
        await bench.env.sleep(60)
        assert made in Created
        assert bench.data(R1.is_lost) == (b"1" if seed % 2 else b"0")
        assert await create(await bench.keeper(), 1) is Created.REUSED
        assert all(bench.has(node.path) for node in later_nodes(PATHS, new_replica()))

    print(f"seed={seed}")
    run(main, seed=seed)


# --- who leads --------------------------------------------------------------------------------------------


def test_an_election_of_old_servers_is_respected_until_they_are_gone() -> None:
    async def main(bench: Bench) -> None:
        keeper, old = await bench.keeper(), await bench.keeper("18.16")
        await create(keeper, 1)
        await keeper.remove(f"{PATHS.leader_election}/leader_election-0")
        prefix = f"{PATHS.leader_election}/leader_election-"
        await old.create(prefix, b"old", mode=CreateMode.EPHEMERAL_SEQUENTIAL)
        assert await complete_table(keeper, PATHS, new_replica()) is Leadership.ELECTED
        await old.close()
        assert await open_leadership(keeper, PATHS) is Leadership.ALL
        assert await open_leadership(keeper, PATHS) is Leadership.ALL
        assert bench.children(PATHS.leader_election) == ["leader_election-0"]

    run(main)


def test_servers_that_all_lead_are_no_election() -> None:
    async def main(bench: Bench) -> None:
        keeper = await bench.keeper()
        await create(keeper, 1)
        await keeper.remove(f"{PATHS.leader_election}/leader_election-0")
        await keeper.create(f"{PATHS.leader_election}/leader_election-1", b"r9 (multiple leaders Ok)")
        assert await open_leadership(keeper, PATHS) is Leadership.ALL

    run(main)
