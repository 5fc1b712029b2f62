"""Starts Python programs without starting Python: a process that has imported their modules forks itself.

    warm = WarmPython("engine.node.wiring", "engine.storage.chdb_module:load_chdb")
    LocalCluster(directory, launch=warm.launch)
    ...
    warm.close()

Importing is most of what a node or a process of Airflow does at its start; the local stack starts ten of
them, and tests that kill nodes hundreds. What is started so is a process like any other: with a number, a
session, an environment and a working directory of its own, killed and waited for by the same means. It
differs in what was imported before it began, so a start itself and a process's memory are not measured this
way; `/proc` shows the forking process's first environment, and of a long command the beginning. Only
`python -m …` and `python -c …` can be started so, and only where it is possible; whatever else is asked for
is started cold.

Safety argument. The forking process has one thread, runs nothing of a program before it forks, and waits for
what it has started, so that no zombie is left. It ends when its owner closes the socket between them, also by
dying; then the kernel sends SIGKILL to all that it has started (PR_SET_PDEATHSIG). The owner signals a
process by a descriptor (`pidfd_open`), never by its number.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Never

from engine.testing.launch import Launched, Program, cold

_PR_SET_PDEATHSIG = 1
_LARGEST_REQUEST = 1 << 20
_KINDS = ((sys.executable, "-m"), (sys.executable, "-c"))
_NUMBER = struct.Struct("!i")
"""What the forking process tells of a program: its number, and later its return code."""
_READY = b"ready"


def is_possible() -> bool:
    """On Linux since 5.3, where nothing forbids to open processes: old container engines do."""
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


class WarmPython:
    """The owner's side. The forking process starts with the first program. May be used by several threads.

    `prepared` are modules to import, and functions to call (`a.module:function`); none may start a thread.
    One that is not there is passed over. `environ` is the forking process's, ours if None; its words go to
    `log_file`, where one is given.
    """

    def __init__(
        self, *prepared: str, environ: Mapping[str, str] | None = None, log_file: Path | None = None
    ) -> None:
        self._prepared = prepared
        self._environ = environ
        self._log_file = log_file
        self._lock = threading.Lock()
        self._waiting = threading.Lock()
        self._control: socket.socket | None = None
        self._ready: socket.socket | None = None
        self._popen: subprocess.Popen[bytes] | None = None
        self._started: list[_Forked] = []

    def prepare(self) -> None:
        """Start the forking process and block until it has prepared all. Raises OSError when it ends instead.

        Without it the first `launch` blocks as long.
        """
        if not is_possible():
            return
        control = self._forking()
        with self._waiting:
            # It says nothing else, and this once.
            if self._ready is not control and control.recv(len(_READY)) != _READY:
                raise OSError("The process that forks others has ended")
            self._ready = control

    def launch(self, program: Program, output: int) -> Launched:
        """See `Launch`. The first one blocks until all is prepared. Raises OSError."""
        if not is_possible() or program.argv[:2] not in _KINDS:
            return cold(program, output)
        request = json.dumps([program.argv[1:], dict(program.environ), str(program.cwd or Path.cwd())])
        told, tell = os.pipe()
        try:
            socket.send_fds(self._forking(), [request.encode()], [output, tell])
        except BaseException:  # whatever it is: nobody else would close it
            os.close(told)
            raise
        finally:
            os.close(tell)
        forked = _Forked(told)
        with self._lock:
            self._started = [earlier for earlier in self._started if earlier.poll() is None] + [forked]
        return forked

    def close(self) -> None:
        """Kill what it has started and that still runs; return when it is gone. May be called twice."""
        with self._lock:
            if self._control is None or self._popen is None:
                return
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)  # also for whom waits in `prepare`
            self._control.close()
            self._popen.kill()
            self._popen.wait()
            self._control = self._popen = None
            for forked in self._started:
                forked.wait()
            self._started.clear()

    def _forking(self) -> socket.socket:
        with self._lock:
            if self._control is not None and self._popen is not None and self._popen.poll() is not None:
                self._control.close()  # somebody killed it, and so all that it had started
                self._control = None
            if self._control is None:
                self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs, self._output() as output:
                    self._popen = subprocess.Popen(
                        [sys.executable, "-m", __name__, str(theirs.fileno()), *self._prepared],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        # A title takes the place of the environment as others see it, without this.
                        env={**(os.environ if self._environ is None else self._environ), "SPT_NOENV": "1"},
                        pass_fds=[theirs.fileno()],
                        start_new_session=True,
                    )
            return self._control

    def _output(self) -> AbstractContextManager[IO[bytes] | None]:
        if self._log_file is None:
            return contextlib.nullcontext()
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        return self._log_file.open("ab")


class _Forked:
    """A program that runs, as its owner sees it."""

    def __init__(self, told: int) -> None:
        self._told = told
        self._lock = threading.Lock()
        self._code: int | None = None
        self._handle: int | None = None
        self.pid = self._read()
        if self.pid <= 0:
            os.close(told)
            raise OSError("The process that forks others has ended")
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            self._handle = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """The return code, once it has ended."""
        with self._lock:
            if self._code is None and self._is_gone(within_s=0) and self._is_told(within_s=0):
                self._code = self._read()
                os.close(self._told)
                if self._handle is not None:
                    os.close(self._handle)
            return self._code

    def wait(self) -> int:
        """Blocks until it has ended."""
        while (code := self.poll()) is None:
            self._is_gone(within_s=1)
            self._is_told(within_s=1)
        return code

    def send_signal(self, sig: int, /) -> None:
        """Nothing happens once it has ended."""
        with self._lock:
            if self._code is None and self._handle is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._handle, sig)

    def _is_gone(self, *, within_s: float) -> bool:
        """Of a forking process that was killed the pipe's end comes while the program is still dying."""
        return self._handle is None or _is_readable(self._handle, within_s)

    def _is_told(self, *, within_s: float) -> bool:
        """Whether there is something to read; also once another thread has read it and closed the pipe."""
        return _is_readable(self._told, within_s)

    def _read(self) -> int:
        """Of a forking process that is gone nothing comes: what it had started was killed."""
        data = os.read(self._told, _NUMBER.size)
        return _NUMBER.unpack(data)[0] if data else -signal.SIGKILL


def _is_readable(descriptor: int, within_s: float) -> bool:
    poll = select.poll()  # takes descriptors above 1,023, which `select.select` does not
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


# --- the process that forks -------------------------------------------------------------------------------


class _Forking:
    """Takes requests from a socket until that is closed."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._tell: dict[int, int] = {}
        """Where the owner of each running program listens."""
        self._woken, self._wake = os.pipe()
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)
        self._prctl = ctypes.CDLL(None).prctl

    def run(self) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler there must be, for the pipe to be written
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._woken in ready:
                    os.read(self._woken, 4096)
                    self._tell_of_ends()
                if self._control in ready:
                    try:
                        request, descriptors, _, _ = socket.recv_fds(self._control, _LARGEST_REQUEST, 2)
                    except ConnectionResetError:  # the owner has ended, and had not read that all is prepared
                        return
                    if not request:
                        return
                    self._start(request, *descriptors)

    def _tell_of_ends(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            tell = self._tell.pop(pid)
            with contextlib.suppress(BrokenPipeError):
                os.write(tell, _NUMBER.pack(os.waitstatus_to_exitcode(status)))
            os.close(tell)

    def _start(self, request: bytes, output: int, tell: int) -> None:
        forking = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(request, output, tell, forking)
        os.close(output)
        self._tell[pid] = tell
        with contextlib.suppress(BrokenPipeError):
            os.write(tell, _NUMBER.pack(pid))

    def _become(self, request: bytes, output: int, tell: int, forking: int) -> Never:
        code = 1
        try:
            os.setsid()
            self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != forking:
                os._exit(1)
            self._leave(output, tell)
            arguments, environ, cwd = json.loads(request)
            _entitle(arguments)
            code = _run(arguments, environ, cwd)
        except BaseException:  # noqa: BLE001 - there is nobody above
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _leave(self, output: int, tell: int) -> None:
        """Nothing of the forking process's business is the program's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.dup2(output, 1)
        os.dup2(output, 2)
        self._control.close()
        for descriptor in (output, tell, self._woken, self._wake, *self._tell.values()):
            os.close(descriptor)
        gc.enable()


def _entitle(arguments: list[str]) -> None:
    """Shows as what it is. Its place is the forking process's own command: what is longer is cut."""
    with contextlib.suppress(ImportError):
        from setproctitle import setproctitle

        setproctitle(" ".join((sys.executable, *arguments)))


def _run(arguments: list[str], environ: dict[str, str], cwd: str) -> int:
    """`python` with these arguments; its exit code."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    kind, what, *sys.argv[1:] = arguments
    try:
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(what, {"__name__": "__main__"})
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)  # noqa: T201 - as the interpreter does
            return 1
        return end.code or 0
    return 0


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the owner's to handle
    for name in sys.argv[2:]:
        _prepare(*name.partition(":")[::2])
    gc.collect()
    gc.freeze()
    gc.disable()
    with contextlib.suppress(BrokenPipeError):  # the owner has ended, as `run` will see
        control.send(_READY)
    _Forking(control).run()
    os._exit(0)


def _prepare(module: str, function: str) -> None:
    try:
        imported = importlib.import_module(module)
    except ImportError:  # a program that needs it will say so
        traceback.print_exc()
        return
    if function:
        getattr(imported, function)()


if __name__ == "__main__":
    main()
