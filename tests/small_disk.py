"""A small disk that can be filled to the last byte; for root only."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A file system, with a file that fills it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._filling = place / "filling"

    def fill(self, *, but_for: int = 0) -> None:
        self._filling.unlink(missing_ok=True)
        descriptor = os.open(self._filling, os.O_CREAT | os.O_WRONLY)
        free = shutil.disk_usage(self.place).free
        os.posix_fallocate(descriptor, 0, free - but_for)
        os.close(descriptor)

    def empty(self) -> None:
        self._filling.unlink(missing_ok=True)


@contextmanager
def small_disk(place: Path, *, mib: int = 60) -> Iterator[SmallDisk]:
    """Mounted at a directory that is there. Skips the test where that cannot be done."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a small file system can be mounted by root only")
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(place)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)
