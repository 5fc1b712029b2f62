"""One server that follows two queues with one `replicas_path`, as a second section has by default."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from engine.ddl.client import DDLQueueClient
from engine.ddl.initiator import prepare
from engine.ddl.own_sessions import OwnSessions
from engine.errors import NoNode
from engine.keeper.recipes import create_ancestors
from tests.unit.ddl.support import PATHS, QUEUE, Bench, host, run

CREATE = "CREATE TABLE d.t ON CLUSTER c (a Int8) ENGINE = Memory"
SECOND = replace(QUEUE, name="second", path="/clickhouse/second/ddl")
ACTIVE = PATHS.replica_active(host("a"))


def start(bench: Bench) -> None:
    own_sessions = OwnSessions()
    for name, queue in (("first", QUEUE), ("second", SECOND)):
        bench.start(name, queue=queue, own_sessions=own_sessions, host_name="a", server_uuid=UUID(int=7))


async def owner(bench: Bench) -> int:
    return (await (await bench.keeper()).get(ACTIVE)).stat.ephemeral_owner


def test_the_workers_of_two_queues_leave_each_others_marks_alone() -> None:
    async def main(bench: Bench) -> None:
        start(bench)
        await bench.env.sleep(5)
        first = await owner(bench)
        bench.workers["first"].topology_changed()
        bench.workers["second"].topology_changed()
        await bench.env.sleep(30)
        assert await owner(bench) == first

    run(main)


def test_a_host_is_active_as_long_as_one_of_its_queues_is_followed() -> None:
    async def main(bench: Bench) -> None:
        start(bench)
        await bench.env.sleep(5)
        for _ in range(3):
            before = await owner(bench)
            bench.server.expire_session(before)
            await bench.env.sleep(5)
            assert await owner(bench) != before
        await bench.stop("first")
        await bench.env.sleep(5)
        assert await owner(bench)
        await bench.stop("second")
        with pytest.raises(NoNode):
            await owner(bench)

    run(main)


def test_the_one_that_marked_may_stop_first_or_last() -> None:
    async def main(bench: Bench) -> None:
        start(bench)
        await bench.env.sleep(5)
        await bench.stop("second")
        await bench.env.sleep(5)
        assert await owner(bench)

    run(main)


def test_each_queue_executes_its_own_entries() -> None:
    async def main(bench: Bench) -> None:
        start(bench)
        second = DDLQueueClient(await bench.keeper(), bench.env, SECOND.paths)
        for client, queue in ((await bench.client(), QUEUE), (second, SECOND)):
            prepared = prepare(CREATE, topology=bench.topology, queue=queue, token=queue.name)
            submitted = await client.submit(prepared)
            statuses = [status async for status in client.watch(submitted.entry)]
            assert statuses[-1].is_done_on_all_hosts
        assert [len(bench.databases[name].effects) for name in ("first", "second")] == [1, 1]

    run(main, "a")


def test_a_mark_that_no_session_owns_is_replaced() -> None:
    """Of a copy of Keeper's tree, in which the name was another server's."""

    async def main(bench: Bench) -> None:
        keeper = await bench.keeper()
        await create_ancestors(keeper, ACTIVE)
        await keeper.create(ACTIVE, b"another server")
        start(bench)
        await bench.env.sleep(5)
        assert await owner(bench)

    run(main)
