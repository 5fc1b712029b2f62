"""Processes of the operating system. Each may end while it is asked about."""

from __future__ import annotations

import contextlib
import functools
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process for good: the number, and when it started, because numbers are used again.

    Not the time of the day, which Linux reckons anew from the clock each time it is asked: it is another one
    after the clock was set, or a machine was resumed.
    """

    pid: int
    started: str
    """`BOOT/TICKS`: the boot, by its id, and the kernel's ticks from then on. Elsewhere than on Linux the
    time, which the kernel keeps there."""

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """None when there is no such process any more."""
        try:
            return cls(pid, _started(pid))
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            return None

    def process(self) -> psutil.Process | None:
        """The living process, or None when it has ended (a zombie has ended)."""
        try:
            found = psutil.Process(self.pid)
            return found if ProcessId.of(self.pid) == self and is_alive(found) else None
        except psutil.NoSuchProcess:
            return None

    @property
    def is_alive(self) -> bool:
        return self.process() is not None

    def to_text(self) -> str:
        """One line."""
        return f"{self.pid} {self.started}"

    @classmethod
    def from_text(cls, text: str) -> ProcessId:
        """Raises ValueError."""
        pid, started = text.split()
        return cls(int(pid), started)


def is_alive(process: psutil.Process) -> bool:
    """False as well for one that has ended and that its parent has not taken note of (a zombie)."""
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pause(process: psutil.Process) -> None:
    """SIGSTOP: it stands still when this returns, which blocks for a moment. Not if it ends meanwhile."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.suspend()
        while process.is_running() and not _stands_still(process):
            pass  # it is a matter of microseconds


def _stands_still(process: psutil.Process) -> bool:
    """Each thread takes the signal by itself, and may answer somebody before."""
    if sys.platform != "linux":
        return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    try:
        stats = [file.read_text() for file in Path(f"/proc/{process.pid}/task").glob("*/stat")]
    except OSError:  # one has ended meanwhile
        return False
    return all(stat.rpartition(")")[2].split()[0] in "TZX" for stat in stats)


def _started(pid: int) -> str:
    if sys.platform != "linux":
        return repr(psutil.Process(pid).create_time())
    # Behind the program's name, which may hold brackets and blanks, stands the third field: proc(5).
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return f"{_boot_id()}/{int(fields[22 - 3])}"


@functools.cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
