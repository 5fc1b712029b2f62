"""Numbers of entries: one at a time, each once, and no entry without its state."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from engine.databases.joining import create_database
from engine.databases.numbering import enqueue
from engine.databases.paths import DatabasePaths, ReplicaName
from engine.ddl.entry import DEFAULT_VERSION, DDLLogEntry
from engine.errors import ConnectionLoss, SqlError
from engine.keeper.base import CreateMode, Keeper, Op, OpResult
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.session import RequestKind
from engine.names import entry_number
from engine.testing.simulation import SimulationEnv, run_simulation

PATHS = DatabasePaths("/databases/d")
ME = ReplicaName("s", "r1")


def proposed(query: str = "CREATE TABLE t") -> DDLLogEntry:
    return DDLLogEntry(version=DEFAULT_VERSION, query=query, hosts=(), initiator=str(ME))


async def numbered(env: SimulationEnv, keeper: Keeper, entry: DDLLogEntry | None = None) -> int:
    return await enqueue(keeper, env, PATHS, ME, entry or proposed(), is_committed=False)


async def database(env: SimulationEnv) -> tuple[MemoryKeeperServer, Keeper, Keeper]:
    """Two sessions with it."""
    server = MemoryKeeperServer(env)
    keeper, other = await server.connect(client="r1"), await server.connect(client="other")
    await create_database(keeper, PATHS, database_name="d", logs_to_keep=10)
    return server, keeper, other


async def numbers(keeper: Keeper) -> list[int | None]:
    await keeper.sync(PATHS.log)
    return [entry_number(name) for name in (await keeper.children(PATHS.log)).names]


async def is_free(keeper: Keeper) -> bool:
    """No lock, and no number that nobody uses."""
    lock = await keeper.exists(PATHS.counter_lock)
    return lock is None and (await keeper.children(PATHS.counter)).names == ()


def test_the_first_number_is_1_and_each_is_given_once() -> None:
    async def main(env: SimulationEnv) -> None:
        _, keeper, other = await database(env)
        given = await asyncio.gather(*(numbered(env, each) for each in (keeper, other) * 3))
        assert sorted(given) == [1, 2, 3, 4, 5, 6]
        assert await numbers(keeper) == [1, 2, 3, 4, 5, 6]
        for number in given:
            children = (await keeper.children(PATHS.entry(number))).names
            assert set(children) == {"try", "active", "finished", "synced"}
        assert await is_free(keeper)

    run_simulation(1, main)


def test_who_holds_the_lock_is_waited_for_and_keeps_it() -> None:
    async def main(env: SimulationEnv) -> None:
        _, keeper, other = await database(env)
        await other.create(PATHS.counter_lock, b"s|r2", mode=CreateMode.EPHEMERAL)
        waiting = asyncio.ensure_future(numbered(env, keeper))
        await asyncio.sleep(10.0)
        lock = await other.get(PATHS.counter_lock)
        assert lock.stat.ephemeral_owner == other.session_id and not waiting.done()
        await other.close()
        assert await waiting == 1

    run_simulation(1, main)


def test_a_lock_of_ones_own_is_of_a_request_without_an_answer() -> None:
    async def main(env: SimulationEnv) -> None:
        server, keeper, _ = await database(env)
        server.lose_next_reply(keeper.session_id, kind=RequestKind.MULTI)
        assert await numbered(env, keeper) == 2, "what was given without an answer is not used"
        assert await numbers(keeper) == [2]

    run_simulation(1, main)


@pytest.mark.parametrize("what", ["request", "reply", "reply_and_lag"])
def test_of_an_entry_without_an_answer_it_is_found_out_whether_it_is_there(what: str) -> None:
    async def main(env: SimulationEnv) -> None:
        server, keeper, other = await database(env)
        session: Any = keeper
        multi = session.multi

        async def breaks(ops: Sequence[Op]) -> list[OpResult]:
            if any(op.path.endswith("/try") for op in ops):
                session.multi = multi
                getattr(server, f"lose_next_{what}")(keeper.session_id, kind=RequestKind.MULTI)
            result: list[OpResult] = await multi(ops)
            return result

        session.multi = breaks
        if what == "request":
            with pytest.raises(ConnectionLoss):
                await numbered(env, keeper)
            assert await numbers(other) == []
            assert await is_free(other), "the others need not wait for this session's end"
        else:
            assert await numbered(env, keeper) == 1
            assert await numbers(other) == [1]
            assert await other.exists(PATHS.entry(1, "try")) is not None

    run_simulation(1, main)


def test_an_entry_that_is_too_long_is_refused_and_takes_no_number() -> None:
    async def main(env: SimulationEnv) -> None:
        _, keeper, _ = await database(env)
        with pytest.raises(SqlError) as refused:
            await numbered(env, keeper, proposed("x" * (1 << 20)))
        assert refused.value.code == 36
        assert await is_free(keeper)
        assert await numbered(env, keeper) == 1

    run_simulation(1, main)
