"""SYSTEM SYNC REPLICA: what each mode waits for."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import Code, SqlError
from engine.keeper.base import CreateMode
from engine.keeper.session import RequestKind
from engine.replication.commands.insert import Inserter, InsertOptions
from engine.replication.commands.sync import SyncMode, sync_replica
from engine.replication.log_actions import MergeParts
from engine.replication.log_entry import LogEntry
from engine.replication.part_name import PartName
from engine.replication.replica.queue import loader as queue_loader
from engine.replication.replica.switches import Activity
from tests.unit.replication.replica_bench import PATHS, Bench, Replica, run


async def two_with_work(bench: Bench) -> tuple[Replica, Replica]:
    """r2 has to get two parts of r1, and to merge them."""
    one, two = await bench.replica("r1"), await bench.replica("r2")
    for replica in (one, two):
        await queue_loader.load(replica.ctx, replica.ctx.session())
    for value in range(2):
        await Inserter(one.ctx).commit([await one.write(value)], InsertOptions())
    sources = tuple(PartName.parse(f"all_{number}_{number}_0") for number in range(2))
    merge = LogEntry(MergeParts(sources, PartName.parse("all_0_1_1")), "r1", "2026-01-01 00:00:00")
    await (await bench.keeper()).create(
        PATHS.log_prefix, merge.to_bytes(), mode=CreateMode.PERSISTENT_SEQUENTIAL
    )
    return one, two


def finish(replica: Replica, number: int) -> None:
    """The runner is done with an entry."""
    (queued,) = [each for each in replica.ctx.queue.entries if each.name.endswith(str(number))]
    replica.ctx.queue.remove(queued, is_done=True)
    replica.ctx.mutation_news.announce()


def syncing(replica: Replica, mode: SyncMode, *sources: str, timeout_s: float = 300) -> asyncio.Task[None]:
    return asyncio.create_task(sync_replica(replica.ctx, mode, timeout_s, sources))


def test_pull_copies_the_log_and_waits_for_nothing() -> None:
    async def main(bench: Bench) -> None:
        _, two = await two_with_work(bench)
        await syncing(two, SyncMode.PULL)
        assert len(two.ctx.queue.entries) == 3

    run(main)


def test_default_waits_for_what_is_there_and_not_for_what_comes_later() -> None:
    async def main(bench: Bench) -> None:
        one, two = await two_with_work(bench)
        default, strict = syncing(two, SyncMode.DEFAULT), syncing(two, SyncMode.STRICT)
        await bench.env.sleep(5)
        await Inserter(one.ctx).commit([await one.write(9)], InsertOptions())
        await syncing(two, SyncMode.PULL)
        for number in range(3):
            assert not default.done()
            finish(two, number)
            await bench.env.sleep(0.1)
        await default
        await bench.env.sleep(5)
        assert not strict.done()
        finish(two, 3)
        await strict

    run(main)


def test_lightweight_does_not_wait_for_merges() -> None:
    async def main(bench: Bench) -> None:
        _, two = await two_with_work(bench)
        light = syncing(two, SyncMode.LIGHTWEIGHT)
        await bench.env.sleep(5)
        assert not light.done()
        finish(two, 0)
        finish(two, 1)
        await light
        await syncing(two, SyncMode.LIGHTWEIGHT, "r9")  # nothing of that replica

    run(main)


def test_lightweight_from_waits_for_what_these_replicas_wrote() -> None:
    async def main(bench: Bench) -> None:
        _, two = await two_with_work(bench)
        light = syncing(two, SyncMode.LIGHTWEIGHT, "r1", "r9")
        await bench.env.sleep(5)
        assert not light.done()
        finish(two, 0)
        finish(two, 1)
        await light
        with pytest.raises(SqlError) as caught:
            await syncing(two, SyncMode.STRICT, "r1")
        assert caught.value.code == Code.BAD_ARGUMENTS

    run(main)


def test_it_gives_up_after_the_timeout() -> None:
    async def main(bench: Bench) -> None:
        _, two = await two_with_work(bench)
        started_s = bench.env.monotonic_s()
        with pytest.raises(SqlError) as caught:
            await syncing(two, SyncMode.DEFAULT, timeout_s=7)
        assert caught.value.code == Code.TIMEOUT_EXCEEDED
        assert bench.env.monotonic_s() - started_s == pytest.approx(7)

    run(main)


def test_a_lost_connection_and_a_lost_session_cost_only_time() -> None:
    async def main(bench: Bench) -> None:
        _, two = await two_with_work(bench)
        bench.server.lose_next_request(two.session_id, kind=RequestKind.SYNC)
        task = syncing(two, SyncMode.DEFAULT)
        await bench.env.sleep(1)
        await two.expire()
        await bench.env.sleep(1)
        assert not task.done()
        await two.activate()
        for number in range(3):
            finish(two, number)
        await task

    run(main)


def test_a_read_only_replica_cannot_be_synced() -> None:
    async def main(bench: Bench) -> None:
        _, two = await two_with_work(bench)
        await two.expire()
        with pytest.raises(SqlError) as caught:
            await syncing(two, SyncMode.DEFAULT)
        assert caught.value.code == Code.TABLE_IS_READ_ONLY

    run(main)


def test_while_pulling_is_stopped_it_is_refused_and_nothing_is_copied() -> None:
    async def main(bench: Bench) -> None:
        _, two = await two_with_work(bench)
        two.ctx.switches.stop(Activity.PULLING)
        for mode in SyncMode:
            with pytest.raises(SqlError) as caught:
                await syncing(two, mode)
            assert caught.value.code == Code.ABORTED
        assert not two.ctx.queue.entries
        two.ctx.switches.start(Activity.PULLING)
        await syncing(two, SyncMode.PULL)
        assert len(two.ctx.queue.entries) == 3

    run(main)
