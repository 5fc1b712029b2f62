"""Who waits for a Replicated database: how long, and what they are told."""

from __future__ import annotations

import asyncio

import pytest

from engine.ddl.output import OutputMode
from engine.errors import Code, KeeperUnavailable, SqlError
from engine.keeper.base import CreateMode
from engine.keeper.memory import MemoryKeeperServer
from engine.testing.simulation import SimulationEnv, run_simulation
from tests.simulation.databases_model import PATHS, Replica, one_replica, stop


def test_the_first_statement_waits_until_the_replica_has_begun() -> None:
    async def main(env: SimulationEnv) -> None:
        replica = Replica("r1", env.fork(), MemoryKeeperServer(env))
        replica.start(None)
        while not replica.is_made:
            await asyncio.sleep(0)
        assert await replica.submit("CREATE a t") == "ok"
        await stop(replica)

    run_simulation(1, main)


def test_whoever_waits_for_a_replica_that_is_stopped_is_told_at_once() -> None:
    async def main(env: SimulationEnv) -> None:
        server, _, database = await one_replica(env)
        # 1. An entry of a server that is still at it: this replica does not pass it.
        keeper = await server.factory(client="other")()
        await keeper.create(PATHS.entry(2), b"version: 1\nquery: \nhosts: []\n")
        await keeper.create(PATHS.entry(2, "try"), mode=CreateMode.EPHEMERAL)
        await keeper.set(PATHS.max_log_ptr, b"2")
        syncing = asyncio.ensure_future(database.sync(strict=False, timeout_s=300))
        await asyncio.sleep(5.0)
        assert not syncing.done()
        # 2. The node stops.
        await database.stop(grace_s=2)
        with pytest.raises(SqlError) as raised:
            await syncing
        assert (raised.value.code, env.monotonic_s() < 20) == (Code.TIMEOUT_EXCEEDED, True)

    run_simulation(1, main)


@pytest.mark.parametrize("mode", [OutputMode.THROW, OutputMode.NULL_STATUS_ON_TIMEOUT])
def test_keeper_is_waited_for_no_longer_than_replicas_are(mode: OutputMode) -> None:
    async def main(env: SimulationEnv) -> list[str]:
        server, replica, database = await one_replica(env)
        assert await replica.submit("CREATE a t") == "ok"
        server.stop()
        statuses: list[str] = []
        try:
            async with asyncio.timeout(60):
                async for row in database.outcomes(2, mode=mode, timeout_s=5, synced=False):
                    statuses.append(row.status)
        except SqlError as error:
            statuses.append(str(error.code))
        await database.stop(grace_s=1)
        return statuses

    assert run_simulation(1, main) == ["QUEUED", *(["159"] if mode is OutputMode.THROW else [])]


def test_what_holds_up_other_statements_does_not_wait_for_keeper_for_ever() -> None:
    async def main(env: SimulationEnv) -> None:
        server, replica, database = await one_replica(env)
        server.stop()
        await asyncio.sleep(60.0)
        why = "; no session with Keeper: No answer"
        assert why in database.readonly_reason and why in (await database.status()).keeper_error
        assert await replica.submit("CREATE a t") == "failed"
        for step in (database.create, database.restore, database.drop_begin, database.drop_end):
            async with asyncio.timeout(60):
                with pytest.raises(KeeperUnavailable):
                    await step()
        await database.stop(grace_s=1)

    run_simulation(1, main)
