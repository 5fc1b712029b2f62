"""What ClickHouse's protocols ask of a store, each as one small story."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import BadVersion, MultiFailed, NodeExists
from engine.keeper import Check, Create, CreateMode, Remove, SetData
from engine.keeper.recipes import wait_until_gone

SEQUENTIAL = CreateMode.PERSISTENT_SEQUENTIAL


async def test_an_insert_commits_block_part_and_log_entry_together(keeper):
    await keeper.multi([Create("/log"), Create("/blocks"), Create("/parts"), Create("/locks")])
    lock = await keeper.create("/locks/block-", mode=CreateMode.EPHEMERAL_SEQUENTIAL)
    commit = [Create("/blocks/hash", b"all_0_0_0"), Create("/parts/all_0_0_0"), Remove(lock)]
    made = await keeper.multi([*commit, Create("/log/log-", b"get", SEQUENTIAL)])
    assert made[-1] == "/log/log-0000000000"
    with pytest.raises(MultiFailed) as caught:
        await keeper.multi([*commit, Create("/log/log-", b"get", SEQUENTIAL)])
    assert (caught.value.index, caught.value.path) == (0, "/blocks/hash")
    assert (await keeper.children("/log")).names == ("log-0000000000",)


async def test_a_version_of_another_node_guards_a_write(keeper, other):
    """1 read the version of /log, 2 somebody else adds to /log, 3 the guarded write is refused."""
    await keeper.multi([Create("/log"), Create("/merges")])
    version = (await keeper.get("/log")).stat.version
    await other.multi([Create("/log/entry"), SetData("/log", b"")])
    with pytest.raises(MultiFailed) as caught:
        await keeper.multi([Check("/log", version), Create("/merges/m")])
    assert isinstance(caught.value.error, BadVersion)
    assert await keeper.exists("/merges/m") is None


async def test_a_counter_by_compare_and_set_loses_no_step(keeper, other):
    await keeper.create("/counter", b"0")

    async def count(session, times):
        while times:
            node = await session.get("/counter")
            try:
                await session.set("/counter", str(int(node.data) + 1).encode(), version=node.stat.version)
                times -= 1
            except BadVersion:
                await session.sync("/counter")

    await asyncio.gather(count(keeper, 15), count(other, 15))
    assert (await keeper.get("/counter")).data == b"30"


async def test_numbers_of_a_queue_are_never_given_twice(keeper, other):
    """Whatever is removed in between, by whomever it is asked for."""
    await keeper.create("/queue")
    given = []
    for round_number in range(30):
        session = (keeper, other)[round_number % 2]
        path = await session.create("/queue/query-", mode=SEQUENTIAL)
        given.append(path)
        if round_number % 3:
            await session.remove(path)
    assert given == sorted(set(given))


async def test_a_new_session_finds_its_nodes_of_the_old_one_by_their_content(backend, keeper):
    old = await backend.open()
    await old.create("/active", b"host1:uuid", mode=CreateMode.EPHEMERAL)
    node = await keeper.get("/active")
    assert node.data == b"host1:uuid" and node.stat.ephemeral_owner == old.session_id
    with pytest.raises(NodeExists):
        await keeper.create("/active", b"host1:uuid", mode=CreateMode.EPHEMERAL)
    await keeper.multi([Remove("/active"), Create("/active", b"host1:uuid", CreateMode.EPHEMERAL)])
    await old.close()
    await keeper.sync("/")
    assert (await keeper.get("/active")).stat.ephemeral_owner == keeper.session_id


async def test_waiting_for_a_node_to_go(keeper, other):
    await keeper.create("/lock")
    waiting = asyncio.create_task(wait_until_gone(other, "/lock"))
    await other.sync("/")
    assert not waiting.done()
    await keeper.remove("/lock")
    async with asyncio.timeout(60):
        await waiting


async def test_thousands_of_children_are_listed_and_read(keeper):
    await keeper.create("/parts")
    for start in range(0, 5000, 500):
        await keeper.multi([Create(f"/parts/{number:05}", b"part") for number in range(start, start + 500)])
    names = (await keeper.children("/parts")).names
    assert len(names) == 5000 and list(names) == sorted(names)
    nodes = await keeper.get_many([f"/parts/{name}" for name in names])
    assert {node.data for node in nodes} == {b"part"}


async def test_times_come_from_one_clock(keeper, other):
    """Cleanup compares the ages of nodes with one another, whoever made them."""
    await keeper.create("/a")
    await other.create("/b")
    await keeper.create("/c")
    await other.sync("/")
    times = [stat.ctime_ms for stat in await other.exists_many(["/a", "/b", "/c"])]
    assert times == sorted(times)


async def test_twenty_operations_make_a_replica(keeper):
    """One multi that builds a tree of fixed nodes, or none of it."""
    nodes = ["/t", "/t/metadata", "/t/log", "/t/blocks", "/t/replicas", "/t/replicas/r1"]
    nodes += [
        f"/t/replicas/r1/{name}" for name in ("host", "queue", "parts", "flags", "columns", "log_pointer")
    ]
    nodes += [
        f"/t/{name}" for name in ("leader_election", "temp", "quorum", "mutations", "columns", "nonincrement")
    ]
    ops = [Create(node) for node in nodes]
    with pytest.raises(MultiFailed) as caught:
        await keeper.multi([*ops, Create("/t/log/x/y")])
    assert caught.value.index == len(ops)
    assert await keeper.exists("/t") is None
    await keeper.multi(ops)
    assert (await keeper.children("/t/replicas/r1")).stat.num_children == 6
