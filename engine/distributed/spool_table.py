"""The spool of one Distributed table: blocks that are acknowledged and not delivered yet.

Safety argument of `put`. 1. Every block is written whole to `tmp/`, and forced to disk if the table wants
that; if the INSERT has to do something else first, that is done meanwhile. 2. Each block gets a name in every
directory it is for (a hard link). 3. The directories are forced to disk if the table wants that. 4. The names
in `tmp/` go. Only then the INSERT is acknowledged.
A crash in 1 leaves files in `tmp/`, which the next start removes: the INSERT was not acknowledged. A crash in
2 or 3 leaves some blocks in place; they will be delivered, and their tokens make a repeated INSERT with a
token of its own write only the rest. A crash in 4 leaves a name in `tmp/` too many.
A full disk is an error of the INSERT; what it had written is removed.
Nothing here removes a file that was acknowledged, except `truncate`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from engine.distributed.batches import BatchRecord
from engine.distributed.spool_disk import SpoolDisk
from engine.distributed.spool_file import FileHead, write_file
from engine.distributed.spool_names import (
    BROKEN,
    CURRENT_BATCH,
    SENT_BATCH,
    TEMPORARY,
    file_name,
    is_alone,
    number_of,
)
from engine.env import Env
from engine.errors import Code, Corrupt, SqlError, disk_error

log = logging.getLogger(__name__)

_DELAY_STEP_S = 0.2


@dataclass(frozen=True, slots=True)
class SpoolOptions:
    """What a table's settings say of its files."""

    fsync_files: bool = False
    fsync_directories: bool = False


@dataclass(frozen=True, slots=True)
class SpoolBlock:
    """A block and the directories it has to be in."""

    directories: tuple[str, ...]
    head: FileHead
    body: AsyncIterator[bytes]


@dataclass(frozen=True, slots=True)
class SpoolLimits:
    """How much may be pending, in bytes of all directories together; 0 is no limit."""

    throw_bytes: int = 0
    delay_bytes: int = 0
    max_delay_s: float = 60.0


class TableSpool:
    """One table's. `load` it before anything else."""

    def __init__(self, disk: SpoolDisk, options: SpoolOptions) -> None:
        self.disk = disk
        self._options = options
        self._next = 1
        self._unacknowledged: set[int] = set()
        self._unread: set[str] = set()

    def load(self) -> Sequence[str]:
        """Remove what was never acknowledged; the directories there are. Raises OSError for all of them.

        One of them that cannot be read keeps none of the others from being sent.
        """
        directories = self.disk.directories()
        for directory in {TEMPORARY, *directories}:
            try:
                self._learn(directory)
            except OSError as error:
                log.error("distributed.unusable_directory directory=%s error=%s", directory, error)
                self._unread.add(directory)
        return [name for name in directories if name != TEMPORARY]

    def _learn(self, directory: str) -> None:
        if directory == TEMPORARY:
            for name in self.disk.names(TEMPORARY):
                self.disk.remove(f"{TEMPORARY}/{name}")
            return
        self._next = max([self._next, *(number + 1 for number in self._used(directory))])

    def _learn_rest(self) -> None:
        """Numbers that are taken, and `tmp/`, are known before anything is kept. Raises OSError."""
        for directory in sorted(self._unread):
            self._learn(directory)
            self._unread.discard(directory)

    def _used(self, directory: str) -> Sequence[int]:
        """Numbers that no new file may have. A record that outlived its files would take it for one of them,
        which has arrived, and remove it."""
        places = (directory, f"{directory}/{BROKEN}")
        found = [number_of(name) for place in places for name in self.disk.names(place)]
        record = BatchRecord(self.disk, directory)
        for read in (record.current, record.sent):
            with suppress(Corrupt):  # its sender puts aside all files that are there
                found += read()
        return [number for number in found if number is not None]

    async def admit(self, limits: SpoolLimits, env: Env) -> None:
        """Before an INSERT: raises SqlError 574 when too much is pending, after waiting if limits say so."""
        if not limits.throw_bytes and not limits.delay_bytes:
            return
        pending = self.pending_bytes()
        if limits.throw_bytes and pending > limits.throw_bytes:
            raise _too_much(pending, limits.throw_bytes, "bytes_to_throw_insert")
        if not limits.delay_bytes or pending <= limits.delay_bytes:
            return
        deadline_s = env.monotonic_s() + limits.max_delay_s
        while env.monotonic_s() < deadline_s:
            await env.sleep(_DELAY_STEP_S)
            if (pending := self.pending_bytes()) <= limits.delay_bytes:
                return
        raise _too_much(pending, limits.delay_bytes, "bytes_to_delay_insert")

    async def put(self, blocks: Sequence[SpoolBlock], *, after: Awaitable[None] | None = None) -> None:
        """Return when all blocks are in place. Raises SqlError 243, 1001, and what a block's rows raise.

        `after` has to end well before any block is in place; what it raises is raised, and nothing is kept.
        """
        disk = self.disk
        written: list[tuple[str, int, SpoolBlock]] = []
        try:
            self._learn_rest()
        except OSError as error:
            raise _cannot_keep(error) from error
        numbers = range(self._next, self._next + len(blocks))
        self._next += len(blocks)
        self._unacknowledged.update(numbers)
        placed: list[str] = []
        is_whole = False
        try:
            disk.make_directory(TEMPORARY)
            for number, block in zip(numbers, blocks, strict=True):
                path = f"{TEMPORARY}/{file_name(number)}"
                written.append((path, number, block))
                await write_file(disk, path, block.head, block.body)
                if self._options.fsync_files:
                    await disk.sync(path)
            if after is not None:
                await after
            for path, number, block in written:
                for directory in block.directories:
                    # With the place for broken files, for which a full disk would have no room.
                    disk.make_directory(f"{directory}/{BROKEN}")
                    target = f"{directory}/{file_name(number)}"
                    disk.link(path, target)
                    placed.append(target)
            if self._options.fsync_directories:
                for directory in sorted({d for block in blocks for d in block.directories}):
                    await disk.sync_directory(directory)
                await disk.sync_directory(".")
            is_whole = True
        except OSError as error:
            raise _cannot_keep(error) from error
        finally:
            if not is_whole:
                # Nobody has been told, and senders pass over what is not acknowledged.
                for target in placed:
                    with suppress(OSError):
                        disk.remove(target)
            for path, _, _ in written:
                with suppress(OSError):
                    disk.remove(path)
            self._unacknowledged.difference_update(numbers)

    def pending(self, directory: str) -> Sequence[int]:
        """Numbers of the files that are to be sent, in their order, without those of `alone`."""
        found = (number_of(name) for name in self.disk.names(directory) if not is_alone(name))
        return sorted(n for n in found if n is not None and n not in self._unacknowledged)

    def alone(self, directory: str) -> Sequence[int]:
        """Numbers of the files that go before all others and by themselves."""
        found = (number_of(name) for name in self.disk.names(directory) if is_alone(name))
        return sorted(n for n in found if n is not None)

    def pending_bytes(self) -> int:
        """Of all directories together, without broken ones."""
        return sum(
            size_of(self.disk, directory)[1]
            for directory in self.disk.directories()
            if directory != TEMPORARY
        )

    def truncate(self) -> None:
        """Forget everything, broken files too. Senders have to be stopped."""
        for directory in self.disk.directories():
            for place in (f"{directory}/{BROKEN}", directory):
                for name in self.disk.names(place):
                    if number_of(name) is not None or name in (CURRENT_BATCH, SENT_BATCH):
                        self.disk.remove(f"{place}/{name}")


def size_of(disk: SpoolDisk, directory: str) -> tuple[int, int]:
    """How many files there are in a directory, and their bytes."""
    count = size = 0
    for name in disk.names(directory):
        if number_of(name) is not None:
            with suppress(FileNotFoundError):  # sent in the meantime
                size += disk.size_bytes(f"{directory}/{name}")
                count += 1
    return count, size


def _cannot_keep(error: OSError) -> SqlError:
    return disk_error(
        error,
        "Cannot keep rows for a Distributed table",
        hint="Nothing was kept. Look at the disk of the node, or insert in the foreground.",
    )


def _too_much(pending: int, limit: int, setting: str) -> SqlError:
    return SqlError(
        Code.DISTRIBUTED_TOO_MANY_PENDING_BYTES,
        f"Too many bytes pending for async INSERT: {pending} (bytes), {setting}={limit} (bytes)",
        hint="Nothing was inserted. See system.distribution_queue for what keeps the rows from being sent.",
    )
