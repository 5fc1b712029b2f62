"""Child processes that cannot be forgotten: logged to files, stoppable, and gone when their owner is gone.

Safety argument. A process started here can outlive its owner in three ways, and each has its answer:
1. The owner ends in order (also by Ctrl-C or SIGTERM): `stop()` stands in its `finally`.
2. The owner is killed with -9: the kernel sends the child SIGKILL (Linux, PR_SET_PDEATHSIG). The signal is
   bound to the thread that started the child, so children are started from threads that live as long as they
   do (`engine.testing.launch`).
3. The child's own children: every process inherits the variable `ONCLUSTER_STACK`, and `sweep` ends all that
   carry its value, wherever they were re-parented to; `engine.testing.guard` does it for a killed owner.

This module never ends a process by name, and never by a number alone: a number is believed only together with
the start time that was noted with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from engine.env import Env, SystemEnv
from engine.processes import ProcessId, is_alive, pause
from engine.testing.launch import Launch, Launched, Program, cold

log = logging.getLogger(__name__)

MARK = "ONCLUSTER_STACK"
_POLL_S = 0.05


class ChildProcess:
    """One program under our control. Its output goes to `log_file`, which is appended to.

    Not bound to an event loop: start it in one, wait for it in another. `on_exit` callbacks are called once,
    on a thread of this object, with the return code.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        log_file: Path,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        mark: str = "",
        launch: Launch = cold,
        env: Env | None = None,
    ) -> None:
        self.name = name
        self.argv = tuple(str(part) for part in argv)
        self.log_file = log_file
        self._environ = dict(os.environ if environ is None else environ)
        if mark:
            self._environ[MARK] = mark
        self._cwd = cwd
        self._env = env or SystemEnv()
        self._launch = launch
        self._launched: Launched | None = None
        self._callbacks: list[Callable[[int], None]] = []
        self._lock = threading.Lock()
        self.id: ProcessId | None = None
        self.expected_to_end = False

    # -- life ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the program. Raises OSError when the log cannot be written or Python cannot be run.

        Blocks for a few milliseconds. Call it from a thread that lives as long as the child shall.
        """
        if self.is_running:
            return
        self.expected_to_end = False
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as output:
            launched = self._launch(Program(self.argv, self._environ, self._cwd), output.fileno())
        self._launched = launched
        self.id = ProcessId.of(launched.pid)
        threading.Thread(target=self._reap, args=(launched,), name=f"wait-{self.name}", daemon=True).start()
        log.info("process.started name=%s pid=%s", self.name, launched.pid)

    def _reap(self, launched: Launched) -> None:
        code = launched.wait()
        log.info("process.ended name=%s pid=%s code=%s", self.name, launched.pid, code)
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(code)

    @property
    def pid(self) -> int | None:
        return self._launched.pid if self._launched else None

    @property
    def is_running(self) -> bool:
        return self._launched is not None and self._launched.poll() is None

    @property
    def return_code(self) -> int | None:
        """None while it runs or was never started; -9 for one killed by signal 9."""
        return self._launched.poll() if self._launched else None

    def on_exit(self, callback: Callable[[int], None]) -> None:
        """Have `callback(return code)` called when the program ends; at once if it has ended."""
        with self._lock:
            if self.is_running:
                self._callbacks.append(callback)
                return
        if (code := self.return_code) is not None:
            callback(code)

    async def wait(self) -> int:
        """Until the program has ended; returns its code."""
        assert self._launched is not None, f"{self.name} was never started"
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()

        def resolve(code: int) -> None:
            if not ended.done():
                ended.set_result(code)

        def tell(code: int) -> None:
            with contextlib.suppress(RuntimeError):  # the loop that waited is closed: nobody listens any more
                loop.call_soon_threadsafe(resolve, code)

        self.on_exit(tell)
        return await ended

    async def stop(self, *, timeout_s: float = 15.0) -> int | None:
        """SIGTERM, and SIGKILL after `timeout_s`. Returns the code; None if it was never started."""
        if self._launched is None:
            return None
        self.expected_to_end = True
        if self.is_running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                return await asyncio.wait_for(self.wait(), timeout_s)
            except TimeoutError:
                log.warning("process.killed name=%s pid=%s after_s=%s", self.name, self.pid, timeout_s)
                self.signal(signal.SIGKILL)
        return await self.wait()

    async def kill9(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._launched is None:
            return
        self.expected_to_end = True
        self.signal(signal.SIGKILL)
        await self.wait()

    def pause(self) -> None:
        """SIGSTOP: the process stands still when this returns, its connections stay open."""
        process = None if self.id is None else self.id.process()
        if process is not None:
            pause(process)

    def resume(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens when the process has ended."""
        if self._launched is not None and self._launched.poll() is None:
            self._launched.send_signal(number)

    def log_tail(self, lines: int = 5) -> str:
        """The last lines of the log, for messages."""
        try:
            text = self.log_file.read_bytes()[-16_384:].decode(errors="replace")
        except OSError:
            return ""
        return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])


# --- the net below ----------------------------------------------------------------------------------------


def marked(mark: str) -> list[psutil.Process]:
    """All living processes of this user, except this one, that carry `ONCLUSTER_STACK=mark`."""
    found = []
    me = os.getpid()
    for process in psutil.process_iter():
        try:
            if process.pid == me or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, OSError):
            continue  # gone meanwhile, or somebody else's
    return found


async def end_all(
    processes: Sequence[psutil.Process], *, timeout_s: float = 10.0, env: Env | None = None
) -> int:
    """SIGTERM to each, SIGKILL to what is left after `timeout_s`. Returns how many had to be killed."""
    env = env or SystemEnv()
    alive = [process for process in processes if is_alive(process)]
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)
            process.terminate()
    deadline = env.monotonic_s() + timeout_s
    while (alive := [process for process in alive if is_alive(process)]) and env.monotonic_s() < deadline:
        await env.sleep(_POLL_S)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    killed = len(alive)
    deadline = env.monotonic_s() + timeout_s
    while (alive := [process for process in alive if is_alive(process)]) and env.monotonic_s() < deadline:
        await env.sleep(_POLL_S)
    return killed


async def sweep(mark: str, *, timeout_s: float = 10.0, env: Env | None = None) -> int:
    """End every process that carries `mark`. Returns how many there were.

    Repeats until none is found, because a process may have forked while we looked.
    """
    total = 0
    for _ in range(10):
        found = marked(mark)
        if not found:
            break
        total += len(found)
        await end_all(found, timeout_s=timeout_s, env=env)
    return total
