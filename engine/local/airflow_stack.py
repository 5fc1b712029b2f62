"""Starts, watches and stops Airflow's five processes on this machine; it never imports Airflow.

`airflow standalone` is not used: it leaves its children behind on SIGTERM, listens on every interface, and
starts as many workers as it likes. Here each process has its own output file, everything listens on the
loopback interface only, and what was started is written to `stack.json`, so that another process can stop
it later. The interface for tasks is served by a process of its own: each of the two takes one processor for
seconds to be built.

Safety. Only processes that this class started are ever signalled: a process is known by its id and its
start time, so an id that the system has given to somebody else is left alone. `stop` may be called twice,
and after a crash of the program that called `start`.

Source of the order: what Airflow 3.3 was observed to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from engine.env import Env, SystemEnv
from engine.errors import Busy, ConfigError, OnclusterError
from engine.local.airflow_api import AirflowApi
from engine.local.airflow_environment import ADMIN, HOST, AirflowSettings, environment_of, home_of
from engine.local.airflow_health import AirflowHealth
from engine.local.airflow_imports import forking
from engine.local.airflow_processes import (
    StartedProcess,
    detached,
    distinct,
    send_signal,
    serves,
    with_children,
)
from engine.ports import free_ports, require_free
from engine.processes import ProcessId, is_alive
from engine.testing.launch import Launched, Program
from engine.testing.warm import WarmPython

log = logging.getLogger(__name__)

Progress = Callable[[str], None]
"""Is told each step in words as it happens."""

EXECUTION_API = "execution-api"
_SERVERS = ("api-server", EXECUTION_API)
COMPONENTS: Mapping[str, tuple[str, ...]] = {
    # -s: no server for logs on all interfaces; on one host the API reads the files itself.
    "api-server": ("api-server", "--apps", "core"),
    EXECUTION_API: ("api-server", "--apps", "execution", "--port"),
    "scheduler": ("scheduler", "-s"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "-s"),
}
_TAIL_LINES = 15


class AirflowDown(OnclusterError):
    """Airflow did not start or has stopped; the message carries the end of the process's output."""


@dataclass(frozen=True, slots=True)
class _State:
    """What `stack.json` holds."""

    port: int
    tasks_port: int
    password: str
    processes: tuple[StartedProcess, ...]


class AirflowStack:
    """One Airflow: `start`, `api`, `stop`.

    The same object serves the program that started it and any later one with the same `run_dir`.
    """

    def __init__(
        self, settings: AirflowSettings, *, ends_with_us: bool = False, env: Env | None = None
    ) -> None:
        """With `ends_with_us` its processes are forked from one that has imported Airflow, where that is
        possible: they start much faster, and do not outlive this process."""
        self.settings = settings
        self._ends_with_us = ends_with_us
        self._forking: WarmPython | None = None
        self._env = env or SystemEnv()
        self._state = self._read_state()
        # Our own children, kept so that they are reaped and no zombie is mistaken for a process.
        self._children: dict[int, Launched] = {}

    # --- what is known of it --------------------------------------------------------------------------------

    @property
    def home(self) -> Path:
        return home_of(self.settings)

    @property
    def logs(self) -> Path:
        """Directory of the output files."""
        return self.settings.run_dir / "logs"

    @property
    def port(self) -> int:
        return self._state.port if self._state else self.settings.port

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def user(self) -> str:
        return ADMIN

    @property
    def password(self) -> str:
        return self._state.password if self._state else self.settings.admin_password

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the components that live, by name."""
        if self._state is None:
            return {}
        return {started.name: started.pid for started in self._state.processes if started.process()}

    def api(self) -> AirflowApi:
        """A client for the REST interface, to be used as `async with stack.api() as api`."""
        return AirflowApi(self.url, self.user, self.password, env=self._env)

    # --- start ----------------------------------------------------------------------------------------------

    async def start(self, *, progress: Progress = lambda _: None, timeout_s: float = 300.0) -> None:
        """Start everything and return when tasks can run.

        Raises Busy (already running, or the port is taken: by whom) and AirflowDown (with the end of the
        output of the process that failed); in the latter case nothing is left running.
        """
        if self.pids:
            raise Busy(f"Airflow is already running at {self.url}", holder=_join_pids(self.pids))
        if self._state is not None:  # what processes that were killed have left behind
            await self._kill(self._family(self._state.processes))
        free = free_ports(2, env=self._env)
        port, tasks_port = self.settings.port or free[0], self.settings.tasks_port or free[1]
        require_free(port, "Airflow")
        require_free(tasks_port, "Airflow's tasks")
        started_s = self._env.monotonic_s()
        known = self._state.password if self._state else ""
        password = self.settings.admin_password or known or secrets.token_urlsafe(9)
        for directory in (self.home, self.logs):
            directory.mkdir(parents=True, exist_ok=True)
        self._write_state(_State(port, tasks_port, password, ()))
        (self.home / "passwords.json").write_text(json.dumps({self.user: password}))
        (self.home / "passwords.json").chmod(0o600)
        environment = environment_of(self.settings, port=port, tasks_port=tasks_port)
        try:
            await self._prepare(environment, progress)
            # Building these interfaces takes longer than all else, and needs no table.
            first = _SERVERS if self._forking else ()
            for name in first:
                await self._spawn_component(name, environment)
            progress("preparing Airflow's database")
            # Before the others, so that they do not race to write airflow.cfg with different secrets.
            await self._run_to_end("db-migrate", ("db", "migrate"), environment)
            for name in COMPONENTS:
                if name not in first:
                    await self._spawn_component(name, environment)
            progress("its processes are started")
            await self._wait_until_healthy(progress, timeout_s)
        except BaseException:  # also a cancellation: nothing is left running
            await self.stop(grace_s=2.0)
            raise
        progress(f"Airflow is ready after {self._env.monotonic_s() - started_s:.1f} s: {self.url}")

    async def restart_ended(self, *, progress: Progress = lambda _: None, timeout_s: float = 300.0) -> None:
        """Start the components again that have ended. Those that live go on, and so do their tasks.

        What an ended scheduler has left behind is killed first: the new one gives the same tasks to
        workers of its own. Raises AirflowDown (with the end of the output of the process that failed).
        """
        assert self._state is not None
        living = tuple(started for started in self._state.processes if started.process())
        ended = [name for name in COMPONENTS if name not in self.pids]
        await self._kill(self._family(set(self._state.processes) - set(living)))
        self._write_state(replace(self._state, processes=living))
        environment = environment_of(self.settings, port=self.port, tasks_port=self._state.tasks_port)
        await self._prepare(environment, progress)
        for name in ended:
            progress(f"{name} is started again")
            await self._spawn_component(name, environment)
        await self._wait_until_healthy(progress, timeout_s)

    async def _prepare(self, environment: Mapping[str, str], progress: Progress) -> None:
        if not self._ends_with_us:
            return
        progress("importing Airflow")
        log_file = self._output("imports")
        self._forking = self._forking or forking(environment, log_file=log_file)
        if self._forking is not None:
            try:
                await asyncio.to_thread(self._forking.prepare)
            except OSError as error:
                raise AirflowDown("Airflow cannot be imported.", hint=self._tail("imports")) from error

    async def _run_to_end(self, name: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        process = await self._spawn(name, arguments, environment)
        while (code := process.poll()) is None:
            await self._env.sleep(0.05)
        if code != 0:
            raise AirflowDown(f"airflow {' '.join(arguments)} failed", hint=self._tail(name))

    async def _spawn_component(self, name: str, environment: Mapping[str, str]) -> None:
        assert self._state is not None
        port = (str(self._state.tasks_port),) if name == EXECUTION_API else ()
        await self._spawn(name, (*COMPONENTS[name], *port), environment)

    async def _spawn(self, name: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Launched:
        program = Program((sys.executable, "-m", "airflow", *arguments), environment)
        with self._output(name).open("ab") as output:
            launch = self._forking.launch if self._forking else detached
            process = launch(program, output.fileno())
        self._children[process.pid] = process
        assert self._state is not None
        identity = ProcessId.of(process.pid)
        started = StartedProcess(name, process.pid, identity.started if identity else "")
        self._write_state(replace(self._state, processes=(*self._state.processes, started)))
        log.info("airflow.started component=%s pid=%d", name, process.pid)
        return process

    async def _wait_until_healthy(self, progress: Progress, timeout_s: float) -> None:
        assert self._state is not None
        tasks_url = f"http://{HOST}:{self._state.tasks_port}"
        health = AirflowHealth(self.url, tasks_url, env=self._env)
        try:
            async with asyncio.timeout(timeout_s):
                await health.wait(progress, require_alive=self._require_alive)
        except TimeoutError as error:
            raise AirflowDown(
                f"Airflow is not healthy after {timeout_s:.0f} s: {', '.join(health.missing)}.",
                hint=f"Its output is in {self.logs}.",
            ) from error

    def _require_alive(self) -> None:
        assert self._state is not None
        for started in self._state.processes:
            if started.name in COMPONENTS and started.process() is None:
                raise AirflowDown(
                    f"Airflow's {started.name} ended while starting.", hint=self._tail(started.name)
                )

    # --- stop -----------------------------------------------------------------------------------------------

    async def stop(self, *, grace_s: float = 6.0, progress: Progress = lambda _: None) -> None:
        """End everything that was started. Returns when nothing of it lives; SIGKILL after `grace_s`.

        Deferred tasks and queued DDL are not touched: they go on when Airflow is started again.
        """
        if self._state is None:
            return
        roots = {
            started.name: process
            for started in self._state.processes
            if (process := started.process()) is not None
        }
        if roots:
            progress("stopping Airflow")
        # Task processes stand in process groups of their own, and are re-parented when their parent dies.
        family = self._family(self._state.processes)
        # The API servers last: the others report to them while they end.
        first = [process for name, process in roots.items() if name not in _SERVERS]
        for process in first:
            send_signal(process, kill=False)
        await self._wait_while(is_alive, first, grace_s)
        family = distinct([*family, *self._family(self._state.processes)])
        for process in roots.values():
            if process not in first:
                send_signal(process, kill=False)
        # When an API server has closed its connections it takes seconds more to give its memory back.
        await self._wait_while(serves, list(roots.values()), 5.0)
        await self._kill(family)
        for child in self._children.values():
            while child.poll() is None:
                await self._env.sleep(0.02)
        self._children.clear()
        if self._forking is not None:
            self._forking.close()
            self._forking = None
        # On a full disk those in the file are known by their times to be gone.
        with contextlib.suppress(OSError):
            self._write_state(replace(self._state, processes=()))

    async def _kill(self, family: Sequence[psutil.Process]) -> None:
        for process in family:
            if is_alive(process):
                log.warning("airflow.killed pid=%d", process.pid)
                send_signal(process, kill=True)
        await self._wait_while(is_alive, family, 5.0)

    def _family(self, processes: Collection[StartedProcess]) -> list[psutil.Process]:
        """Those of them that live, with everything that any of them has started and that lives.

        Workers of a scheduler that was killed have no parent that would lead to them; they are known by their
        session, which is the killed process's.
        """
        leaders = {item.pid for item in processes if item.is_number_its_own}
        family = with_children(process for item in processes if (process := item.process()) is not None)
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) in leaders and any("airflow" in part for part in process.cmdline()):
                    family.append(process)
            except (psutil.Error, ProcessLookupError, PermissionError):
                continue
        return distinct(family)

    async def _wait_while(
        self, holds: Callable[[psutil.Process], bool], processes: Sequence[psutil.Process], timeout_s: float
    ) -> None:
        """Until it holds of none of them, or the time is over."""
        deadline_s = self._env.monotonic_s() + timeout_s
        while any(map(holds, processes)) and self._env.monotonic_s() < deadline_s:
            await self._env.sleep(0.05)

    # --- files ----------------------------------------------------------------------------------------------

    def _output(self, name: str) -> Path:
        return self.logs / f"airflow-{name}.log"

    def _tail(self, name: str) -> str:
        """The end of a component's output, for error messages."""
        try:
            lines = self._output(name).read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return f"The end of {self._output(name)}:\n" + "\n".join(lines[-_TAIL_LINES:])

    @property
    def _state_file(self) -> Path:
        return self.settings.run_dir / "stack.json"

    def _read_state(self) -> _State | None:
        try:
            raw = json.loads(self._state_file.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ConfigError(
                f"{self._state_file} is not readable: {error}.",
                hint="Stop leftover airflow processes by hand, then remove the file.",
            ) from error
        return _State(
            raw["port"],
            raw.get("tasks_port", 0),  # an earlier version had none
            raw["password"],
            tuple(map(StartedProcess.from_json, raw["processes"])),
        )

    def _write_state(self, state: _State) -> None:
        """Written before and after each start, so that a crash in between leaves at most the newest process
        unrecorded."""
        temporary = self._state_file.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(state), indent=2))
        temporary.chmod(0o600)
        temporary.replace(self._state_file)
        self._state = state


def _join_pids(pids: Mapping[str, int]) -> str:
    return ", ".join(f"{name} (process {pid})" for name, pid in pids.items())
