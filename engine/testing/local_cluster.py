"""A cluster on this machine: one real ZooKeeper and N real node processes, started, hurt and stopped by code.

    async with LocalCluster(tmp_path) as cluster:
        await cluster.node("node02").kill9()
        ...
        await cluster.node("node02").start()

Everything listens on loopback. Host names such as `node01` are names in the configuration only; nobody
resolves them. The directory given holds everything: data, logs, configuration.

Safety. What is started here ends with `stop()`, at the end of the `async with`, or, when this process is
killed, by `engine.testing.guard`. Nodes are ended by signals to our own children only.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from engine.config.load import load_node_config
from engine.env import Env, SystemEnv
from engine.errors import OnclusterError
from engine.keeper import zookeeper
from engine.keeper.base import Keeper
from engine.keeper.embedded import EmbeddedZooKeeper
from engine.keeper.recipes import create_ancestors
from engine.lifetime import Startable
from engine.names import HostId
from engine.ports import free_ports
from engine.processes import ProcessId
from engine.testing.cluster_files import DEFAULT_CLUSTER_FILE, ClusterFiles
from engine.testing.guard import Guard
from engine.testing.launch import Launch, cold
from engine.testing.processes import ChildProcess, sweep

log = logging.getLogger(__name__)

T = TypeVar("T")

HOST = "127.0.0.1"
Progress = Callable[[str], None]
"""Is told each step in words as it happens."""


class StartFailed(OnclusterError):
    """A process did not start or ended while starting; the hint is the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPorts:
    """Where everything listens: ZooKeeper's client port and one HTTP port per node."""

    zookeeper: int
    nodes: Mapping[str, int]

    @classmethod
    def free(cls, hosts: Sequence[str], *, env: Env | None = None) -> ClusterPorts:
        zookeeper, *nodes = free_ports(1 + len(hosts), env=env)
        return cls(zookeeper=zookeeper, nodes=dict(zip(hosts, nodes, strict=True)))


class LocalNode:
    """One node process. It may be started again after any end; its data stays."""

    def __init__(
        self,
        name: str,
        *,
        process: ChildProcess,
        http_port: int,
        config_file: Path,
        wait_registered: Callable[[Sequence[str]], Awaitable[None]],
        env: Env,
    ) -> None:
        self.name = name
        self._wait_registered = wait_registered
        self.http_port = http_port
        self.config_file = config_file
        self.process = process
        self._env = env

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    @property
    def is_running(self) -> bool:
        return self.process.is_running

    async def start(self, *, timeout_s: float = 180.0) -> None:
        """Start the process; return when it answers and has registered itself. Raises StartFailed."""
        self.process.start()
        await self.wait_answering(timeout_s=timeout_s)
        await self._wait_registered([self.name])

    async def wait_answering(self, *, timeout_s: float = 180.0) -> None:
        """Return when the node answers `/ping`. Raises StartFailed when it ends, or takes longer."""
        deadline_s = self._env.monotonic_s() + timeout_s
        while not await answers_ping(HOST, self.http_port):
            if not self.is_running:
                raise StartFailed(
                    f"{self.name} ended while starting (exit code {self.process.return_code}).",
                    hint=f"The end of {self.process.log_file}:\n{self.process.log_tail(8)}",
                )
            if self._env.monotonic_s() > deadline_s:
                raise StartFailed(
                    f"{self.name} does not answer at {self.url} after {timeout_s:.0f} s.",
                    hint=f"The end of {self.process.log_file}:\n{self.process.log_tail(8)}",
                )
            await self._env.sleep(0.05)

    async def stop(self, *, timeout_s: float = 60.0) -> int | None:
        """SIGTERM, and SIGKILL after `timeout_s`; returns the exit code."""
        return await self.process.stop(timeout_s=timeout_s)

    async def kill9(self) -> None:
        await self.process.kill9()

    def pause(self) -> None:
        """SIGSTOP."""
        self.process.pause()

    def resume(self) -> None:
        """SIGCONT."""
        self.process.resume()

    async def restart(self) -> None:
        """Stop in order, start again, wait until it answers."""
        await self.stop()
        await self.start()


class LocalCluster(Startable):
    """ZooKeeper and the nodes of one cluster file.

    `hosts` limits which of the file's hosts are run (the others are known and absent). `is_durable` has
    ZooKeeper fsync its log, which only a loss of power can tell. A `guard` given is its owner's to close.
    `launch` starts the nodes (`engine.testing.launch`).
    """

    def __init__(
        self,
        directory: Path,
        *,
        hosts: Sequence[str] | None = None,
        cluster_file: Path | None = None,
        ports: ClusterPorts | None = None,
        environ: Mapping[str, str] | None = None,
        guard: Guard | None = None,
        is_durable: bool = False,
        session_timeout_ms: int | None = None,
        launch: Launch = cold,
        env: Env | None = None,
    ) -> None:
        self.directory = directory.absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._env = env or SystemEnv()
        self.files = ClusterFiles(self.directory, (cluster_file or DEFAULT_CLUSTER_FILE).absolute())
        known = self.files.hosts()
        self.hosts = tuple(hosts or known)
        self.ports = ports or ClusterPorts.free(self.hosts, env=self._env)
        self._is_durable = is_durable
        self._owns_guard = guard is None
        self.guard = guard or Guard(str(self._env.new_uuid()))
        self.zookeeper_config = self.files.zookeeper(
            self.ports.zookeeper, session_timeout_ms=session_timeout_ms
        )
        self.files.write(zookeeper=self.zookeeper_config, http_ports=self.ports.nodes)
        self.zookeeper = EmbeddedZooKeeper(
            self.directory / "zookeeper",
            client_port=self.ports.zookeeper,
            is_durable=is_durable,
            env=self._env,
        )
        self.nodes: dict[str, LocalNode] = {}
        for name in self.hosts:
            config_file = self.files.node_config(name)
            process = ChildProcess(
                name,
                [sys.executable, "-m", "engine.cli", "node", "--config", config_file],
                log_file=self.directory / "logs" / f"{name}.log",
                environ=_keeping_bytecode(os.environ if environ is None else environ),
                cwd=self.files.node_directory(name),
                mark=self.guard.mark,
                launch=launch,
                env=self._env,
            )
            self.nodes[name] = LocalNode(
                name,
                process=process,
                http_port=self.ports.nodes[name],
                config_file=config_file,
                wait_registered=self.wait_registered,
                env=self._env,
            )

    # -- life ----------------------------------------------------------------------------------------------

    async def start(self, *, progress: Progress = lambda _: None) -> None:
        """Start ZooKeeper, then all nodes at once; return when each answers.

        Raises StartFailed, with the end of the log of what failed; nothing is left running then.
        """
        started_s = self._env.monotonic_s()
        try:
            await self.start_zookeeper()
            progress(f"ZooKeeper answers on port {self.ports.zookeeper} ({self._since(started_s)})")
            await self.start_nodes(progress=progress)
        except BaseException:  # also a cancellation: nothing is left running
            await self.stop()
            raise

    async def start_zookeeper(self) -> None:
        """Start ZooKeeper, or start it again with the same data. Raises KeeperUnavailable."""
        self.guard.start()
        self.zookeeper.spawn()
        self.guard.also(ProcessId.of(self.zookeeper.pid) if self.zookeeper.pid else None)
        try:
            await self.zookeeper.wait_until_serving()
            await self._make_root()
        except BaseException:  # also a cancellation: nothing is left running
            await self.zookeeper.stop()
            raise

    async def _make_root(self) -> None:
        """Nodes do not make it, as servers do not: it is whose the ZooKeeper is."""
        if root := self.zookeeper_config.root:
            session = await zookeeper.connect(dataclasses.replace(self.zookeeper_config, root=""), self._env)
            try:
                await create_ancestors(session, f"{root}/x")
            finally:
                await session.close()

    async def start_nodes(
        self, names: Sequence[str] | None = None, *, progress: Progress = lambda _: None
    ) -> None:
        """Start these nodes (default: all) at once and wait for them. Raises StartFailed."""
        started_s = self._env.monotonic_s()

        async def start(node: LocalNode) -> None:
            node.process.start()
            await node.wait_answering()
            progress(f"{node.name} answers on port {node.http_port} ({self._since(started_s)})")

        try:
            async with asyncio.TaskGroup() as group:
                for name in names or self.hosts:
                    group.create_task(start(self.nodes[name]))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None  # the first; the other starts were cancelled because of it
        await self.wait_registered(names or self.hosts)

    async def wait_registered(self, names: Sequence[str], *, timeout_s: float = 180.0) -> None:
        """Return when these nodes have said in Keeper that they are there. Raises StartFailed.

        A node answers a little earlier. Until it has registered nobody can tell that it went away.
        """
        deadline_s = self._env.monotonic_s() + timeout_s
        async with self.keeper() as keeper:
            for name in names:
                config = load_node_config(self.nodes[name].config_file)
                host = HostId(config.host_name, config.tcp_port)
                for queue in config.queues:
                    while await keeper.exists(queue.paths.replica_active(host)) is None:
                        if self._env.monotonic_s() > deadline_s or not self.nodes[name].is_running:
                            raise StartFailed(
                                f"{name} has not registered itself in Keeper.",
                                hint=f"See {self.nodes[name].process.log_file}.",
                            )
                        await self._env.sleep(0.02)

    async def stop(self) -> None:
        """Stop the nodes, then ZooKeeper, then whatever is left of either. May be called twice."""
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))
        # Its log is not for a loss of power: an orderly end, which takes longer, would save nothing.
        await (self.zookeeper.stop() if self._is_durable else self.zookeeper.kill())
        if self._owns_guard:
            await sweep(self.guard.mark, env=self._env)
            self.guard.close()

    def _since(self, started_s: float) -> str:
        return f"{self._env.monotonic_s() - started_s:.1f} s"

    # -- access --------------------------------------------------------------------------------------------

    def node(self, name: str) -> LocalNode:
        return self.nodes[name]

    @property
    def config_file(self) -> Path:
        """For clients: clusters, queue, and the address of ZooKeeper."""
        return self.files.shared

    @contextlib.asynccontextmanager
    async def keeper(self) -> AsyncIterator[Keeper]:
        """A session of one's own with the cluster's ZooKeeper."""
        session = await zookeeper.connect(self.zookeeper_config, self._env)
        try:
            yield session
        finally:
            await session.close()


Call = Callable[[Coroutine[Any, Any, T]], T]


@contextlib.contextmanager
def blocking_cluster(directory: Path, **options: Any) -> Iterator[tuple[LocalCluster, Call[Any]]]:
    """For code that is not asynchronous.

        with blocking_cluster(directory) as (cluster, call):
            call(cluster.node("node02").kill9())

    The cluster lives on an event loop in a thread of its own; `call` runs a coroutine there. Options are
    those of `LocalCluster`.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="local-cluster", daemon=True)
    thread.start()

    def call(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    try:
        cluster = LocalCluster(directory, **options)
        call(cluster.start())
        try:
            yield cluster, call
        finally:
            call(cluster.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _keeping_bytecode(environ: Mapping[str, str]) -> dict[str, str]:
    """Compiling all modules anew costs a node more than all else that it does at its start."""
    return {name: value for name, value in environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


async def answers_ping(host: str, port: int, *, timeout_s: float = 2.0) -> bool:
    """Whether `GET /ping` there is answered with 200."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"GET /ping HTTP/1.0\r\nHost: localhost\r\n\r\n")
                await writer.drain()
                line = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return b" 200 " in line
