"""A replica of a database that has carried an entry out and could not say so: it is not done again, and what
was done before it is not either."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from engine.databases import Commit, session_start
from engine.databases.digest import digest_of
from engine.databases.paths import ReplicaName
from engine.ddl.attempt import Fence
from engine.errors import Code, SqlError
from engine.keeper.base import Keeper
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.session import RequestKind
from engine.testing.simulation import SimulationEnv, run_simulation
from tests.simulation.databases_model import PATHS, ModelSchema, Replica, stop


async def started(env: SimulationEnv, server: MemoryKeeperServer) -> tuple[Replica, Replica]:
    first, second = (Replica(name, env.fork(), server) for name in ("r1", "r2"))
    for replica in (first, second):
        replica.start(None)
        await asyncio.sleep(5.0)
    return first, second


async def have_these(keeper: Keeper, texts: Mapping[str, str], *replicas: Replica) -> None:
    for replica in replicas:
        assert replica.disk.texts == texts, replica.name
        assert not replica.disk.emptied and not replica.disk.aside, replica.name
        digest = (await keeper.get(PATHS.replica(ReplicaName("s", replica.name), "digest"))).data
        assert int(digest) == digest_of(texts)
        await stop(replica)


def behind(query: str, schema: ModelSchema | None, then: Callable[[], None]) -> list[str]:
    """`then` is called once, when that statement has taken effect and is not recorded yet; returns all that
    are carried out from here on."""
    assert schema is not None
    execute = schema.execute
    carried_out: list[str] = []

    async def and_then(number: int, sql: str, settings: Mapping[str, str], fence: Fence) -> None:
        await execute(number, sql, settings, fence)
        carried_out.append(sql)
        if sql == query and carried_out.count(sql) == 1:
            then()

    schema.execute = and_then  # type: ignore[method-assign]
    return carried_out


@pytest.mark.parametrize("lost", ["connection", "session"])
def test_an_exchange_whose_record_was_lost_is_not_taken_back(lost: str) -> None:
    async def main(env: SimulationEnv) -> None:
        server = MemoryKeeperServer(env)
        keeper = await server.factory(client="checker")()
        first, second = await started(env, server)
        assert await first.submit("CREATE a t1") == "ok"
        assert await first.submit("CREATE b t2") == "ok"
        assert second.process is not None
        name = second.process.name

        # 1. The other replica exchanges them. 2. Its record does not reach Keeper.
        def loses() -> None:
            for session_id in server.session_ids(name):
                if lost == "session":
                    server.expire_session(session_id)
                else:
                    server.lose_next_request(session_id, kind=RequestKind.MULTI)

        carried_out = behind("EXCHANGE a b", second.schema, loses)
        # 3. More is committed meanwhile, and comes to it behind the exchange.
        assert await first.submit("EXCHANGE a b") == "ok"
        assert await first.submit("ALTER a t3") == "ok"
        await asyncio.sleep(60.0)
        assert carried_out[-2:] == ["EXCHANGE a b", "ALTER a t3"]
        assert carried_out.count("EXCHANGE a b") == 1
        await have_these(keeper, {"a": "t3", "b": "t1"}, first, second)

    run_simulation(1, main)


def test_a_drop_is_not_done_again_when_another_table_has_got_the_name() -> None:
    async def main(env: SimulationEnv) -> None:
        server = MemoryKeeperServer(env)
        keeper = await server.factory(client="checker")()
        first, second = await started(env, server)
        assert await first.submit("CREATE a old") == "ok"
        assert await first.submit("CREATE b rows") == "ok"
        # 1. The last entry that this replica has recorded is its own DROP.
        assert await first.submit("DROP a") == "ok"
        # 2. Another gives the name to a table with rows; here that takes effect, and the process ends.
        assert first.process is not None
        behind("RENAME b a", first.schema, first.process.kill)
        submits = asyncio.ensure_future(second.submit("RENAME b a"))
        while first.process.is_alive:
            await asyncio.sleep(0.1)
        assert await submits == "ok"
        # 3. Its definitions are not those of the DROP. That is not for a DROP that was cut short.
        first.start(None)
        await asyncio.sleep(60.0)
        await have_these(keeper, {"a": "rows"}, first, second)

    run_simulation(1, main)


def test_a_comparison_that_was_cut_short_is_done_again_in_the_same_session() -> None:
    async def main(env: SimulationEnv) -> None:
        server = MemoryKeeperServer(env)
        keeper = await server.factory(client="checker")()
        first, second = await started(env, server)
        assert await first.submit("CREATE a t1") == "ok"
        schema, process = first.schema, first.process
        assert schema is not None and process is not None
        write = schema._write

        # 1. A DROP is committed, and fails in chDB. 2. The worker's next look at the entry loses the
        # connection, and so does the comparison after that.
        def fails(*_: Mapping[str, str]) -> None:
            for session_id in [*server.session_ids(process.name)] * 2:
                server.lose_next_request(session_id, kind=RequestKind.GET)
            raise SqlError(Code.MEMORY_LIMIT_EXCEEDED, "Memory limit exceeded")

        schema._write = fails  # type: ignore[method-assign]
        assert await first.submit("DROP a") == "failed"
        schema._write = write  # type: ignore[method-assign]
        await asyncio.sleep(60.0)
        await have_these(keeper, {}, first, second)

    run_simulation(1, main)


@pytest.mark.parametrize(
    ("cut_off", "later"),
    [
        ("ALTER a t2", "ALTER a t3"),
        ("RENAME a c", "RENAME c d"),
        ("EXCHANGE a b", "RENAME b c"),
        ("CREATE c t3", "RENAME a d"),
        ("DROP b", "RENAME a d"),
        ("REPLACE b t3", "RENAME a d"),
    ],
)
def test_what_was_carried_out_and_not_recorded_when_the_process_ended_is_recorded_at_its_next_start(
    cut_off: str, later: str
) -> None:
    async def main(env: SimulationEnv) -> None:
        server = MemoryKeeperServer(env)
        keeper = await server.factory(client="checker")()
        first, second = await started(env, server)
        for query in ("CREATE a t1", "CREATE b t2"):
            assert await first.submit(query) == "ok"
        assert second.process is not None
        # 1. A replica has carried an entry out, and is killed. 2. Another one is about what it has left.
        behind(cut_off, second.schema, second.process.kill)
        for query in (cut_off, later):
            assert await first.submit(query) == "ok"
        await asyncio.sleep(20.0)
        assert not second.process.is_alive
        # 3. It starts, with its table as the first entry has left it.
        second.start(None)
        await asyncio.sleep(60.0)
        await have_these(keeper, first.disk.texts, first, second)

    run_simulation(1, main)


@pytest.mark.parametrize("query", ["RENAME a c", "EXCHANGE a b", "CREATE c new", "REPLACE b new"])
def test_what_was_not_committed_when_the_initiator_ended_is_taken_back(query: str) -> None:
    """And nothing else; a table that was made goes aside."""

    async def main(env: SimulationEnv) -> None:
        server = MemoryKeeperServer(env)
        keeper = await server.factory(client="checker")()
        first, second = await started(env, server)
        for each in ("CREATE a t1", "CREATE b t2"):
            assert await first.submit(each) == "ok"
        schema, process = first.schema, first.process
        assert schema is not None and process is not None
        as_initiator = schema.as_initiator

        async def dies(query: str, commit: Commit) -> None:
            async def never(changes: Mapping[str, str | None]) -> None:
                process.kill()
                process.gate()

            await as_initiator(query, never)  # type: ignore[arg-type]

        # 1. The initiator has carried it out, and is killed. 2. The others go on without it.
        schema.as_initiator = dies  # type: ignore[method-assign]
        assert await first.submit(query) == "died"
        assert await second.submit("ALTER a t3") == "ok"
        assert first.disk.texts != second.disk.texts
        # 3. It starts.
        first.start(None)
        await asyncio.sleep(60.0)
        assert [name[0] for name in first.disk.aside] == ([query.split()[1]] if "new" in query else [])
        first.disk.aside = []
        await have_these(keeper, {"a": "t3", "b": "t2"}, first, second)

    run_simulation(1, main)


def test_a_table_that_its_own_replication_alters_while_the_session_begins_is_in_the_digest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(env: SimulationEnv) -> None:
        server = MemoryKeeperServer(env)
        keeper = await server.factory(client="checker")()
        first, second = await started(env, server)
        assert await first.submit("CREATE a t1") == "ok"
        await asyncio.sleep(10.0)
        assert second.process is not None
        second.process.kill()
        read_cluster = session_start.read_cluster

        # 1. A session begins, and the definitions were compared. 2. The table is altered by its replication.
        async def alters(*arguments: Any) -> Any:
            second.disk.texts["a"] = "t2"
            return await read_cluster(*arguments)

        monkeypatch.setattr(session_start, "read_cluster", alters)
        second.start(None)
        await asyncio.sleep(20.0)
        # 3. The replica is active: its next start is to find what it has.
        await have_these(keeper, {"a": "t2"}, second)
        await stop(first)

    run_simulation(1, main)


def no_memory() -> None:
    raise SqlError(Code.MEMORY_LIMIT_EXCEEDED, "Memory limit exceeded")


@pytest.mark.parametrize("query", ["CREATE c t3", "ALTER a t3", "RENAME a c", "EXCHANGE a b", "DROP a"])
def test_an_entry_behind_whose_effect_memory_ran_out_is_not_carried_out_again(query: str) -> None:
    async def main(env: SimulationEnv) -> None:
        server = MemoryKeeperServer(env)
        keeper = await server.factory(client="checker")()
        first, second = await started(env, server)
        assert await first.submit("CREATE a t1") == "ok"
        assert await first.submit("CREATE b t2") == "ok"
        carried_out = behind(query, second.schema, no_memory)
        assert await first.submit(query) == "ok"
        await asyncio.sleep(60.0)
        assert carried_out.count(query) == 1
        await have_these(keeper, dict(first.disk.texts), first, second)

    run_simulation(1, main)


def test_memory_that_lacks_for_long_makes_nobody_move_tables_aside() -> None:
    async def main(env: SimulationEnv) -> None:
        server = MemoryKeeperServer(env)
        keeper = await server.factory(client="checker")()
        first, second = await started(env, server)
        assert await first.submit("CREATE a t1") == "ok"
        await asyncio.sleep(5.0)
        assert second.schema is not None
        execute, tries = second.schema.execute, 0

        async def fails(number: int, sql: str, settings: Mapping[str, str], fence: Fence) -> None:
            nonlocal tries
            tries += 1
            no_memory()

        second.schema.execute = fails  # type: ignore[method-assign]
        assert await first.submit("DROP a") == "ok"
        while tries < 30:
            await asyncio.sleep(1.0)
        lost = (await keeper.get(PATHS.replica(ReplicaName("s", "r2"), "digest"))).data
        assert int(lost) == digest_of({"a": "t1"})
        second.schema.execute = execute  # type: ignore[method-assign]
        await asyncio.sleep(60.0)
        await have_these(keeper, {}, first, second)

    run_simulation(1, main)


def test_what_cannot_be_taken_back_for_want_of_memory_is_later() -> None:
    async def main(env: SimulationEnv) -> None:
        server = MemoryKeeperServer(env)
        keeper = await server.factory(client="checker")()
        first, second = await started(env, server)
        assert await first.submit("CREATE a t1") == "ok"
        assert first.schema is not None
        write, take_back, fails = first.schema._write, first.schema.take_back, 2

        # 1. RENAME takes effect and fails, before it is committed. 2. So does what would undo it, twice.
        def behind_the_effect(texts: Mapping[str, str]) -> None:
            write(texts)
            no_memory()

        async def undo(query: str) -> None:
            nonlocal fails
            fails -= 1
            if fails >= 0:
                no_memory()
            await take_back(query)

        first.schema._write = behind_the_effect  # type: ignore[method-assign]
        first.schema.take_back = undo  # type: ignore[method-assign]
        assert await first.submit("RENAME a b") == "failed"
        first.schema._write = write  # type: ignore[method-assign]
        await asyncio.sleep(60.0)
        await have_these(keeper, {"a": "t1"}, first, second)
        assert fails < 0

    run_simulation(1, main)
