"""Reading a part from a peer that may be broken, foreign or hostile, straight into the store.

Nothing is believed: numbers are bounded before they are used, names have to be plain, each file is as long
as its head says, nothing stands behind the last byte, and every hash is compared: with the bytes for files
that stand in no list, with `checksums.txt` for the others, whose content the store then compares with that
list (`finish`). A part is visible to nobody before that, and whatever goes wrong leaves nothing of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from engine.node.interserver.protocol import (
    CHECKSUMS_FILE,
    HASH_BYTES,
    NIL_UUID,
    PROJECTION_SUFFIX,
    UNLISTED_SINCE,
    UUID_FILE,
    WITH_PROJECTIONS,
    WITH_SIZE,
    WITH_TTL,
    WITH_TYPE,
    WITH_UUID,
    number_of,
)
from engine.node.interserver.sending import SMALL_BYTES, hash_of_small, hash_slowly
from engine.replication.file_hash import FileHash
from engine.replication.file_names import is_plain_name
from engine.replication.part_checksums import MAX_FILE_BYTES, PartDiffers, parse_checksums_file
from engine.replication.part_store import IncomingPart, PartFile

_HASHED_BEFORE_LIST_BYTES = 1 << 20
_PART_TYPES = frozenset({b"Wide", b"Compact", b"Unknown", b"InMemory"})
_MAX_TYPE_BYTES = 32
_MAX_TTL_BYTES = 1 << 20
_MAX_VARINT_BYTES = 10


class TruncatedStream(Exception):
    """The peer's answer ended before its part did."""


class PieceSource(Protocol):
    """Bytes as they come; empty at the end."""

    async def read(self, limit: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """What a peer may declare, and how long it may be silent (seconds)."""

    part_bytes: int = 1 << 40
    files: int = 100_000
    projections: int = 1000
    connect_s: float = 5.0
    silence_s: float = 60.0
    least_bytes: int = 16 << 10
    """What has to come while the peer is waited for as long as it may be silent: one that drips is as good
    as silent."""
    connections_per_host: int = 16


class PartReading:
    """One part on its way in."""

    def __init__(self, source: PieceSource, *, part: str, version: int, limits: FetchLimits) -> None:
        self._source = source
        self._part = part
        self._version = version
        self._limits = limits
        self._bytes_left = limits.part_bytes
        self._files_left = limits.files

    async def receive(self, incoming: IncomingPart) -> None:
        """All files, up to the end of the stream. Raises PartDiffers, TruncatedStream."""
        projections = await self._head(incoming)
        seen: set[str] = set()
        for _ in range(projections):
            name = (await self._string(_MAX_TTL_BYTES)).decode("utf-8", "surrogateescape")
            if not is_plain_name(name + PROJECTION_SUFFIX) or name in seen:
                raise self._differs(f"{name[:100]!r} is no name of a projection")
            seen.add(name)
            await self._directory(incoming, f"{name}{PROJECTION_SUFFIX}/")
        await self._directory(incoming, "")
        if await self._source.read(1):
            raise self._differs("more bytes came than it has")

    async def _head(self, incoming: IncomingPart) -> int:
        """What stands before the files; the number of projections."""
        if self._has(WITH_SIZE):
            size = await self._number()
            if size > self._bytes_left:
                raise self._differs(f"it declares {size} bytes, more than the {self._bytes_left} allowed")
            incoming.have_room(size)
        if self._has(WITH_TTL) and not (await self._string(_MAX_TTL_BYTES)).startswith(
            b"ttl format version: "
        ):
            raise self._differs("its TTL is unreadable")
        if self._has(WITH_TYPE) and (kind := await self._string(_MAX_TYPE_BYTES)) not in _PART_TYPES:
            raise self._differs(f"its type {kind!r} is unknown")
        if self._has(WITH_UUID):
            await self._take(len(NIL_UUID))
        if not self._has(WITH_PROJECTIONS):
            return 0
        count = await self._number()
        if count > self._limits.projections:
            raise self._differs(f"it declares {count} projections")
        return count

    async def _directory(self, incoming: IncomingPart, prefix: str) -> None:
        """The files of the part itself or of one projection."""
        count = await self._number()
        if not 0 < count <= self._files_left:
            raise self._differs(f"it declares {count} files")
        self._files_left -= count
        list_: _FileList = _FileList(self._part, prefix)
        for _ in range(count):
            await self._file(incoming, list_, prefix)
        list_.complete()

    async def _file(self, incoming: IncomingPart, list_: _FileList, prefix: str) -> None:
        name = (await self._string(4096)).decode("utf-8", "surrogateescape")
        if not is_plain_name(name):
            raise self._differs(f"{name[:100]!r} is no name of a file")
        size = await self._number()
        if size > self._bytes_left:
            raise self._differs(
                f"file {name} declares {size} bytes, more than the {self._bytes_left} allowed"
            )
        if name == CHECKSUMS_FILE and size > MAX_FILE_BYTES:
            raise self._differs(f"{CHECKSUMS_FILE} declares {size} bytes")
        self._bytes_left -= size
        if size <= SMALL_BYTES:
            await self._small_file(incoming, list_, prefix, name, size)
            return
        hashed = FileHash() if list_.needs_hash(name, size) else None
        kept = bytearray() if name == CHECKSUMS_FILE else None
        list_.announce(name)
        await incoming.write(PartFile(prefix + name, size), self._content(size, hashed, kept))
        declared = await self._take(HASH_BYTES)
        if hashed is not None and hashed.digest() != declared:
            raise self._differs(f"file {prefix}{name} does not have its hash")
        list_.arrived(name, declared, is_compared=hashed is not None)
        if kept is not None:
            list_.read(bytes(kept))

    async def _small_file(
        self, incoming: IncomingPart, list_: _FileList, prefix: str, name: str, size: int
    ) -> None:
        list_.announce(name)
        data = await self._take(size)
        await incoming.write(PartFile(prefix + name, size), _one_piece(data))
        declared = await self._take(HASH_BYTES)
        is_compared = list_.needs_hash(name, size)
        if is_compared and hash_of_small(data) != declared:
            raise self._differs(f"file {prefix}{name} does not have its hash")
        list_.arrived(name, declared, is_compared=is_compared)
        if name == CHECKSUMS_FILE:
            list_.read(data)

    async def _content(
        self, size: int, hashed: FileHash | None, kept: bytearray | None
    ) -> AsyncIterator[bytes]:
        while size:
            piece = await self._source.read(size)
            if not piece:
                raise TruncatedStream
            size -= len(piece)
            if hashed is not None:
                await hash_slowly(hashed, piece)
            if kept is not None:
                kept += piece
            yield piece

    # -- numbers and strings -------------------------------------------------------------------------------

    async def _take(self, size: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < size:
            piece = await self._source.read(size - len(pieces))
            if not piece:
                raise TruncatedStream
            pieces += piece
        return bytes(pieces)

    async def _number(self) -> int:
        return number_of(await self._take(8))

    async def _string(self, limit: int) -> bytes:
        size = 0
        for index in range(_MAX_VARINT_BYTES):
            byte = (await self._take(1))[0]
            size |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                break
        if size > limit:
            raise self._differs(f"a text of {size} bytes where {limit} are the limit")
        return await self._take(size)

    def _has(self, version: int) -> bool:
        return self._version >= version

    def _differs(self, reason: str) -> PartDiffers:
        return PartDiffers(self._part, reason)


async def _one_piece(data: bytes) -> AsyncIterator[bytes]:
    yield data


class _FileList:
    """Which files a directory has, which it should have, and what of them was compared."""

    def __init__(self, part: str, prefix: str) -> None:
        self._part = part
        self._prefix = prefix
        self._arrived: dict[str, bytes] = {}
        self._compared: set[str] = set()
        self._listed: dict[str, bytes] | None = None

    def needs_hash(self, name: str, size: int) -> bool:
        """Whether the bytes have to be hashed here: the list does not say what they are, or not yet."""
        if name in UNLISTED_SINCE:
            return True
        return size <= _HASHED_BEFORE_LIST_BYTES if self._listed is None else name not in self._listed

    def announce(self, name: str) -> None:
        if name in self._arrived:
            raise PartDiffers(self._part, f"file {self._prefix}{name} came twice")
        if name == UUID_FILE and self._listed is not None and name not in self._listed:
            raise PartDiffers(self._part, f"{UUID_FILE} is not a file that travels")

    def arrived(self, name: str, declared: bytes, *, is_compared: bool) -> None:
        self._arrived[name] = declared
        if is_compared:
            self._compared.add(name)
        if self._listed is not None:
            self._compare(name)

    def read(self, content: bytes) -> None:
        found = parse_checksums_file(content, where=self._part)
        self._listed = {file.name: file.hash for file in found if not file.name.endswith(PROJECTION_SUFFIX)}
        for name in self._arrived:
            self._compare(name)

    def complete(self) -> None:
        """All have come. What a list names has to be there, and what is there in the list or compared."""
        for name in sorted(self._arrived):
            self._compare(name)
        missing = sorted(self._listed.keys() - self._arrived.keys()) if self._listed is not None else []
        if missing:
            raise PartDiffers(self._part, f"file {self._prefix}{missing[0]} did not come")
        if self._listed is not None and UUID_FILE in self._arrived and UUID_FILE not in self._listed:
            raise PartDiffers(self._part, f"{UUID_FILE} is not a file that travels")

    def _compare(self, name: str) -> None:
        listed = None if self._listed is None else self._listed.get(name)
        if listed is not None and listed != self._arrived[name]:
            raise PartDiffers(self._part, f"file {self._prefix}{name} is not the one of its {CHECKSUMS_FILE}")
        if listed is None and self._listed is not None and name not in self._compared:
            raise PartDiffers(self._part, f"file {self._prefix}{name} is in no list")
        if self._listed is not None and listed is None and name not in UNLISTED_SINCE and name != UUID_FILE:
            raise PartDiffers(self._part, f"file {self._prefix}{name} does not belong to it")
