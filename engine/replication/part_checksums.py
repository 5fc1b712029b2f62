"""Checksums of a part: of every file (`checksums.txt`), and the digest of them that replicas compare.

Two replicas have the same part if the digests are equal: `hash_of_all_files` for the bytes on disk, the other
two for the content, however it was compressed. chDB shows the three in `system.parts`, as hexadecimal.

Source: ClickHouse's MergeTreeDataPartChecksums, checked against parts and `system.parts` of chDB.
"""

from __future__ import annotations

import enum
import functools
import struct
from collections.abc import Iterable
from dataclasses import dataclass

import lz4.block
import zstandard

from engine.errors import Code, Corrupt
from engine.replication.cityhash import city_hash_128
from engine.replication.varint import BinaryReader, write_varint
from engine.siphash import siphash128_bytes

HASH_BYTES = 16
MAX_FILE_BYTES = 64 << 20
"""More than that is no list of files; a part of 10,000 columns has about 2 MB."""

_MINIMAL_HEADER = b"checksums format version: 5\n"
_FULL_HEADER = b"checksums format version: 4\n"
_MAX_NAME_BYTES = 4096
_MAX_CACHED_BYTES = 8 << 10
_BLOCK_HEADER_BYTES = 9


class _Method(enum.IntEnum):
    NONE = 0x02
    LZ4 = 0x82
    ZSTD = 0x90


@dataclass(frozen=True, slots=True)
class FileChecksum:
    """Size and hash of a file on disk; for a compressed file also of what is in it. Hashes are 16 bytes."""

    name: str
    size: int
    hash: bytes
    content_size: int | None = None
    content_hash: bytes = b""

    @property
    def is_compressed(self) -> bool:
        return self.content_size is not None


@dataclass(frozen=True, slots=True)
class PartDigest:
    """The "minimalistic" checksums: numbers of files, and three hashes over all of them, 16 bytes each."""

    compressed_files: int
    uncompressed_files: int
    hash_of_all_files: bytes
    hash_of_uncompressed_files: bytes
    content_hash_of_compressed_files: bytes

    @property
    def hash_text(self) -> str:
        """`hash_of_all_files` as `system.parts` and log entries show it: 32 digits, the highest first."""
        return self.hash_of_all_files[::-1].hex()

    def is_same_content(self, other: PartDigest) -> bool:
        """Whether the rows are the same, even if they were compressed differently.

        `hash_of_all_files` may differ then: replicas may use different codecs or library versions.
        """
        return (
            self.compressed_files == other.compressed_files
            and self.uncompressed_files == other.uncompressed_files
            and self.hash_of_uncompressed_files == other.hash_of_uncompressed_files
            and self.content_hash_of_compressed_files == other.content_hash_of_compressed_files
        )

    def body(self) -> bytes:
        """Without the header, as it stands at the end of a part header."""
        return (
            write_varint(self.compressed_files)
            + write_varint(self.uncompressed_files)
            + self.hash_of_all_files
            + self.hash_of_uncompressed_files
            + self.content_hash_of_compressed_files
        )

    def to_bytes(self) -> bytes:
        """With the header, as servers up to 20.x keep it in `parts/<part>/checksums`."""
        return _MINIMAL_HEADER + self.body()

    @classmethod
    def read(cls, reader: BinaryReader) -> PartDigest:
        """The body, up to the end. Raises MalformedEntry."""
        compressed, uncompressed = reader.varint(), reader.varint()
        hashes = [reader.take(HASH_BYTES) for _ in range(3)]
        reader.end()
        return cls(compressed, uncompressed, *hashes)

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = "") -> PartDigest:
        """Of the digest with its header, or of the text of a `checksums.txt`. Raises MalformedEntry."""
        if data.startswith(_FULL_HEADER):
            return digest_of_file(data, where=where)
        reader = BinaryReader(data, where=where)
        reader.expect(_MINIMAL_HEADER)
        return cls.read(reader)


def digest_of(files: Iterable[FileChecksum]) -> PartDigest:
    """The digest of a list of files, in whatever order it is."""
    ordered = sorted(files, key=lambda file: file.name.encode("utf-8", "surrogateescape"))
    everything, plain, content = bytearray(), bytearray(), bytearray()
    compressed = 0
    for file in ordered:
        name = file.name.encode("utf-8", "surrogateescape")
        name = struct.pack("<Q", len(name)) + name
        everything += name + file.hash
        if file.is_compressed:
            compressed += 1
            content += name + file.content_hash
        else:
            plain += name + file.hash
    return PartDigest(
        compressed,
        len(ordered) - compressed,
        siphash128_bytes(bytes(everything)),
        siphash128_bytes(bytes(plain)),
        siphash128_bytes(bytes(content)),
    )


def parse_checksums_file(data: bytes, *, where: str = "") -> tuple[FileChecksum, ...]:
    """The files that a part's `checksums.txt` lists (format version 4: one or more compressed blocks).

    Names are not judged here: whoever joins one to a path must. Raises MalformedEntry.
    """
    if len(data) <= _MAX_CACHED_BYTES:
        try:
            return _parse_small(bytes(data))
        except Corrupt:  # said once more, with the place in it
            pass
    return _parse(data, where)


def checksums_file(files: Iterable[FileChecksum]) -> bytes:
    """The text of a `checksums.txt` that lists `files`, in one block that is not compressed."""
    ordered = sorted(files, key=lambda file: file.name.encode("utf-8", "surrogateescape"))
    body = bytearray(write_varint(len(ordered)))
    for file in ordered:
        name = file.name.encode("utf-8", "surrogateescape")
        body += write_varint(len(name)) + name + write_varint(file.size) + file.hash
        body += bytes([file.is_compressed])
        if file.content_size is not None:
            body += write_varint(file.content_size) + file.content_hash
    block = struct.pack("<BII", _Method.NONE, _BLOCK_HEADER_BYTES + len(body), len(body)) + body
    return _FULL_HEADER + city_hash_128(block) + block


def digest_of_file(data: bytes, *, where: str = "") -> PartDigest:
    """The digest of what a `checksums.txt` lists. Raises MalformedEntry."""
    files = parse_checksums_file(data, where=where)
    return _digest_small(bytes(data)) if len(data) <= _MAX_CACHED_BYTES else digest_of(files)


# A part that is inserted and sent is looked at three times, one that is fetched four times.
@functools.lru_cache(maxsize=128)
def _parse_small(data: bytes) -> tuple[FileChecksum, ...]:
    return _parse(data, "")


@functools.lru_cache(maxsize=128)
def _digest_small(data: bytes) -> PartDigest:
    return digest_of(_parse_small(data))


def _parse(data: bytes, where: str) -> tuple[FileChecksum, ...]:
    reader = BinaryReader(data, where=where)
    reader.expect(_FULL_HEADER)
    body = bytearray()
    while not reader.at_end:
        body += _decompressed_block(reader)
        if len(body) > MAX_FILE_BYTES:
            raise reader.error(f"more than {MAX_FILE_BYTES} bytes of checksums")
    return _parse_files(BinaryReader(bytes(body), where=where))


def _parse_files(reader: BinaryReader) -> tuple[FileChecksum, ...]:
    files: dict[str, FileChecksum] = {}
    for _ in range(reader.varint()):
        size_of_name = reader.varint()
        if not 0 < size_of_name <= _MAX_NAME_BYTES:
            raise reader.error(f"a file name of {size_of_name} bytes")
        name = reader.take(size_of_name).decode("utf-8", "surrogateescape")
        size, hashed = reader.varint(), reader.take(HASH_BYTES)
        match reader.take(1)[0]:
            case 0:
                file = FileChecksum(name, size, hashed)
            case 1:
                file = FileChecksum(name, size, hashed, reader.varint(), reader.take(HASH_BYTES))
            case flag:
                raise reader.error(f"{flag} is no flag")
        if name in files:
            raise reader.error(f"file {name[:100]!r} is listed twice")
        files[name] = file
    reader.end()
    return tuple(files.values())


def _decompressed_block(reader: BinaryReader) -> bytes:
    """One block: CityHash (not looked at: `PartDigest` is what is compared), method, sizes, data."""
    reader.take(HASH_BYTES)
    method, compressed_size, size = struct.unpack("<BII", reader.take(_BLOCK_HEADER_BYTES))
    if size > MAX_FILE_BYTES or compressed_size < _BLOCK_HEADER_BYTES:
        raise reader.error(f"a block of {compressed_size} bytes that holds {size}")
    payload = reader.take(compressed_size - _BLOCK_HEADER_BYTES)
    try:
        match method:
            case _Method.LZ4:
                block = bytes(lz4.block.decompress(payload, uncompressed_size=size))
            case _Method.ZSTD:
                block = zstandard.ZstdDecompressor().decompress(payload, max_output_size=size)
            case _Method.NONE:
                block = payload
            case _:
                raise reader.error(f"unknown compression method {method:#x}")
    except (lz4.block.LZ4BlockError, zstandard.ZstdError) as error:
        raise reader.error(f"a block does not decompress: {error}") from None
    if len(block) != size:
        raise reader.error(f"a block holds {len(block)} bytes and declares {size}")
    return block


class PartDiffers(Corrupt):
    """A part is not what Keeper or a peer says it is. `part` names it."""

    default_code = Code.CHECKSUM_DOESNT_MATCH

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(f"Checksums of part {part} do not match: {reason}.")
        self.part = part
        self.reason = reason


def check_same_part(part: str, ours: PartDigest, theirs: PartDigest) -> None:
    """Raises PartDiffers (40 CHECKSUM_DOESNT_MATCH) unless the contents are the same."""
    if ours.compressed_files + ours.uncompressed_files != theirs.compressed_files + theirs.uncompressed_files:
        raise PartDiffers(part, "different numbers of files")
    if ours.compressed_files != theirs.compressed_files:
        raise PartDiffers(part, "different numbers of compressed files")
    if ours.hash_of_uncompressed_files != theirs.hash_of_uncompressed_files:
        raise PartDiffers(part, "different hashes of the files that are not compressed")
    if ours.content_hash_of_compressed_files != theirs.content_hash_of_compressed_files:
        raise PartDiffers(part, "different hashes of the content of the compressed files")
