"""One replica of a shard at a statement about rows, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from engine.databases.joining import create_database
from engine.databases.paths import DatabasePaths, ReplicaName
from engine.databases.shard_turn import ShardTurn
from engine.ddl.attempt import Attempt, Effect, Fence
from engine.ddl.executor import FenceLost
from engine.errors import Code, SqlError
from engine.keeper.base import Create, Keeper, Op, Remove
from engine.keeper.memory import MemoryKeeperServer
from engine.testing.simulation import SimulationEnv, run_simulation

PATHS = DatabasePaths("/databases/d")
NUMBER = 1
R1, R2 = ReplicaName("s", "r1"), ReplicaName("s", "r2")


def leaf(name: str) -> str:
    return PATHS.shard(NUMBER, "s", name)


async def keepers(env: SimulationEnv) -> tuple[Keeper, Keeper]:
    """Two sessions, and an entry that is committed."""
    server = MemoryKeeperServer(env)
    keeper, other = await server.connect(), await server.connect()
    await create_database(keeper, PATHS, database_name="d", logs_to_keep=10)
    await keeper.create(PATHS.entry(NUMBER))
    return keeper, other


def turn(keeper: Keeper, env: SimulationEnv, me: ReplicaName = R1) -> ShardTurn:
    return ShardTurn(keeper, env, PATHS, me, NUMBER)


RECORD: Sequence[Op] = [Create(leaf("executed"), b"s|r1"), Remove(leaf("lock"))]


@pytest.mark.parametrize("closes", ["the statement", "nobody"])
def test_what_is_carried_out_is_said_before_the_entry_is_recorded(closes: str) -> None:
    """1. r1 carries it out, and ends before its record. 2. r2 takes the lock."""

    async def main(env: SimulationEnv) -> None:
        keeper, other = await keepers(env)

        async def carry_out(fence: Fence) -> None:
            if closes == "the statement":
                await keeper.multi(fence.whole() or ())

        assert await turn(keeper, env).run(carry_out) == RECORD
        attempt = Attempt.from_bytes((await keeper.get(leaf("attempt"))).data)
        assert attempt is not None and attempt.effect is Effect.WHOLE
        await keeper.close()

        async def again(fence: Fence) -> None:
            raise AssertionError("twice")

        ops = await turn(other, env, R2).run(again)
        assert ops == [Create(leaf("executed"), b"s|r2"), Remove(leaf("lock"))]

    run_simulation(1, main)


def test_who_was_overtaken_begins_anew_and_records_nothing_before_it_is_done() -> None:
    async def main(env: SimulationEnv) -> None:
        keeper, _ = await keepers(env)
        tries: list[str] = []

        async def carry_out(fence: Fence) -> None:
            tries.append((await keeper.get(leaf("tries_to_execute"))).data.decode())
            if len(tries) < 3:
                raise FenceLost(Code.UNFINISHED, "Another replica has taken over")

        assert await turn(keeper, env).run(carry_out) == RECORD
        assert tries == ["1", "2", "3"]

    run_simulation(1, main)


def test_who_fails_gives_the_lock_back() -> None:
    async def main(env: SimulationEnv) -> None:
        keeper, _ = await keepers(env)

        async def carry_out(fence: Fence) -> None:
            raise SqlError(Code.MEMORY_LIMIT_EXCEEDED, "no memory")

        with pytest.raises(SqlError, match="no memory"):
            await turn(keeper, env).run(carry_out)
        assert await keeper.exists(leaf("lock")) is None
        assert await keeper.exists(leaf("executed")) is None

    run_simulation(1, main)


def test_what_a_server_has_executed_between_a_look_and_the_lock_is_not_carried_out() -> None:
    """One of ClickHouse's, which leaves no `attempt`."""

    async def main(env: SimulationEnv) -> None:
        keeper, other = await keepers(env)
        session: Any = keeper
        create = session.create

        async def late(path: str, *more: Any, **options: Any) -> str:
            if path == leaf("lock"):
                await other.create(leaf("executed"), b"s|r2")
            return str(await create(path, *more, **options))

        session.create = late

        async def carry_out(fence: Fence) -> None:
            raise AssertionError("twice")

        assert await turn(keeper, env).run(carry_out) == []
        assert await keeper.exists(leaf("lock")) is None

    run_simulation(1, main)
