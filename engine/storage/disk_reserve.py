"""A little room on the disk for what makes room.

To drop a partition or a table, a few small files have to be written first. On a disk without a byte left that
would fail, and nobody could drop anything. So a file without use takes some room from the start, and gives it
to whoever drops something.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.storage.layout import private_directory

SIZE_BYTES = 4 << 20


class DiskReserve:
    """Of the data directory of a node; there may be several objects for the same."""

    def __init__(self, pool_path: Path) -> None:
        self._file = private_directory(pool_path) / "reserve"

    def take(self) -> None:
        """Have the room, if the disk has it."""
        with suppress(OSError):
            descriptor = os.open(self._file, os.O_CREAT | os.O_WRONLY, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, SIZE_BYTES)
            except OSError:
                self._file.unlink()
            finally:
                os.close(descriptor)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Its room is free for the length of a `with` block, and taken back then."""
        self._file.unlink(missing_ok=True)
        try:
            yield
        finally:
            self.take()
