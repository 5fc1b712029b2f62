"""An ensemble of three servers: followers, sync, one that is behind, and a leader that dies."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable

import pytest

from engine.config.model import ZooKeeper
from engine.env import SystemEnv
from engine.errors import BadVersion, ConnectionLoss, MultiFailed, OperationTimeout
from engine.keeper import Check, Create, CreateMode, EventType, Keeper, zookeeper
from engine.keeper.embedded import HOST, EmbeddedEnsemble
from engine.keeper.memory import MemoryKeeperServer
from engine.testing.proxy import TcpProxy, Way
from engine.testing.seen import Seen

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory):
    servers = EmbeddedEnsemble(tmp_path_factory.mktemp("ensemble"), is_durable=False, ends_with_parent=True)
    asyncio.run(servers.start())
    yield servers
    asyncio.run(servers.stop())


@pytest.fixture
async def connect_to():
    """Opens a session with some of the servers."""
    opened = []

    async def open_session(*servers, session_timeout_s=20.0):
        config = ZooKeeper(
            hosts=tuple((HOST, server.client_port) for server in servers),
            session_timeout_ms=int(session_timeout_s * 1000),
        )
        keeper = await zookeeper.connect(config, SystemEnv())
        opened.append(keeper)
        return keeper

    yield open_session
    for keeper in opened:
        await keeper.close()


@slow
async def test_writes_through_any_server_are_visible_on_all_after_a_sync(ensemble, connect_to):
    sessions = [await connect_to(server) for server in ensemble.servers]
    for number, writer in enumerate(sessions):
        await writer.create(f"/anywhere-{number}", b"x")
        for reader in sessions:
            await reader.sync("/")
            assert (await reader.get(f"/anywhere-{number}")).data == b"x"


@slow
async def test_a_watch_set_through_a_follower_fires(ensemble, connect_to):
    follower = (await ensemble.followers())[0]
    reader, writer = await connect_to(follower), await connect_to(await ensemble.leader())
    await writer.create("/watched")
    await reader.sync("/watched")
    data, child = Seen(), Seen()
    await reader.get("/watched", watch=data)
    await reader.children("/watched", watch=child)
    await writer.set("/watched", b"x")
    await writer.create("/watched/child")
    assert (await data.wait()).type is EventType.CHANGED
    assert (await child.wait()).type is EventType.CHILD


@contextlib.asynccontextmanager
async def follower_behind(ensemble):
    """A follower, and the link over which its leader tells it what was committed."""
    leader, follower = await ensemble.leader(), (await ensemble.followers())[0]
    given = follower._peers
    async with TcpProxy(HOST, given[leader.number - 1].quorum_port) as link:
        await follower.kill()
        follower._peers = tuple(
            dataclasses.replace(peer, quorum_port=link.port) if peer.number == leader.number else peer
            for peer in given
        )
        await follower.start()
        try:
            yield follower, link
        finally:
            link.release()
            await follower.kill()
            follower._peers = given
            await follower.start()


@dataclasses.dataclass
class Behind:
    """Somebody who reads where news come late, and somebody who writes."""

    reader: Keeper
    writer: Keeper
    fall_behind: Callable[[], None]
    catch_up: Callable[[], None]


@pytest.fixture(params=["memory", pytest.param("ensemble", marks=slow)])
def where(request):
    """The ensemble, None for the memory Keeper. Not async: servers start before any event loop."""
    return request.getfixturevalue("ensemble") if request.param == "ensemble" else None


@pytest.fixture
async def behind(where, connect_to):
    """One ZooKeeper server alone is never behind itself: it takes a follower."""
    if where is not None:
        async with follower_behind(where) as (follower, link):
            writer, reader = await connect_to(await where.leader()), await connect_to(follower)
            yield Behind(reader, writer, lambda: link.hold(Way.TO_CLIENT), link.release)
        return
    server = MemoryKeeperServer(SystemEnv())
    reader, writer = await server.connect(), await server.connect()
    yield Behind(reader, writer, lambda: server.stale_reads(reader.session_id), lambda: None)
    await asyncio.gather(reader.close(), writer.close())


# A follower that hears nothing from its leader for five seconds drops its clients: this process was not
# given a processor for so long.
again_if_cut_off = pytest.mark.flaky(reruns=3, only_rerun=[ConnectionLoss.__name__])


@again_if_cut_off
async def test_reads_may_be_stale_until_a_sync(behind):
    """1 the reader's server hears of nothing more, 2 somebody writes, 3 the reader sees what was, 4 its sync
    ends when the server has caught up: the event has come by then, and reads see everything."""
    reader, writer = behind.reader, behind.writer
    path = f"/node-{reader.session_id:x}"
    await writer.create(path)
    await reader.sync(path)
    seen = Seen()
    before = await reader.get(path, watch=seen)
    behind.fall_behind()
    written = await writer.set(path, b"new")
    await writer.create(f"{path}/child")

    assert await reader.get(path) == before
    assert (await reader.children(path)).names == ()
    assert await reader.exists(f"{path}/child") is None
    assert seen.events == []

    syncing = asyncio.create_task(reader.sync(path))
    behind.catch_up()
    await syncing
    assert seen.types == [EventType.CHANGED]
    assert (await reader.get(path)).stat.mzxid == written.mzxid
    assert (await reader.children(path)).names == ("child",)


@again_if_cut_off
async def test_what_a_transaction_checks_is_never_stale(behind):
    reader, writer = behind.reader, behind.writer
    path = f"/node-{reader.session_id:x}"
    await writer.create(path)
    await reader.sync(path)
    behind.fall_behind()
    await writer.set(path, b"by another")
    version = (await reader.get(path)).stat.version
    assert version == 0
    deciding = asyncio.create_task(reader.multi([Check(path, version), Create(f"{path}/mine")]))
    await writer.sync(path)
    behind.catch_up()
    with pytest.raises(MultiFailed) as caught:
        await deciding
    assert isinstance(caught.value.error, BadVersion)
    await reader.sync(path)
    assert await reader.exists(f"{path}/mine") is None


@slow
async def test_sequences_count_across_servers(ensemble, connect_to):
    sessions = [await connect_to(server) for server in ensemble.servers]
    await sessions[0].create("/sequence")
    made = []
    for _ in range(4):
        for session in sessions:
            made.append(await session.create("/sequence/n-", mode=CreateMode.PERSISTENT_SEQUENTIAL))
    assert made == [f"/sequence/n-{number:010}" for number in range(12)]


@slow
async def test_a_session_survives_the_death_of_the_leader(ensemble, connect_to):
    """1 a session at the leader, with an ephemeral node and a watch, 2 the leader is killed, 3 the same
    session goes on at another server, 4 its node stands and its watch fires."""
    leader = await ensemble.leader()
    others = [server for server in ensemble.servers if server is not leader]
    keeper = await connect_to(leader)
    # From here on it may move; it was pinned to the leader only for its first connection.
    keeper._connection._attempts._hosts = [(HOST, server.client_port) for server in ensemble.servers]
    session_id = keeper.session_id
    await keeper.create("/survivor", mode=CreateMode.EPHEMERAL)
    await keeper.create("/flag", b"0")
    seen = Seen()
    await keeper.get("/flag", watch=seen)
    await leader.kill()
    try:
        async with asyncio.timeout(60):
            while True:
                try:
                    await keeper.sync("/")
                    break
                except (ConnectionLoss, OperationTimeout):
                    pass
        assert keeper.session_id == session_id and not keeper.is_expired
        assert (await keeper.get("/survivor")).stat.ephemeral_owner == session_id
        writer = await connect_to(*others)
        await writer.set("/flag", b"1")
        assert (await seen.wait()).type is EventType.CHANGED
        assert await ensemble.leader() in others
    finally:
        await leader.start()


@slow
async def test_without_a_majority_nothing_is_acknowledged_and_later_all_works_again(ensemble, connect_to):
    leader = await ensemble.leader()
    lost = [server for server in ensemble.servers if server is not leader]
    keeper = await connect_to(*ensemble.servers, session_timeout_s=60.0)
    keeper._operation_timeout_s = 1.0
    for server in lost:
        await server.kill()
    try:
        with pytest.raises((ConnectionLoss, OperationTimeout)):
            while True:  # a write just before the leader has noticed may still have a majority
                await keeper.set("/", b"")
    finally:
        for server in lost:
            await server.start(wait_until_serving=False)
        for server in lost:
            await server.wait_until_serving()
    async with asyncio.timeout(60):
        while True:
            try:
                assert await keeper.exists("/") is not None
                break
            except (ConnectionLoss, OperationTimeout):
                pass


@slow
async def test_the_configuration_names_every_server(ensemble):
    assert [port for _, port in ensemble.config.hosts] == [server.client_port for server in ensemble.servers]
    assert dataclasses.replace(ensemble.config) == ensemble.config
