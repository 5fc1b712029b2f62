"""Opens sessions with whatever Keeper the configuration names: a ZooKeeper (`<zookeeper>`) or an etcd
(`<etcd>`)."""

from __future__ import annotations

from engine.config.model import Etcd, KeeperSection
from engine.env import Env
from engine.keeper import zookeeper
from engine.keeper.base import Keeper, KeeperFactory


async def connect(section: KeeperSection, env: Env, *, connect_timeout_s: float = 10.0) -> Keeper:
    """Open a session. Raises KeeperUnavailable with the reason; NoNode if the chroot does not exist."""
    if isinstance(section, Etcd):
        from engine.keeper import etcd  # gRPC is imported only where it is needed

        return await etcd.connect(section, env, connect_timeout_s=connect_timeout_s)
    return await zookeeper.connect(section, env, connect_timeout_s=connect_timeout_s)


def factory(section: KeeperSection, env: Env, *, connect_timeout_s: float = 10.0) -> KeeperFactory:
    """Opens sessions, as `connect`."""

    async def open_session() -> Keeper:
        return await connect(section, env, connect_timeout_s=connect_timeout_s)

    return open_session
