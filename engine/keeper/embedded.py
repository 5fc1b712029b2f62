"""A real ZooKeeper on this machine, out of the jars that PySpark ships: one server, or an ensemble.

    async with EmbeddedZooKeeper(Path(".run/zookeeper")) as server:
        keeper = await zookeeper.connect(server.config, env)

It listens on the loopback interface only. Everything it writes is below its data directory: `zoo.cfg`,
`server.pid`, `server.log` and `data/` (see `engine.keeper.server_process`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from engine.config.model import ZooKeeper
from engine.env import Env
from engine.keeper.java import find_java
from engine.keeper.server_files import Peer, find_jars, server_arguments, write_files
from engine.keeper.server_process import HOST, ServerGroup, ServerProcess
from engine.ports import free_ports

__all__ = ["HOST", "EmbeddedEnsemble", "EmbeddedZooKeeper", "four_letter_word"]


async def four_letter_word(port: int, word: str, *, host: str = HOST, timeout_s: float = 2.0) -> str:
    """ZooKeeper's answer to `ruok`, `srvr`, `mntr`, …; empty if there is none."""
    writer = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(word.encode())
            return (await reader.read()).decode(errors="replace")
    except (OSError, TimeoutError):
        return ""
    finally:
        if writer is not None:
            writer.close()


class EmbeddedZooKeeper(ServerProcess):
    """One server process. `client_port` 0 takes a free port at each first start and keeps it afterwards.

    `is_durable=False` leaves out the fsync of the log, for tests: a kill of the process loses nothing, only
    the loss of power would. Session timeouts are granted from two to 400 ticks.
    """

    name = "ZooKeeper"

    def __init__(
        self,
        directory: Path,
        *,
        client_port: int = 0,
        tick_ms: int = 500,
        heap_mb: int = 128,
        is_durable: bool = True,
        ends_with_parent: bool = False,
        java: Path | None = None,
        number: int = 1,
        peers: Sequence[Peer] = (),
        env: Env | None = None,
    ) -> None:
        super().__init__(directory, client_port=client_port, ends_with_parent=ends_with_parent, env=env)
        self.number = number
        self._tick_ms = tick_ms
        self._heap_mb = heap_mb
        self._is_durable = is_durable
        self._java = java
        self._peers = tuple(peers)

    @property
    def config(self) -> ZooKeeper:
        """How to connect to it."""
        return ZooKeeper(hosts=((HOST, self.client_port),))

    def _command(self) -> Sequence[str]:
        java = self._java or find_java()
        jars = find_jars()
        write_files(
            self.directory,
            host=HOST,
            client_port=self.client_port,
            tick_ms=self._tick_ms,
            number=self.number,
            peers=self._peers,
        )
        return [
            str(java),
            *server_arguments(self.directory, jars, self._heap_mb, is_durable=self._is_durable),
        ]

    async def is_serving(self) -> bool:
        """Whether it answers and, in an ensemble, has found a leader."""
        return "Mode: " in await four_letter_word(self.client_port, "srvr")

    async def is_leader(self) -> bool:
        return "Mode: leader" in await four_letter_word(self.client_port, "srvr")


class EmbeddedEnsemble(ServerGroup[EmbeddedZooKeeper]):
    """Several servers in one ensemble, below one directory. `leader()` is whoever leads now."""

    def __init__(
        self,
        directory: Path,
        *,
        size: int = 3,
        client_ports: Sequence[int] = (),
        tick_ms: int = 500,
        heap_mb: int = 128,
        is_durable: bool = True,
        ends_with_parent: bool = False,
        java: Path | None = None,
        env: Env | None = None,
    ) -> None:
        ports = free_ports(3 * size, env=env)
        peers = [Peer(i + 1, ports[3 * i], ports[3 * i + 1]) for i in range(size)]
        self.servers = tuple(
            EmbeddedZooKeeper(
                directory / f"server-{peer.number}",
                client_port=client_ports[i] if client_ports else ports[3 * i + 2],
                tick_ms=tick_ms,
                heap_mb=heap_mb,
                is_durable=is_durable,
                ends_with_parent=ends_with_parent,
                java=java,
                number=peer.number,
                peers=peers,
                env=env,
            )
            for i, peer in enumerate(peers)
        )

    @property
    def config(self) -> ZooKeeper:
        """How to connect to it: to any of its servers."""
        return ZooKeeper(hosts=tuple((HOST, server.client_port) for server in self.servers))

    async def leader(self) -> EmbeddedZooKeeper | None:
        for server in self.servers:
            if await server.is_leader():
                return server
        return None

    async def followers(self) -> list[EmbeddedZooKeeper]:
        """Those that serve and do not lead."""
        return [
            server for server in self.servers if await server.is_serving() and not await server.is_leader()
        ]
