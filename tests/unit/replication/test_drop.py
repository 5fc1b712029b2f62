"""Tables and replicas in Keeper: dropped, alone and beside others; and again after a crash at any step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

from engine.errors import Code, KeeperUnavailable, OnclusterError, SessionExpired, SqlError
from engine.keeper.base import Op, OpResult
from engine.keeper.recipes import create_ancestors, remove_recursive
from engine.keeper.session import RequestKind
from engine.replication.commands.create import Created
from engine.replication.commands.drop import (
    Dropped,
    drop_dead_replica,
    drop_replica,
    remove_empty_above,
    wait_until_dropped,
)
from engine.replication.commands.insert import Inserter, InsertOptions
from engine.replication.creation import later_nodes
from engine.replication.paths import TablePaths
from tests.unit.replication.create_support import R1, R2, create, fail_after, pause_before
from tests.unit.replication.replica_bench import PATHS, Bench, new_replica, run


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
@pytest.mark.parametrize("what", ["request", "reply", "reply_and_lag"])
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
                lose = getattr(bench.server, f"lose_next_{what}")
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


def test_a_table_whose_removal_no_session_goes_on_with_is_removed() -> None:
    """Of a copy of Keeper's tree that was made while a table was dropped."""

    async def main(bench: Bench) -> None:
        keeper = await bench.keeper()
        for path in (PATHS.log, PATHS.dropped_lock):
            await create_ancestors(keeper, path)
            await keeper.create(path)
        await wait_until_dropped(keeper, PATHS, timeout_s=0)
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
