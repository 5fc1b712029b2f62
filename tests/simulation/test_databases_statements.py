"""Statements of clients: what travels with them, and when they end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from engine.databases import Commit
from engine.ddl.attempt import Fence
from engine.ddl.entry import DDLLogEntry
from engine.errors import ConnectionLoss, SqlError
from engine.keeper.base import Node
from engine.testing.simulation import SimulationEnv, run_simulation
from tests.simulation.databases_model import PATHS, replicas, stop


def test_other_replicas_carry_a_statement_out_with_its_settings() -> None:
    async def main(env: SimulationEnv) -> None:
        server, (first, second) = await replicas(env, "r1", "r2")
        database, schema, other = first.database, first.schema, second.schema
        assert database is not None and schema is not None and other is not None
        execute, seen = other.execute, []

        async def noted(number: int, query: str, settings: Mapping[str, str], fence: Fence) -> None:
            seen.append((query, dict(settings)))
            await execute(number, query, settings, fence)

        other.execute = noted  # type: ignore[method-assign]
        number = await database.submit(
            "CREATE a t",
            settings={"max_threads": "1", "flatten_nested": "0"},
            initial_query_id="the client's",
            execute=lambda commit: schema.as_initiator("CREATE a t", commit),
            timeout_s=60,
        )
        await asyncio.sleep(5.0)
        assert seen == [("CREATE a t", {"max_threads": "1", "flatten_nested": "0"})]
        keeper = await server.factory(client="checker")()
        entry = DDLLogEntry.from_bytes((await keeper.get(PATHS.entry(number))).data, where="the log")
        assert entry.initial_query_id == "the client's"
        await stop(first, second)

    run_simulation(1, main)


def test_a_statement_whose_connection_breaks_every_time_is_given_up_in_time() -> None:
    async def main(env: SimulationEnv) -> None:
        _, (replica,) = await replicas(env, "r1")
        assert replica.holder is not None and replica.database is not None and replica.schema is not None
        session: Any = await replica.holder.get()
        get = session.get

        async def breaks(path: str, **more: Any) -> Node:
            if path == PATHS.max_log_ptr:
                raise ConnectionLoss("again")
            node: Node = await get(path, **more)
            return node

        session.get = breaks
        schema, began_s = replica.schema, env.monotonic_s()
        with pytest.raises(SqlError, match="was not proposed"):
            await replica.database.submit(
                "CREATE a t",
                settings={},
                initial_query_id="",
                execute=lambda commit: schema.as_initiator("CREATE a t", commit),
                timeout_s=20,
            )
        assert 20 <= env.monotonic_s() - began_s < 30
        session.get = get
        assert await replica.submit("CREATE a t") == "ok"
        await stop(replica)

    run_simulation(1, main)


@pytest.mark.parametrize("grace_s", [60.0, 1.0])
def test_a_statement_under_way_when_the_database_stops_comes_to_its_end_within_the_time(
    grace_s: float,
) -> None:
    async def main(env: SimulationEnv) -> None:
        _, (first, second) = await replicas(env, "r1", "r2")
        assert first.database is not None and first.schema is not None
        as_initiator, begun, goes_on = first.schema.as_initiator, asyncio.Event(), asyncio.Event()

        async def slow(query: str, commit: Commit) -> None:
            begun.set()
            await goes_on.wait()
            await as_initiator(query, commit)

        first.schema.as_initiator = slow  # type: ignore[method-assign]
        client = asyncio.ensure_future(first.submit("CREATE a t"))
        await begun.wait()
        stopping = asyncio.ensure_future(first.database.stop(grace_s=grace_s))
        await asyncio.sleep(10.0)
        assert stopping.done() == (grace_s < 10.0)
        goes_on.set()
        await stopping
        await asyncio.sleep(10.0)
        wanted = {} if grace_s < 10.0 else {"a": "t"}
        assert first.disk.texts == second.disk.texts == wanted
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)
        assert await second.submit("CREATE b t") == "ok", "nobody waits for what was cut off"
        await stop(second)

    run_simulation(1, main)
