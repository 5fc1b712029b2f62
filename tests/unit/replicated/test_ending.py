"""A table that ends: it waits for statements that write, and for none that come meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from engine.errors import Code, ConnectionLoss, KeeperUnavailable, SqlError, UnknownOutcome
from engine.keeper.base import Create, Op, OpResult
from engine.node.replicated.running.catalog import TableRecord
from engine.node.replicated.running.runtime import NodePartStore, RunningTable
from engine.replication.commands.alter import alter_table
from engine.replication.commands.insert import InsertOptions
from engine.replication.commands.waiting import Sync
from engine.replication.replica.switches import Activity
from tests.unit.replication.live_support import Live, run

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


def lose_the_commit(live: Live, table: RunningTable) -> None:
    """The next entry of the log gets no answer, and from then on nobody reaches Keeper."""
    keeper = table.ctx.session()
    plain = keeper.multi

    async def multi(ops: Sequence[Op]) -> list[OpResult]:
        if any(isinstance(op, Create) and op.path.endswith("/log/log-") for op in ops):
            live.server.stop()
            raise ConnectionLoss("no answer")
        return await plain(ops)

    keeper.multi = multi  # type: ignore[method-assign]


async def refusal_once_ended(live: Live, table: RunningTable, statement: asyncio.Task[object]) -> SqlError:
    """What a statement under way says when the table ends, which it does not outlast."""
    with pytest.raises(SqlError) as said:
        await asyncio.gather(statement, table.end(timeout_s=LONGEST_S))
    return said.value


def test_an_insert_that_looks_for_its_outcome_without_keeper_ends_with_the_table() -> None:
    """1. The commit is sent, Keeper goes away. 2. The insert looks for its outcome. 3. The table ends."""

    async def main(live: Live) -> None:
        table = await running(live)
        (replica, *_) = live.replicas.values()
        await replica.insert(0)
        lose_the_commit(live, table)
        inserting = asyncio.ensure_future(replica.insert(1))
        await live.env.sleep(20)
        began_s = live.env.monotonic_s()
        said = await refusal_once_ended(live, table, inserting)
        assert said.code == Code.UNKNOWN_STATUS_OF_INSERT and "detached" in said.message
        assert live.env.monotonic_s() - began_s < LONGEST_S

    run(main)


@pytest.mark.parametrize("max_retries", [0, 3, 20])
def test_how_long_an_insert_looks_for_its_outcome_is_what_its_retries_say(max_retries: int) -> None:
    async def main(live: Live) -> None:
        table = await running(live)
        (replica, *_) = live.replicas.values()
        await replica.insert(0)
        lose_the_commit(live, table)
        began_s = live.env.monotonic_s()
        with pytest.raises(SqlError, match="Keeper does not answer") as said:
            await replica.insert(1, options=InsertOptions(max_retries=max_retries))
        assert said.value.code == Code.UNKNOWN_STATUS_OF_INSERT
        longest_s = {0: 25, 3: 35, 20: 200}[max_retries]
        assert live.env.monotonic_s() - began_s < longest_s
        await table.end(timeout_s=LONGEST_S)

    run(main)


def test_an_insert_that_waits_for_its_quorum_ends_with_the_table() -> None:
    async def main(live: Live) -> None:
        table = await running(live)
        other = await live.replica("r2")
        other.ctx.switches.stop(Activity.FETCHES)
        (replica, *_) = live.replicas.values()
        inserting = asyncio.ensure_future(replica.insert(1, options=InsertOptions(quorum=2)))
        await live.env.sleep(5)
        began_s = live.env.monotonic_s()
        said = await refusal_once_ended(live, table, inserting)
        assert said.code == Code.UNKNOWN_STATUS_OF_INSERT and "quorum" in said.message
        assert live.env.monotonic_s() - began_s < LONGEST_S

    run(main)


def test_an_alter_that_looks_for_its_outcome_without_keeper_ends_with_the_table() -> None:
    async def main(live: Live) -> None:
        table = await running(live)
        lose_the_commit(live, table)
        altering = asyncio.ensure_future(alter_table(table.ctx, "ADD COLUMN w UInt8"))
        await live.env.sleep(20)
        with pytest.raises(UnknownOutcome, match="not known what became of") as said:
            await asyncio.gather(altering, table.end(timeout_s=LONGEST_S))
        assert said.value.code == Code.KEEPER_EXCEPTION

    run(main)


@pytest.mark.parametrize("is_keeper_there", [True, False])
def test_an_alter_that_waits_for_a_table_that_ends_says_unfinished(is_keeper_there: bool) -> None:
    """ClickHouse does not wait for itself, either, once it shuts the table down."""

    async def main(live: Live) -> None:
        table = await running(live)
        table.ctx.switches.stop(Activity.QUEUES)
        altering = asyncio.ensure_future(alter_table(table.ctx, "ADD COLUMN w UInt64", sync=Sync.ALL))
        await live.env.sleep(5)
        if not is_keeper_there:
            live.server.stop()
            await live.env.sleep(30)
        began_s = live.env.monotonic_s()
        said = await refusal_once_ended(live, table, altering)
        assert said.code == Code.UNFINISHED and "r1" in said.message
        assert live.env.monotonic_s() - began_s < LONGEST_S

    run(main)
