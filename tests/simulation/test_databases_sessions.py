"""Replicated databases: messages with Keeper get lost, sessions end, clients and initiators go away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from engine.databases import (
    Commit,
    DatabaseSettings,
    ReplicaName,
)
from engine.errors import BadArguments, Code, ConnectionLoss, SqlError
from engine.keeper.base import ANY_VERSION, CreateMode, Op, OpResult
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.session import RequestKind
from engine.testing.simulation import SimulationEnv, run_simulation
from tests.simulation.databases_model import PATHS, Replica, one_replica, replicas, stop, two_replicas


@pytest.mark.slow
def test_a_client_that_goes_away_at_any_moment_holds_up_nobody() -> None:
    async def main(env: SimulationEnv) -> None:
        _, (first, second) = await replicas(env, "r1", "r2")
        nonlocal was_cut_off
        for turns in range(0, 90, 3):
            client = asyncio.ensure_future(first.submit(f"CREATE a{turns} t"))
            for _ in range(turns):
                await asyncio.sleep(0)
            inner = [t for t in env.loop.unfinished_tasks() if t.get_name() == "client"]
            for task in inner:
                task.cancel()
                was_cut_off += 1
            await asyncio.gather(client, return_exceptions=True)
            assert await second.submit(f"CREATE b{turns} t") == "ok", turns
        await asyncio.sleep(120.0)
        assert first.disk.texts == second.disk.texts
        await stop(first, second)

    was_cut_off = 0
    for seed in range(3):
        run_simulation(seed, main)
    assert was_cut_off > 10


def test_an_initiator_that_hangs_is_given_up_by_the_others_and_has_not_committed() -> None:
    async def main(env: SimulationEnv) -> None:
        _, first, second = await two_replicas(env)
        assert first.schema is not None
        as_initiator, may_go_on = first.schema.as_initiator, asyncio.Event()

        async def hangs(query: str, commit: Commit) -> None:
            await may_go_on.wait()
            await as_initiator(query, commit)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(first.schema, "as_initiator", hangs)
            hanging = asyncio.ensure_future(first.submit("CREATE b t"))
            await env.sleep(DatabaseSettings().wait_entry_commited_timeout_sec - 90)
            assert await second.submit("CREATE c t2") == "failed", "it is not given up before its time"
            await env.sleep(30)
            assert await second.submit("CREATE c t2") == "ok"
            may_go_on.set()
            assert await hanging == "failed"
        assert await first.submit("CREATE b t3") == "ok"
        await env.sleep(10)
        assert first.disk.texts == second.disk.texts
        assert first.disk.texts == {"a": "one", "t": "replicated-1", "b": "t3", "c": "t2"}
        await stop(first, second)

    run_simulation(1, main)


def test_an_entry_that_could_not_be_given_up_for_a_broken_connection_holds_up_nobody() -> None:
    async def main(env: SimulationEnv) -> None:
        server, (first, second) = await replicas(env, "r1", "r2")
        assert first.schema is not None and first.process is not None
        session_ids = server.session_ids(first.process.name)

        async def fails(query: str, commit: Commit) -> None:
            # The two requests by which the initiator gives its entry up do not reach Keeper.
            for session_id in session_ids:
                for _ in range(2):
                    server.lose_next_request(session_id, kind=RequestKind.REMOVE)
            raise SqlError(Code.UNKNOWN_TABLE, "nothing")

        first.schema.as_initiator = fails  # type: ignore[method-assign]
        assert await first.submit("DROP nothing") == "failed"
        assert server.session_ids(first.process.name) == session_ids
        assert await second.submit("CREATE a t") == "ok"
        await stop(first, second)

    run_simulation(1, main)


@pytest.mark.parametrize("removals", ["carried out", "refused, too"])
def test_an_entry_that_a_full_etcd_refuses_holds_up_no_other(removals: str) -> None:
    """Its number was given before, and the session may live for weeks."""

    async def main(env: SimulationEnv) -> None:
        _, first, second = await two_replicas(env)
        assert first.holder is not None
        session: Any = await first.holder.get()
        multi, is_full = session.multi, False

        async def refusing(ops: Sequence[Op]) -> list[OpResult]:
            nonlocal is_full
            is_full |= any(op.path.endswith("/try") for op in ops)
            if is_full:
                raise BadArguments(ops[0].path, "full")
            return await multi(ops)

        async def remove(path: str, *, version: int = ANY_VERSION) -> None:
            raise BadArguments(path, "full")

        session.multi = refusing
        if removals == "refused, too":
            session.remove = remove
        assert await first.submit("CREATE b t2") == "failed"
        del session.multi
        if removals == "refused, too":
            del session.remove
            assert await first.submit("CREATE b t2") == "ok"
        assert await second.submit("CREATE c t3") == "ok"
        await stop(first, second)

    run_simulation(1, main)


def test_nodes_that_no_session_owns_hold_up_nobody() -> None:
    """Another tool's copy of Keeper's tree has made them of ephemeral ones."""

    async def main(env: SimulationEnv) -> None:
        server, replica, database = await one_replica(env)
        await database.stop(grace_s=1)
        keeper = await server.factory(client="copy")()
        me = ReplicaName("s", "r1")
        await keeper.create(PATHS.replica(me, "active"), b"another server")
        await keeper.create(PATHS.counter_lock, b"s|gone")
        await keeper.create(PATHS.entry(2), b"version: 1\nquery: CREATE b t\nhosts: []\n")
        await keeper.create(PATHS.entry(2, "try"), b"s|gone")
        await keeper.create(f"{PATHS.counter}/cnt-", mode=CreateMode.PERSISTENT_SEQUENTIAL)
        replica.start(None)
        async with asyncio.timeout(60):
            assert await replica.submit("CREATE a t") == "ok"
        assert replica.disk.texts == {"a": "t"} and replica.database is not None
        await replica.database.stop(grace_s=1)

    run_simulation(1, main)


def test_a_statement_is_not_refused_while_keeper_changes_its_leader() -> None:
    async def main(env: SimulationEnv) -> None:
        server, replica, database = await one_replica(env)
        assert replica.process is not None
        # 1. Keeper is away when the statement comes. 2. It comes back, and loses the sessions or not.
        for number, is_forgetful in enumerate((False, True)):
            server.stop()
            submitting = asyncio.ensure_future(replica.submit(f"CREATE a{number} t"))
            await asyncio.sleep(3.0)
            server.start()
            if is_forgetful:
                for session_id in server.session_ids(replica.process.name):
                    server.expire_session(session_id)
            async with asyncio.timeout(30):
                assert await submitting == "ok"
        await database.stop(grace_s=1)

    run_simulation(1, main)


@pytest.mark.parametrize("what", ["request", "reply", "reply_and_lag"])
def test_a_connection_that_breaks_costs_no_statement(what: str) -> None:
    async def main(env: SimulationEnv) -> None:
        server, replica, database = await one_replica(env)
        assert replica.schema is not None and replica.process is not None
        session_ids = server.session_ids(replica.process.name)
        lose = getattr(server, f"lose_next_{what}")
        for kind in (RequestKind.GET, RequestKind.MULTI, RequestKind.CREATE):
            lose(session_ids[0], kind=kind)
            assert await replica.submit(f"CREATE {kind.name} t") == "ok"
        as_initiator = replica.schema.as_initiator

        async def loses_the_commit(query: str, commit: Commit) -> None:
            for _ in range(2):
                lose(session_ids[0], kind=RequestKind.MULTI)
            await as_initiator(query, commit)

        replica.schema.as_initiator = loses_the_commit  # type: ignore[method-assign]
        assert await replica.submit("CREATE a t") == "ok"
        assert server.session_ids(replica.process.name) == session_ids
        assert sorted(replica.disk.texts) == ["CREATE", "GET", "MULTI", "a"]
        await database.stop(grace_s=1)

    run_simulation(1, main)


async def _restart(server: MemoryKeeperServer, replica: Replica) -> int:
    """The new process's session, as soon as there is one."""
    await stop(replica)
    replica.start(None)
    assert replica.process is not None
    while not (session_ids := server.session_ids(replica.process.name)):
        await asyncio.sleep(0)
    return session_ids[0]


@pytest.mark.parametrize("what", ["reply", "reply_and_lag"])
def test_a_replica_whose_active_got_no_answer_does_not_take_it_for_another_s(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(env: SimulationEnv) -> None:
        server, replica, _ = await one_replica(env)
        session_id = await _restart(server, replica)
        getattr(server, f"lose_next_{what}")(session_id, kind=RequestKind.CREATE)
        assert await replica.submit("CREATE a t") == "ok"
        assert "databases.active" in caplog.text and "databases.failed" not in caplog.text
        await stop(replica)

    with caplog.at_level("INFO"):
        run_simulation(1, main)


@pytest.mark.parametrize("what", ["request", "reply", "reply_and_lag"])
@pytest.mark.parametrize("kind", [RequestKind.SET, RequestKind.MULTI])
def test_the_others_learn_where_a_replica_is_and_that_it_goes_although_messages_are_lost(
    what: str, kind: RequestKind
) -> None:
    async def main(env: SimulationEnv) -> None:
        server, first, second = await two_replicas(env)

        def known() -> list[str]:
            assert first.database is not None
            return [each.host_id.host for each in first.database.cluster.replicas]

        # 1. The second replica's server has another address than before.
        keeper = await server.connect()
        await keeper.set(PATHS.replica(ReplicaName("s", "r2")), b"elsewhere:9000:uuid-r2")
        await _restart(server, first)
        await asyncio.sleep(5.0)
        assert known() == ["r1", "elsewhere"]
        session_id = await _restart(server, second)
        lose = getattr(server, f"lose_next_{what}")
        lose(session_id, kind=kind)
        await asyncio.sleep(10.0)
        assert known() == ["r1", "r2"]
        # 2. It is dropped; what fails is done again.
        await stop(second)
        lose(session_id, kind=kind)
        while True:
            try:
                await second.database.drop_begin()
                break
            except ConnectionLoss:
                await asyncio.sleep(1.0)
        await asyncio.sleep(5.0)
        assert known() == ["r1"] and first.database is not None
        await second.database.drop_end()
        await first.database.stop(grace_s=1)

    run_simulation(1, main)


def test_a_statement_whose_session_ends_before_its_commit_is_known_not_to_be_committed() -> None:
    async def main(env: SimulationEnv) -> None:
        server, replica, database = await one_replica(env)
        assert replica.schema is not None and replica.process is not None
        (session_id,) = server.session_ids(replica.process.name)
        as_initiator = replica.schema.as_initiator

        async def loses_the_session(query: str, commit: Commit) -> None:
            server.expire_session(session_id)
            await as_initiator(query, commit)

        replica.schema.as_initiator = loses_the_session  # type: ignore[method-assign]
        assert await replica.submit("CREATE a t") == "failed"
        assert replica.disk.texts == {}
        await database.stop(grace_s=1)

    run_simulation(1, main)


def test_a_statement_whose_session_ends_behind_its_commit_is_known_to_be_committed() -> None:
    async def main(env: SimulationEnv) -> None:
        server, replica, database = await one_replica(env)
        assert replica.schema is not None and replica.process is not None
        (session_id,) = server.session_ids(replica.process.name)
        as_initiator = replica.schema.as_initiator

        async def loses_the_session(query: str, commit: Commit) -> None:
            server.lose_next_reply(session_id, kind=RequestKind.MULTI)
            submitting = asyncio.ensure_future(as_initiator(query, commit))
            while server.tree.nodes.get(PATHS.entry(2, "committed")) is None:
                await asyncio.sleep(0)
            server.expire_session(session_id)
            await submitting

        replica.schema.as_initiator = loses_the_session  # type: ignore[method-assign]
        assert await replica.submit("CREATE a t") == "ok"
        assert replica.disk.texts == {"a": "t"}
        await database.stop(grace_s=1)

    run_simulation(1, main)
