"""Who waits for other replicas, and goes on waiting on another session with Keeper."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from engine.keeper.base import Keeper
from engine.replication.commands.mutate import create_mutation, wait_for_mutation
from engine.replication.commands.partitions import Sync, drop_partition
from engine.replication.replica.switches import Activity
from tests.unit.replication.live_support import PATHS, Live, LiveReplica, run


async def drop(replica: LiveReplica) -> None:
    await drop_partition(replica.ctx, "all", sync=Sync.ALL)


async def update(replica: LiveReplica) -> None:
    number = await create_mutation(replica.ctx, "UPDATE v = 1 WHERE k = 1")
    await wait_for_mutation(replica.ctx, number, sync=Sync.ALL)


@pytest.mark.parametrize("command", [drop, update])
def test_a_server_that_lags_behind_says_of_no_replica_that_it_is_done(
    command: Callable[[LiveReplica], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The command waits for r2. 2. Its session ends. 3. The next one is with a server that does not know
    of the command yet."""

    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        await first.insert(1)
        await live.quiet()
        lagging = await live.server.connect(client="r1", session_timeout_s=10)
        live.server.stale_reads(lagging.session_id)
        second.ctx.switches.stop(Activity.QUEUES)
        statement = asyncio.create_task(command(first))
        while not live.children(second.ctx.me.queue):
            await live.env.sleep(0.1)
        await first.table.stop()

        async def next_session(*, timeout_s: float | None = None) -> Keeper:
            return lagging

        current = first.holder.current
        assert current is not None
        monkeypatch.setattr(first.holder, "get", next_session)
        live.server.expire_session(current.session_id)
        await live.env.sleep(30)
        assert not statement.done(), "r2 has done nothing"
        monkeypatch.undo()
        await first.table.start()
        second.ctx.switches.start(Activity.QUEUES)
        second.ctx.queue_changed.set()
        await statement
        assert not live.children(second.ctx.me.queue) and live.has(PATHS.log)

    run(main)
