"""Parts in memory on their way from one replica to another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from engine.replication.part_checksums import PartDiffers, check_same_part
from engine.replication.part_header import PartHeader
from engine.replication.part_name import PartName
from engine.replication.part_store import Part, PartFile
from engine.testing.replication.disk import CHECKSUMS, COLUMNS, StoredPart

_CHUNK_BYTES = 64


class Outgoing:
    """Implements `OutgoingPart`; `pause` is awaited between pieces."""

    def __init__(self, part: Part, stored: StoredPart, pause: Callable[[], Awaitable[None]]) -> None:
        self._part = part
        self._stored = stored
        self._pause = pause

    @property
    def part(self) -> Part:
        return self._part

    @property
    def files(self) -> Sequence[PartFile]:
        return [PartFile(name, len(content)) for name, content in sorted(self._stored.files.items())]

    async def read(self, file: PartFile) -> AsyncIterator[bytes]:
        content = self._stored.files[file.name]
        for start in range(0, len(content), max(_CHUNK_BYTES, len(content) // 2)):
            await self._pause()
            yield content[start : start + max(_CHUNK_BYTES, len(content) // 2)]


class Incoming:
    """Implements `IncomingPart`."""

    def __init__(self, name: PartName, stage: Callable[[PartName, StoredPart], Awaitable[Part]]) -> None:
        self._name = name
        self._stage = stage
        self._files: dict[str, bytes] = {}

    def have_room(self, size_bytes: int) -> None:
        """There is."""

    async def write(self, file: PartFile, content: AsyncIterator[bytes]) -> None:
        name = file.name
        if not name or name in (".", "..") or set(name) & set("/\\\0") or name in self._files:
            raise PartDiffers(str(self._name), f"file name {name[:100]!r} is hostile or was there before")
        received = bytearray()
        async for piece in content:
            received += piece
            if len(received) > file.size_bytes:
                break
        if len(received) != file.size_bytes:
            raise PartDiffers(str(self._name), f"file {name} has another size than declared")
        self._files[name] = bytes(received)

    async def finish(self, expected: PartHeader | None) -> Part:
        name = str(self._name)
        stored = StoredPart(dict(self._files), 0.0)
        stored.check(name)
        extra = set(self._files) - {file.name for file in stored.listed(name)} - {CHECKSUMS, COLUMNS}
        if extra:
            raise PartDiffers(name, f"{len(extra)} files more than its list says")
        if expected is not None:
            check_same_part(name, stored.digest(name), expected.digest)
            if stored.part(self._name).header.columns_hash != expected.columns_hash:
                raise PartDiffers(name, "its columns are not those that Keeper knows")
        return await self._stage(self._name, stored)
