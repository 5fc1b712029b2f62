"""Replicated databases under faults: B1, B2 and B3 hold, and what was answered with success stays."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
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
from engine.errors import BadArguments, Code, ConnectionLoss, KeeperUnavailable, SqlError
from engine.keeper.base import ANY_VERSION, CreateMode, Op, OpResult
from engine.keeper.faults import FaultPlan
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.recipes import remove_recursive
from engine.keeper.session import RequestKind
from engine.names import entry_number
from engine.testing.simulation import SimulationEnv, run_simulation
from tests.simulation.databases_model import PATHS, Replica, applied
from tests.simulation.seeds import chosen_seeds

NAMES = ("a", "b", "c")
VERBS = ("CREATE", "DROP", "ALTER", "RENAME", "REPLACE", "EXCHANGE")
CALM_S = 3600.0


async def simulate(env: SimulationEnv, seed: int) -> Counter[str]:
    rng = random.Random(f"databases {seed}")
    plan = FaultPlan.rough(random.Random(f"faults {seed}"), rate=rng.choice((0.0, 0.01, 0.05)))
    server = MemoryKeeperServer(env, faults=plan)
    has_images = rng.random() < 0.3
    favourite = rng.choice(VERBS)
    kills_initiators = rng.random() < 0.5
    replicas = [Replica(name, env.fork(), server) for name in ("r1", "r2", "r3")]
    reached: Counter[str] = Counter()
    outcomes: list[tuple[str, str]] = []

    async def client(number: int) -> None:
        for at in range(12):
            await asyncio.sleep(rng.expovariate(0.3))
            replica = rng.choice(replicas)
            if replica.process is None or not replica.process.is_alive:
                if has_images and rng.random() < 0.3:
                    replica.disk = replica.image
                    reached["older disk"] += 1
                replica.image = replica.disk.copy()
                replica.start(rng.randint(1, 150) if rng.random() < 0.6 else None)
                reached["started again"] += 1
                continue
            verb = favourite if rng.random() < 0.6 else rng.choice(VERBS)
            operand = rng.choice(NAMES) if verb in ("RENAME", "EXCHANGE") else f"t{number}.{at}"
            query = f"{verb} {rng.choice(NAMES)}" + ("" if verb == "DROP" else f" {operand}")
            if kills_initiators and rng.random() < 0.3:
                replica.process.kill_at = replica.process.gates + rng.randint(1, 60)
            outcome = await replica.submit(query)
            reached[outcome] += 1
            outcomes.append((query, outcome))

    for replica in replicas:
        replica.start(rng.randint(20, 200) if rng.random() < 0.5 else None)
    await asyncio.gather(*(client(number) for number in range(4)))
    plan.calm()
    for replica in replicas:
        if replica.process is None or not replica.process.is_alive:
            replica.start(None)
        else:
            replica.process.kill_at = None
    await asyncio.sleep(CALM_S)

    keeper = await server.factory(client="checker")()
    metadata = (await keeper.children(PATHS.metadata)).names
    wanted = {name: (await keeper.get(PATHS.table(name))).data.decode() for name in metadata}
    newest = int((await keeper.get(PATHS.max_log_ptr)).data)
    replayed: dict[str, str] = {}
    committed: list[str] = []
    untold: list[str] = []
    joined = {
        str(me): int((await keeper.get(PATHS.replica(me, "max_log_ptr_at_creation"))).data)
        for me in (ReplicaName("s", replica.name) for replica in replicas)
    }
    for name in (await keeper.children(PATHS.log)).names:
        if await keeper.exists(f"{PATHS.log}/{name}/committed") is None:
            continue
        data = (await keeper.get(f"{PATHS.log}/{name}")).data.decode()
        query = data.split("query: ")[1].split("\n")[0]
        if query:
            active, finished, synced = [
                {*(await keeper.children(f"{PATHS.log}/{name}/{leaf}")).names}
                for leaf in ("active", "finished", "synced")
            ]
            concerned = {each for each, newest in joined.items() if (entry_number(name) or 0) > newest}
            unheard = concerned - (finished & synced)
            if unheard:
                untold.append(f"{name}: whoever waits for {unheard} waits for ever")
            if active & finished:
                untold.append(f"{name}: {active & finished} seem to be at it")
            try:
                replayed = applied(replayed, query)
            except SqlError as error:
                raise AssertionError(f"the committed entries: {query} behind {committed}") from error
            committed.append(query)
    assert replayed == wanted, "the committed entries make the definitions of nothing"
    for query, outcome in outcomes:
        if outcome == "ok":
            assert query in committed, f"{query} was answered with success"
        elif outcome == "failed" and query.startswith(("CREATE", "ALTER", "REPLACE")):
            reached["failed and committed"] += query in committed
    for replica in replicas:
        assert replica.database is not None
        assert replica.disk.texts == wanted, f"B1: {replica.name}"
        assert not replica.database.readonly_reason, f"{replica.name}: {replica.database.readonly_reason}"
        assert not replica.disk.dropped_with_rows, "B3"
        assert not replica.disk.emptied, f"B3: {replica.name}"
        assert not replica.disk.kept, replica.name
        me = ReplicaName("s", replica.name)
        assert int((await keeper.get(PATHS.replica(me, "digest"))).data) == digest_of(wanted), "B1"
        assert int((await keeper.get(PATHS.replica(me, "log_ptr"))).data) <= newest
        reached["moved aside"] += len(replica.disk.aside)
        await replica.database.stop(grace_s=1)
    assert not untold
    reached["committed"] += len(committed)
    return reached


@pytest.mark.slow
def test_all_replicas_come_to_the_committed_definitions() -> None:
    reached: Counter[str] = Counter()
    for seed in chosen_seeds(1, 40):
        reached += run_simulation(seed, lambda env, seed=seed: simulate(env, seed))  # type: ignore[misc]
    for state in ("ok", "failed", "died", "started again", "committed", "older disk", "moved aside"):
        assert reached[state], f"{state} was never reached: {reached}"


def test_one_run_without_kills_is_quick() -> None:
    assert run_simulation(3, lambda env: simulate(env, 3))["committed"]


def test_the_first_statement_waits_until_the_replica_has_begun() -> None:
    async def main(env: SimulationEnv) -> None:
        replica = Replica("r1", env.fork(), MemoryKeeperServer(env))
        replica.start(None)
        while not replica.is_made:
            await asyncio.sleep(0)
        assert await replica.submit("CREATE a t") == "ok"
        assert replica.database is not None
        await replica.database.stop(grace_s=1)

    run_simulation(1, main)


def test_a_replica_held_up_for_longer_than_the_log_is_kept_does_not_pass_over_what_was_removed() -> None:
    async def main(env: SimulationEnv) -> None:
        server = MemoryKeeperServer(env)
        healthy, slow = (Replica(name, env.fork(), server) for name in ("r1", "r2"))
        for replica in (healthy, slow):
            replica.start(None)
            await asyncio.sleep(5.0)
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


@pytest.mark.slow
def test_a_client_that_goes_away_at_any_moment_holds_up_nobody() -> None:
    async def main(env: SimulationEnv) -> None:
        server = MemoryKeeperServer(env)
        first, second = (Replica(name, env.fork(), server) for name in ("r1", "r2"))
        for replica in (first, second):
            replica.start(None)
            await asyncio.sleep(5.0)
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
        await _stop(first, second)

    was_cut_off = 0
    for seed in range(3):
        run_simulation(seed, main)
    assert was_cut_off > 10


def test_an_entry_that_could_not_be_given_up_for_a_broken_connection_holds_up_nobody() -> None:
    async def main(env: SimulationEnv) -> None:
        server = MemoryKeeperServer(env)
        first, second = (Replica(name, env.fork(), server) for name in ("r1", "r2"))
        for replica in (first, second):
            replica.start(None)
            await asyncio.sleep(5.0)
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
        await _stop(first, second)

    run_simulation(1, main)


def test_nodes_that_no_session_owns_hold_up_nobody() -> None:
    """Another tool's copy of Keeper's tree has made them of ephemeral ones."""

    async def main(env: SimulationEnv) -> None:
        server, replica, database = await _one_replica(env)
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
        server, replica, database = await _one_replica(env)
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
        server, replica, database = await _one_replica(env)
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
    assert replica.database is not None
    await replica.database.stop(grace_s=1)
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
        server, replica, _ = await _one_replica(env)
        session_id = await _restart(server, replica)
        getattr(server, f"lose_next_{what}")(session_id, kind=RequestKind.CREATE)
        assert await replica.submit("CREATE a t") == "ok"
        assert "databases.active" in caplog.text and "databases.failed" not in caplog.text
        assert replica.database is not None
        await replica.database.stop(grace_s=1)

    with caplog.at_level("INFO"):
        run_simulation(1, main)


@pytest.mark.parametrize("what", ["request", "reply", "reply_and_lag"])
@pytest.mark.parametrize("kind", [RequestKind.SET, RequestKind.MULTI])
def test_the_others_learn_where_a_replica_is_and_that_it_goes_although_messages_are_lost(
    what: str, kind: RequestKind
) -> None:
    async def main(env: SimulationEnv) -> None:
        server, first, second = await _two_replicas(env)

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
        assert second.database is not None
        await second.database.stop(grace_s=1)
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


@pytest.mark.parametrize("removals", ["carried out", "refused, too"])
def test_an_entry_that_a_full_etcd_refuses_holds_up_no_other(removals: str) -> None:
    """Its number was given before, and the session may live for weeks."""

    async def main(env: SimulationEnv) -> None:
        _, first, second = await _two_replicas(env)
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
        await _stop(first, second)

    run_simulation(1, main)


def test_an_effect_that_could_not_be_undone_is_taken_back_in_the_same_session() -> None:
    """The session may live for weeks, and the names stand for other tables here than everywhere else."""

    async def main(env: SimulationEnv) -> None:
        _, replica, database = await _one_replica(env)
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


def test_a_statement_whose_session_ends_before_its_commit_is_known_not_to_be_committed() -> None:
    async def main(env: SimulationEnv) -> None:
        server, replica, database = await _one_replica(env)
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
        server, replica, database = await _one_replica(env)
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


def test_an_initiator_that_hangs_is_given_up_by_the_others_and_has_not_committed() -> None:
    async def main(env: SimulationEnv) -> None:
        _, first, second = await _two_replicas(env)
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
        await _stop(first, second)

    run_simulation(1, main)


@pytest.mark.parametrize("day", ["good", "lost connection", "later entry"])
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
            first.disk.texts["a"] = "real"

        first.schema.as_initiator = plans_wrong  # type: ignore[method-assign]
        assert await first.submit("CREATE a real") == "ok"
        # 3. A new replica takes what Keeper has, and the first begins its session anew.
        third.start(None)
        server.expire_session(session_ids[0])
        await asyncio.sleep(120.0)
        expected = {"a": "later" if day == "later entry" else "real"}
        keeper = await server.factory(client="checker")()
        assert (await keeper.get(PATHS.table("a"))).data.decode() == expected["a"]
        for replica in (first, second, third):
            assert replica.disk.texts == expected
            assert replica.disk.aside == []
            assert replica.database is not None and not replica.database.readonly_reason
            await replica.database.stop(grace_s=1)

    run_simulation(1, main)


def test_a_database_whose_removal_was_cut_short_can_be_created_again() -> None:
    async def main(env: SimulationEnv) -> None:
        server = MemoryKeeperServer(env)
        first, second = (Replica(name, env.fork(), server) for name in ("r1", "r2"))
        first.start(None)
        await asyncio.sleep(5.0)
        assert await first.submit("CREATE a t") == "ok"
        assert first.database is not None
        await first.database.stop(grace_s=1)
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


async def _stop(*replicas: Replica) -> None:
    for replica in replicas:
        assert replica.database is not None
        await replica.database.stop(grace_s=1)


async def _one_replica(env: SimulationEnv) -> tuple[MemoryKeeperServer, Replica, ReplicatedDatabase]:
    server = MemoryKeeperServer(env)
    replica = Replica("r1", env.fork(), server)
    replica.start(None)
    await asyncio.sleep(5.0)
    assert replica.database is not None
    return server, replica, replica.database


async def _two_replicas(env: SimulationEnv) -> tuple[MemoryKeeperServer, Replica, Replica]:
    """Both have a plain table `a` and a replicated one `t`."""
    server, first, _ = await _one_replica(env)
    second = Replica("r2", env.fork(), server)
    second.start(None)
    await asyncio.sleep(5.0)
    for query in ("CREATE a one", "CREATE t replicated-1"):
        assert await first.submit(query) == "ok"
    await asyncio.sleep(5.0)
    return server, first, second


def test_a_replicated_table_that_is_ahead_of_the_log_keeps_nobody_from_following_it() -> None:
    async def main(env: SimulationEnv) -> None:
        server, first, second = await _two_replicas(env)
        assert second.database is not None
        await second.database.stop(grace_s=1)
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
        await _stop(first, second)

    run_simulation(1, main)


@pytest.mark.parametrize("is_initiator", [False, True])
def test_a_replicated_table_s_own_alter_that_the_digest_does_not_know_is_no_reason_to_recover(
    is_initiator: bool,
) -> None:
    async def main(env: SimulationEnv) -> None:
        server, first, second = await _two_replicas(env)
        # 1. The table's own replication alters it, or the digest says that it will, and the process ends.
        assert second.database is not None
        await second.database.stop(grace_s=1)
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
        await _stop(first, second)

    run_simulation(1, main)


def test_whoever_waits_for_a_replica_that_is_stopped_is_told_at_once() -> None:
    async def main(env: SimulationEnv) -> None:
        server, _, database = await _one_replica(env)
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
        server, replica, database = await _one_replica(env)
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
        server, replica, database = await _one_replica(env)
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


@pytest.mark.parametrize(
    ("code", "attempts"), [(Code.NOT_ENOUGH_SPACE, 3), (Code.TABLE_NOT_EMPTY, 1), (None, 12)]
)
def test_an_entry_that_fails_again_and_again_in_one_way_is_recovered_from(
    code: Code | None, attempts: int
) -> None:
    """At once where it gets no better by waiting; not where it fails in another way each time (None)."""

    async def main(env: SimulationEnv) -> None:
        _, first, second = await _two_replicas(env)
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
        await _stop(first, second)

    run_simulation(1, main)


def test_a_replica_that_is_far_behind_takes_no_statements() -> None:
    async def main(env: SimulationEnv) -> None:
        _, first, second = await _two_replicas(env)
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
        await _stop(first, second)

    run_simulation(1, main)


def test_a_statement_that_changes_no_definition_is_committed_behind_its_execution() -> None:
    async def main(env: SimulationEnv) -> None:
        server, first, second = await _two_replicas(env)
        assert first.database is not None
        number = await first.database.submit(
            "ALTER a one", settings={}, initial_query_id="", execute=_nothing, timeout_s=60
        )
        await env.sleep(10)
        assert {*server.tree.nodes} >= {PATHS.entry(number, f"finished/s|{name}") for name in ("r1", "r2")}
        await _stop(first, second)

    run_simulation(1, main)


async def _nothing(commit: Commit) -> None:
    """A statement with nothing to do here."""


def test_a_replica_goes_on_after_an_error_in_the_program() -> None:
    async def main(env: SimulationEnv) -> None:
        server, first, _ = await _one_replica(env)
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
        await _stop(first, second)

    run_simulation(1, main)
