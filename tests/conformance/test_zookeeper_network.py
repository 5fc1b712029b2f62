"""A ZooKeeper session over a network that fails. Only for ZooKeeper: these are its connection's troubles;
what every Keeper does when a connection is lost stands in `test_reconnecting`."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from kazoo.client import KazooClient

from engine.env import SystemEnv
from engine.errors import ConnectionLoss, KeeperUnavailable, OperationTimeout, SessionExpired
from engine.keeper import Create, CreateMode, EventType, WatchEvent, zookeeper
from engine.testing.proxy import TcpProxy, Way
from engine.testing.seen import Seen

pytestmark = pytest.mark.slow

PATIENCE_S = 120.0


@pytest.fixture
async def link(zookeeper_server):
    async with TcpProxy("127.0.0.1", zookeeper_server.client_port) as proxy:
        yield proxy


@pytest.fixture
async def open_through(link, zookeeper_backend):
    """Opens sessions through the proxy, below the test's root."""
    opened = []

    async def open_session(*, session_timeout_s=20.0, operation_timeout_s=10.0, connect_timeout_s=10.0):
        config = dataclasses.replace(
            zookeeper_backend.config,
            hosts=(("127.0.0.1", link.port),),
            root=zookeeper_backend.root,
            session_timeout_ms=int(session_timeout_s * 1000),
            operation_timeout_ms=int(operation_timeout_s * 1000),
        )
        keeper = await zookeeper.connect(config, SystemEnv(), connect_timeout_s=connect_timeout_s)
        opened.append(keeper)
        return keeper

    yield open_session
    link.release()
    for keeper in opened:
        await keeper.close()


@pytest.fixture
async def direct(zookeeper_backend):
    """A session that does not go through the proxy."""
    return await zookeeper_backend.open()


async def is_over(keeper):
    over = asyncio.Event()
    keeper.on_expired(over.set)
    async with asyncio.timeout(PATIENCE_S):
        await over.wait()


async def test_a_create_under_way_when_the_connection_is_cut_has_an_unknown_outcome(
    link, open_through, direct
):
    """1 the request is executed, 2 its reply is cut off, 3 ConnectionLoss, 4 the same session resumes and
    sees it."""
    keeper = await open_through()
    session_id = keeper.session_id
    link.cut_after(10, Way.TO_CLIENT)
    with pytest.raises(ConnectionLoss):
        await keeper.create("/a", b"mine", mode=CreateMode.EPHEMERAL)
    await reconnected(keeper)
    node = await keeper.get("/a")
    assert node.data == b"mine" and node.stat.ephemeral_owner == session_id == keeper.session_id
    assert link.connections_made == 2
    assert await direct.exists("/a") is not None


async def test_a_request_that_never_arrives_is_a_connection_loss_too(link, open_through, direct):
    keeper = await open_through()
    link.cut_after(10, Way.TO_SERVER)
    with pytest.raises(ConnectionLoss):
        await keeper.create("/a")
    await reconnected(keeper)
    assert await keeper.exists("/a") is None
    assert not keeper.is_expired


async def test_everything_under_way_fails_when_the_connection_breaks(link, open_through):
    keeper = await open_through()
    link.hold(Way.TO_CLIENT)
    calls = [asyncio.create_task(keeper.create(f"/{number}")) for number in range(20)]
    calls.append(asyncio.create_task(keeper.multi([Create("/m")])))
    await asyncio.sleep(0)
    link.cut()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {ConnectionLoss}
    link.release()
    await reconnected(keeper)


async def reconnected(keeper):
    """Read until the connection is back. Requests that met its end are asked again; reads may be."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await keeper.exists("/")
                return
            except ConnectionLoss:
                pass


async def test_an_answer_that_does_not_come_is_an_operation_timeout(link, open_through):
    keeper = await open_through(operation_timeout_s=1.5)
    link.hold(Way.TO_CLIENT)
    with pytest.raises(OperationTimeout):
        await keeper.create("/a")
    link.release()
    await keeper.sync("/")  # comes after the create, whose outcome is visible now
    assert await keeper.exists("/a") is not None


async def test_a_request_that_timed_out_is_executed_before_any_later_one(link, open_through):
    keeper = await open_through(operation_timeout_s=1.5)
    await keeper.create("/a", b"0")
    link.hold(Way.TO_SERVER)
    with pytest.raises(OperationTimeout):
        await keeper.set("/a", b"late")
    link.release()
    assert (await keeper.get("/a")).data == b"late"


async def test_a_partition_longer_than_the_session_timeout_ends_the_session(link, open_through, direct):
    keeper = await open_through(session_timeout_s=3.0, operation_timeout_s=1.5)
    await keeper.create("/e", mode=CreateMode.EPHEMERAL)
    gone, pending = Seen(), Seen()
    await direct.exists("/e", watch=gone)
    await keeper.children("/", watch=pending)
    link.hold()
    with pytest.raises((OperationTimeout, ConnectionLoss)):
        await keeper.get("/e")
    assert await gone.wait() == WatchEvent(EventType.DELETED, "/e")
    link.release()
    await is_over(keeper)
    assert pending.events == [WatchEvent(EventType.SESSION, "/")]
    with pytest.raises(SessionExpired):
        await keeper.get("/")


async def test_a_session_without_a_connection_for_its_timeout_ends_by_itself(link, open_through):
    keeper = await open_through(session_timeout_s=3.0)
    pending = Seen()
    await keeper.children("/", watch=pending)
    link.refuse()
    link.cut()
    await is_over(keeper)
    assert pending.types == [EventType.SESSION]
    with pytest.raises(SessionExpired):
        await keeper.get("/")


async def test_an_expired_session_is_not_replaced_by_another(zookeeper_server, zookeeper_backend):
    """The event loop stands still while somebody else takes the session over and ends it."""
    keeper = await zookeeper_backend.open()
    session_id = keeper.session_id
    client_id = keeper._connection.client_id
    thief = KazooClient(f"127.0.0.1:{zookeeper_server.client_port}", client_id=client_id)
    thief.start()
    thief.stop()
    thief.close()
    await is_over(keeper)
    assert keeper.session_id == session_id
    with pytest.raises(SessionExpired):
        await keeper.exists("/")


async def test_a_slow_link_is_slow_and_nothing_else(link, open_through):
    keeper = await open_through()
    link.delay(0.05)
    assert await asyncio.gather(*(keeper.create(f"/{number}") for number in range(10)))
    assert len((await keeper.children("/")).names) == 10


async def test_nobody_there_is_keeper_unavailable_with_the_reason(link, open_through):
    link.refuse()
    with pytest.raises(KeeperUnavailable, match=r"No session with Keeper at 127\.0\.0\.1:\d+ within 0\.5 s"):
        await open_through(connect_timeout_s=0.5)


@pytest.mark.parametrize("name", ["zk..example.com", "a" * 64 + ".example.com"])
async def test_a_host_whose_name_is_none_is_passed_over_and_named(zookeeper_server, name):
    hosts = ((name, 2181),)
    with pytest.raises(KeeperUnavailable, match=f"{name}: .*(label|name)"):
        config = dataclasses.replace(zookeeper_server.config, hosts=hosts)
        await zookeeper.connect(config, SystemEnv(), connect_timeout_s=0.3)
    for _ in range(4):  # the order is drawn
        config = dataclasses.replace(zookeeper_server.config, hosts=hosts + zookeeper_server.config.hosts)
        keeper = await zookeeper.connect(config, SystemEnv(), connect_timeout_s=10.0)
        await keeper.close()


async def test_a_server_that_does_not_answer_is_keeper_unavailable(link, open_through):
    link.hold()
    with pytest.raises(KeeperUnavailable):
        await open_through(connect_timeout_s=0.5)


async def test_closing_behind_a_partition_does_not_hang(link, open_through, direct):
    keeper = await open_through(session_timeout_s=3.0)
    await keeper.create("/e", mode=CreateMode.EPHEMERAL)
    gone = Seen()
    await direct.exists("/e", watch=gone)
    link.hold()
    async with asyncio.timeout(PATIENCE_S):
        await keeper.close()
    assert keeper.is_expired
    assert (await gone.wait()).type is EventType.DELETED  # by the server, after the timeout


async def test_a_session_leaves_no_task_behind(open_through):
    before = len(asyncio.all_tasks())
    for _ in range(3):
        keeper = await open_through()
        await keeper.close()
    async with asyncio.timeout(PATIENCE_S):
        while len(asyncio.all_tasks()) > before:  # the proxy closes its end of the link a moment later
            await asyncio.sleep(0.01)
