"""The few things a spool does with a disk. Paths are relative to the spool, with `/` between names.

What is durable when: a file's bytes after `sync`, a name (made, moved or removed) after `sync_directory` of
its directory. Until then a loss of power may forget it; the end of the process does not.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

T = TypeVar("T")


class SpoolDisk(Protocol):
    """All methods raise OSError."""

    async def apart(self, work: Callable[[], T]) -> T:
        """Call something that reads or writes much, where it is in nobody's way.

        It ends before this does, also when the caller is cancelled.
        """
        ...

    def directories(self) -> Sequence[str]:
        """Names of the directories in the spool, sorted."""
        ...

    def names(self, directory: str) -> Sequence[str]:
        """Names of the files in a directory, sorted; none where it does not exist."""
        ...

    def make_directory(self, directory: str) -> None:
        """With its parents; nothing if it is there."""
        ...

    def check_writable(self, directory: str) -> None:
        """Raise OSError where files could not be removed; nothing if there is no such directory."""
        ...

    def size_bytes(self, path: str) -> int: ...

    def read(self, path: str, offset: int, size_bytes: int) -> bytes:
        """At most `size_bytes`; fewer only at the end."""
        ...

    def append(self, path: str, data: bytes) -> None:
        """Write at the end of the file, which is made if need be."""
        ...

    async def sync(self, path: str) -> None: ...

    async def sync_directory(self, directory: str) -> None: ...

    def link(self, path: str, target: str) -> None:
        """One more name for the file."""
        ...

    def rename(self, path: str, target: str) -> None:
        """What is called `target` until then is gone."""
        ...

    def remove(self, path: str) -> None: ...


class LocalDisk:
    """Implements `SpoolDisk` below a directory of this machine, which is made when it is needed."""

    def __init__(self, root: Path) -> None:
        self.root = root

    async def apart(self, work: Callable[[], T]) -> T:
        future = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    def directories(self) -> Sequence[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self.root) if entry.is_dir())
        except FileNotFoundError:
            return ()

    def names(self, directory: str) -> Sequence[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self.root / directory) if entry.is_file())
        except FileNotFoundError:
            return ()

    def make_directory(self, directory: str) -> None:
        if not self.root.is_dir():
            self._make_root()
        (self.root / directory).mkdir(parents=True, exist_ok=True)

    def check_writable(self, directory: str) -> None:
        place = self.root / directory
        if place.is_dir() and not os.access(place, os.W_OK | os.X_OK):
            is_mount = os.statvfs(place).f_flag & os.ST_RDONLY
            code = errno.EROFS if is_mount else errno.EACCES
            raise OSError(code, os.strerror(code), str(place))

    def size_bytes(self, path: str) -> int:
        return (self.root / path).stat().st_size

    def read(self, path: str, offset: int, size_bytes: int) -> bytes:
        with (self.root / path).open("rb") as file:
            file.seek(offset)
            return file.read(size_bytes)

    def append(self, path: str, data: bytes) -> None:
        with (self.root / path).open("ab") as file:
            file.write(data)

    async def sync(self, path: str) -> None:
        await asyncio.to_thread(_force, self.root / path, os.O_RDONLY)

    async def sync_directory(self, directory: str) -> None:
        await asyncio.to_thread(_force, self.root / directory, os.O_RDONLY | os.O_DIRECTORY)

    def link(self, path: str, target: str) -> None:
        os.link(self.root / path, self.root / target)

    def rename(self, path: str, target: str) -> None:
        (self.root / path).replace(self.root / target)

    def remove(self, path: str) -> None:
        (self.root / path).unlink()

    def destroy(self) -> None:
        """The whole spool."""
        shutil.rmtree(self.root, ignore_errors=True)

    def _make_root(self) -> None:
        """Durable when this returns: names within the spool are forced by `sync_directory`, those above it by
        nobody else."""
        made = [place for place in (self.root, *self.root.parents) if not place.exists()]
        self.root.mkdir(parents=True, exist_ok=True)
        for place in reversed(made):
            _force(place.parent, os.O_RDONLY | os.O_DIRECTORY)


def _force(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
