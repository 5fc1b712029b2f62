"""A real ZooKeeper on this machine, out of the jars that PySpark ships: one server, or an ensemble.

    async with EmbeddedZooKeeper(Path(".run/zookeeper")) as server:
        keeper = await zookeeper.connect(server.config, env)

It listens on the loopback interface only. Everything it writes is below its data directory: `zoo.cfg`,
`server.pid`, `server.log` and `data/`. One process owns a directory: starting a second server on it is
refused.

Stopping asks with SIGTERM and kills after a while; the process is known by its pid and start time, so that
another process can stop what this one left running, and a number used again is never signalled.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from engine.config.model import ZooKeeper
from engine.env import Env, SystemEnv
from engine.errors import KeeperUnavailable
from engine.keeper.java import find_java
from engine.keeper.server_files import Peer, find_jars, server_arguments, write_files
from engine.lifetime import Startable
from engine.ports import free_ports

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
_POLL_S = 0.02
_PR_SET_PDEATHSIG = 1


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


def _parent_death_signal() -> Callable[[], None] | None:
    """Run in the child before it becomes java: prctl(2) with PR_SET_PDEATHSIG. None where there is no such
    call."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork

    def ask_for_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))

    return ask_for_signal


class EmbeddedZooKeeper(Startable):
    """One server process. `client_port` 0 takes a free port at each first start and keeps it afterwards.

    `is_durable=False` leaves out the fsync of the log, for tests: a kill of the process loses nothing, only
    the loss of power would. `ends_with_parent` has the kernel stop it when the thread that started it ends,
    however that happens (Linux only; elsewhere nothing): for tests, whose processes get killed. Session
    timeouts are granted from two to 400 ticks.
    """

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
        self.directory = directory.absolute()
        self.client_port = client_port
        self.number = number
        self._tick_ms = tick_ms
        self._heap_mb = heap_mb
        self._is_durable = is_durable
        self._ends_with_parent = ends_with_parent
        self._java = java
        self._peers = tuple(peers)
        self._env: Env = SystemEnv() if env is None else env
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def config(self) -> ZooKeeper:
        """How to connect to it."""
        return ZooKeeper(hosts=((HOST, self.client_port),))

    @property
    def log_path(self) -> Path:
        return self.directory / "server.log"

    @property
    def pid(self) -> int | None:
        """The running server's process id, also when another process started it."""
        process = self._running()
        return None if process is None else process.pid

    # --- life ---------------------------------------------------------------------------------------------

    async def start(self, *, timeout_s: float = 30.0, wait_until_serving: bool = True) -> None:
        """Start and wait until clients are served.

        Raises KeeperUnavailable in one line: port in use, directory in use, ended at once, not ready in time;
        ConfigError: no Java, no jars. Whatever was started is stopped then.
        """
        running = self._running()
        if running is not None:
            raise KeeperUnavailable(f"A ZooKeeper already runs in {self.directory} (pid {running.pid}).")
        self.spawn()
        if not wait_until_serving:
            return
        try:
            await self.wait_until_serving(timeout_s=timeout_s)
        except BaseException:  # also a cancellation: nothing is left running
            await self.stop()
            raise

    def spawn(self) -> None:
        """Start the process and do not wait."""
        java = self._java or find_java()
        jars = find_jars()
        if not self.client_port:
            [self.client_port] = free_ports(1, env=self._env)
        self._check_port()
        write_files(
            self.directory,
            host=HOST,
            client_port=self.client_port,
            tick_ms=self._tick_ms,
            number=self.number,
            peers=self._peers,
        )
        command = [
            str(java),
            *server_arguments(self.directory, jars, self._heap_mb, is_durable=self._is_durable),
        ]
        with self.log_path.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a Ctrl-C in the terminal is for whoever started us
                preexec_fn=_parent_death_signal() if self._ends_with_parent else None,
            )
        started = psutil.Process(self._process.pid).create_time()
        self._pid_path.write_text(f"{self._process.pid} {started}\n")
        log.info("keeper.embedded_started pid=%d port=%d", self._process.pid, self.client_port)

    async def wait_until_serving(self, *, timeout_s: float = 30.0) -> None:
        """Wait until clients are served. Raises KeeperUnavailable with the end of the log."""
        deadline_s = self._env.monotonic_s() + timeout_s
        while not await self.is_serving():
            if self._running() is None:
                raise KeeperUnavailable(f"ZooKeeper ended while starting: {self._log_tail()}")
            if self._env.monotonic_s() > deadline_s:
                raise KeeperUnavailable(f"ZooKeeper is not ready after {timeout_s:g} s: {self._log_tail()}")
            await self._env.sleep(_POLL_S)

    async def is_serving(self) -> bool:
        """Whether it answers and, in an ensemble, has found a leader."""
        return "Mode: " in await four_letter_word(self.client_port, "srvr")

    async def is_leader(self) -> bool:
        return "Mode: leader" in await four_letter_word(self.client_port, "srvr")

    async def stop(self, *, timeout_s: float = 10.0) -> None:
        """End it if it runs: SIGTERM, and SIGKILL after `timeout_s`."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a paused process would not hear it
        deadline_s = self._env.monotonic_s() + timeout_s
        while self._running() is not None:
            if self._env.monotonic_s() > deadline_s:
                log.warning("keeper.embedded_killed directory=%s", self.directory)
                self._signal(signal.SIGKILL)
                deadline_s += timeout_s
            await self._env.sleep(_POLL_S)
        self._pid_path.unlink(missing_ok=True)

    async def kill(self) -> None:
        """SIGKILL, as a crash."""
        self._signal(signal.SIGKILL)
        await self.stop()

    async def restart(self) -> None:
        """Stop and start with the same port and data."""
        await self.stop()
        await self.start()

    async def lose_data(self) -> None:
        """Stop, forget all nodes and sessions, start empty on the same port."""
        await self.stop()
        self.wipe()
        await self.start()

    def wipe(self) -> None:
        """Remove all data of a stopped server."""
        if self._running() is not None:
            raise KeeperUnavailable(
                f"ZooKeeper in {self.directory} runs; stop it before its data is removed."
            )
        shutil.rmtree(self.directory / "data", ignore_errors=True)

    def pause(self) -> None:
        """SIGSTOP: the machine hangs, connections stay open. It takes effect a moment later."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def start_blocking(self) -> None:
        """`start` for code without an event loop."""
        asyncio.run(self.start())

    def stop_blocking(self) -> None:
        """`stop` for code without an event loop."""
        asyncio.run(self.stop())

    # --- inside -------------------------------------------------------------------------------------------

    @property
    def _pid_path(self) -> Path:
        return self.directory / "server.pid"

    def _running(self) -> psutil.Process | None:
        # Of a child: until it is reaped. As a zombie it may have threads that still hold its port.
        is_child_alive = self._process is not None and self._process.poll() is None
        try:
            pid, started = self._pid_path.read_text().split()
            process = psutil.Process(int(pid))
            is_same = process.create_time() == float(started)
            is_alive = is_child_alive or process.status() != psutil.STATUS_ZOMBIE
            return process if is_same and is_alive else None
        except (OSError, ValueError, psutil.NoSuchProcess):
            return None

    def _signal(self, number: signal.Signals) -> None:
        process = self._running()
        if process is not None:
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                pass

    def _check_port(self) -> None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, self.client_port))
            except OSError as error:
                raise KeeperUnavailable(
                    f"ZooKeeper cannot listen on {HOST}:{self.client_port}: {error.strerror}.",
                    hint="Stop what uses the port or configure another one.",
                ) from None

    def _log_tail(self) -> str:
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        telling = [line for line in lines if " ERROR " in line or "Exception" in line] or lines
        return f"{telling[-1] if telling else 'it said nothing'} (see {self.log_path})"


class EmbeddedEnsemble(Startable):
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

    async def start(self, *, timeout_s: float = 60.0) -> None:
        """Start all servers and wait until each has found the leader. Raises like
        `EmbeddedZooKeeper.start`."""
        try:
            for server in self.servers:
                await server.start(wait_until_serving=False)
            for server in self.servers:
                await server.wait_until_serving(timeout_s=timeout_s)
        except BaseException:  # also a cancellation: nothing is left running
            await self.stop()
            raise

    async def stop(self) -> None:
        """End all that run."""
        await asyncio.gather(*(server.stop() for server in self.servers))

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
