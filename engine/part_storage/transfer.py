"""Parts on their way from one replica to another: what is sent, and what is believed of what comes.

A part that comes is believed in four steps, before it gets its name among the staged ones: file names by
grammar; list of files and sizes = its own `checksums.txt`; digest of that and columns = Keeper's header;
content: `CHECK TABLE` on a scratch table, which reads every byte and compares every hash.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from engine.errors import Code, SqlError
from engine.part_storage.content_check import ContentChecker, has_all_hashes
from engine.part_storage.disk import force_to_disk
from engine.part_storage.part_files import (
    LOCAL_FILES,
    files_of,
    is_file_name,
    link_part,
    read_part,
    remove_tree,
    write_name,
)
from engine.part_storage.part_sizes import UNLISTED, check_files
from engine.part_storage.table_state import TableState
from engine.part_storage.workers import Connection, Length, Workers, translated
from engine.replication.part_checksums import (
    MAX_FILE_BYTES,
    PartDiffers,
    check_same_part,
)
from engine.replication.part_header import PartHeader
from engine.replication.part_name import PartName
from engine.replication.part_store import Part, PartFile
from engine.storage.layout import KEPT_BYTES

_CHUNK_BYTES = 1 << 20
_MAX_HELD_BYTES = 2 << 20
"""Of a part that is read, or was received, as a whole: what an INSERT of 100,000 rows makes is less."""
_MAX_HELD_FILES = 200
_MAX_FILES = 200_000
_LONG_CHECK_BYTES = 64 << 20
_MAX_LINK_TRIES = 1000
_LINK_PAUSE_S = 0.002


class Outgoing:
    """Implements `OutgoingPart`: links of a part in a directory of its own."""

    def __init__(self, part: Part, directory: Path, files: Sequence[PartFile], workers: Workers) -> None:
        self._part = part
        self._directory = directory
        self._files = tuple(files)
        self._workers = workers

    @property
    def part(self) -> Part:
        return self._part

    @property
    def files(self) -> Sequence[PartFile]:
        return self._files

    async def read(self, file: PartFile) -> AsyncIterator[bytes]:
        """Chunks of up to 1 MiB. `file` is one of `files`."""
        if file not in self._files:
            raise ValueError(f"{file.name} is no file of {self._part.name}")
        with (self._directory / file.name).open("rb") as stream:
            if file.size_bytes <= _CHUNK_BYTES:
                yield stream.read()
                return
            while chunk := await asyncio.to_thread(stream.read, _CHUNK_BYTES):
                yield chunk


class HeldOutgoing:
    """Implements `HeldPart`: a small part, read as a whole."""

    def __init__(self, part: Part, content: Mapping[str, bytes]) -> None:
        self._part = part
        self._content = content
        self._files = tuple(PartFile(name, len(data)) for name, data in sorted(content.items()))

    @property
    def part(self) -> Part:
        return self._part

    @property
    def files(self) -> Sequence[PartFile]:
        return self._files

    def content(self, file: PartFile) -> bytes:
        """Of one of `files`."""
        return self._content[file.name]

    async def read(self, file: PartFile) -> AsyncIterator[bytes]:
        """As one piece."""
        yield self._content[file.name]


class Incoming:
    """Implements `IncomingPart`."""

    def __init__(
        self,
        name: PartName,
        directory: Path,
        state: TableState,
        checker: ContentChecker,
        workers: Workers,
        keep: Callable[[Path, Part], Part],
    ) -> None:
        self._name = name
        self._directory = directory
        self._state = state
        self._checker = checker
        self._workers = workers
        self._keep = keep
        self._written: dict[str, int] = {}
        self._held: dict[str, list[bytes]] = {}
        self._held_bytes = 0

    def have_room(self, size_bytes: int) -> None:
        """See `IncomingPart.have_room`."""
        free = max(0, shutil.disk_usage(self._state.staged_root).free - KEPT_BYTES)
        if size_bytes > free:
            raise SqlError(
                Code.NOT_ENOUGH_SPACE,
                f"Not enough space for part {self._name}: {size_bytes} bytes are to come, {free} are free",
            )

    async def write(self, file: PartFile, content: AsyncIterator[bytes]) -> None:
        """See `IncomingPart.write`."""
        if not is_file_name(file.name):
            raise self._differs(f"{file.name[:200]!r} is no name of a file")
        if file.name in self._written or len(self._written) >= _MAX_FILES:
            raise self._differs(f"file {file.name} comes twice, or is one too many")
        is_small = "/" not in file.name and file.name in UNLISTED
        if file.size_bytes < 0 or (is_small and file.size_bytes > MAX_FILE_BYTES):
            raise self._differs(f"file {file.name} cannot have {file.size_bytes} bytes")
        self._written[file.name] = file.size_bytes
        if self._held_bytes + file.size_bytes <= _MAX_HELD_BYTES:
            await self._hold(file, content)
            return
        self.have_room(file.size_bytes)
        path = self._directory / file.name
        size = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as stream:
                async for chunk in content:
                    size += len(chunk)
                    if size > file.size_bytes:
                        raise self._differs(f"file {file.name} has more than {file.size_bytes} bytes")
                    if len(chunk) > _CHUNK_BYTES // 4:
                        await asyncio.to_thread(stream.write, chunk)
                    else:
                        stream.write(chunk)
        except OSError as error:
            raise translated(error) from None
        if size != file.size_bytes:
            raise self._differs(f"file {file.name} has {size} bytes instead of {file.size_bytes}")

    async def _hold(self, file: PartFile, content: AsyncIterator[bytes]) -> None:
        """Small files stay in memory until `finish` writes them all at once, on a worker thread."""
        pieces: list[bytes] = []
        size = 0
        async for chunk in content:
            pieces.append(chunk)
            size += len(chunk)
            if size > file.size_bytes:
                raise self._differs(f"file {file.name} has more than {file.size_bytes} bytes")
        if size != file.size_bytes:
            raise self._differs(f"file {file.name} has {size} bytes instead of {file.size_bytes}")
        self._held[file.name] = pieces
        self._held_bytes += size

    async def finish(self, expected: PartHeader | None) -> Part:
        """See `IncomingPart.finish`."""
        size = sum(self._written.values())
        length = Length.LONG if size > _LONG_CHECK_BYTES else Length.SHORT
        return await self._workers.run(lambda connection: self._finish(connection, expected), length=length)

    def _finish(self, connection: Connection, expected: PartHeader | None) -> Part:
        self._directory.mkdir(parents=True, exist_ok=True)
        for name, pieces in self._held.items():
            if "/" in name:
                (self._directory / name).parent.mkdir(exist_ok=True)
            _write_new(f"{self._directory}/{name}", pieces)
        self._held.clear()
        for name in self._written:
            if name.rpartition("/")[2] in LOCAL_FILES:
                (self._directory / name).unlink()
        check_files(self._directory, str(self._name))
        part = read_part(self._directory, self._name)
        if expected is not None:
            check_header(part, expected)
        if expected is None or not has_all_hashes(self._directory, self._name):
            self._checker.check(connection, self._directory, self._name)
        return self._keep(self._directory, part)

    def _differs(self, reason: str) -> PartDiffers:
        return PartDiffers(str(self._name), reason)


def _write_new(path: str, pieces: Sequence[bytes]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)


def check_header(part: Part, expected: PartHeader) -> None:
    """Raises PartDiffers unless the part is the one that Keeper knows."""
    check_same_part(str(part.name), part.digest, expected.digest)
    if part.header.columns_hash != expected.columns_hash:
        raise PartDiffers(str(part.name), "different columns")


@asynccontextmanager
async def sending(
    state: TableState, name: PartName, workers: Workers
) -> AsyncIterator[Outgoing | HeldOutgoing]:
    """See `PartStore.send`."""
    target = state.sending_root / str(workers.next_number())
    outgoing = await workers.run(lambda connection: _outgoing(state, name, target, workers))
    try:
        yield outgoing
    finally:
        if isinstance(outgoing, Outgoing):
            workers.in_background(lambda connection: remove_tree(target))


def _outgoing(state: TableState, name: PartName, target: Path, workers: Workers) -> Outgoing | HeldOutgoing:
    # It may be on its way from staged to active, or to another directory, while it is read or linked.
    for _ in range(_MAX_LINK_TRIES):
        directory = state.directory_of(name)
        if directory is None:
            break
        part = state.active_parts.get(name) or state.staged.get(name)
        try:
            if part is not None and (content := _content_of_small(directory)) is not None:
                return HeldOutgoing(part, content)
            link_part(directory, target, name=None)
        except FileNotFoundError:
            workers.pause(_LINK_PAUSE_S)
            continue
        files = [PartFile(file, size) for file, size in files_of(target)]
        return Outgoing(read_part(target, name), target, files, workers)
    raise SqlError(Code.NO_SUCH_DATA_PART, f"No part {name} in table {state.table}")


def _content_of_small(directory: Path) -> dict[str, bytes] | None:
    """The files of a part, if it is small and has no projections. Raises FileNotFoundError when it goes.

    By the open directory: the part may get another name meanwhile, its files stay what they are.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.scandir(descriptor) as entries:
            found = [(entry.name, entry.is_file(follow_symlinks=False)) for entry in entries]
        names = [name for name, _ in found if name not in LOCAL_FILES]
        if not all(is_file for _, is_file in found) or len(names) > _MAX_HELD_FILES:
            return None
        content: dict[str, bytes] = {}
        left = _MAX_HELD_BYTES
        for name in names:
            file = os.open(name, os.O_RDONLY, dir_fd=descriptor)
            try:
                size = os.fstat(file).st_size
                left -= size
                if left < 0:
                    return None
                content[name] = os.read(file, size)
            finally:
                os.close(file)
        return content
    finally:
        os.close(descriptor)


@asynccontextmanager
async def receiving(
    state: TableState, checker: ContentChecker, name: PartName, workers: Workers
) -> AsyncIterator[Incoming]:
    """See `PartStore.receive`."""

    def keep(directory: Path, part: Part) -> Part:
        write_name(directory, name)
        return state.put_in_place(directory, part)

    directory = state.temporary("fetch", workers.next_number())
    try:
        yield Incoming(name, directory, state, checker, workers, keep)
    finally:
        remove_tree(directory)


@asynccontextmanager
async def receiving_detached(
    state: TableState, checker: ContentChecker, name: PartName, workers: Workers
) -> AsyncIterator[Incoming]:
    """See `PartStore.receive_detached`."""
    target = state.detached / str(name)
    if target.exists():
        raise SqlError(Code.DUPLICATE_DATA_PART, f"Detached part {name} exists already")

    def keep(directory: Path, part: Part) -> Part:
        try:
            directory.rename(target)
        except OSError:
            raise SqlError(Code.DUPLICATE_DATA_PART, f"Detached part {name} exists already") from None
        force_to_disk(target, state.durability, parent=state.detached)
        return part

    directory = state.temporary("fetch", workers.next_number())
    try:
        yield Incoming(name, directory, state, checker, workers, keep)
    finally:
        remove_tree(directory)
