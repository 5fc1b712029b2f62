"""etcd's history is removed while sessions watch: what they have not heard of is told by what is there."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import ConnectionLoss
from engine.keeper import CreateMode, EventType
from engine.keeper.etcd import messages
from engine.keeper.etcd.channel import EtcdChannel
from engine.keeper.etcd.feed import Feed
from engine.testing.proxy import TcpProxy, Way
from engine.testing.seen import Seen

pytestmark = pytest.mark.slow
PATIENCE_S = 90.0
_MORE_THAN_ETCD_KEEPS = 320
"""Changes of 40 kB for one listener: 128, and what goes into the four MiB that may be on their way."""
_COMPACT = ("/etcdserverpb.KV/Compact", messages.Empty)


@pytest.fixture
def compact(etcd_server):
    async def compact():
        """Remove all history up to now. The request has the same form as one to revoke a lease."""
        channel = EtcdChannel(etcd_server.config, *etcd_server.config.hosts[0])
        read = messages.TxnRequest(success=[messages.range_op(b"x")])
        revision = (await channel.call(messages.TXN, read)).header.revision
        await channel.call(_COMPACT, messages.LeaseRevokeRequest(ID=revision))
        await channel.close()

    return compact


async def until(request):
    """What a request answers once there is a connection again."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await request()
            except ConnectionLoss:
                await asyncio.sleep(0.01)


async def test_watches_that_have_heard_everything_go_on_after_a_compaction(etcd_backend, compact):
    keeper, other = await etcd_backend.open(), await etcd_backend.open()
    await keeper.create("/a", b"0")
    data, child = Seen(), Seen()
    await keeper.get("/a", watch=data)
    await keeper.children("/a", watch=child)
    for number in range(3):
        await other.create(f"/{number}")
        await compact()
    await other.set("/a", b"1")
    await other.create("/a/b")
    assert (await data.wait()).type is EventType.CHANGED
    assert (await child.wait()).type is EventType.CHILD
    assert keeper.state.value == "connected" and data.types == [EventType.CHANGED]


async def test_history_that_goes_between_a_read_and_the_start_of_its_watch_loses_no_event(
    etcd_backend, compact, monkeypatch
):
    """1 a session's first read with a watch, 2 before etcd is asked for what follows, others change the node,
    and the history of it goes, 3 etcd refuses to tell, 4 the session is told by what is there now."""
    keeper, other = await etcd_backend.open(session_timeout_s=60), await etcd_backend.open()
    await other.create("/a", b"0")
    await other.create("/gone")
    follow = Feed.follow

    async def late(self, after):
        if self is keeper_feed and not self.is_following:
            monkeypatch.setattr(Feed, "follow", follow)
            await other.set("/a", b"1")
            await other.create("/a/b", mode=CreateMode.EPHEMERAL)
            await other.remove("/gone")
            await compact()
        await follow(self, after)

    feeds = []
    monkeypatch.setattr(Feed, "read_begins", recording(Feed.read_begins, feeds))
    await keeper.exists("/a")
    [keeper_feed] = feeds
    monkeypatch.setattr(Feed, "follow", late)
    data, child, gone = Seen(), Seen(), Seen()
    reads = [
        keeper.get("/a", watch=data),
        keeper.children("/a", watch=child),
        keeper.exists("/gone", watch=gone),
    ]
    node, children, stat = await asyncio.gather(*reads)
    assert node.data == b"0" and children.names == () and stat is not None
    assert (await data.wait()).type is EventType.CHANGED
    assert (await child.wait()).type is EventType.CHILD
    assert (await gone.wait()).type is EventType.DELETED
    assert (await until(lambda: keeper.get("/a"))).data == b"1"
    assert [data.types, child.types, gone.types] == [
        [EventType.CHANGED],
        [EventType.CHILD],
        [EventType.DELETED],
    ]


def recording(method, feeds):
    def recorded(self):
        if self not in feeds:
            feeds.append(self)
        method(self)

    return recorded


async def test_a_session_that_hears_late_is_told_what_it_missed_of_a_history_that_is_gone(
    etcd_backend, compact
):
    """1 a session watches, 2 nothing comes through to it any more, 3 others write more than etcd keeps for a
    slow listener, and the history goes, 4 it hears again: etcd ends its watch; 5 it connects anew, and each
    watch is told once, that of the untouched node not at all."""
    other = await etcd_backend.open()
    for name in ("a", "gone", "still"):
        await other.create(f"/{name}", b"0")
    noise = await other.create("/" + "noise" * 8000)
    async with TcpProxy(*etcd_backend.config.hosts[0]) as proxy:
        keeper = await etcd_backend.open(session_timeout_s=120, through=proxy.port)
        data, child, gone, created, still = (Seen() for _ in range(5))
        await keeper.get("/a", watch=data)
        await keeper.children("/a", watch=child)
        await keeper.get("/gone", watch=gone)
        await keeper.exists("/new", watch=created)
        await keeper.get("/still", watch=still)
        proxy.hold(Way.TO_CLIENT)
        for _ in range(_MORE_THAN_ETCD_KEEPS):
            await other.set(noise, b"")
        await other.set("/a", b"1")
        await other.create("/a/b")
        await other.remove("/gone")
        await other.create("/new")
        await compact()
        proxy.release()
        for seen, type_ in (
            (data, EventType.CHANGED),
            (child, EventType.CHILD),
            (gone, EventType.DELETED),
            (created, EventType.CREATED),
        ):
            assert (await seen.wait()).type is type_ and len(seen.events) == 1
        assert (await until(lambda: keeper.get("/a"))).data == b"1"
        assert proxy.connections_made == 2 and still.events == []
        await keeper.close()
