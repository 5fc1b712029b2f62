"""Ends what an owner left behind when it was killed: a small process that waits at the end of a pipe.

Safety argument. The guard acts only when the pipe is closed without the word that all was stopped in order,
which happens when the owner has died. It ends only processes of this user that carry the owner's mark, a
fresh
random value for each owner. It ignores Ctrl-C and SIGTERM, which are the owner's to handle. If the guard
itself
is killed nothing else happens: the owner's own clean-up does not depend on it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

from engine.testing.processes import MARK, end_all, marked

_ALL_STOPPED = b"stopped\n"


class Guard:
    """Start it before the first process that carries `mark`; `close()` after the last one was stopped."""

    def __init__(self, mark: str) -> None:
        environ = {name: value for name, value in os.environ.items() if name != MARK}
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "engine.testing.guard", mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environ,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def close(self) -> None:
        """All was stopped in order: the guard goes without looking at anything. May be called twice."""
        if self._popen.stdin is not None and not self._popen.stdin.closed:
            try:
                self._popen.stdin.write(_ALL_STOPPED)
                self._popen.stdin.close()
            except BrokenPipeError:  # somebody killed the guard
                pass
        self._popen.wait()


async def _end_marked(mark: str) -> None:
    # Twice: a process may have forked while the first list was made.
    for _ in range(2):
        await end_all(marked(mark), timeout_s=5.0)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read() != _ALL_STOPPED:
        asyncio.run(_end_marked(sys.argv[1]))


if __name__ == "__main__":
    main()
