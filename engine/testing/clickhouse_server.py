"""Real ClickHouse servers on this machine, to test and measure against.

What is tested here is that the queue is ClickHouse's queue, and only ClickHouse can say so. `find_server`
looks for an installed `clickhouse-server` (Debian's package of that name, 18.16, is enough), `RealCluster`
starts several on 127.0.0.1 with clusters, macros and ZooKeeper of your choice. Nothing is installed and
nothing outside the given directory is written.

    specs = plan_servers(2, env=env)
    two = make_cluster("two", [[spec.host_id for spec in specs]])
    real = RealCluster(specs, clusters=[two], zookeeper=zookeeper, directory=tmp, env=env)
    async with real:
        await real.servers[0].query("CREATE TABLE t ON CLUSTER two (a UInt8) ENGINE = Memory")

Host ids are `127.0.0.1:<tcp port>`, because a server takes only addresses of local interfaces for its own and
127.0.0.2 is none to it. A cluster may list hosts that are not started here: engine nodes, or hosts that are
down.

A server ends with the thread that started it (`engine.testing.processes`).

Sources: configuration keys as in ClickHouse's documentation; what 18.16.1 needs of them was tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp

from engine.config.model import Cluster, DistributedDdl, Replica, Shard, ZooKeeper
from engine.env import Env
from engine.errors import Code, ConfigError, NodeUnavailable, ReplyLost, SqlError
from engine.lifetime import Startable
from engine.names import HostId
from engine.ports import free_ports
from engine.testing.clickhouse_config import ClickHouseConfig, ServerSpec
from engine.testing.processes import ChildProcess

_CANDIDATES = ("clickhouse-server", "/usr/sbin/clickhouse-server", "/usr/bin/clickhouse-server")
_ERROR_CODE = re.compile(r"Code: (\d+)")
_LOG_TAIL_BYTES = 2000
_FATAL = b"Received signal Segmentation fault"


def find_server() -> Path | None:
    """The installed `clickhouse-server`, or None."""
    for candidate in _CANDIDATES:
        found = shutil.which(candidate)
        if found:
            return Path(found)
    return None


def plan_servers(count: int, *, env: Env, prefix: str = "real", shards: int = 1) -> tuple[ServerSpec, ...]:
    """Specs for `count` servers `real01…` on free ports.

    Macros are `replica` (the name) and `shard` (`01`… in `shards` runs of equal length).
    """
    ports = free_ports(3 * count, env=env)
    per_shard = -(-count // shards)
    return tuple(
        ServerSpec(
            name=f"{prefix}{i + 1:02d}",
            tcp_port=ports[3 * i],
            http_port=ports[3 * i + 1],
            interserver_http_port=ports[3 * i + 2],
            macros={"shard": f"{i // per_shard + 1:02d}", "replica": f"{prefix}{i + 1:02d}"},
        )
        for i in range(count)
    )


def make_cluster(
    name: str, shards: Sequence[Sequence[HostId]], *, internal_replication: bool = True
) -> Cluster:
    """A cluster of the given hosts, one inner sequence for each shard."""
    return Cluster(
        name,
        tuple(
            Shard(
                number,
                tuple(Replica(host.host, host.port) for host in hosts),
                internal_replication=internal_replication,
            )
            for number, hosts in enumerate(shards, start=1)
        ),
    )


class RealClickHouse:
    """One server process. Start, stop and kill may be called again and again; data stays in `directory`."""

    def __init__(self, spec: ServerSpec, *, binary: Path, directory: Path, env: Env) -> None:
        self.spec = spec
        self.directory = directory
        self._env = env
        self._http: aiohttp.ClientSession | None = None
        self.process = ChildProcess(
            spec.name,
            [binary, f"--config-file={directory / 'config.xml'}"],
            log_file=directory / "stdout.log",
            cwd=directory,
            env=env,
        )

    @property
    def host_id(self) -> HostId:
        return self.spec.host_id

    async def start(self, *, timeout_s: float = 180.0) -> None:
        """Start the process and wait until it answers. Raises NodeUnavailable with the end of its log."""
        self.process.start()
        await self.wait_ready(timeout_s=timeout_s)

    async def wait_ready(self, *, timeout_s: float = 180.0) -> None:
        """Wait until the server answers a query. Raises NodeUnavailable when it ended or takes too long."""
        deadline_s = self._env.monotonic_s() + timeout_s
        while True:
            with contextlib.suppress(NodeUnavailable, ReplyLost):
                await self.query("SELECT 1", timeout_s=5.0)
                return
            if not self.process.is_running:
                raise NodeUnavailable(f"{self.spec.name} ended at once", hint=self.log_tail())
            if self._env.monotonic_s() > deadline_s:
                raise NodeUnavailable(f"{self.spec.name} not ready in {timeout_s} s", hint=self.log_tail())
            await self._env.sleep(0.02)

    async def query(
        self, sql: str, *, settings: Mapping[str, str] | None = None, timeout_s: float = 300.0
    ) -> str:
        """The body of the answer (TabSeparated unless the query says otherwise).

        Raises SqlError with ClickHouse's code, NodeUnavailable when nothing was sent, ReplyLost when no whole
        answer came.
        """
        if self._http is None or self._http.closed:
            # A new connection each time: the server closes idle ones after three seconds, perhaps just now.
            self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._http.post(
                self.spec.url, data=sql.encode(), params=dict(settings or {}), timeout=timeout
            ) as reply:
                text = (await reply.read()).decode("utf-8", "surrogateescape")
                if reply.status != 200:
                    code = _ERROR_CODE.search(text)
                    raise SqlError(int(code.group(1)) if code else Code.UNKNOWN_EXCEPTION, text.strip())
                return text
        except aiohttp.ClientConnectorError as error:
            raise NodeUnavailable(f"{self.spec.name}: {error}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ReplyLost(f"{self.spec.name}: {type(error).__name__} {error}") from error

    async def version(self) -> str:
        """What `SELECT version()` says, for example `18.16.1`."""
        return (await self.query("SELECT version()")).strip()

    async def stop(self, *, timeout_s: float = 30.0) -> None:
        """SIGTERM, and SIGKILL after `timeout_s`: 18.16 ignores SIGTERM while a forwarded TRUNCATE hangs."""
        await self._close_http()
        await self.process.stop(timeout_s=timeout_s)

    async def kill(self) -> None:
        """SIGKILL, at once."""
        await self._close_http()
        await self.process.kill9()

    @property
    def has_ddl_worker(self) -> bool:
        """Whether the thread that works the DDL queue lives (Linux). Only a restart brings it back."""
        for comm in Path(f"/proc/{self.process.pid}/task").glob("*/comm"):
            with contextlib.suppress(OSError):  # the thread ended while we looked
                if comm.read_text().strip() == "DDLWorker":
                    return self.process.is_running
        return False

    @property
    def has_crashed(self) -> bool:
        """Whether it got a fatal signal that nobody here sent: it writes so, and ends ten seconds later."""
        code = self.process.return_code
        ended_by_itself = code is not None and code < 0 and not self.process.expected_to_end
        return ended_by_itself or _FATAL in self._read("server.err.log")

    def log_tail(self) -> str:
        """The end of the server's own error log and of its output."""
        return "\n".join(
            self._read(name)[-_LOG_TAIL_BYTES:].decode("utf-8", "replace")
            for name in ("server.err.log", "stdout.log")
        ).strip()

    def _read(self, name: str) -> bytes:
        with contextlib.suppress(FileNotFoundError):
            return (self.directory / name).read_bytes()
        return b""

    async def _close_http(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None


class RealCluster(Startable):
    """Several servers with one configuration. Use it as an async context, or call `start` and `stop`."""

    def __init__(
        self,
        specs: Sequence[ServerSpec],
        *,
        clusters: Sequence[Cluster],
        zookeeper: ZooKeeper,
        directory: Path,
        env: Env,
        queue: DistributedDdl | None = None,
        binary: Path | None = None,
        log_level: str = "warning",
    ) -> None:
        """Raises ConfigError when no server is installed."""
        found = binary or find_server()
        if found is None:
            raise ConfigError(
                "no clickhouse-server is installed", hint="On Debian: the package clickhouse-server."
            )
        self._config = ClickHouseConfig(tuple(clusters), zookeeper, queue or DistributedDdl(), log_level)
        self.servers = tuple(
            RealClickHouse(spec, binary=found, directory=directory / spec.name, env=env) for spec in specs
        )

    def server(self, name: str) -> RealClickHouse:
        return next(server for server in self.servers if server.spec.name == name)

    async def start(self) -> None:
        """Write the configuration and start all servers at once; on failure nothing is left running."""
        for server in self.servers:
            self._config.write(server.spec, server.directory)
        try:
            for server in self.servers:
                server.process.start()
            await asyncio.gather(*(server.wait_ready() for server in self.servers))
        except BaseException:  # also a cancellation: what runs has to be stopped
            await asyncio.gather(*(server.kill() for server in self.servers))
            raise

    async def stop(self) -> None:
        """Stop all servers. What had to be killed is killed."""
        await asyncio.gather(*(server.stop() for server in self.servers))
