"""The file of a Keeper backup: a chain of checked, compressed chunks of JSON lines.

    file    chunk+                     the first is the head, the last of a finished file the trailer
    chunk   frame of its check, frame of its content
    check   a skippable Zstandard frame: magic 0x184D2A5C, length, and then, little-endian:
            "OCKB", version u8 = 1, kind u8 (h, n, t), run u16, number u32, length of the content u32,
            digest 32 bytes
    content a Zstandard frame of UTF-8 JSON lines
    digest  SHA-256 over the digest of the chunk before (32 zero bytes at the start), the check without its
            digest, and the content as it stands in the file

So `zstd -dc FILE` shows every node, and any truncation, bit flip, lost, doubled or swapped chunk breaks the
chain at a place that the error names. The digest of the trailer names the whole file.

An unfinished file has no trailer. It may have several *runs*: each in the order of a walk, a later one
correcting earlier ones; a finished file has one. What is after the last whole chunk of an unfinished file is
what a crash left and is cut off before it is continued.
"""

from __future__ import annotations

import enum
import hashlib
import heapq
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from engine.errors import Corrupt
from engine.operations.keeper_backup.record import NodeRecord, order_of

_MAGIC = 0x184D2A5C
_FRAME = struct.Struct("<II")
_CHECK = struct.Struct("<4sBBHII")
_DIGEST_BYTES = 32
_NAME = b"OCKB"
_VERSION = 1
_LEVEL = 3
LONGEST_CHUNK_BYTES = 64 << 20
"""A chunk is refused beyond this, compressed or not: nobody's length field makes us take up more memory."""


class ChunkKind(enum.Enum):
    HEAD = "h"
    NODES = "n"
    TRAILER = "t"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk that has passed its check. `ends_at` is the offset behind it."""

    kind: ChunkKind
    run: int
    number: int
    lines: tuple[Mapping[str, Any], ...]
    digest: bytes
    ends_at: int


@dataclass(frozen=True, slots=True)
class Gone:
    """In a later run: the node that an earlier run has is no more."""

    path: str

    @property
    def order(self) -> str:
        return order_of(self.path)

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "gone": True}


Entry = NodeRecord | Gone


class ChunkWriter:
    """Appends chunks. After `write` a chunk is with the operating system; `sync` makes it durable."""

    def __init__(
        self, file: BinaryIO, *, number: int = 0, digest: bytes = bytes(_DIGEST_BYTES), run: int = 0
    ) -> None:
        self._file = file
        self._number = number
        self.run = run
        self.digest = digest
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)

    def write(self, kind: ChunkKind, lines: Iterable[Mapping[str, Any]]) -> None:
        text = "".join(
            json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines
        ).encode()
        content = self._compressor.compress(text)
        check = _CHECK.pack(_NAME, _VERSION, ord(kind.value), self.run, self._number, len(content))
        self.digest = hashlib.sha256(self.digest + check + content).digest()
        self._file.write(_FRAME.pack(_MAGIC, _CHECK.size + _DIGEST_BYTES) + check + self.digest + content)
        self._file.flush()
        self._number += 1

    def write_entries(self, entries: Sequence[Entry]) -> None:
        """One chunk of nodes; nothing if there are none."""
        if entries:
            self.write(ChunkKind.NODES, [entry.to_json() for entry in entries])

    def sync(self) -> None:
        os.fsync(self._file.fileno())


def read_chunks(path: Path, *, begin_at: int = 0, until: int | None = None) -> Iterator[Chunk]:
    """The chunks of a file, checked one by one. Raises Corrupt, which says where; OSError.

    Beginning at 0 the whole chain is checked. From a later place (the end of a chunk) each chunk's digest
    cannot be, as the one before is not known: only files that were checked before are read so.
    """
    digest = bytes(_DIGEST_BYTES) if begin_at == 0 else None
    number = 0 if begin_at == 0 else None
    decompressor = zstandard.ZstdDecompressor()
    with path.open("rb") as file:
        at = file.seek(begin_at)
        while until is None or at < until:
            try:
                chunk = _read_chunk(file, at, number=number, before=digest, decompressor=decompressor)
            except _Damaged as damage:
                which = "" if number is None else f"chunk {number} "
                raise Corrupt(
                    f"The backup {path} is damaged: {which}at byte {at}: {damage}.",
                    hint="Take another copy of the file, or make a new backup.",
                ) from None
            if chunk is None:
                return
            digest, number, at = chunk.digest, chunk.number + 1, chunk.ends_at
            yield chunk


class _Damaged(Exception):
    """Why a chunk cannot be used."""


def _read_chunk(
    file: BinaryIO,
    at: int,
    *,
    number: int | None,
    before: bytes | None,
    decompressor: zstandard.ZstdDecompressor,
) -> Chunk | None:
    frame = file.read(_FRAME.size)
    if not frame:
        return None
    if len(frame) < _FRAME.size:
        raise _Damaged("the file ends within a chunk")
    if _FRAME.unpack(frame) != (_MAGIC, _CHECK.size + _DIGEST_BYTES):
        raise _Damaged("no chunk begins here")
    packed, digest = file.read(_CHECK.size), file.read(_DIGEST_BYTES)
    if len(digest) < _DIGEST_BYTES:
        raise _Damaged("the file ends within a chunk")
    name, version, kind, run, its_number, length = _CHECK.unpack(packed)
    if name != _NAME:
        raise _Damaged("no chunk begins here")
    if version != _VERSION:
        raise _Damaged(f"format version {version}, and only {_VERSION} is known")
    if length > LONGEST_CHUNK_BYTES:
        raise _Damaged(f"a chunk of {length} bytes")
    if number is not None and its_number != number:
        raise _Damaged(f"chunk {its_number} stands in its place")
    content = file.read(length)
    if len(content) < length:
        raise _Damaged("the file ends within a chunk")
    if before is not None and hashlib.sha256(before + packed + content).digest() != digest:
        raise _Damaged("its checksum does not fit")
    try:
        size = zstandard.frame_content_size(content)
        if not 0 <= size <= LONGEST_CHUNK_BYTES:
            raise _Damaged(f"a chunk of {size} bytes")
        text = decompressor.decompress(content, max_output_size=LONGEST_CHUNK_BYTES).decode()
        lines = tuple(json.loads(line) for line in text.split("\n") if line)
        what = ChunkKind(chr(kind))
    except (zstandard.ZstdError, ValueError) as error:
        raise _Damaged(f"its content does not parse: {error}") from None
    if not all(isinstance(line, dict) for line in lines):
        raise _Damaged("its content does not parse: no object")
    return Chunk(
        what, run, its_number, lines, digest, at + _FRAME.size + _CHECK.size + _DIGEST_BYTES + length
    )


def entry_of(line: Mapping[str, Any]) -> Entry:
    """Raises Corrupt."""
    if line.get("gone"):
        return Gone(str(line.get("path")))
    return NodeRecord.from_json(line)


def merged(path: Path, spans: Sequence[tuple[int, int]]) -> Iterator[NodeRecord]:
    """One record per node, in order, out of the runs of an unfinished file; `spans` are their (begin, end),
    the first run first. A chunk of each run is held."""

    def entries(run: int, span: tuple[int, int]) -> Iterator[tuple[str, int, Entry]]:
        for chunk in read_chunks(path, begin_at=span[0], until=span[1]):
            for line in chunk.lines:
                entry = entry_of(line)
                yield entry.order, -run, entry

    newest_first = heapq.merge(
        *(entries(run, span) for run, span in enumerate(spans)), key=lambda item: item[:2]
    )
    last: str | None = None
    for order, _, entry in newest_first:
        if order != last:
            last = order
            if isinstance(entry, NodeRecord):
                yield entry
