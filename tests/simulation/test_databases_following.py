"""Replicas of a Replicated database follow its log, whatever an entry meets on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from engine.databases import (
    Commit,
    DatabaseSettings,
    ReplicaName,
    ReplicatedDatabase,
)
from engine.databases.digest import digest_of, hash_of
from engine.databases.entry_cleanup import clean_log
from engine.ddl.attempt import Fence
from engine.ddl.output import OutputMode
from engine.errors import Code, ConnectionLoss, SqlError
from engine.keeper.base import Op, OpResult
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.recipes import remove_recursive
from engine.keeper.session import RequestKind
from engine.testing.simulation import SimulationEnv, run_simulation
from tests.simulation.databases_model import PATHS, Replica, one_replica, replicas, stop, two_replicas


def test_a_replica_held_up_for_longer_than_the_log_is_kept_does_not_pass_over_what_was_removed() -> None:
    async def main(env: SimulationEnv) -> None:
        server, (healthy, slow) = await replicas(env, "r1", "r2")
        keeper = await server.factory(client="checker")()
        await keeper.set(PATHS.logs_to_keep, b"2")
        assert slow.schema is not None and slow.database is not None and healthy.database is not None
        execute = slow.schema.execute

        # 1. One replica is held up at an entry, in one and the same session.
        async def fails(number: int, query: str, settings: Mapping[str, str], fence: Fence) -> None:
            raise SqlError(Code.MEMORY_LIMIT_EXCEEDED, "Memory limit exceeded")

        slow.schema.execute = fails  # type: ignore[method-assign]
        # 2. The others go on, and the log forgets entries that it has not come to.
        for number in range(6):
            assert await healthy.submit(f"CREATE t{number} text{number}") == "ok"
        assert await clean_log(keeper, PATHS)
        # 3. It goes on.
        slow.schema.execute = execute  # type: ignore[method-assign]
        await asyncio.sleep(120.0)
        assert slow.disk.texts == healthy.disk.texts
        for replica in (healthy, slow):
            assert replica.database is not None and not replica.database.readonly_reason
            digest = (await keeper.get(PATHS.replica(ReplicaName("s", replica.name), "digest"))).data
            assert int(digest) == digest_of(healthy.disk.texts)
            await replica.database.stop(grace_s=1)

    run_simulation(1, main)


def test_a_statement_behind_the_coming_of_a_replica_is_waited_for_on_that_one_too() -> None:
    """1. A replica is at an entry. 2. Another one joins, and the first gets a statement. 3. It goes on, and
    sees the entries of both at once."""

    async def main(env: SimulationEnv) -> list[str]:
        server, (first, second) = await replicas(env, "r1", "r2")
        database, schema, goes_on = first.database, first.schema, asyncio.Event()
        assert schema is not None and database is not None
        execute = schema.execute

        async def is_held_up(number: int, query: str, settings: Mapping[str, str], fence: Fence) -> None:
            await goes_on.wait()
            await execute(number, query, settings, fence)

        schema.execute = is_held_up  # type: ignore[method-assign]
        assert await second.submit("CREATE a t") == "ok"
        third = Replica("r3", env.fork(), server)
        third.start(None)
        await asyncio.sleep(5.0)
        statement = asyncio.ensure_future(
            database.submit(
                "CREATE b t",
                settings={},
                initial_query_id="",
                execute=lambda commit: schema.as_initiator("CREATE b t", commit),
                timeout_s=60,
            )
        )
        await asyncio.sleep(5.0)
        goes_on.set()
        rows = database.outcomes(await statement, mode=OutputMode.THROW, timeout_s=60, synced=False)
        done = sorted([row.replica async for row in rows])
        await stop(first, second, third)
        return done

    assert run_simulation(1, main) == ["r1", "r2", "r3"]


def test_a_replica_whose_coming_was_heard_of_when_the_connection_broke_is_known_soon() -> None:
    async def main(env: SimulationEnv) -> list[str]:
        server, first, database = await one_replica(env)
        assert first.holder is not None
        session: Any = await first.holder.get()
        children, broken = session.children, list[str]()

        async def breaks_once(path: str, **options: Any) -> Any:
            if path == PATHS.replicas and not broken:
                broken.append(path)
                raise ConnectionLoss("The connection was lost")
            return await children(path, **options)

        session.children = breaks_once
        second = Replica("r2", env.fork(), server)
        second.start(None)
        await asyncio.sleep(30.0)
        assert broken and not session.is_expired
        known = [replica.full_name for replica in database.cluster.replicas]
        await stop(first, second)
        return known

    assert run_simulation(1, main) == ["s|r1", "s|r2"]


@pytest.mark.parametrize("removal", ["done", "begun"])
def test_what_the_log_forgets_while_a_replica_is_at_an_earlier_entry_is_not_passed_over(removal: str) -> None:
    """1. A replica is at one of several entries that it has seen. 2. The log forgets the next one. 3. It goes
    on, and is not so far behind that the listing after that would tell."""

    async def main(env: SimulationEnv) -> None:
        server, (healthy, slow) = await replicas(env, "r1", "r2")
        keeper = await server.factory(client="checker")()
        await keeper.set(PATHS.logs_to_keep, b"3")
        assert slow.schema is not None and slow.database is not None and healthy.database is not None
        execute, at, goes_on = slow.schema.execute, asyncio.Queue[str](), asyncio.Queue[None]()

        async def is_held_up(number: int, query: str, settings: Mapping[str, str], fence: Fence) -> None:
            at.put_nowait(query)
            await goes_on.get()
            await execute(number, query, settings, fence)

        async def known_when_synced(database: ReplicatedDatabase) -> list[str]:
            await database.sync(strict=False, timeout_s=600)
            return list(slow.disk.texts)

        slow.schema.execute = is_held_up  # type: ignore[method-assign]
        assert await healthy.submit("CREATE t0 text0") == "ok"
        assert await at.get() == "CREATE t0 text0"
        for number in (1, 2):
            assert await healthy.submit(f"CREATE t{number} text{number}") == "ok"
        waiting = asyncio.ensure_future(known_when_synced(slow.database))
        assert await healthy.submit("CREATE t3 text3") == "ok"
        goes_on.put_nowait(None)
        assert await at.get() == "CREATE t1 text1"
        for number in (4, 5, 6):
            assert await healthy.submit(f"CREATE t{number} text{number}") == "ok"
        if removal == "done":
            assert await clean_log(keeper, PATHS)
        else:
            [entry] = [
                path
                for name in (await keeper.children(PATHS.log)).names
                if b"CREATE t2 " in (await keeper.get(path := f"{PATHS.log}/{name}")).data
            ]
            await keeper.remove(f"{entry}/active")
            await keeper.remove(f"{entry}/committed")
        slow.schema.execute = execute  # type: ignore[method-assign]
        goes_on.put_nowait(None)
        assert "t2" in await waiting
        await asyncio.sleep(120.0)
        assert slow.disk.texts == healthy.disk.texts
        for replica in (healthy, slow):
            assert replica.database is not None and not replica.database.readonly_reason
            await replica.database.stop(grace_s=1)

    run_simulation(1, main)


@pytest.mark.parametrize(
    ("code", "attempts"), [(Code.NOT_ENOUGH_SPACE, 3), (Code.TABLE_NOT_EMPTY, 1), (None, 12)]
)
def test_an_entry_that_fails_again_and_again_in_one_way_is_recovered_from(
    code: Code | None, attempts: int
) -> None:
    """At once where it gets no better by waiting; not where it fails in another way each time (None)."""

    async def main(env: SimulationEnv) -> None:
        _, first, second = await two_replicas(env)
        assert second.schema is not None and second.database is not None and first.database is not None
        execute = second.schema.execute
        failures = 0

        async def fails(number: int, query: str, settings: Mapping[str, str], fence: Fence) -> None:
            nonlocal failures
            if query != "ALTER a other" or failures == 12:
                return await execute(number, query, settings, fence)
            failures += 1
            raise SqlError(code or Code.NOT_ENOUGH_SPACE, "no" if code else f"no, for the {failures}th time")

        second.schema.execute = fails  # type: ignore[method-assign]
        assert await first.submit("ALTER a other") == "ok"
        await env.sleep(100)
        assert failures == attempts and bool(second.disk.aside) is (code is not None)
        assert await first.submit("CREATE b t") == "ok"
        await env.sleep(10)
        assert first.disk.texts == second.disk.texts == {"a": "other", "b": "t", "t": "replicated-1"}
        assert not second.database.readonly_reason
        await stop(first, second)

    run_simulation(1, main)


def test_a_replica_goes_on_after_an_error_in_the_program() -> None:
    async def main(env: SimulationEnv) -> None:
        server, first, _ = await one_replica(env)
        second = Replica("r2", env.fork(), server)
        second.start(None)
        await asyncio.sleep(5.0)
        assert second.schema is not None
        execute, failures = second.schema.execute, 0

        async def fails_once(number: int, query: str, settings: Mapping[str, str], fence: Fence) -> None:
            nonlocal failures
            failures += 1
            if failures == 1:
                raise ValueError("a defect")
            await execute(number, query, settings, fence)

        second.schema.execute = fails_once  # type: ignore[method-assign]
        assert await first.submit("CREATE a t") == "ok"
        await asyncio.sleep(60.0)
        assert (second.disk.texts, failures) == ({"a": "t"}, 2)
        await stop(first, second)

    run_simulation(1, main)


def test_a_replica_that_is_far_behind_takes_no_statements() -> None:
    async def main(env: SimulationEnv) -> None:
        _, first, second = await two_replicas(env)
        assert second.schema is not None and second.database is not None
        execute, may_go_on = second.schema.execute, asyncio.Event()

        async def slowly(number: int, query: str, settings: Mapping[str, str], fence: Fence) -> None:
            await may_go_on.wait()
            await execute(number, query, settings, fence)

        second.schema.execute = slowly  # type: ignore[method-assign]
        most = DatabaseSettings().max_replication_lag_to_enqueue
        for number in range(most + 1):
            assert await first.submit(f"ALTER a {number}") == "ok"
        with pytest.raises(SqlError, match="lag of") as refused:
            await second.database.submit(
                "DROP a", settings={}, initial_query_id="", execute=_nothing, timeout_s=60
            )
        assert refused.value.code == Code.NOT_A_LEADER
        may_go_on.set()
        await env.sleep(10)
        assert await second.submit("CREATE b t") == "ok"
        await env.sleep(10)
        assert first.disk.texts == second.disk.texts == {"a": str(most), "b": "t", "t": "replicated-1"}
        await stop(first, second)

    run_simulation(1, main)


def test_an_effect_that_could_not_be_undone_is_taken_back_in_the_same_session() -> None:
    """The session may live for weeks, and the names stand for other tables here than everywhere else."""

    async def main(env: SimulationEnv) -> None:
        _, replica, database = await one_replica(env)
        assert replica.schema is not None
        assert await replica.submit("CREATE a t") == "ok"
        schema = replica.schema

        async def fails_behind_its_effect(query: str, _: Commit) -> None:
            await schema.execute(0, query, {}, Fence())
            raise SqlError(Code.NOT_ENOUGH_SPACE, "no room for more")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(schema, "as_initiator", fails_behind_its_effect)
            assert await replica.submit("RENAME a b") == "failed"
            assert replica.disk.texts == {"b": "t"}
        await env.sleep(30)
        assert replica.disk.texts == {"a": "t"} and replica.disk.aside == []
        assert await replica.submit("RENAME a c") == "ok"
        await database.stop(grace_s=1)

    run_simulation(1, main)


@pytest.mark.parametrize("day", ["good", "lost connection", "later entry", "later entry, at the last moment"])
def test_a_definition_that_was_planned_wrong_is_put_right_and_nobody_s_rows_go_aside(day: str) -> None:
    """What the initiator commits beforehand is planned; what it then has is what all have."""

    async def main(env: SimulationEnv) -> None:
        server = MemoryKeeperServer(env)
        first, second, third = (Replica(name, env.fork(), server) for name in ("r1", "r2", "r3"))
        for replica in (first, second):
            replica.start(None)
            await asyncio.sleep(5.0)
        assert first.schema is not None and first.process is not None
        session_ids = server.session_ids(first.process.name)

        async def plans_wrong(query: str, commit: Commit) -> None:
            # 1. The plan is committed.
            await commit({"a": "planned"})
            # 2. Before it is corrected, the connection breaks, or another replica changes the same table.
            if day == "lost connection":
                for session_id in session_ids:
                    server.lose_next_request(session_id, kind=RequestKind.MULTI)
            if day == "later entry":
                assert await second.submit("ALTER a later") == "ok"
            if day == "later entry, at the last moment":
                session.multi = overtaken
            first.disk.texts["a"] = "real"

        assert first.holder is not None
        session: Any = await first.holder.get()
        multi = session.multi

        async def overtaken(ops: Sequence[Op]) -> list[OpResult]:
            session.multi = multi
            assert await second.submit("ALTER a later") == "ok"
            result: list[OpResult] = await multi(ops)
            return result

        first.schema.as_initiator = plans_wrong  # type: ignore[method-assign]
        assert await first.submit("CREATE a real") == "ok"
        # 3. A new replica takes what Keeper has, and the first begins its session anew.
        third.start(None)
        server.expire_session(session_ids[0])
        await asyncio.sleep(120.0)
        expected = {"a": "later" if day.startswith("later entry") else "real"}
        keeper = await server.factory(client="checker")()
        assert (await keeper.get(PATHS.table("a"))).data.decode() == expected["a"]
        for replica in (first, second, third):
            assert replica.disk.texts == expected
            assert replica.disk.aside == []
            assert replica.database is not None and not replica.database.readonly_reason
            await replica.database.stop(grace_s=1)

    run_simulation(1, main)


def test_a_replicated_table_that_is_ahead_of_the_log_keeps_nobody_from_following_it() -> None:
    async def main(env: SimulationEnv) -> None:
        server, first, second = await two_replicas(env)
        await stop(second)
        assert await first.submit("RENAME a b") == "ok"
        # Its own replication alters the table before the database has a session: as the node starts, and then
        # while the session is another one.
        second.start(None)
        second.disk.texts = {**second.disk.texts, "t": "replicated-2"}
        await asyncio.sleep(10.0)
        assert second.disk.texts == {"b": "one", "t": "replicated-2"}
        second.disk.texts = {**second.disk.texts, "t": "replicated-3"}
        assert await first.submit("RENAME b c") == "ok"
        for session_id in server.session_ids():
            server.expire_session(session_id)
        await asyncio.sleep(30.0)
        assert (second.disk.texts, second.disk.aside) == ({"c": "one", "t": "replicated-3"}, [])
        await stop(first, second)

    run_simulation(1, main)


@pytest.mark.parametrize("is_initiator", [False, True])
def test_a_replicated_table_s_own_alter_that_the_digest_does_not_know_is_no_reason_to_recover(
    is_initiator: bool,
) -> None:
    async def main(env: SimulationEnv) -> None:
        server, first, second = await two_replicas(env)
        # 1. The table's own replication alters it, or the digest says that it will, and the process ends.
        await stop(second)
        keeper = await server.factory(client="checker")()
        one, two = (hash_of("t", f"replicated-{number}") for number in (1, 2))
        if is_initiator:
            digest = digest_of({**second.disk.texts, "t": "replicated-2"})
            await keeper.set(PATHS.replica(ReplicaName("s", "r2"), "digest"), str(digest).encode())
            second.disk.others = {"t": {two}}
        else:
            second.disk.texts = {**second.disk.texts, "t": "replicated-2"}
            second.disk.others = {"t": {one}, "gone": {7}}
        # 2. Others go on with a plain table.
        assert await first.submit("RENAME a b") == "ok"
        # 3. It comes back.
        second.start(None)
        await asyncio.sleep(10.0)
        assert second.disk.texts["b"] == "one" and second.disk.aside == []
        await stop(first, second)

    run_simulation(1, main)


def test_a_statement_that_changes_no_definition_is_committed_behind_its_execution() -> None:
    async def main(env: SimulationEnv) -> None:
        server, first, second = await two_replicas(env)
        assert first.database is not None
        number = await first.database.submit(
            "ALTER a one", settings={}, initial_query_id="", execute=_nothing, timeout_s=60
        )
        await env.sleep(10)
        assert {*server.tree.nodes} >= {PATHS.entry(number, f"finished/s|{name}") for name in ("r1", "r2")}
        await stop(first, second)

    run_simulation(1, main)


def test_a_database_whose_removal_was_cut_short_can_be_created_again() -> None:
    async def main(env: SimulationEnv) -> None:
        server = MemoryKeeperServer(env)
        first, second = (Replica(name, env.fork(), server) for name in ("r1", "r2"))
        first.start(None)
        await asyncio.sleep(5.0)
        assert await first.submit("CREATE a t") == "ok"
        await stop(first)
        # 1. The last replica goes, and its process ends in the middle of the removal.
        keeper = await server.factory(client="checker")()
        await remove_recursive(keeper, PATHS.replica(ReplicaName("s", "r1")))
        await keeper.remove(PATHS.replicas)
        await keeper.remove(PATHS.max_log_ptr)
        # 2. Somebody creates a database at the same path.
        second.start(None)
        await asyncio.sleep(30.0)
        assert second.is_made and second.database is not None
        assert await second.submit("CREATE b t") == "ok"
        assert (await keeper.children(PATHS.metadata)).names == ("b",)
        await second.database.stop(grace_s=1)

    run_simulation(1, main)


async def _nothing(commit: Commit) -> None:
    """A statement with nothing to do here."""
