"""How a part looks on its way between two servers: ClickHouse's DataPartsExchange, versions 0 to 10.

    request   POST /?endpoint=DataPartsExchange:<replica>&part=<name>&client_protocol_version=N&compress=false
    answer    cookie server_protocol_version = the smaller of both sides' (18.16: no cookie, version 0)
      >= 1    u64   bytes of the files in checksums.txt
      >= 2    string  text of ttl.txt
      >= 3    string  Wide or Compact
      >= 5    36 characters  uuid of the part (nil here: a replicated part has none of its own)
      >= 7    u64   number of projections; each: string name, then files as below
      files   u64   number; each: string name, u64 size, the bytes, 16 bytes hash (`file_hash`)

Numbers are little-endian, a string is its length as a varint and its bytes. Version 4 added the file
`default_compression_codec.txt`, 8 `metadata_version.txt`, 9 `columns_substreams.txt`, 10
`invalidated_system_columns.txt`; 6 is about shared disks, of which there are none here. Both sides serve all
versions exactly, so the newest that both know is used.

Source: ClickHouse's DataPartsExchange.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from engine.replication.part_store import PartFile
from engine.replication.varint import write_varint

NEWEST_VERSION = 10
VERSION_COOKIE = "server_protocol_version"
VERIFY_PARAMETER = "verify"
"""Of a request between nodes of this project: what came last time was damaged; read your copy before you
send it. ClickHouse passes over parameters that it does not know."""
HASH_BYTES = 16
CHECKSUMS_FILE = "checksums.txt"
TTL_FILE = "ttl.txt"
UUID_FILE = "uuid.txt"
PROJECTION_SUFFIX = ".proj"
NO_TTL = b"ttl format version: 1\n{}"
NIL_UUID = b"00000000-0000-0000-0000-000000000000"

WITH_SIZE = 1
WITH_TTL = 2
WITH_TYPE = 3
WITH_UUID = 5
WITH_PROJECTIONS = 7
UNLISTED_SINCE = {
    CHECKSUMS_FILE: 0,
    "columns.txt": 0,
    "default_compression_codec.txt": 4,
    "metadata_version.txt": 8,
    "columns_substreams.txt": 9,
    "invalidated_system_columns.txt": 10,
}
"""The files of a part that its checksums.txt does not list, and the first version that has them."""

_ENDPOINT_PREFIX = "DataPartsExchange:"
_COMPACT_MARKS = frozenset({"data.mrk3", "data.cmrk3", "data.mrk4", "data.cmrk4"})
_U64 = struct.Struct("<Q")


def endpoint_of(replica_path: str) -> str:
    return _ENDPOINT_PREFIX + replica_path


def replica_path_of(endpoint: str) -> str:
    """The replica's path in Keeper; empty for an endpoint of another kind."""
    return endpoint.removeprefix(_ENDPOINT_PREFIX) if endpoint.startswith(_ENDPOINT_PREFIX) else ""


def u64(number: int) -> bytes:
    return _U64.pack(number)


def string(content: bytes) -> bytes:
    return write_varint(len(content)) + content


def number_of(eight: bytes) -> int:
    return int(_U64.unpack(eight)[0])


def name_string(name: str) -> bytes:
    """The name of a file or projection, which need not be UTF-8."""
    return string(name.encode("utf-8", "surrogateescape"))


def file_head(file: PartFile, name: str) -> bytes:
    """What stands before a file's bytes."""
    return name_string(name) + u64(file.size_bytes)


def part_type(names: frozenset[str]) -> bytes:
    return b"Compact" if names & _COMPACT_MARKS else b"Wide"


@dataclass(frozen=True, slots=True)
class PartFiles:
    """The files of a part, sorted by the directory they are in: its own, and those of its projections."""

    own: tuple[PartFile, ...]
    projections: tuple[tuple[str, tuple[PartFile, ...]], ...]

    @classmethod
    def of(cls, files: list[PartFile]) -> PartFiles:
        own: list[PartFile] = []
        projections: dict[str, list[PartFile]] = {}
        for file in files:
            directory, slash, _ = file.name.partition("/")
            if slash:
                projections.setdefault(directory.removesuffix(PROJECTION_SUFFIX), []).append(file)
            else:
                own.append(file)
        return cls(tuple(own), tuple((name, tuple(each)) for name, each in sorted(projections.items())))
