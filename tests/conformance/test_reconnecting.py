"""A session outlives its connection: what stays, what is answered, and what its watches tell afterwards."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import ConnectionLoss, NoAuth, NodeExists, SessionExpired
from engine.keeper import Create, CreateMode, EventType, WatchEvent
from engine.keeper.link import CREATOR_ACL
from engine.testing.proxy import TcpProxy
from engine.testing.seen import Seen
from tests.conformance.conftest import PATIENCE_S

EPHEMERAL = CreateMode.EPHEMERAL


async def test_the_same_session_goes_on_and_its_ephemeral_nodes_stay(link, other):
    session_id = link.keeper.session_id
    await link.keeper.create("/e", b"mine", mode=EPHEMERAL)
    for _ in range(3):
        await link.lose()
        assert not link.keeper.is_expired
        assert (await other.get("/e")).stat.ephemeral_owner == session_id
        link.restore()
        node = await link.keeper.get("/e")
        assert node.stat.ephemeral_owner == link.keeper.session_id == session_id
        assert node.data == b"mine"


async def test_requests_wait_for_the_connection_and_are_executed_in_their_order(link):
    keeper = link.keeper
    await keeper.create("/a", b"0")
    await link.lose()
    waiting = [asyncio.create_task(keeper.set("/a", str(number).encode())) for number in range(1, 200)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    link.restore()
    assert [stat.version for stat in await asyncio.gather(*waiting)] == list(range(1, 200))
    assert (await keeper.get("/a")).data == b"199"


async def test_what_is_under_way_when_the_connection_breaks_has_an_unknown_outcome(link, other):
    """What was acknowledged is there; of the rest nobody knows who does not look."""
    keeper = link.keeper
    creating = [asyncio.create_task(keeper.create(f"/{number}", b"mine")) for number in range(50)]
    await asyncio.sleep(0)
    await link.lose()
    link.restore()
    outcomes = await asyncio.gather(*creating, return_exceptions=True)
    assert ConnectionLoss in {type(outcome) for outcome in outcomes}
    there = await keeper.exists_many([f"/{number}" for number in range(50)])
    await other.sync("/")
    for number, (outcome, stat) in enumerate(zip(outcomes, there, strict=True)):
        if isinstance(outcome, str):
            assert outcome == f"/{number}" and stat is not None
        else:
            assert type(outcome) is ConnectionLoss
        if stat is not None:
            with pytest.raises(NodeExists):
                await other.create(f"/{number}", b"other")


async def test_a_session_that_is_ended_meanwhile_is_over_at_the_next_connection(backend, link, other):
    """1 the connection is lost, 2 the server ends the session, 3 it connects again and hears of it."""
    keeper = link.keeper
    await keeper.create("/e", mode=EPHEMERAL)
    pending, over = Seen(), asyncio.Event()
    await keeper.children("/", watch=pending)
    keeper.on_expired(over.set)
    await link.lose()
    waiting = asyncio.create_task(keeper.create("/late"))
    await backend.end_session(keeper)
    await other.sync("/")
    assert await other.exists("/e") is None
    assert pending.events == [] and not keeper.is_expired
    link.restore()
    with pytest.raises((SessionExpired, ConnectionLoss)):
        await waiting
    async with asyncio.timeout(PATIENCE_S):
        await over.wait()
    assert keeper.is_expired and pending.events == [WatchEvent(EventType.SESSION, "/")]
    await other.sync("/")
    assert await other.exists("/late") is None


async def test_the_identities_of_a_session_survive_its_connection(link, other):
    keeper = link.keeper
    await keeper.add_auth("digest", b"alice:secret")
    await keeper.add_auth("digest", b"bob:secret")
    await keeper.create("/hers", b"x", acl=CREATOR_ACL)
    for _ in range(2):
        await link.lose()
        link.restore()
        assert (await keeper.get("/hers")).data == b"x"
    await keeper.create("/hers/too", acl=CREATOR_ACL)
    assert {entry.id.partition(":")[0] for entry in await keeper.get_acl("/hers/too")} == {"alice", "bob"}
    with pytest.raises(NoAuth):
        await other.get("/hers")


# --- watches ----------------------------------------------------------------------------------------------


async def test_watches_survive_the_connection(link, other):
    keeper = link.keeper
    await other.create("/a")
    await keeper.sync("/")
    data, child, absent = Seen(), Seen(), Seen()
    await keeper.get("/a", watch=data)
    await keeper.children("/a", watch=child)
    await keeper.exists("/missing", watch=absent)
    await link.lose()
    link.restore()
    await keeper.exists("/")
    assert data.events == child.events == absent.events == []
    await other.set("/a", b"x")
    await other.create("/a/b")
    await other.create("/missing")
    assert await data.wait() == WatchEvent(EventType.CHANGED, "/a")
    assert await child.wait() == WatchEvent(EventType.CHILD, "/a")
    assert await absent.wait() == WatchEvent(EventType.CREATED, "/missing")


async def test_what_changed_meanwhile_fires_once_and_ahead_of_the_next_read(link, other):
    keeper = link.keeper
    for name in ("/set", "/removed", "/again", "/grown", "/left", "/same", "/fired"):
        await other.create(name)
    await keeper.sync("/")
    watches = {
        "set": keeper.get,
        "removed": keeper.exists,
        "again": keeper.get,
        "made": keeper.exists,
        "flash": keeper.exists,
        "grown": keeper.children,
        "left": keeper.children,
        "same": keeper.get,
        "fired": keeper.get,
    }
    seen = {name: Seen() for name in watches}
    for name, read in watches.items():
        await read(f"/{name}", watch=seen[name])
    same_children = Seen()
    await keeper.children("/same", watch=same_children)
    await other.set("/fired", b"before")
    await seen["fired"].wait()

    await link.lose()
    await other.set("/set", b"x")
    await other.set("/set", b"y")
    await other.remove("/removed")
    await other.remove("/again")
    await other.create("/again")
    await other.create("/made")
    await other.create("/flash")
    await other.remove("/flash")
    await other.create("/grown/child")
    await other.remove("/left")
    await other.set("/fired", b"meanwhile")
    assert [name for name, watch in seen.items() if watch.events] == ["fired"]
    link.restore()
    await keeper.exists("/")

    assert {name: watch.types for name, watch in seen.items()} == {
        "set": [EventType.CHANGED],
        "removed": [EventType.DELETED],
        "again": [EventType.CHANGED],
        "made": [EventType.CREATED],
        "flash": [],  # made and removed meanwhile: nobody could tell
        "grown": [EventType.CHILD],
        "left": [EventType.DELETED],
        "same": [],
        "fired": [EventType.CHANGED],  # before the connection was lost; a watch fires once
    }
    await other.set("/same", b"x")
    await other.create("/same/child")
    assert await seen["same"].wait() == WatchEvent(EventType.CHANGED, "/same")
    assert await same_children.wait() == WatchEvent(EventType.CHILD, "/same")


async def test_the_end_of_another_session_meanwhile_is_told(backend, link, other):
    """What a worker waits for: the node of a host that is at work."""
    await other.create("/active", mode=EPHEMERAL)
    await link.keeper.sync("/")
    gone = Seen()
    await link.keeper.exists("/active", watch=gone)
    await link.lose()
    await backend.expire(other)
    link.restore()
    await link.keeper.exists("/")
    assert gone.types == [EventType.DELETED]


async def test_many_watches_survive_many_connections(link, other):
    """More than one request of a client has room for."""
    keeper = link.keeper
    seen = [Seen() for _ in range(300)]
    paths = [f"/{number}-{'x' * 500}" for number in range(300)]
    for path, watch in zip(paths, seen, strict=True):
        await keeper.exists(path, watch=watch)
    for _ in range(3):
        await link.lose()
        link.restore()
        await keeper.exists("/")
    await link.lose()
    await other.multi([Create(path) for path in paths[:150]])
    link.restore()
    await keeper.exists("/")
    assert [watch.types for watch in seen] == [[EventType.CREATED]] * 150 + [[]] * 150
    await other.multi([Create(path) for path in paths[150:]])
    await keeper.sync("/")
    await keeper.exists("/")
    assert [watch.types for watch in seen] == [[EventType.CREATED]] * 300


async def test_the_new_session_after_the_end_has_no_watches_of_the_old_one(backend, other):
    old = await backend.open()
    seen = Seen()
    await old.exists("/a", watch=seen)
    await backend.expire(old)
    new = await backend.open()
    await other.create("/a")
    await new.sync("/")
    assert await new.exists("/a") is not None
    assert seen.types == [EventType.SESSION]


@pytest.mark.slow
@pytest.mark.parametrize("real_server", ["zookeeper", "etcd"], indirect=True)
async def test_a_host_that_takes_a_connection_and_says_nothing_is_asked_again_in_time(backend):
    """A server may do so while it starts. 1 the first connection is held, 2 the session gives it up and asks
    again long before its whole patience is used up, 3 now the server answers."""
    async with TcpProxy(*backend.config.hosts[0]) as proxy:
        proxy.hold()
        opening = asyncio.create_task(backend.open(through=proxy.port))
        while proxy.connections_made < 2 and not opening.done():
            await asyncio.sleep(0.01)
        proxy.release()
        keeper = await opening
        assert await keeper.exists("/") is not None
        await keeper.close()
