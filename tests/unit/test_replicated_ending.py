"""A table that ends: it waits for statements that write, and for none that come meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import Code, KeeperUnavailable, SqlError
from engine.node.replicated.catalog import TableRecord
from engine.node.replicated.runtime import NodePartStore, RunningTable
from tests.unit.replication_live_support import Live, run

LONGEST_S = 15.0


async def running(live: Live) -> RunningTable:
    (replica,) = await live.cluster(1)
    record: TableRecord = None  # type: ignore[assignment]  # of no use here
    store: NodePartStore = None  # type: ignore[assignment]
    return RunningTable(record, replica.ctx, replica.table, store)


def test_whoever_comes_while_a_table_ends_is_refused_and_not_waited_for() -> None:
    """1. A statement writes. 2. The table ends. 3. Another comes every second: it is told 242. 4. The first
    is over after five seconds, and so is the table."""

    async def main(live: Live) -> None:
        table = await running(live)

        async def write() -> None:
            with table.in_use():
                await live.env.sleep(5)

        writing = asyncio.ensure_future(write())
        while not table.users:
            await asyncio.sleep(0)
        began_s = live.env.monotonic_s()
        ending = asyncio.ensure_future(table.end(timeout_s=LONGEST_S))
        while not table.ctx.is_ending:
            await asyncio.sleep(0)
        refused = 0
        while not ending.done():
            with pytest.raises(SqlError) as said, table.in_use():
                await live.env.sleep(1.5)
            assert said.value.code == Code.TABLE_IS_READ_ONLY
            refused += 1
            await live.env.sleep(1)
        await asyncio.gather(writing, ending)
        assert refused >= 5
        assert live.env.monotonic_s() - began_s < LONGEST_S / 2

    run(main)


def test_a_statement_that_does_not_end_is_waited_for_no_longer_than_that() -> None:
    async def main(live: Live) -> None:
        table = await running(live)
        with table.in_use():
            began_s = live.env.monotonic_s()
            await table.end(timeout_s=LONGEST_S)
            assert live.env.monotonic_s() - began_s >= LONGEST_S

    run(main)


def test_a_restart_that_comes_while_a_table_ends_starts_nothing_that_nobody_would_stop() -> None:
    """1. DETACH or DROP begins. 2. SYSTEM RESTART REPLICA comes. 3. The table has ended, and stays so."""

    async def main(live: Live) -> None:
        table = await running(live)
        await asyncio.gather(table.end(timeout_s=LONGEST_S), table.replica.restart())
        assert not await table.replica.wait_until_active(timeout_s=LONGEST_S)
        assert table.ctx.is_readonly
        assert not live.has(table.ctx.me.is_active)

    run(main)


def test_a_table_that_ends_is_not_restored() -> None:
    """Its DROP, which has found no replica in Keeper, would leave the one that is made now."""

    async def main(live: Live) -> None:
        table = await running(live)
        live.lose_table(table.ctx.paths)
        await live.env.sleep(LONGEST_S)
        with pytest.raises(SqlError) as said:
            await asyncio.gather(
                table.end(timeout_s=LONGEST_S), table.replica.restore(table.ctx.env.new_uuid())
            )
        assert said.value.code == Code.TABLE_IS_READ_ONLY
        assert not live.has(table.ctx.paths.root)

    run(main)


def test_without_keeper_a_restore_is_refused_and_keeps_nobody_waiting() -> None:
    async def main(live: Live) -> None:
        table = await running(live)
        live.server.stop()
        await live.env.sleep(60)
        with pytest.raises(KeeperUnavailable):
            await table.replica.restore(table.ctx.env.new_uuid())
        await table.end(timeout_s=LONGEST_S)

    run(main)
