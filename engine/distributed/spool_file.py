"""A file of the spool: one block of rows on its way to one shard, with its identity.

    8 bytes   OCDSPL01
    4 bytes   length of the head, little endian
    head      JSON: token, columns, rows, settings, repeatable
    body      the rows as Native
    8 bytes   length of the body, little endian
    32 bytes  BLAKE2b of everything before

A file that is cut off or changed anywhere is recognised before a byte of it is sent.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from engine.distributed.spool_disk import SpoolDisk
from engine.errors import Code, Corrupt

MAGIC = b"OCDSPL01"
_CHUNK_BYTES = 1 << 20
_SENT_BYTES = 256 << 10
_MAX_HEAD_BYTES = 16 << 20
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class FileHead:
    """`token` identifies the rows wherever and however often they are sent. With `is_repeatable` it is the
    INSERT's own: who inserts may do it again, and the same rows come in another file."""

    token: str
    columns: tuple[str, ...]
    rows: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    is_repeatable: bool = False

    def to_bytes(self) -> bytes:
        facts = {
            "token": self.token,
            "columns": list(self.columns),
            "rows": self.rows,
            "settings": dict(self.settings),
            "repeatable": self.is_repeatable,
        }
        return json.dumps(facts, ensure_ascii=False).encode("utf-8", "surrogateescape")

    @classmethod
    def from_bytes(cls, data: bytes) -> FileHead:
        """Raises ValueError, KeyError, TypeError."""
        facts = json.loads(data.decode("utf-8", "surrogateescape"))
        return cls(
            str(facts["token"]),
            tuple(str(name) for name in facts["columns"]),
            int(facts["rows"]),
            {str(k): str(v) for k, v in facts["settings"].items()},
            bool(facts.get("repeatable", True)),  # older files do not say
        )


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A file that was found whole. `data` is all of it, if it was kept."""

    path: str
    head: FileHead
    body_at: int
    body_bytes: int
    data: bytes | None = field(default=None, repr=False)


async def write_file(disk: SpoolDisk, path: str, head: FileHead, body: AsyncIterator[bytes]) -> int:
    """Write it whole; its size in bytes. Raises OSError and what `body` raises; a piece may be left then."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)

    def put(pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            digest.update(piece)
        disk.append(path, b"".join(pieces))

    text = head.to_bytes()
    held, held_bytes = [MAGIC + struct.pack("<I", len(text)) + text], 0
    size = 0
    async for chunk in body:
        held.append(chunk)
        held_bytes += len(chunk)
        size += len(chunk)
        if held_bytes >= _CHUNK_BYTES:
            await disk.apart(partial(put, held))
            held, held_bytes = [], 0
    held.append(struct.pack("<Q", size))
    if size < _CHUNK_BYTES:  # that was all: not worth another thread
        put(held)
    else:
        await disk.apart(partial(put, held))
    disk.append(path, digest.digest())
    return len(MAGIC) + 4 + len(text) + size + 8 + _DIGEST_BYTES


async def check_file(disk: SpoolDisk, path: str, *, keep_bytes: int = 0) -> SpoolFile:
    """Read it whole and compare. Raises Corrupt; OSError when it cannot be read at all.

    The rows of a file of at most `keep_bytes` are kept, so that what is sent is what was compared.
    """
    if disk.size_bytes(path) < _CHUNK_BYTES:
        return _check(disk, path, keep_bytes)
    return await disk.apart(lambda: _check(disk, path, keep_bytes))


def _check(disk: SpoolDisk, path: str, keep_bytes: int) -> SpoolFile:
    size = disk.size_bytes(path)
    data = disk.read(path, 0, size) if size <= keep_bytes else None

    def read(at: int, size_bytes: int) -> bytes:
        return disk.read(path, at, size_bytes) if data is None else data[at : at + size_bytes]

    start = read(0, len(MAGIC) + 4)
    if len(start) < len(MAGIC) + 4 or start[: len(MAGIC)] != MAGIC:
        raise _corrupt(path, "it does not begin as a file of the spool", Code.CANNOT_READ_ALL_DATA)
    [head_bytes] = struct.unpack("<I", start[len(MAGIC) :])
    body_at = len(start) + head_bytes
    body_bytes = size - body_at - 8 - _DIGEST_BYTES
    if head_bytes > _MAX_HEAD_BYTES or body_bytes < 0:
        raise _corrupt(path, "it is cut off", Code.CANNOT_READ_ALL_DATA)
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    at, end = 0, size - _DIGEST_BYTES
    while at < end:
        chunk = read(at, min(_CHUNK_BYTES, end - at))
        if not chunk:
            raise _corrupt(path, "it is cut off", Code.CANNOT_READ_ALL_DATA)
        digest.update(chunk)
        at += len(chunk)
    if read(end, _DIGEST_BYTES) != digest.digest():
        raise _corrupt(path, "its checksum does not match", Code.CHECKSUM_DOESNT_MATCH)
    [said] = struct.unpack("<Q", read(end - 8, 8))
    if said != body_bytes:
        raise _corrupt(path, "its length is not what it says", Code.CANNOT_READ_ALL_DATA)
    try:
        head = FileHead.from_bytes(read(len(start), head_bytes))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _corrupt(path, f"its head cannot be read: {error}", Code.CANNOT_READ_ALL_DATA) from error
    return SpoolFile(path, head, body_at, body_bytes, data)


async def body_of(disk: SpoolDisk, file: SpoolFile) -> AsyncIterator[bytes]:
    """The rows. Raises OSError."""
    at, end = file.body_at, file.body_at + file.body_bytes
    while at < end:
        size_bytes = min(_SENT_BYTES, end - at)
        if file.data is not None:
            chunk = file.data[at : at + size_bytes]
        else:
            chunk = disk.read(file.path, at, size_bytes)
        if not chunk:
            raise OSError(f"{file.path} became shorter")
        at += len(chunk)
        yield chunk


def _corrupt(path: str, what: str, code: Code) -> Corrupt:
    return Corrupt(
        f"The spool file {path} is broken: {what}.",
        code=code,
        hint="It is kept in broken/ and never sent. Its rows have to be inserted again from their source.",
    )
