"""How a program becomes a process. `cold` executes it; `engine.testing.warm` has another way for Python's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

# Runs between fork and the program: ties the child to its parent, then becomes the program. A program of its
# own and not a `preexec_fn`: Python code between fork and exec can deadlock in a process with threads.
_LAUNCHER = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the process that started this one is gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True)
class Program:
    """What is run, and in what surroundings. `cwd` is the present directory if None."""

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    cwd: Path | None = None


class Launched(Protocol):
    """A process that was started; `subprocess.Popen` is one."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Its return code, -9 for one killed by signal 9; None while it runs."""

    def wait(self) -> int:
        """Blocks until it has ended; its return code."""

    def send_signal(self, sig: int, /) -> None:
        """Nothing happens when the process has ended, also where its number belongs to another one."""


Launch = Callable[[Program, int], Launched]
"""Starts a program with its output to a file descriptor, which stays the caller's. The program leads a
session of its own, and gets SIGKILL when its owner is gone (on Linux). Raises OSError."""


def cold(program: Program, output: int) -> Launched:
    """A process of its own from the first instruction on. It ends with the thread that calls this."""
    return subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", _LAUNCHER, str(os.getpid()), *program.argv],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(program.environ),
        cwd=program.cwd,
        start_new_session=True,  # Ctrl-C reaches the owner only, which stops us in order
    )
