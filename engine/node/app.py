"""One node: configuration in, a running server out.

Order of start: the directory's lock, chDB, then what `wiring` says. chDB starts on a thread of its own while
the modules of everything else are loaded, which takes longer. Order of stop: no new connections, running
statements to their end within a limit, the queue's statement under way to its end, the replicas, Keeper's
sessions, chDB.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from engine.config.graphite import sections_xml
from engine.config.model import NodeConfig
from engine.config.watch import ConfigFile
from engine.env import Env
from engine.errors import ConfigError, SqlError
from engine.names import HostId
from engine.node.directory import NodeDirectory
from engine.node.start_flags import take_flags
from engine.storage import ChdbPool, ChdbSettings
from engine.storage.guard import check_settings
from engine.tls import authorities_on_demand

if TYPE_CHECKING:
    from engine.node.http.server import HttpServer

log = logging.getLogger(__name__)


class Node:
    """Use as an asynchronous context manager; inside it the node serves."""

    def __init__(self, config_file: ConfigFile, env: Env) -> None:
        self._config_file = config_file
        self._config: NodeConfig = config_file.node
        self._env = env
        self._stack = contextlib.AsyncExitStack()
        self.http: HttpServer | None = None

    async def __aenter__(self) -> Node:
        """Raises ConfigError, also for a profile that chDB does not take, Busy for a directory or a port in
        use, SqlError from chDB."""
        try:
            await self._start()
        except BaseException:  # also a cancellation: nothing is left running
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        config, env = self._config, self._env
        started_s = env.monotonic_s()
        directory = self._stack.enter_context(NodeDirectory(Path(config.path)))
        if config.zookeeper is not None:
            take_flags(directory.path)
        opening = asyncio.get_running_loop().create_task(self._open_chdb(directory.path))
        self._stack.push_async_callback(_closed, opening)
        await asyncio.sleep(0)  # chDB's thread begins
        with authorities_on_demand():  # of aiohttp, which is imported here for the first time
            from engine.node.wiring import Wiring

        pool = await opening
        await _check_profiles(config, pool)
        wiring = Wiring(self._config_file, env=env, directory=directory, pool=pool, stack=self._stack)
        with pool.disk_reserve.lent():
            self.http = await wiring.start()
            directory.announce(
                {
                    "host_name": config.host_name,
                    "http_port": self.http.http_port,
                    "https_port": self.http.https_port,
                    "version": pool.version,
                }
            )
        log.info(
            "node.ready http=%s:%d host=%s path=%s clickhouse=%s start_ms=%d",
            config.listen_host,
            self.http.http_port,
            HostId(config.host_name, config.tcp_port),
            directory.path,
            pool.version,
            (env.monotonic_s() - started_s) * 1000,
        )

    async def _open_chdb(self, path: Path) -> ChdbPool:
        config = self._config
        return await ChdbPool.open(
            path,
            settings=ChdbSettings(
                display_name=config.host_name,
                tcp_port=config.tcp_port,
                macros=config.topology.macros,
                replica_path=config.default_replica_path,
                replica_name=config.default_replica_name,
                graphite=sections_xml(config.graphite),
                constraints=config.constraints,
            ),
            max_running=config.max_connections,
            env=self._env,
        )


async def _check_profiles(config: NodeConfig, pool: ChdbPool) -> None:
    """Whether chDB takes their settings: a statement with one that it does not would be refused, whatever it
    is. Raises ConfigError."""
    used = {*(user.profile for user in config.users.values()), *(queue.profile for queue in config.queues)}
    for name in {profile or config.default_profile for profile in used}:
        settings = config.profiles.get(name, {})
        session = pool.session(settings=settings, one_shot=True)
        try:
            check_settings(settings)
            await session.query("SELECT 1")
        except SqlError as error:
            raise ConfigError(
                f"{error.message.rstrip('.')}, in profile '{name}'.", code=error.code
            ) from error


async def _closed(opening: asyncio.Task[ChdbPool]) -> None:
    """chDB is stopped, however far it came. Whoever waited for it has its error."""
    await asyncio.wait([opening])
    if not opening.cancelled() and opening.exception() is None:
        await opening.result().close()
