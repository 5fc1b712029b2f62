"""Tables and replicas in Keeper: made, joined, refused, dropped; and again after a crash at any step."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

import pytest

from engine.errors import (
    Code,
    KeeperUnavailable,
    OnclusterError,
    SessionExpired,
    SqlError,
    UnknownOutcome,
)
from engine.keeper.base import CreateMode, Keeper, Op, OpResult
from engine.keeper.faults import FaultPlan
from engine.keeper.recipes import create_ancestors, remove_recursive
from engine.keeper.session import RequestKind
from engine.replication.commands.create import (
    Created,
    Leadership,
    complete_table,
    create_replica,
    open_leadership,
)
from engine.replication.commands.drop import (
    Dropped,
    drop_dead_replica,
    drop_replica,
    remove_empty_above,
    wait_until_dropped,
)
from engine.replication.commands.insert import Inserter, InsertOptions
from engine.replication.commands.restore import (
    attach_restored,
    give_up_restoring,
    is_founder,
    restore_replica,
)
from engine.replication.creation import ALL_LEAD, later_nodes, pristine_checks
from engine.replication.paths import TablePaths
from engine.replication.table_definition import TableDefinition
from engine.testing.replication_disk import model_definition
from tests.unit.replica_bench import PATHS, Bench, Replica, new_replica, run

R1, R2 = PATHS.replica("r1"), PATHS.replica("r2")


async def create(
    keeper: Keeper, number: int = 1, *, definition: TableDefinition | None = None, table_uuid: int = 7
) -> Created:
    wanted = definition or model_definition()
    new = replace(
        new_replica(number, table_uuid=UUID(int=table_uuid)),
        metadata=wanted.metadata.to_bytes(),
        columns=wanted.columns.to_bytes(),
    )
    return await create_replica(keeper, PATHS, PATHS.replica(f"r{number}"), new, wanted)


# --- creating ---------------------------------------------------------------------------------------------


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


# --- dropping ---------------------------------------------------------------------------------------------


def test_the_last_replica_takes_the_table_with_it() -> None:
    async def main(bench: Bench) -> None:
        keeper = await bench.keeper()
        await create(keeper, 1)
        await create(keeper, 2)
        assert await drop_replica(keeper, PATHS, R1) is Dropped.REPLICA
        assert bench.children(PATHS.replicas) == ["r2"]
        assert await drop_replica(keeper, PATHS, R1) is Dropped.NOTHING
        assert await drop_replica(keeper, PATHS, R2) is Dropped.TABLE
        assert not bench.has(PATHS.root) and bench.has("/clickhouse/tables/01/d")

    run(main)


def test_empty_nodes_of_the_tables_uuid_go_and_others_stay() -> None:
    async def main(bench: Bench) -> None:
        keeper = await bench.keeper()
        uuid = "0a0b0c0d-0000-0000-0000-000000000001"
        one, two = (TablePaths(f"/tables/of {uuid}/shard/{number}") for number in (1, 2))
        for paths in (one, two):
            await create_ancestors(keeper, paths.root)
        await keeper.create(two.root)
        await remove_empty_above(keeper, one, uuid)
        assert bench.children(f"/tables/of {uuid}/shard") == ["2"]
        await keeper.remove(two.root)
        await remove_empty_above(keeper, two, uuid)
        assert bench.children("/tables") == []
        await remove_empty_above(keeper, two, uuid)  # once more, after a lost reply
        await remove_empty_above(keeper, TablePaths(f"/tables/{uuid}"), uuid)
        assert bench.has("/tables")

    run(main)


@pytest.mark.parametrize("seed", range(10))
def test_replicas_dropped_at_the_same_time_leave_nothing(seed: int) -> None:
    async def main(bench: Bench) -> None:
        keepers = [await bench.keeper(f"c{number}") for number in range(4)]
        for number, keeper in enumerate(keepers):
            await create(keeper, number)
        async with asyncio.TaskGroup() as group:
            for number, keeper in enumerate(keepers):
                group.create_task(drop_replica(keeper, PATHS, PATHS.replica(f"r{number}")))
        assert not bench.has(PATHS.root)

    run(main, seed=seed)


@pytest.mark.parametrize("seed", range(10))
def test_a_table_dropped_and_created_at_the_same_time_is_whole_or_gone(seed: int) -> None:
    async def main(bench: Bench) -> None:
        one, two = await bench.keeper("one"), await bench.keeper("two")
        await create(one, 1)
        async with asyncio.TaskGroup() as group:
            group.create_task(drop_replica(one, PATHS, R1))
            made = group.create_task(create(two, 2))
        assert bench.children(PATHS.replicas) == ["r2"] and not bench.has(PATHS.dropped)
        assert bench.data(R2.is_lost) == (b"0" if made.result() is Created.TABLE else b"1")
        assert all(bench.has(node.path) for node in later_nodes(PATHS, new_replica()))

    run(main, seed=seed)


def test_a_replica_does_not_join_those_that_are_being_dropped() -> None:
    """All that is left are two replicas whose DROPs have crashed: there is nothing to copy any more."""

    async def main(bench: Bench) -> None:
        keeper = await bench.keeper()
        for number in (1, 2):
            await create(keeper, number)
        for replica in (R1, R2):
            await keeper.set(replica.is_lost, b"1")
            await keeper.remove(replica.host)
        assert await create(keeper, 3) is Created.TABLE
        assert bench.children(PATHS.replicas) == ["r3"]

    run(main)


def test_the_last_replica_is_dropped_right_before_another_joins() -> None:
    async def main(bench: Bench) -> None:
        keeper, other = await bench.keeper(), await bench.keeper("other")
        await create(keeper, 1)
        plain = keeper.multi

        async def multi(ops: Sequence[Op]) -> list[OpResult]:
            keeper.multi = plain  # type: ignore[method-assign]
            await other.set(R1.is_lost, b"1")
            await other.remove(R1.host)
            return await plain(ops)

        keeper.multi = multi  # type: ignore[method-assign]
        assert await create(keeper, 2) is Created.TABLE
        assert bench.data(R2.is_lost) == b"0"

    run(main)


@pytest.mark.parametrize("next_step", ["drop", "create"])
@pytest.mark.parametrize("requests", range(1, 40, 3))
def test_a_drop_that_crashes_anywhere_is_finished_by_the_next_drop_or_create(
    requests: int, next_step: str
) -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica("r1")
        await Inserter(replica.ctx).commit([await replica.write(1)], InsertOptions())
        keeper = await bench.keeper("dropper")
        fail_after(keeper, requests)
        try:
            await drop_replica(keeper, PATHS, R1)
        except SessionExpired:
            await keeper.close()
        fresh = await bench.keeper()
        if next_step == "drop":
            await drop_replica(fresh, PATHS, R1)
            assert not bench.has(PATHS.root)
        elif bench.has(R1.host):  # the drop had not begun in earnest: the replica is as it was
            await drop_replica(fresh, PATHS, R1)
        else:
            assert await create(fresh, 1, table_uuid=9) is Created.TABLE
            assert bench.children(PATHS.replicas) == ["r1"] and not bench.has(PATHS.dropped)
            assert bench.children(PATHS.blocks) == [], "a block of the dropped table swallows no insert"

    run(main)


@pytest.mark.parametrize("paused_at", range(1, 24))
def test_whoever_drops_a_table_leaves_one_alone_that_was_made_at_its_path_since(paused_at: int) -> None:
    """1. A session drops the table, and is slow. 2. Keeper loses all of the table, the lock included. 3. The
    table is made anew. 4. The first session goes on."""

    async def main(bench: Bench) -> None:
        slow, other = await bench.keeper(), await bench.keeper()
        await create(slow, 1)

        async def meanwhile() -> None:
            await remove_recursive(other, PATHS.root)
            assert await create(other, 1, table_uuid=8) is Created.TABLE

        pause_before(slow, paused_at, meanwhile)
        await drop_replica(slow, PATHS, R1)
        if bench.has(PATHS.root):  # it was paused
            assert all(bench.has(node.path) for node in later_nodes(PATHS, new_replica()))
            for path in (PATHS.temp, PATHS.log, PATHS.block_numbers, R1.queue, R1.parts, R1.host):
                assert bench.has(path), path

    run(main)


@pytest.mark.parametrize("paused_at", range(1, 20))
def test_whoever_drops_a_dead_replica_leaves_one_alone_that_was_made_in_its_place(paused_at: int) -> None:
    """1. SYSTEM DROP REPLICA 'r2' on another server, which is slow. 2. The owner's CREATE finishes it off and
    makes the replica anew. 3. The other server goes on."""

    async def main(bench: Bench) -> None:
        slow, owner = await bench.keeper(), await bench.keeper()
        await create(slow, 1)
        await create(slow, 2)
        made: list[Created] = []

        async def meanwhile() -> None:
            if not bench.has(R2.host):
                made.append(await create(owner, 2))

        pause_before(slow, paused_at, meanwhile)
        await drop_dead_replica(slow, PATHS, "r2")
        for path in (R2.queue, R2.parts, R2.host, R2.log_pointer, R2.creator_info, R2.metadata):
            assert bench.has(path) == bool(made), path

    run(main)


def test_a_dead_replica_is_dropped_and_an_active_or_own_one_is_not() -> None:
    async def main(bench: Bench) -> None:
        alive, dead = await bench.replica("r1"), await bench.replica("r2")
        keeper = await bench.keeper()
        for name, own in (("r2", ()), ("r1", ("r1",))):
            with pytest.raises(SqlError) as caught:
                await drop_dead_replica(keeper, PATHS, name, local_replicas=own)
            assert caught.value.code == Code.TABLE_WAS_NOT_DROPPED
        await dead.holder.close()
        assert await drop_dead_replica(keeper, PATHS, "r2") is Dropped.REPLICA
        assert await drop_dead_replica(keeper, PATHS, "r2") is Dropped.NOTHING
        assert bench.children(PATHS.replicas) == ["r1"]
        await alive.holder.close()
        assert await drop_dead_replica(keeper, PATHS, "r1") is Dropped.TABLE
        with pytest.raises(SqlError) as caught:
            await drop_dead_replica(keeper, PATHS, "r1")
        assert caught.value.code == Code.TABLE_WAS_NOT_DROPPED

    run(main)


@pytest.mark.parametrize("lost", range(4))
@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_dead_replica_is_dropped_although_messages_are_lost(what: str, lost: int) -> None:
    async def main(bench: Bench) -> None:
        await bench.replica("r1")
        dead = await bench.replica("r2")
        await dead.holder.close()
        keeper = await bench.keeper()
        real, sent = keeper.multi, 0

        async def losing(ops: Sequence[Op]) -> list[OpResult]:
            nonlocal sent
            sent += 1
            if sent == lost + 1:
                lose = bench.server.lose_next_reply if what == "reply" else bench.server.lose_next_request
                lose(keeper.session_id, kind=RequestKind.MULTI)
            return await real(ops)

        keeper.multi = losing  # type: ignore[method-assign]
        assert await drop_dead_replica(keeper, PATHS, "r2") in (Dropped.REPLICA, Dropped.NOTHING)
        assert bench.children(PATHS.replicas) == ["r1"]

    run(main)


@pytest.mark.parametrize("killed_at", range(1, 30, 2))
def test_the_last_replica_of_a_dead_server_is_wholly_dropped_after_a_kill_anywhere(killed_at: int) -> None:
    """1. SYSTEM DROP REPLICA … FROM ZKPATH on a server that is killed; its session lives on. 2. The same
    statement on another one."""

    async def main(bench: Bench) -> None:
        dead = await bench.replica("r1")
        await dead.holder.close()
        killed = await bench.keeper("killed")

        async def kill() -> None:
            bench.server.crash_client("killed")

        pause_before(killed, killed_at, kill)
        with suppress(OnclusterError):
            await drop_dead_replica(killed, PATHS, "r1")
        fresh = await bench.keeper()
        if bench.has(PATHS.root):
            assert await drop_dead_replica(fresh, PATHS, "r1") is Dropped.TABLE
            await wait_until_dropped(fresh, PATHS, timeout_s=60)
        assert not bench.has(PATHS.root)

    run(main)


def test_a_table_that_another_session_goes_on_removing_is_not_said_to_be_gone() -> None:
    async def main(bench: Bench) -> None:
        slow, other = await bench.keeper(), await bench.keeper()
        await create(slow, 1)

        async def meanwhile() -> None:
            await drop_dead_replica(other, PATHS, "r1")
            with pytest.raises(KeeperUnavailable, match="still being removed by another session"):
                await wait_until_dropped(other, PATHS, timeout_s=60)

        pause_before(slow, 23, meanwhile)
        await drop_replica(slow, PATHS, R1)
        assert not bench.has(PATHS.root)

    run(main)


def test_a_replica_that_becomes_active_while_it_is_dropped_as_dead_is_kept_or_never_active() -> None:
    for seed in range(30):

        async def main(bench: Bench) -> None:
            await bench.replica("r1")
            sleeper = await bench.replica("r2", active=False)
            keeper = await bench.keeper()
            activation = asyncio.create_task(sleeper.activate())
            drop = asyncio.create_task(drop_dead_replica(keeper, PATHS, "r2"))
            await asyncio.wait([activation, drop])
            if activation.exception() is None:
                assert drop.exception() is not None and bench.has(R2.is_active)
            else:
                assert drop.result() is Dropped.REPLICA and not bench.has(R2.root)

        run(main, seed=seed)


# --- restoring --------------------------------------------------------------------------------------------


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


# --- helpers ----------------------------------------------------------------------------------------------


def pause_before(keeper: Keeper, write: int, meanwhile: Callable[[], Awaitable[None]]) -> None:
    """Run `meanwhile` before this session's `write`-th write from now on."""
    left = write

    def pausing(method):  # type: ignore[no-untyped-def]
        async def call(*args, **kwargs):  # type: ignore[no-untyped-def]
            nonlocal left
            left -= 1
            if left == 0:
                await meanwhile()
            return await method(*args, **kwargs)

        return call

    for method in ("create", "remove", "set", "multi"):
        setattr(keeper, method, pausing(getattr(keeper, method)))


def fail_after(keeper: Keeper, requests: int) -> None:
    """The session seems over to its owner after so many requests; what was executed stays."""
    left = requests

    def failing(method):  # type: ignore[no-untyped-def]
        async def call(*args, **kwargs):  # type: ignore[no-untyped-def]
            nonlocal left
            left -= 1
            if left < 0:
                raise SessionExpired("crashed here")
            return await method(*args, **kwargs)

        return call

    for method in (
        "create",
        "remove",
        "set",
        "get",
        "exists",
        "children",
        "multi",
        "get_many",
        "exists_many",
    ):
        setattr(keeper, method, failing(getattr(keeper, method)))
