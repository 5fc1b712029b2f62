"""One suite for every Keeper: each test runs on the memory Keeper, on a real ZooKeeper and on a real etcd.

`backend` opens sessions below a root of the test's own, so that all tests share one server.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import warnings
from collections.abc import AsyncIterator, Iterator
from typing import Protocol

import pytest
from kazoo.client import KazooClient

from engine.config.model import KeeperSection, ZooKeeper
from engine.env import SystemEnv
from engine.errors import ConfigError
from engine.keeper import Keeper, etcd, opening
from engine.keeper.embedded import HOST, EmbeddedZooKeeper
from engine.keeper.etcd import messages
from engine.keeper.etcd.channel import EtcdChannel
from engine.keeper.etcd.embedded import EmbeddedEtcd, find_etcd
from engine.keeper.link import LinkState
from engine.keeper.memory import MemoryKeeperServer
from engine.testing.proxy import TcpProxy

PATIENCE_S = 120.0
_roots = itertools.count()


class Link(Protocol):
    """A session whose connection can be taken away."""

    keeper: Keeper

    async def lose(self) -> None:
        """Break the connection; there is no other until `restore`. Returns when the session knows."""
        ...

    def restore(self) -> None: ...


class Backend(Protocol):
    """What a test needs of a Keeper."""

    grants_s: tuple[float, float]
    """The shortest and the longest timeout that its sessions get."""

    async def open(self, *, session_timeout_s: float = 10.0, identity: str = "", root: str = "") -> Keeper:
        """Another session; `root` is below the test's own root."""
        ...

    async def open_at_the_top(self) -> Keeper:
        """Another session, of which no root stands in front of the server's."""
        ...

    async def open_on_a_link(self) -> Link:
        """Another session, which can lose its connection."""
        ...

    async def end_session(self, keeper: Keeper) -> None:
        """Have the server end the session, which may hear of it later."""
        ...

    async def expire(self, keeper: Keeper) -> None:
        """The same, and wait until its owner has heard of it."""
        ...


async def _heard_of_the_end(keeper: Keeper) -> None:
    over = asyncio.Event()
    keeper.on_expired(over.set)
    async with asyncio.timeout(PATIENCE_S):
        await over.wait()


class MemoryBackend:
    grants_s = (1.0, 200.0)

    def __init__(self) -> None:
        self.server = MemoryKeeperServer(
            SystemEnv(), min_session_timeout_s=1.0, max_session_timeout_s=200.0, reconnect_delay_s=(0.0, 0.01)
        )
        self.opened: list[Keeper] = []

    async def open(self, *, session_timeout_s: float = 10.0, identity: str = "", root: str = "") -> Keeper:
        keeper = await self.server.connect(session_timeout_s=session_timeout_s, identity=identity, root=root)
        self.opened.append(keeper)
        return keeper

    async def open_at_the_top(self) -> Keeper:
        return await self.open()

    async def open_on_a_link(self) -> Link:
        client = f"on a link {len(self.opened)}"
        keeper = await self.server.connect(session_timeout_s=60.0, client=client)
        self.opened.append(keeper)
        return MemoryLink(self.server, keeper, client)

    async def end_session(self, keeper: Keeper) -> None:
        self.server.expire_session(keeper.session_id)

    async def expire(self, keeper: Keeper) -> None:
        await self.end_session(keeper)
        await _heard_of_the_end(keeper)

    async def close(self) -> None:
        for keeper in self.opened:
            await keeper.close()


@dataclasses.dataclass
class MemoryLink:
    server: MemoryKeeperServer
    keeper: Keeper
    client: str

    async def lose(self) -> None:
        self.server.partition(self.client)
        self.server.break_connection(self.keeper.session_id)

    def restore(self) -> None:
        self.server.heal(self.client)


class ServerBackend:
    """Of a real server: its sessions go through a proxy where they have to lose their connection."""

    grants_s: tuple[float, float]

    def __init__(self, server: EmbeddedZooKeeper | EmbeddedEtcd, root: str) -> None:
        self.config = server.config
        self.root = root
        self.opened: list[Keeper] = []
        self.proxies: list[TcpProxy] = []

    async def open(
        self, *, session_timeout_s: float = 10.0, identity: str = "", root: str = "", through: int = 0
    ) -> Keeper:
        """`through` is the port of a proxy."""
        config = dataclasses.replace(
            self.config,
            hosts=((HOST, through),) if through else self.config.hosts,
            session_timeout_ms=int(session_timeout_s * 1000),
            identity=identity,
            root=self.root + root,
        )
        return await self._open(config)

    async def open_at_the_top(self) -> Keeper:
        return await self._open(self.config)

    async def _open(self, config: KeeperSection) -> Keeper:
        keeper = await opening.connect(config, SystemEnv())
        self.opened.append(keeper)
        return keeper

    async def open_on_a_link(self) -> Link:
        proxy = TcpProxy(*self.config.hosts[0])
        await proxy.start()
        self.proxies.append(proxy)
        return ProxiedLink(proxy, await self.open(session_timeout_s=60.0, through=proxy.port))

    async def end_session(self, keeper: Keeper) -> None:
        raise NotImplementedError

    async def expire(self, keeper: Keeper) -> None:
        await self.end_session(keeper)
        await _heard_of_the_end(keeper)

    async def close(self) -> None:
        for proxy in self.proxies:
            proxy.release()
        for keeper in self.opened:
            await keeper.close()
        for proxy in self.proxies:
            await proxy.stop()


class ZooKeeperBackend(ServerBackend):
    grants_s = (1.0, 200.0)

    async def end_session(self, keeper: Keeper) -> None:
        """Another connection takes the session over and closes it; the first one is told by the server."""
        await asyncio.to_thread(_close_session, self.config, keeper._connection.client_id)


class EtcdBackend(ServerBackend):
    grants_s = (2.0, 9e9)

    async def end_session(self, keeper: Keeper) -> None:
        """The session's lease is revoked. What it leaves is removed by a living session, or by the next one
        that begins."""
        channel = EtcdChannel(self.config, *self.config.hosts[0])
        await channel.call(messages.LEASE_REVOKE, messages.LeaseRevokeRequest(ID=keeper.session_id))
        await channel.close()
        await (await etcd.connect(self.config, SystemEnv())).close()


@dataclasses.dataclass
class ProxiedLink:
    proxy: TcpProxy
    keeper: Keeper

    async def lose(self) -> None:
        self.proxy.refuse()
        self.proxy.cut()
        async with asyncio.timeout(PATIENCE_S):
            while self.keeper.state is LinkState.CONNECTED:
                await asyncio.sleep(0)

    def restore(self) -> None:
        self.proxy.release()


def _close_session(config: ZooKeeper, client_id: tuple[int, bytes]) -> None:
    thief = KazooClient(config.connect_string, client_id=client_id)
    thief.start()
    thief.stop()
    thief.close()


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    server = EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"), is_durable=False, ends_with_parent=True)
    server.start_blocking()
    yield server
    server.stop_blocking()


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedEtcd]:
    try:
        find_etcd()
    except ConfigError as error:
        pytest.skip(str(error))
    server = EmbeddedEtcd(tmp_path_factory.mktemp("etcd"), is_durable=False, ends_with_parent=True)
    server.start_blocking()
    yield server
    server.stop_blocking()


@pytest.fixture(
    params=[
        "memory",
        pytest.param("zookeeper", marks=pytest.mark.slow),
        pytest.param("etcd", marks=pytest.mark.slow),
    ]
)
def real_server(request: pytest.FixtureRequest) -> EmbeddedZooKeeper | EmbeddedEtcd | None:
    """The server to test against, None for the memory Keeper. Not async: it starts before any event loop.

    One that has ended of itself, or by somebody's hand, is said to have and starts again on its data: the
    tests that come after it are not about that.
    """
    if request.param == "memory":
        return None
    server: EmbeddedZooKeeper | EmbeddedEtcd = request.getfixturevalue(f"{request.param}_server")
    if server.pid is None:
        end = server.log_path.read_text(errors="replace")[-2000:] if server.log_path.exists() else "no log"
        warnings.warn(
            f"{request.param} had ended and is started again. The end of its log: {end}", stacklevel=1
        )
        server.directory.mkdir(parents=True, exist_ok=True)
        server.start_blocking()
    return server


async def make_backend(server: EmbeddedZooKeeper | EmbeddedEtcd) -> ServerBackend:
    """Below a root of its own."""
    root = f"/test-{next(_roots)}"
    maker = await opening.connect(server.config, SystemEnv())
    await maker.create(root)
    await maker.close()
    return (EtcdBackend if isinstance(server, EmbeddedEtcd) else ZooKeeperBackend)(server, root)


@pytest.fixture
async def backend(real_server: EmbeddedZooKeeper | EmbeddedEtcd | None) -> AsyncIterator[Backend]:
    made = MemoryBackend() if real_server is None else await make_backend(real_server)
    yield made
    await made.close()


@pytest.fixture
async def keeper(backend: Backend) -> Keeper:
    return await backend.open()


@pytest.fixture
async def other(backend: Backend) -> Keeper:
    """A second session."""
    return await backend.open()


@pytest.fixture
async def link(backend: Backend) -> Link:
    """A session that can lose its connection."""
    return await backend.open_on_a_link()


@pytest.fixture
async def zookeeper_backend(zookeeper_server: EmbeddedZooKeeper) -> AsyncIterator[ZooKeeperBackend]:
    """For tests of ZooKeeper alone."""
    made = await make_backend(zookeeper_server)
    yield made
    await made.close()


@pytest.fixture
async def etcd_backend(etcd_server: EmbeddedEtcd) -> AsyncIterator[EtcdBackend]:
    """For tests of etcd alone."""
    made = await make_backend(etcd_server)
    yield made
    await made.close()
