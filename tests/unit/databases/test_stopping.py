"""How a Replicated database ends."""

from __future__ import annotations

import asyncio
from typing import cast

from engine.databases import DatabaseSettings, LocalSchema, ReplicatedDatabase
from engine.databases.paths import DatabasePaths, ReplicaName
from engine.databases.replica import DatabaseReplica
from engine.keeper.base import Keeper
from engine.keeper.recipes import SessionHolder
from engine.testing.simulation import SimulationEnv, run_simulation


def test_a_database_that_waits_for_keeper_ends_without_waiting_longer() -> None:
    async def main(env: SimulationEnv) -> None:
        asked = asyncio.Event()

        async def never() -> Keeper:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

        replica = DatabaseReplica(
            env=env,
            holder=SessionHolder(never, env),
            paths=DatabasePaths("/databases/d"),
            me=ReplicaName("s", "r"),
            host="r:9000:uuid",
            server_uuid="server",
            schema=cast(LocalSchema, None),
            settings=DatabaseSettings(),
            database_name=lambda: "d",
        )
        database = ReplicatedDatabase(replica, {})
        database.start()
        await asked.wait()
        began_s = env.monotonic_s()
        await database.stop(grace_s=30)
        assert env.monotonic_s() == began_s

    run_simulation(1, main)
