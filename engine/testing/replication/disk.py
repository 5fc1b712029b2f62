"""The disk of a simulated replica: it outlives the process, and it can be damaged.

A stored part is a few files. `data.bin` holds the rows, `count.txt` their number and what else makes one part
differ from another, `checksums.txt` is of ClickHouse's own format. Equal content gives equal digests.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import struct
from dataclasses import dataclass, field

from engine.errors import MalformedEntry
from engine.replication.columns import Column, Columns
from engine.replication.part_checksums import (
    FileChecksum,
    PartDiffers,
    PartDigest,
    digest_of_file,
    parse_checksums_file,
)
from engine.replication.part_name import PartName
from engine.replication.part_store import DetachedPart, Part
from engine.replication.table_definition import TableDefinition
from engine.replication.table_metadata import TableMetadata
from engine.replication.varint import write_varint
from engine.testing.replication.rows import Rows, rows_from_bytes, rows_to_bytes

DATA, COUNT, COLUMNS, CHECKSUMS = "data.bin", "count.txt", "columns.txt", "checksums.txt"
_NOT_COMPRESSED = 0x02
_BLOCK_HEADER_BYTES = 9


class Damage(enum.Enum):
    """What may happen to a file on a disk."""

    BIT_FLIP = "bit flip"
    TRUNCATION = "truncation"
    EMPTY_FILE = "empty file"
    MISSING_FILE = "missing file"


@dataclass(frozen=True, slots=True)
class StoredPart:
    """The files of a part, by name. Never changed in place: damage makes another one."""

    files: dict[str, bytes]
    modified_s: float

    @classmethod
    def of_rows(cls, rows: Rows, columns: bytes, marks: tuple[str, ...], modified_s: float) -> StoredPart:
        count = f"{len(rows)}\n" + "".join(f"{mark}\n" for mark in marks)
        files = {DATA: rows_to_bytes(rows), COUNT: count.encode()}
        listed = [FileChecksum(DATA, len(files[DATA]), _hash(files[DATA]), len(rows), _hash(files[DATA]))]
        listed.append(FileChecksum(COUNT, len(files[COUNT]), _hash(files[COUNT])))
        return cls(files | {COLUMNS: columns, CHECKSUMS: _checksums_file(listed)}, modified_s)

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(self.files[COUNT].decode().splitlines()[1:])

    @property
    def columns(self) -> bytes:
        return self.files[COLUMNS]

    @property
    def size_bytes(self) -> int:
        return sum(len(content) for content in self.files.values())

    def listed(self, name: str) -> tuple[FileChecksum, ...]:
        """What its own list of files says. Raises PartDiffers."""
        try:
            return parse_checksums_file(self.files.get(CHECKSUMS, b""))
        except MalformedEntry as error:
            raise _damaged_list(name, error) from None

    def digest(self, name: str) -> PartDigest:
        try:
            return digest_of_file(self.files.get(CHECKSUMS, b""))
        except MalformedEntry as error:
            raise _damaged_list(name, error) from None

    def check_sizes(self, name: str) -> None:
        """What a look at the directory finds: files that are missing or of another size."""
        for file in self.listed(name):
            if len(self.files.get(file.name, b"")) != file.size or file.name not in self.files:
                raise PartDiffers(name, f"file {file.name} is missing or of another size")
        if not _are_columns(self.files.get(COLUMNS, b"")):
            raise PartDiffers(name, f"{COLUMNS} does not parse")

    def check(self, name: str) -> None:
        """Read everything and compare. Raises PartDiffers."""
        self.check_sizes(name)
        for file in self.listed(name):
            if _hash(self.files[file.name]) != file.hash:
                raise PartDiffers(name, f"the hash of file {file.name}")

    def rows(self, name: str) -> Rows:
        """As a reader gets them, who checks what it reads. Raises PartDiffers."""
        self.check(name)
        return rows_from_bytes(self.files[DATA])

    def part(self, name: PartName) -> Part:
        """Raises PartDiffers."""
        count = self.files.get(COUNT, b"").split(b"\n", 1)[0]
        rows = int(count) if count.isdigit() else 0
        return Part(name, self.digest(str(name)), self.columns, rows, self.size_bytes, self.modified_s)

    def damaged(self, damage: Damage, at: int, *, file: str = DATA) -> StoredPart:
        """With one file harmed; `at` (any number) says where."""
        files = dict(self.files)
        if file not in files:
            return self
        files[file] = damaged_bytes(files[file], damage, at)
        if damage is Damage.MISSING_FILE:
            del files[file]
        return StoredPart(files, self.modified_s)


@dataclass(slots=True)
class StoreDisk:
    """Directories of one table's parts. What is in `temporary` does not count after a crash."""

    definition: TableDefinition
    active: dict[PartName, StoredPart] = field(default_factory=dict)
    staged: dict[PartName, StoredPart] = field(default_factory=dict)
    detached: dict[str, StoredPart] = field(default_factory=dict)
    attaching: dict[str, PartName] = field(default_factory=dict)
    shadow: dict[str, dict[PartName, StoredPart]] = field(default_factory=dict)
    temporary: dict[str, StoredPart] = field(default_factory=dict)
    broken: dict[str, StoredPart] = field(default_factory=dict)
    gone: set[PartName] = field(default_factory=set)
    """Active parts whose directories somebody has removed."""
    handles: int = 0

    def damage(self, name: PartName, damage: Damage, at: int, *, file: str = DATA) -> None:
        """Harm a part where it lies; nobody is told."""
        for place in (self.active, self.staged):
            if name in place:
                place[name] = place[name].damaged(damage, at, file=file)

    def new_handle(self) -> str:
        self.handles += 1
        return f"tmp_insert_{self.handles}"

    def detach(self, directory: str, stored: StoredPart) -> str:
        """The name it was given: `_tryN` is added where the name is taken, as ClickHouse does."""
        chosen, tries = directory, 0
        while chosen in self.detached:
            tries += 1
            chosen = f"{directory}_try{tries}"
        self.detached[chosen] = stored
        return chosen

    def hash_of(self, directory: str) -> str | None:
        """Of what lies in `detached/`; None where its list of files is damaged."""
        try:
            return self.detached[directory].digest(directory).hash_text
        except PartDiffers:
            return None

    def list_detached(self) -> list[DetachedPart]:
        return [DetachedPart.of(directory) for directory in sorted(self.detached)]


def model_definition(*columns: str, partition_key: str = "p") -> TableDefinition:
    """A small table: `k` and `v` (UInt64) or the columns named, ordered by the first."""
    names = columns or ("k", "v")
    return TableDefinition(
        metadata=TableMetadata(primary_key=names[0], partition_key=partition_key),
        columns=Columns(tuple(Column(name, "UInt64") for name in names)),
        settings=(("index_granularity", "8192"),),
        comment="",
    )


def damaged_bytes(content: bytes, damage: Damage, at: int) -> bytes:
    match damage:
        case Damage.BIT_FLIP if content:
            bit = at % (len(content) * 8)
            changed = bytearray(content)
            changed[bit // 8] ^= 1 << bit % 8
            return bytes(changed)
        case Damage.TRUNCATION if content:
            return content[: at % len(content)]
        case _:
            return b""


def _damaged_list(name: str, error: MalformedEntry) -> PartDiffers:
    return PartDiffers(name, f"its list of files is damaged ({error.message})")


@functools.lru_cache(maxsize=256)  # all parts of a simulation have the same few
def _are_columns(content: bytes) -> bool:
    try:
        Columns.from_bytes(content)
    except MalformedEntry:
        return False
    return True


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _checksums_file(files: list[FileChecksum]) -> bytes:
    """As ClickHouse writes it, in one block that is not compressed. Nobody looks at the block's own hash."""
    body = bytearray(write_varint(len(files)))
    for file in files:
        name = file.name.encode()
        body += write_varint(len(name)) + name + write_varint(file.size) + file.hash
        if file.content_size is None:
            body += b"\0"
        else:
            body += b"\1" + write_varint(file.content_size) + file.content_hash
    header = struct.pack("<BII", _NOT_COMPRESSED, len(body) + _BLOCK_HEADER_BYTES, len(body))
    return b"checksums format version: 4\n" + bytes(16) + header + bytes(body)
