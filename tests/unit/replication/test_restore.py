"""Keeper has lost everything, the disks have not: RESTORE REPLICA on running replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from uuid import UUID

import pytest

from engine.errors import Code, NoNode, OnclusterError, SqlError
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.recipes import create_ancestors, remove_recursive
from engine.replication.commands.alter import alter_table
from engine.replication.commands.create import Created
from engine.replication.commands.restore import attach_restored
from engine.replication.commands.waiting import Sync, wait_for_entry
from engine.replication.part_name import PartName
from engine.replication.part_store import Part
from engine.replication.replica.background import keep_running
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.log_commit import Logged
from engine.replication.replica.switches import Activity
from engine.replication.replicated_table import LOOPS
from engine.testing.replication.disk import StoreDisk
from engine.testing.simulation import SimulationEnv, run_simulation
from tests.unit.replication.support import PATHS, SESSION_TIMEOUT_S, Bench, Replica


def run(story: Callable[[Bench], Awaitable[None]], *, seed: int = 1) -> None:
    async def main(env: SimulationEnv) -> None:
        server = MemoryKeeperServer(env.fork())
        bench = Bench(env, server, await server.connect(client="admin", session_timeout_s=30))
        await story(bench)
        assert not [error for table in bench.tables for error in table.program_errors]

    run_simulation(seed, main)


async def lose_everything(bench: Bench, replicas: list[Replica]) -> None:
    bench.server.lose_data()
    await bench.until(lambda: all(replica.ctx.is_readonly for replica in replicas))
    bench.admin = await bench.server.connect(client="admin", session_timeout_s=SESSION_TIMEOUT_S)
    await create_ancestors(bench.admin, PATHS.root)


async def restore(replica: Replica) -> Created:
    """As SYSTEM RESTORE REPLICA does it."""
    made = await replica.table.restore(UUID(int=7))
    assert await replica.table.wait_until_active(timeout_s=300), replica.ctx.readonly_reason
    await attach_restored(replica.ctx)
    return made


async def restored(replica: Replica) -> Created:
    """Whoever asks for it asks again when it fails."""
    for _ in range(5):
        try:
            return await restore(replica)
        except OnclusterError:
            await asyncio.sleep(1)
    raise AssertionError("not restored")


async def two_of_which_the_first_makes_the_table_with_less(bench: Bench) -> tuple[Replica, Replica]:
    """Keeper loses all; the replica that makes the table anew lacks row 2, which the other has."""
    one, two = await bench.cluster(2)
    await one.insert(1)
    await bench.quiet(one, two)
    await one.stop()
    await two.insert(2)
    await lose_everything(bench, [two])
    one = await bench.start("r1", StoreDisk(one.disk.definition, dict(one.disk.active)), is_awaited=False)
    await restored(one)
    await restored(two)
    await bench.quiet(one, two)
    return one, two


@pytest.mark.parametrize("at_once", [True, False], ids=["all at once", "one after another"])
def test_all_replicas_get_all_rows_back_without_fetching_what_they_have(at_once: bool) -> None:
    async def main(bench: Bench) -> None:
        replicas = await bench.cluster(3)
        for key in range(6):
            await replicas[key % 3].insert(key)
        await bench.quiet(*replicas)
        await lose_everything(bench, replicas)
        bench.network.fetches.clear()
        if at_once:
            made = await asyncio.gather(*(restored(replica) for replica in replicas))
        else:
            made = [await restored(replica) for replica in replicas]
        assert made.count(Created.TABLE) == 1
        await bench.quiet(*replicas)
        for replica in replicas:
            assert replica.values == list(range(6)), replica.name
            assert replica.active == replicas[0].active == await bench.parts(replica.name)
            assert replica.detached == []
        await replicas[1].insert(100)
        await bench.quiet(*replicas)
        assert all(replica.values == [*range(6), 100] for replica in replicas)
        assert {str(part) for _, _, part in bench.network.fetches} <= {"all_6_6_0"}

    run(main)


def test_a_session_that_ends_while_parts_are_restored_keeps_nobody_waiting() -> None:
    """1. The statement attaches a part. 2. The session ends. 3. The next term begins, and it goes on."""

    async def main(bench: Bench) -> None:
        (one,) = await bench.cluster(1)
        for key in range(3):
            await one.insert(key)
        await bench.quiet(one)
        await lose_everything(bench, [one])
        stage, is_first = one.store.stage_detached, True

        async def stage_and_expire(directory: str, result: PartName) -> Part:
            nonlocal is_first
            if is_first:
                is_first = False
                bench.server.expire_session(one.ctx.session().session_id)
            return await stage(directory, result)

        await one.table.restore(UUID(int=7))
        assert await one.table.wait_until_active(timeout_s=300)
        one.store.stage_detached = stage_and_expire  # type: ignore[method-assign]
        first = one.ctx.session()
        statement = asyncio.create_task(attach_restored(one.ctx))
        await bench.until(lambda: one.ctx.keeper not in (None, first), timeout_s=30)
        assert await statement == 3
        assert one.values == [0, 1, 2] and one.detached == []

    run(main)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_restore_that_is_killed_is_finished_by_the_next_start(seed: int) -> None:
    """The only replica is killed at a random moment of RESTORE; after the start it is restored, or the
    statement is repeated: all rows are there once."""

    async def main(bench: Bench) -> None:
        replica = await bench.start("r1")
        for key in range(5):
            await replica.insert(key)
        await lose_everything(bench, [replica])
        task = asyncio.create_task(restore(replica))
        for _ in range(bench.env.rng.randrange(200)):
            await asyncio.sleep(0)
        bench.server.crash_client(replica.name)
        task.cancel()
        await asyncio.wait([task])
        await replica.table.stop()

        again = await bench.start("r1", replica.disk, is_awaited=False, loops=LOOPS)
        await bench.env.sleep(30)
        if again.ctx.is_readonly:
            await restore(again)
        await bench.until(lambda: not any(name.startswith("restoring") for name in again.detached))
        await bench.quiet(again)
        assert again.values == [0, 1, 2, 3, 4]

    print(f"seed={seed}")
    run(main, seed=seed)


def test_a_restored_part_is_known_again_without_its_block_id() -> None:
    """A table with a deduplication window of 0 keeps none: whoever joins removes what the killed one made."""

    async def main(bench: Bench) -> None:
        replica = await bench.start("r1")
        for key in range(3):
            await replica.insert(key)
        await lose_everything(bench, [replica])

        async def dies(directory: str) -> None:
            raise asyncio.CancelledError

        replica.ctx.store.remove_detached = dies  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await restore(replica)
        assert replica.values == [0]
        bench.server.crash_client(replica.name)
        await replica.table.stop()
        for name in (await bench.admin.children(PATHS.blocks)).names:
            await bench.admin.remove(f"{PATHS.blocks}/{name}")

        again = await bench.start("r1", replica.disk, is_awaited=False, loops=LOOPS)
        await bench.until(lambda: not any(name.startswith("restoring") for name in again.detached))
        await bench.quiet(again)
        assert again.values == [0, 1, 2]

    run(main)


@pytest.mark.parametrize("number", [0, 90])
def test_an_entry_of_a_log_that_keeper_has_lost_is_not_waited_for(number: int) -> None:
    """The new log may have another entry of this number, or may never come to it."""

    async def main(bench: Bench) -> None:
        replica = await bench.start("r1")
        await replica.insert(1)
        await lose_everything(bench, [replica])
        await restored(replica)
        replica.ctx.switches.stop(Activity.PULLING)
        await replica.insert(2)
        async with asyncio.timeout(3600):
            await wait_for_entry(replica.ctx, Logged(f"log-{number:010d}", b"of the old log"))

    run(main)


def test_a_replica_with_rows_that_the_others_lack_keeps_them_aside() -> None:
    async def main(bench: Bench) -> None:
        one, two = await two_of_which_the_first_makes_the_table_with_less(bench)
        assert one.values == two.values == [1]
        assert two.detached == ["all_1_1_0"], "nothing is deleted"

    run(main)


def test_rows_come_back_also_where_the_table_is_left_in_keeper_without_any_replica() -> None:
    async def main(bench: Bench) -> None:
        replicas = await bench.cluster(2)
        for key in range(4):
            await replicas[key % 2].insert(key)
        await bench.quiet(*replicas)
        for replica in replicas:
            await remove_recursive(bench.admin, replica.ctx.me.root)
        await bench.until(lambda: all(replica.ctx.is_readonly for replica in replicas))
        made = [await restored(replica) for replica in replicas]
        assert made == [Created.TABLE, Created.REPLICA], "what was left of the table is made anew"
        await bench.quiet(*replicas)
        for replica in replicas:
            assert replica.values == [0, 1, 2, 3], replica.name
            assert replica.detached == []

    run(main)


def test_what_a_joining_replica_has_put_aside_is_not_attached_when_it_makes_the_table_later() -> None:
    async def main(bench: Bench) -> None:
        one, two = await two_of_which_the_first_makes_the_table_with_less(bench)
        assert two.detached == ["all_1_1_0"]
        await lose_everything(bench, [one, two])
        assert await restored(two) is Created.TABLE
        await restored(one)
        await bench.quiet(one, two)
        assert one.values == two.values == [1]

    run(main)


def test_a_replica_takes_over_the_alter_that_it_missed_while_keeper_did_not_have_it() -> None:
    async def main(bench: Bench) -> None:
        one, two = await bench.cluster(2)
        await one.insert(1)
        await bench.quiet(one, two)
        await remove_recursive(bench.admin, two.ctx.me.root)
        await bench.until(lambda: two.ctx.is_readonly)
        await alter_table(one.ctx, "ADD COLUMN c UInt8", sync=Sync.OWN)
        assert await restored(two) is Created.REPLICA
        await bench.quiet(one, two)
        assert two.disk.definition.columns == one.disk.definition.columns
        await alter_table(two.ctx, "ADD COLUMN d UInt8", sync=Sync.ALL)
        assert "d" in one.disk.definition.columns.by_name

    run(main)


def test_a_table_that_no_alter_can_have_made_is_not_taken_over() -> None:
    async def main(bench: Bench) -> None:
        one, two = await bench.cluster(2)
        await remove_recursive(bench.admin, two.ctx.me.root)
        await bench.until(lambda: two.ctx.is_readonly)
        metadata = two.disk.definition.metadata
        two.disk.definition = replace(two.disk.definition, metadata=replace(metadata, primary_key="v"))
        with pytest.raises(SqlError) as refused:
            await restore(two)
        assert refused.value.code == Code.METADATA_MISMATCH
        assert one.ctx.keeper is not None

    run(main)


def test_two_persons_may_say_restore_at_once() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.start("r1")
        for key in range(5):
            await replica.insert(key)
        await lose_everything(bench, [replica])
        both = await asyncio.gather(restore(replica), restore(replica), return_exceptions=True)
        assert Created.TABLE in both
        await bench.quiet(replica)
        assert replica.values == [0, 1, 2, 3, 4]
        assert replica.detached == []

    run(main)


def test_a_term_ends_although_its_loop_gets_an_error_at_the_moment_of_its_cancellation() -> None:
    """When Keeper loses a replica, `is_active` and `log_pointer` go at once: the term is over, and copying
    the log fails in the same instant. The error must not take the place of the cancellation."""

    async def main(bench: Bench) -> None:
        replica = await bench.start("r1")
        missing: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def step(_ctx: ReplicaContext) -> None:
            await asyncio.gather(missing, bench.env.sleep(1000.0))

        loop = asyncio.create_task(keep_running(replica.ctx, "copy", step))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        # 1. Keeper's answer arrives. 2. The term is over. 3. Only now `gather` looks at the answer.
        missing.set_exception(NoNode("/t/replicas/r1/log_pointer"))
        loop.cancel()
        await asyncio.wait([loop], timeout=60.0)
        assert loop.cancelled()

    run(main)
