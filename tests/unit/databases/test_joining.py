"""How a database comes into Keeper and goes again, and what others do meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from engine.databases.joining import (
    create_database,
    create_replica,
    drop_other_replica,
    mark_dropped,
    remove_replica,
    restore_database,
)
from engine.databases.paths import DROPPED, MARK, DatabasePaths, ReplicaName
from engine.errors import SqlError
from engine.keeper.base import CreateMode, Keeper
from engine.keeper.memory import MemoryKeeperServer
from engine.testing.simulation import SimulationEnv, run_simulation

PATHS = DatabasePaths("/databases/d")
R1, R2 = ReplicaName("s", "r1"), ReplicaName("s", "r2")
HOST = "r1:9000:uuid"
MOST_REQUESTS = 60


class Interrupted:
    """A session in which something happens before one of its requests, counted from 0."""

    def __init__(self, keeper: Keeper, *, before: int, happens: Callable[[], Awaitable[None]]) -> None:
        self._keeper = keeper
        self._left = before
        self._happens = happens
        self.has_happened = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._keeper, name)

        async def request(*args: Any, **kwargs: Any) -> Any:
            if self._left == 0:
                self.has_happened = True
                await self._happens()
            self._left -= 1
            return await method(*args, **kwargs)

        return request if callable(method) else method


async def make(keeper: Keeper, env: SimulationEnv, *replicas: ReplicaName) -> None:
    await create_database(keeper, PATHS, database_name="d", logs_to_keep=10)
    for name in replicas:
        await create_replica(keeper, env, PATHS, name, host=HOST)


async def tree(keeper: Keeper, path: str = PATHS.root) -> dict[str, bytes]:
    found = {path: (await keeper.get(path)).data}
    for name in (await keeper.children(path)).names:
        found |= await tree(keeper, f"{path}/{name}")
    return found


async def code_of(refused: Awaitable[object]) -> int:
    with pytest.raises(SqlError) as raised:
        await refused
    return raised.value.code


def at_each_request(
    race: Callable[[SimulationEnv, int], Awaitable[bool]],
) -> None:
    """`race` is run with an interruption before the first request, the second, and so on, until it says that
    there was none."""
    for before in range(MOST_REQUESTS):
        if not run_simulation(1, lambda env, before=before: race(env, before)):  # type: ignore[misc]
            assert before > 5
            return
    raise AssertionError(f"more than {MOST_REQUESTS} requests")


def test_a_removal_that_is_slow_removes_nothing_of_the_database_that_is_made_after_it() -> None:
    """1. The last replica is being removed. 2. Another process ends the removal, and makes the database anew.
    3. The first one goes on."""

    async def race(env: SimulationEnv, before: int) -> bool:
        server = MemoryKeeperServer(env)
        keeper, other = await server.connect(), await server.connect()
        await make(keeper, env, R1)
        await keeper.create(PATHS.table("old"), b"old")
        await mark_dropped(keeper, env, PATHS, R1, host=HOST)
        made: dict[str, bytes] = {}

        async def made_anew() -> None:
            await remove_replica(other, PATHS, R1)
            await make(other, env, R1, R2)
            await other.create(PATHS.table("new"), b"new")
            made.update(await tree(other))

        slow = Interrupted(keeper, before=before, happens=made_anew)
        await remove_replica(cast(Keeper, slow), PATHS, R1)
        if slow.has_happened:
            assert await tree(other) == made, f"before request {before}"
        return slow.has_happened

    at_each_request(race)


def test_a_replica_that_comes_back_while_another_removes_it_slowly_stays() -> None:
    """1. A replica is being removed; there are others. 2. Its server removes it, too, and makes it anew.
    3. The first one goes on."""

    async def race(env: SimulationEnv, before: int) -> bool:
        server = MemoryKeeperServer(env)
        keeper, other = await server.connect(), await server.connect()
        await make(keeper, env, R1, R2)
        await mark_dropped(keeper, env, PATHS, R1, host=HOST)
        made: dict[str, bytes] = {}

        async def made_anew() -> None:
            await remove_replica(other, PATHS, R1)
            await create_replica(other, env, PATHS, R1, host=HOST)
            await other.create(PATHS.replica(R1, "active"), b"server", mode=CreateMode.EPHEMERAL)
            made.update(await tree(other))

        slow = Interrupted(keeper, before=before, happens=made_anew)
        await remove_replica(cast(Keeper, slow), PATHS, R1)
        if slow.has_happened:
            assert await tree(other) == made, f"before request {before}"
        return slow.has_happened

    at_each_request(race)


def test_of_a_database_that_is_removed_twice_at_once_nothing_is_left() -> None:
    async def race(env: SimulationEnv, before: int) -> bool:
        server = MemoryKeeperServer(env)
        keeper, other = await server.connect(), await server.connect()
        await make(keeper, env, R1)
        await mark_dropped(keeper, env, PATHS, R1, host=HOST)

        async def removed() -> None:
            await remove_replica(other, PATHS, R1)

        slow = Interrupted(keeper, before=before, happens=removed)
        await remove_replica(cast(Keeper, slow), PATHS, R1)
        assert await keeper.exists(PATHS.root) is None, f"before request {before}"
        return slow.has_happened

    at_each_request(race)


def test_a_replica_that_comes_while_another_is_dropped_is_in_a_whole_database() -> None:
    """1. The last replica is being removed. 2. Another server joins. 3. The first one goes on."""

    async def race(env: SimulationEnv, before: int) -> bool:
        server = MemoryKeeperServer(env)
        keeper, other = await server.connect(), await server.connect()
        await make(keeper, env, R1)
        await mark_dropped(keeper, env, PATHS, R1, host=HOST)
        wanted = {path for path in await tree(keeper) if "/replicas/" not in path and "/log/" not in path}
        slow = Interrupted(keeper, before=before, happens=lambda: make(other, env, R2))
        await remove_replica(cast(Keeper, slow), PATHS, R1)
        if slow.has_happened:
            assert wanted <= {*await tree(other)}, f"before request {before}"
            assert (await other.children(PATHS.replicas)).names == (str(R2),)
        return slow.has_happened

    at_each_request(race)


def test_what_is_not_marked_as_dropped_is_not_removed() -> None:
    async def main(env: SimulationEnv) -> None:
        keeper = await MemoryKeeperServer(env).connect()
        await make(keeper, env, R1, R2)
        there = await tree(keeper)
        await remove_replica(keeper, PATHS, R1)
        assert await tree(keeper) == there
        await mark_dropped(keeper, env, PATHS, R1, host="another server's")
        assert await tree(keeper) == there, "it is another server's"

    run_simulation(1, main)


def test_the_others_hear_of_a_replica_that_goes_also_if_it_was_marked_before() -> None:
    async def main(env: SimulationEnv) -> None:
        keeper = await MemoryKeeperServer(env).connect()
        await make(keeper, env, R1, R2)
        told = len((await keeper.children(PATHS.log)).names)
        await keeper.set(PATHS.replica(R1), DROPPED)
        await mark_dropped(keeper, env, PATHS, R1, host=HOST)
        assert len((await keeper.children(PATHS.log)).names) == told + 1

    run_simulation(1, main)


def test_a_replica_is_not_taken_from_the_database_that_has_it() -> None:
    """SELECT errorCodeToName(253), asked of chDB: REPLICA_ALREADY_EXISTS."""

    async def main(env: SimulationEnv) -> None:
        keeper = await MemoryKeeperServer(env).connect()
        await make(keeper, env, R1)
        there = await tree(keeper)
        assert await code_of(create_replica(keeper, env, PATHS, R1, host="another")) == 253
        assert await tree(keeper) == there
        await create_replica(keeper, env, PATHS, R1, host=HOST)  # again, after an answer that was lost
        for path, data in there.items():
            assert (await keeper.get(path)).data == data

    run_simulation(1, main)


def test_a_replica_that_joins_while_others_commit_knows_from_where_it_has_to_follow() -> None:
    async def main(env: SimulationEnv) -> None:
        server = MemoryKeeperServer(env)
        keeper, other = await server.connect(), await server.connect()
        await make(keeper, env, R1)

        async def commits() -> None:
            await other.set(PATHS.max_log_ptr, b"7")

        for before in range(10):
            await other.set(PATHS.max_log_ptr, b"6")
            name = ReplicaName("s", f"new{before}")
            slow = Interrupted(keeper, before=before, happens=commits)
            await create_replica(cast(Keeper, slow), env, PATHS, name, host=HOST)
            joined = await keeper.get(PATHS.replica(name, "max_log_ptr_at_creation"))
            newest = await keeper.get(PATHS.max_log_ptr)
            # The transaction that makes the replica checks the version of what it says.
            assert joined.data == (b"6" if newest.stat.mzxid > joined.stat.czxid else newest.data)

    run_simulation(1, main)


@pytest.mark.parametrize("data", [b"", b"something"])
def test_a_path_with_something_else_is_refused_and_left_alone(data: bytes) -> None:
    async def main(env: SimulationEnv) -> None:
        keeper = await MemoryKeeperServer(env).connect()
        await keeper.create("/databases")
        await keeper.create(PATHS.root, data)
        for name in ("log", "replicas", "other"):
            await keeper.create(f"{PATHS.root}/{name}")
        there = await tree(keeper)
        assert await code_of(create_database(keeper, PATHS, database_name="d", logs_to_keep=1)) == 36
        restored = restore_database(keeper, PATHS, {"t": "x"}, database_name="d", logs_to_keep=1)
        assert await code_of(restored) == 36
        dropped = drop_other_replica(keeper, env, PATHS, str(R1), if_there=True, me=R2)
        assert await code_of(dropped) == 36
        await remove_replica(keeper, PATHS, R1)
        assert await tree(keeper) == there

    run_simulation(1, main)


def test_a_database_of_an_old_version_is_joined_and_marked() -> None:
    """ClickHouse of 2020 left the value of the database's node empty."""

    async def main(env: SimulationEnv) -> None:
        keeper = await MemoryKeeperServer(env).connect()
        await make(keeper, env, R1)
        await keeper.create(PATHS.table("t"), b"x")
        await keeper.set(PATHS.root, b"")
        there = await tree(keeper)
        await create_database(keeper, PATHS, database_name="e", logs_to_keep=99)
        assert await tree(keeper) == {**there, PATHS.root: MARK}

    run_simulation(1, main)


def test_definitions_are_restored_by_whoever_is_first() -> None:
    async def main(env: SimulationEnv) -> None:
        keeper = await MemoryKeeperServer(env).connect()
        for texts in ({"a": "of the first", "b": "x"}, {"a": "of the second"}):
            await restore_database(keeper, PATHS, texts, database_name="d", logs_to_keep=10)
        assert (await keeper.get(PATHS.table("a"))).data == b"of the first"
        assert (await keeper.children(PATHS.metadata)).names == ("a", "b")

    run_simulation(1, main)


def test_another_replica_is_dropped_unless_it_is_active() -> None:
    async def main(env: SimulationEnv) -> None:
        server = MemoryKeeperServer(env)
        keeper, theirs = await server.connect(), await server.connect()
        await make(keeper, env, R1, R2)
        await theirs.create(PATHS.replica(R2, "active"), b"server", mode=CreateMode.EPHEMERAL)
        there = await tree(keeper)
        assert await code_of(drop(keeper, env, R2)) == 36
        assert await code_of(drop(keeper, env, ReplicaName("s", "r9"))) == 36
        assert not await drop_other_replica(keeper, env, PATHS, "s|r9", if_there=True, me=R1)
        assert await tree(keeper) == there
        await theirs.close()
        told = len((await keeper.children(PATHS.log)).names)
        assert await drop(keeper, env, R2)
        assert (await keeper.children(PATHS.replicas)).names == (str(R1),)
        assert len((await keeper.children(PATHS.log)).names) == told + 1, "the others hear of it"

    run_simulation(1, main)


async def drop(keeper: Keeper, env: SimulationEnv, name: ReplicaName) -> bool:
    return await drop_other_replica(keeper, env, PATHS, str(name), if_there=False, me=R1)


def test_a_replica_that_becomes_active_while_another_drops_it_is_dropped_before_it_or_not_at_all() -> None:
    async def race(env: SimulationEnv, before: int) -> bool:
        server = MemoryKeeperServer(env)
        keeper, theirs = await server.connect(), await server.connect()
        await make(keeper, env, R1, R2)
        value_seen = b""

        async def becomes_active() -> None:
            nonlocal value_seen
            stat = await theirs.exists(PATHS.replica(R2))
            value_seen = DROPPED if stat is None else (await theirs.get(PATHS.replica(R2))).data
            if value_seen != DROPPED:
                await theirs.create(PATHS.replica(R2, "active"), b"server", mode=CreateMode.EPHEMERAL)

        slow = Interrupted(keeper, before=before, happens=becomes_active)
        try:
            await drop(cast(Keeper, slow), env, R2)
        except SqlError as refused:
            assert refused.code == 36
        is_there = await keeper.exists(PATHS.replica(R2, "active")) is not None
        if slow.has_happened:
            assert is_there == (value_seen != DROPPED), f"before request {before}"
        return slow.has_happened

    at_each_request(race)
