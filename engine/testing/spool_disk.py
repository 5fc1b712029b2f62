"""A disk in memory for the spool: it can die at any step, forget what was not forced, be full, flip a bit."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


class Killed(asyncio.CancelledError):
    """The process ends here. Not an Exception: nobody may handle it."""


@dataclass(eq=False)
class Inode:
    data: bytearray = field(default_factory=bytearray)
    durable_bytes: int = 0


@dataclass
class _Change:
    """A change of names that no `sync_directory` has covered. None as inode: the name goes."""

    names: dict[str, Inode | None]

    def touches(self, directory: str) -> bool:
        return any(_directory(path) == directory for path in self.names)


class ModelDisk:
    """Implements `SpoolDisk`. It outlives the processes that use it.

    `steps_until_kill`: the process dies before or after that many changes from now.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._names: dict[str, Inode] = {}
        self._durable: dict[str, Inode] = {}
        self._changes: list[_Change] = []
        self._directories: set[str] = set()
        self.steps_until_kill: int | None = None
        self.is_full = False
        self.is_dead = False
        self.on_death: Callable[[], None] = lambda: None
        self.on_remove: Callable[[str, Inode], None] = lambda path, inode: None
        self.on_link: Callable[[str, Inode], None] = lambda path, inode: None

    # -- faults ----------------------------------------------------------------------------------------------

    def kill(self) -> None:
        self.is_dead = True
        self.on_death()

    def revive(self, *, power_was_lost: bool) -> None:
        """The next process starts; with a loss of power, without what was not forced."""
        self.is_dead, self.steps_until_kill = False, None
        if not power_was_lost:
            return
        names = dict(self._durable)
        for change in self._changes[: self._rng.randint(0, len(self._changes))]:
            _apply(names, change)
        self._names, self._durable, self._changes = names, dict(names), []
        for inode in {id(inode): inode for inode in names.values()}.values():
            if len(inode.data) > inode.durable_bytes:
                del inode.data[self._rng.randint(inode.durable_bytes, len(inode.data)) :]
            inode.durable_bytes = len(inode.data)

    def flip(self, path: str) -> None:
        """One bit of the file."""
        data = self._names[path].data
        data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)

    def find(self, path: str) -> Inode | None:
        return self._names.get(path)

    def files(self) -> Sequence[str]:
        return sorted(self._names)

    def _change(self, change: Callable[[], None]) -> None:
        if self.is_dead:
            raise Killed
        if self.steps_until_kill is not None:
            self.steps_until_kill -= 1
            if self.steps_until_kill <= 0:
                if self._rng.random() < 0.5:
                    change()
                self.kill()
                raise Killed
        change()

    # -- SpoolDisk -------------------------------------------------------------------------------------------

    async def apart(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(0)  # others run meanwhile
        return work()

    def directories(self) -> Sequence[str]:
        self._alive()
        tops = {path.split("/")[0] for path in self._names} | {d.split("/")[0] for d in self._directories}
        return sorted(tops)

    def names(self, directory: str) -> Sequence[str]:
        self._alive()
        return sorted(path.rpartition("/")[2] for path in self._names if _directory(path) == directory)

    def make_directory(self, directory: str) -> None:
        self._change(lambda: self._directories.add(directory))

    def check_writable(self, directory: str) -> None:
        self._alive()

    def size_bytes(self, path: str) -> int:
        return len(self._inode(path).data)

    def read(self, path: str, offset: int, size_bytes: int) -> bytes:
        return bytes(self._inode(path).data[offset : offset + size_bytes])

    def append(self, path: str, data: bytes) -> None:
        if path not in self._names:
            self._change(lambda: self._rename({path: Inode()}))
        if self.is_full and data:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._change(lambda: self._names[path].data.extend(data))

    async def sync(self, path: str) -> None:
        inode = self._inode(path)

        def force() -> None:
            inode.durable_bytes = len(inode.data)

        self._change(force)

    async def sync_directory(self, directory: str) -> None:
        def force() -> None:
            last = max((i for i, c in enumerate(self._changes) if c.touches(directory)), default=-1)
            for change in [c for c in self._changes[: last + 1] if c.touches(directory)]:
                _apply(self._durable, change)
            kept = [c for i, c in enumerate(self._changes) if i > last or not c.touches(directory)]
            self._changes = kept

        self._change(force)

    def link(self, path: str, target: str) -> None:
        inode = self._inode(path)
        self._change(lambda: self._rename({target: inode}))
        self.on_link(target, inode)

    def rename(self, path: str, target: str) -> None:
        inode = self._inode(path)
        self._change(lambda: self._rename({path: None, target: inode}))

    def remove(self, path: str) -> None:
        inode = self._inode(path)

        def gone() -> None:
            self.on_remove(path, inode)
            self._rename({path: None})

        self._change(gone)

    def _rename(self, names: Mapping[str, Inode | None]) -> None:
        change = _Change(dict(names))
        _apply(self._names, change)
        self._changes.append(change)

    def _inode(self, path: str) -> Inode:
        self._alive()
        try:
            return self._names[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "No such file", path) from None

    def _alive(self) -> None:
        if self.is_dead:
            raise Killed


def _apply(names: dict[str, Any], change: _Change) -> None:
    for path, inode in change.names.items():
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode


def _directory(path: str) -> str:
    return path.rpartition("/")[0]
