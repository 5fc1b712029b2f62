"""The session with Keeper that a command has."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from engine.errors import ConfigError

if TYPE_CHECKING:
    from engine.config.model import KeeperSection, NodeConfig
    from engine.keeper.base import Keeper


def zookeeper_of(config: NodeConfig) -> KeeperSection:
    """The `zookeeper` section. Raises ConfigError when there is none."""
    if config.zookeeper is None:
        raise ConfigError(
            "The configuration has no <zookeeper> section.",
            hint="Add <zookeeper><node><host>…</host><port>2181</port></node></zookeeper>.",
        )
    return config.zookeeper


@contextlib.asynccontextmanager
async def keeper_session(config: NodeConfig | KeeperSection) -> AsyncIterator[Keeper]:
    """One session with the configuration's Keeper, ended on the way out.

    Raises ConfigError without a `zookeeper` section, KeeperUnavailable when nobody answers.
    """
    from engine.config.model import NodeConfig as NodeConfigType
    from engine.env import SystemEnv
    from engine.keeper import opening

    section = zookeeper_of(config) if isinstance(config, NodeConfigType) else config
    keeper = await opening.connect(section, SystemEnv())
    try:
        yield keeper
    finally:
        await keeper.close()
