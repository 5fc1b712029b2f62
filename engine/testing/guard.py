"""Ends what an owner left behind when it was killed: a small process that waits at the end of a pipe.

Safety argument. The guard acts only when the pipe is closed without the word that all was stopped in order,
which happens when the owner has died. It ends only processes of this user that carry the owner's mark, a
fresh random value for each owner, and those that the owner named with number and start time. It ignores
Ctrl-C and SIGTERM, which are the owner's to handle. If the guard itself is killed nothing else happens: the
owner's own clean-up does not depend on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys

from engine.processes import ProcessId
from engine.testing.processes import MARK, end_all, marked

_ALL_STOPPED = "stopped"


class Guard:
    """`start()` before the first process of the owner, `close()` after the last one was stopped."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self._popen: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int | None:
        return self._popen.pid if self._popen else None

    def start(self) -> None:
        """Does nothing when it runs."""
        if self._popen is not None:
            return
        environ = {name: value for name, value in os.environ.items() if name != MARK}
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "engine.testing.guard", self.mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environ,
            start_new_session=True,
            text=True,
        )

    def also(self, identity: ProcessId | None) -> None:
        """Name a process that does not carry the mark."""
        if identity is not None:
            self._say(identity.to_text())

    def close(self) -> None:
        """All was stopped in order: the guard goes without looking at anything. May be called twice."""
        if self._popen is None:
            return
        self._say(_ALL_STOPPED)
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody killed the guard
            self._popen.stdin.close()
        self._popen.wait()
        self._popen = None

    def _say(self, line: str) -> None:
        if self._popen is not None and self._popen.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._popen.stdin.write(f"{line}\n")
                self._popen.stdin.flush()


async def _end(mark: str, named: list[ProcessId]) -> None:
    await end_all([process for identity in named if (process := identity.process())], timeout_s=5.0)
    # Twice: a process may have forked while the first list was made.
    for _ in range(2):
        await end_all(marked(mark), timeout_s=5.0)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    named = []
    for line in sys.stdin:
        if line.strip() == _ALL_STOPPED:
            return
        named.append(ProcessId.from_text(line))
    asyncio.run(_end(sys.argv[1], named))


if __name__ == "__main__":
    main()
