"""Writing a part to a peer. Nothing is changed; files are read in pieces, and never as a whole but the small
ones.

The hash behind a file that `checksums.txt` lists is the listed one: it was made of the same bytes in the
same way, so a byte that the disk has lost since is found by the receiver, who reads the content against it.
Only files that stand in no list are hashed here.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol, runtime_checkable

from engine.node.interserver.protocol import (
    CHECKSUMS_FILE,
    NIL_UUID,
    NO_TTL,
    PROJECTION_SUFFIX,
    TTL_FILE,
    UNLISTED_SINCE,
    UUID_FILE,
    WITH_PROJECTIONS,
    WITH_SIZE,
    WITH_TTL,
    WITH_TYPE,
    WITH_UUID,
    PartFiles,
    file_head,
    name_string,
    part_type,
    string,
    u64,
)
from engine.replication.file_hash import FileHash, file_hash
from engine.replication.part_checksums import HASH_BYTES, PartDiffers, parse_checksums_file
from engine.replication.part_store import OutgoingPart, PartFile

_HASH_SLICE_BYTES = 64 << 10
SMALL_BYTES = 16 << 10
_NOT_SENT = frozenset({UUID_FILE, "txn_version.txt"})
"""Files about where a part is, not about what is in it; sent only if its checksums list them."""


@runtime_checkable
class HeldPart(OutgoingPart, Protocol):
    """A small part, whose files are in memory."""

    def content(self, file: PartFile) -> bytes: ...


class PartSender:
    """One part on its way out in one version of the protocol. Make it with `prepare`."""

    def __init__(
        self,
        part: OutgoingPart,
        version: int,
        files: PartFiles,
        listed: dict[str, dict[str, bytes]],
        ttl: bytes,
    ) -> None:
        self._part = part
        self._version = version
        self._listed = listed
        self._head = self._head_of(files, ttl)
        self._own = self._sent(files.own, "")
        self._projections = [
            (name, self._sent(each, name)) for name, each in files.projections if self._has(WITH_PROJECTIONS)
        ]

    @classmethod
    async def prepare(cls, part: OutgoingPart, version: int) -> PartSender:
        """Read what has to be known first. Raises PartDiffers if the part's own list of files is
        unreadable."""
        files = PartFiles.of(list(part.files))
        listed = {"": await _listed(part, files.own)}
        for name, each in files.projections:
            listed[name] = await _listed(part, each)
        ttl = NO_TTL
        for file in files.own:
            if file.name == TTL_FILE:
                ttl = await _whole(part, file)
        return cls(part, version, files, listed, ttl)

    @property
    def size_bytes(self) -> int:
        """How much `write` gives."""
        size = len(self._head) + len(u64(0)) + sum(map(_size_on_wire, self._own))
        for name, files in self._projections:
            size += len(name_string(name)) + len(u64(0)) + sum(map(_size_on_wire, files))
        return size

    async def write(self) -> AsyncIterator[bytes]:
        """The whole body. Raises PartDiffers when a file is not as long as it was."""
        if isinstance(self._part, HeldPart) and all(
            file.size_bytes <= SMALL_BYTES or _plain(file) in self._listed[""] for file in self._own
        ):
            for body in self._held_body(self._part):
                yield body
            return
        yield self._head
        for name, files in self._projections:
            yield name_string(name) + u64(len(files))
            async for piece in self._write_files(files, name):
                yield piece
        yield u64(len(self._own))
        async for piece in self._write_files(self._own, ""):
            yield piece

    def _held_body(self, part: HeldPart) -> Iterator[bytes]:
        """Of a part without projections. Only what is small is copied."""
        pieces = [self._head, u64(len(self._own))]
        for file in self._own:
            data = part.content(file)
            pieces.append(file_head(file, file.name))
            if len(data) > SMALL_BYTES:
                yield b"".join(pieces)
                yield data
                pieces = []
            else:
                pieces.append(data)
            known = self._listed[""].get(file.name)
            pieces.append(known if known is not None else hash_of_small(data))
        yield b"".join(pieces)

    async def _write_files(self, files: Sequence[PartFile], projection: str) -> AsyncIterator[bytes]:
        for file in files:
            yield file_head(file, _plain(file))
            known = self._listed[projection].get(_plain(file))
            hashed = FileHash()
            sent = 0
            async for piece in self._part.read(file):
                sent += len(piece)
                if sent > file.size_bytes:
                    break
                yield piece
                if known is None:
                    await hash_slowly(hashed, piece)
            if sent != file.size_bytes:
                raise PartDiffers(
                    str(self._part.part.name),
                    f"file {file.name} is not {file.size_bytes} bytes long any more",
                )
            yield known if known is not None else hashed.digest()

    def _head_of(self, files: PartFiles, ttl: bytes) -> bytes:
        """What stands before the files."""
        own = self._listed[""]
        names = frozenset(_plain(file) for file in files.own)
        head = b""
        if self._has(WITH_SIZE):
            head += u64(sum(file.size_bytes for file in files.own if _plain(file) in own))
        if self._has(WITH_TTL):
            head += string(ttl)
        if self._has(WITH_TYPE):
            head += string(part_type(names))
        if self._has(WITH_UUID):
            head += NIL_UUID
        if self._has(WITH_PROJECTIONS):
            head += u64(len(files.projections))
        return head

    def _sent(self, files: Sequence[PartFile], projection: str) -> list[PartFile]:
        """The files that this version sends; the list of files first, so that the receiver can compare as it
        reads."""
        listed = self._listed[projection]
        sent = [
            file
            for file in files
            if (name := _plain(file)) in listed
            or (name not in _NOT_SENT and self._has(UNLISTED_SINCE.get(name, 0)))
        ]
        return sorted(sent, key=lambda file: (_plain(file) != CHECKSUMS_FILE, file.name))

    def _has(self, version: int) -> bool:
        return self._version >= version


async def hash_slowly(hashed: FileHash, piece: bytes) -> None:
    """Hash without keeping the loop from others for long."""
    for at in range(0, len(piece), _HASH_SLICE_BYTES):
        hashed.update(piece[at : at + _HASH_SLICE_BYTES])
        if len(piece) > _HASH_SLICE_BYTES:
            await asyncio.sleep(0)


async def _listed(part: OutgoingPart, files: Sequence[PartFile]) -> dict[str, bytes]:
    """Hashes by name, of one directory."""
    for file in files:
        if _plain(file) == CHECKSUMS_FILE:
            found = parse_checksums_file(await _whole(part, file), where=str(part.part.name))
            return {each.name: each.hash for each in found if not each.name.endswith(PROJECTION_SUFFIX)}
    return {}


@functools.lru_cache(maxsize=128)
def hash_of_small(data: bytes) -> bytes:
    """Of up to `SMALL_BYTES`. Remembered: most files that stand in no list are equal in all parts of a
    table."""
    return file_hash(data)


async def _whole(part: OutgoingPart, file: PartFile) -> bytes:
    if isinstance(part, HeldPart):
        return part.content(file)
    return b"".join([piece async for piece in part.read(file)])


def _plain(file: PartFile) -> str:
    return file.name.rpartition("/")[2]


def _size_on_wire(file: PartFile) -> int:
    return len(file_head(file, _plain(file))) + file.size_bytes + HASH_BYTES
