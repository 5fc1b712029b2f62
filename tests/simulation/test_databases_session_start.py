"""What a replica looks at before it follows the log: whose it is, who else is it, what it did last."""

from __future__ import annotations

import asyncio

import pytest

from engine.databases import ReplicaName
from engine.databases.digest import digest_of
from engine.databases.paths import DROPPED
from engine.ddl.entry import DDLLogEntry
from engine.keeper.base import CreateMode
from engine.testing.simulation import SimulationEnv, run_simulation
from tests.simulation.databases_model import PATHS, replicas, stop

ME = ReplicaName("s", "r1")
ACTIVE = PATHS.replica(ME, "active")


def test_a_replica_shows_itself_for_as_long_as_its_session() -> None:
    async def main(env: SimulationEnv) -> None:
        server, (replica,) = await replicas(env, "r1")
        keeper = await server.connect(client="checker")
        active = await keeper.get(ACTIVE)
        assert active.data == b"server-r1" and active.stat.ephemeral_owner
        await stop(replica)
        assert await keeper.exists(ACTIVE) is None

    run_simulation(1, main)


@pytest.mark.parametrize(
    ("value", "reason"),
    [(DROPPED, "dropped"), (None, "dropped"), (b"r9:9000:uuid-r9", "another server's")],
)
def test_a_replica_that_is_not_there_or_another_server_s_stays_read_only_and_takes_nothing_back(
    value: bytes | None, reason: str
) -> None:
    async def main(env: SimulationEnv) -> None:
        server, (replica, other) = await replicas(env, "r1", "r2")
        keeper = await server.connect(client="checker")
        assert await replica.submit("CREATE a t") == "ok"
        await stop(replica)
        path = PATHS.replica(ME)
        if value is None:
            for name in (await keeper.children(path)).names:
                await keeper.remove(f"{path}/{name}")
            await keeper.remove(path)
        else:
            await keeper.set(path, value)
        replica.start(None)
        await asyncio.sleep(60.0)
        assert replica.database is not None and reason in replica.database.readonly_reason
        assert await replica.submit("CREATE b t") == "failed"
        if value is not None:
            assert (await keeper.get(path)).data == value
        assert await keeper.exists(ACTIVE) is None
        assert replica.disk.texts == {"a": "t"}
        await stop(replica, other)

    run_simulation(1, main)


def test_a_server_whose_address_is_another_one_now_tells_the_others() -> None:
    async def main(env: SimulationEnv) -> None:
        server, (replica, other) = await replicas(env, "r1", "r2")
        keeper = await server.connect(client="checker")
        await stop(replica)
        await keeper.set(PATHS.replica(ME), b"old:9000:uuid-r1")
        told = (await keeper.children(PATHS.log)).names
        replica.start(None)
        await asyncio.sleep(30.0)
        assert (await keeper.get(PATHS.replica(ME))).data == b"r1:9000:uuid-r1"
        [new] = set((await keeper.children(PATHS.log)).names) - set(told)
        entry = DDLLogEntry.from_bytes((await keeper.get(f"{PATHS.log}/{new}")).data, where=new)
        assert (entry.query, entry.initiator) == ("", "s|r1")
        await stop(replica, other)

    run_simulation(1, main)


def test_a_replica_waits_while_another_server_is_active_in_its_name() -> None:
    async def main(env: SimulationEnv) -> None:
        server, (replica,) = await replicas(env, "r1")
        keeper = await server.connect(client="checker")
        await stop(replica)
        theirs = await keeper.create(ACTIVE, b"another server", mode=CreateMode.EPHEMERAL)
        replica.start(None)
        await asyncio.sleep(60.0)
        assert (await keeper.get(ACTIVE)).data == b"another server"
        assert await replica.submit("CREATE a t") == "failed"
        await keeper.remove(theirs)
        await asyncio.sleep(60.0)
        assert await replica.submit("CREATE a t") == "ok"
        await stop(replica)

    run_simulation(1, main)


@pytest.mark.parametrize("last", ["its own, and another was begun since", "another replica's"])
def test_a_drop_is_only_done_again_where_it_is_the_last_that_this_replica_began_for_itself(last: str) -> None:
    """1. The last entry drops a table. 2. Another table of that name has come since, with rows, and nobody
    knows how. 3. The process begins anew."""

    async def main(env: SimulationEnv) -> None:
        server, (replica, other) = await replicas(env, "r1", "r2")
        keeper = await server.connect(client="checker")
        assert await replica.submit("CREATE a one") == "ok"
        await asyncio.sleep(5.0)
        assert await (replica if last.startswith("its own") else other).submit("DROP a") == "ok"
        await asyncio.sleep(5.0)
        await stop(replica)
        pointer = int((await keeper.get(PATHS.replica(ME, "log_ptr"))).data)
        replica.disk.write({"a": "new"}, {})
        replica.disk.begun = pointer + last.startswith("its own")
        replica.start(None)
        await asyncio.sleep(60.0)
        assert replica.disk.texts == {}
        assert [name.partition("_")[0] for name in replica.disk.aside] == ["a"]
        digest = (await keeper.get(PATHS.replica(ME, "digest"))).data
        assert int(digest) == digest_of({})
        await stop(replica, other)

    run_simulation(1, main)
