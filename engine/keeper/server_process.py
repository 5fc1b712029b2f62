"""A server of somebody else's that runs as a child process: started, watched, stopped, hurt.

Everything it writes is below its directory: `server.pid`, `server.log` and its data. One process owns a
directory: starting a second server on it is refused. Stopping asks with SIGTERM and kills after a while; the
process is known by its pid and start time, so that another process can stop what this one left running, and a
number used again is never signalled.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import psutil

from engine.env import Env, SystemEnv
from engine.errors import KeeperUnavailable
from engine.keeper.java import java_locale
from engine.lifetime import Startable
from engine.ports import free_ports
from engine.processes import ProcessId, pause

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
_POLL_S = 0.02
_PR_SET_PDEATHSIG = 1


def _parent_death_signal() -> Callable[[], None] | None:
    """Run in the child before it becomes the server: prctl(2) with PR_SET_PDEATHSIG. None where there is no
    such call."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork

    def ask_for_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))

    return ask_for_signal


class ServerProcess(Startable):
    """One server process. `client_port` 0 takes a free port at each first start and keeps it afterwards.

    `ends_with_parent` has the kernel stop it when the thread that started it ends, however that happens
    (Linux only; elsewhere nothing): for tests, whose processes get killed.
    """

    name: str
    """As messages call it."""

    def __init__(
        self, directory: Path, *, client_port: int, ends_with_parent: bool, env: Env | None = None
    ) -> None:
        self.directory = directory.absolute()
        self.client_port = client_port
        self._ends_with_parent = ends_with_parent
        self._env: Env = SystemEnv() if env is None else env
        self._process: subprocess.Popen[bytes] | None = None

    # --- what a server adds -------------------------------------------------------------------------------

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """Write what it reads at its start; what to run. Raises ConfigError."""

    @abstractmethod
    async def is_serving(self) -> bool:
        """Whether clients are served."""

    # --- life ---------------------------------------------------------------------------------------------

    @property
    def log_path(self) -> Path:
        return self.directory / "server.log"

    @property
    def pid(self) -> int | None:
        """The running server's process id, also when another process started it."""
        process = self._running()
        return None if process is None else process.pid

    async def start(self, *, timeout_s: float = 30.0, wait_until_serving: bool = True) -> None:
        """Start and wait until clients are served.

        Raises KeeperUnavailable in one line: port in use, directory in use, ended at once, not ready in time;
        ConfigError: what is needed to run it is missing. Whatever was started is stopped then.
        """
        running = self._running()
        if running is not None:
            raise KeeperUnavailable(f"A {self.name} already runs in {self.directory} (pid {running.pid}).")
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
        if not self.client_port:
            [self.client_port] = free_ports(1, env=self._env)
        self._check_port()
        command = self._command()
        with self.log_path.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=self.directory,
                env={**os.environ, **java_locale()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a Ctrl-C in the terminal is for whoever started us
                preexec_fn=_parent_death_signal() if self._ends_with_parent else None,
            )
        if identity := ProcessId.of(self._process.pid):
            self._pid_path.write_text(f"{identity.to_text()}\n")
        log.info("keeper.embedded_started pid=%d port=%d", self._process.pid, self.client_port)

    async def wait_until_serving(self, *, timeout_s: float = 30.0) -> None:
        """Wait until clients are served. Raises KeeperUnavailable with the end of the log."""
        deadline_s = self._env.monotonic_s() + timeout_s
        while not await self.is_serving():
            if self._running() is None:
                raise KeeperUnavailable(f"{self.name} ended while starting: {self._log_tail()}")
            if self._env.monotonic_s() > deadline_s:
                raise KeeperUnavailable(f"{self.name} is not ready after {timeout_s:g} s: {self._log_tail()}")
            await self._env.sleep(_POLL_S)

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
                f"{self.name} in {self.directory} runs; stop it before its data is removed."
            )
        shutil.rmtree(self.directory / "data", ignore_errors=True)

    def pause(self) -> None:
        """SIGSTOP: the machine hangs, connections stay open. It does so when this returns."""
        if (process := self._running()) is not None:
            pause(process)

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
            identity = ProcessId.from_text(self._pid_path.read_text())
            process = psutil.Process(identity.pid)
            is_same = ProcessId.of(identity.pid) == identity
            return process if is_same and (is_child_alive or identity.is_alive) else None
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
                    f"{self.name} cannot listen on {HOST}:{self.client_port}: {error.strerror}.",
                    hint="Stop what uses the port or configure another one.",
                ) from None

    def _is_telling(self, line: str) -> bool:
        """Whether a line of the log says why it failed."""
        return " ERROR " in line or "Exception" in line

    def _log_tail(self) -> str:
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        telling = [line for line in lines if self._is_telling(line)] or lines
        return f"{telling[-1] if telling else 'it said nothing'} (see {self.log_path})"


ServerT = TypeVar("ServerT", bound=ServerProcess)


class ServerGroup(Startable, Generic[ServerT]):
    """Servers that find one another and elect a leader."""

    servers: Sequence[ServerT]

    async def start(self, *, timeout_s: float = 60.0) -> None:
        """Start all and wait until each has found the leader. Raises like `ServerProcess.start`."""
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
