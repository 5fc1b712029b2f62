"""What an entry of a replicated table's log asks for: one class per type, with its block of text.

A block begins with the type's word and ends before the line break that closes it. Source:
ClickHouse's ReplicatedMergeTree.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from uuid import UUID

from engine.ddl.text import string_array
from engine.replication.part_name import PartName
from engine.replication.text import FormatReader, encode_bytes, escape

MERGE_VERSION_OF_DEDUPLICATE = 4
_CHECKSUM = re.compile(r"[0-9A-Fa-f]{32}\Z", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z", re.ASCII)


class MergeType(enum.IntEnum):
    """Why parts are merged."""

    REGULAR = 1
    TTL_DELETE = 2
    TTL_RECOMPRESS = 3
    TTL_DROP = 4


class RangeFate(enum.Enum):
    """What becomes of the parts in a dropped range; the value is the word in the text."""

    DROP = "drop"
    DETACH = "detach"


@dataclass(frozen=True, slots=True)
class GetPart:
    """GET_PART: `part` was inserted (or is missing): have it, from whoever has it."""

    part: PartName

    def text(self) -> str:
        return f"get\n{self.part}"


@dataclass(frozen=True, slots=True)
class AttachPart:
    """ATTACH_PART: as GET_PART, and who has the data in `detached/` under this checksum takes that.

    `checksum` is the hash of all files as hexadecimal text.
    """

    part: PartName
    checksum: str

    def text(self) -> str:
        return f"attach\n{self.part}\npart_checksum: {self.checksum}"


@dataclass(frozen=True, slots=True)
class MergeParts:
    """MERGE_PARTS: make `result` out of `sources`."""

    sources: tuple[PartName, ...]
    result: PartName
    deduplicate: bool = False
    merge_type: MergeType = MergeType.REGULAR
    result_uuid: UUID | None = None
    deduplicate_by_columns: tuple[str, ...] = ()
    cleanup: bool = False
    apply_patches: tuple[str, ...] = ()

    def text(self) -> str:
        lines = ["merge", *map(str, self.sources), "into", str(self.result)]
        lines.append(f"deduplicate: {int(self.deduplicate)}")
        if self.merge_type is not MergeType.REGULAR:
            lines.append(f"merge_type: {int(self.merge_type)}")
        if self.result_uuid is not None:
            lines.append(f"into_uuid: {self.result_uuid}")
        if self.deduplicate_by_columns:
            lines.append("deduplicate_by_columns: " + string_array(self.deduplicate_by_columns)[1:-1])
        if self.cleanup:
            lines.append("cleanup: 1")
        if self.apply_patches:
            lines += [f"apply_patches: {len(self.apply_patches)}", *self.apply_patches]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class DropRange:
    """DROP_RANGE, or DROP_PART if `range` is a part and no range."""

    range: PartName
    fate: RangeFate = RangeFate.DROP

    def text(self) -> str:
        return f"{self.fate.value}\n{self.range}"


class Cleared(enum.Enum):
    """What a CLEAR entry of servers before 20.3 clears; the value is the word in the text."""

    COLUMN = "clear_column"
    INDEX = "clear_index"


@dataclass(frozen=True, slots=True)
class ClearInRange:
    """CLEAR_COLUMN and CLEAR_INDEX, which only servers before 20.3 write."""

    what: Cleared
    name: str
    range: PartName

    def text(self) -> str:
        return f"{self.what.value}\n{escape(self.name)}\nfrom\n{self.range}"


@dataclass(frozen=True, slots=True)
class ReplaceRange:
    """REPLACE_RANGE: drop a range and put copies of another table's parts there, of equal checksums.

    A range of one block is that of MOVE PARTITION or ATTACH PARTITION FROM: nothing is dropped.
    """

    range: PartName
    from_database: str
    from_table: str
    sources: tuple[PartName, ...]
    results: tuple[PartName, ...]
    checksums: tuple[str, ...]
    columns_version: int

    @property
    def drops(self) -> bool:
        """Whether the range is dropped at all."""
        return self.range.min_block != self.range.max_block

    def text(self) -> str:
        return (
            f"REPLACE_RANGE\ndrop_range_name: {self.range}\n"
            f"from_database: {escape(self.from_database)}\nfrom_table: {escape(self.from_table)}\n"
            f"source_parts: {string_array(tuple(map(str, self.sources)))}\n"
            f"new_parts: {string_array(tuple(map(str, self.results)))}\n"
            f"part_checksums: {string_array(self.checksums)}\n"
            f"columns_version: {self.columns_version}"
        )


@dataclass(frozen=True, slots=True)
class MutatePart:
    """MUTATE_PART: make `result` out of `source`. `alter_version` is that of the ALTER that needs it."""

    source: PartName
    result: PartName
    result_uuid: UUID | None = None
    alter_version: int | None = None

    def text(self) -> str:
        text = f"mutate\n{self.source}\nto\n{self.result}"
        if self.result_uuid is not None:
            text += f"\nto_uuid\n{self.result_uuid}"
        return text if self.alter_version is None else f"{text}\nalter_version\n{self.alter_version}"


@dataclass(frozen=True, slots=True)
class AlterMetadata:
    """ALTER_METADATA: the table's columns and metadata are these texts as of `alter_version`."""

    alter_version: int
    have_mutation: bool
    columns: str
    metadata: str

    def text(self) -> str:
        return (
            f"alter\nalter_version\n{self.alter_version}\nhave_mutation\n{int(self.have_mutation)}\n"
            f"columns_str_size:\n{len(encode_bytes(self.columns))}\n{self.columns}\n"
            f"metadata_str_size:\n{len(encode_bytes(self.metadata))}\n{self.metadata}"
        )


@dataclass(frozen=True, slots=True)
class SyncPinnedPartUuids:
    """SYNC_PINNED_PART_UUIDS: read `pinned_part_uuids` again."""

    def text(self) -> str:
        return "sync_pinned_part_uuids\n"


@dataclass(frozen=True, slots=True)
class ClonePartFromShard:
    """CLONE_PART_FROM_SHARD: have `part` from the table at another path."""

    part: PartName
    source_shard: str

    def text(self) -> str:
        return f"clone_part_from_shard\n{self.part}\nsource_shard: {self.source_shard}"


Action = (
    GetPart
    | AttachPart
    | MergeParts
    | DropRange
    | ClearInRange
    | ReplaceRange
    | MutatePart
    | AlterMetadata
    | SyncPinnedPartUuids
    | ClonePartFromShard
)


def read_action(reader: FormatReader, *, version: int) -> Action:
    """Read a block with the line break that closes it. Raises MalformedEntry."""
    word = reader.line("", reader.word)
    action: Action
    match word:
        case "get":
            action = GetPart(reader.part())
        case "attach":
            part = reader.line("", reader.part)
            reader.expect("part_checksum: ")
            action = AttachPart(part, _checksum(reader, reader.raw()))
        case "merge":
            return _read_merge(reader, version)
        case "drop" | "detach":
            action = DropRange(reader.part(), RangeFate(word))
        case "clear_column" | "clear_index":
            name = reader.line("", reader.escaped)
            reader.expect("from\n")
            action = ClearInRange(Cleared(word), name, reader.part())
        case "REPLACE_RANGE":
            action = _read_replace_range(reader)
        case "mutate":
            return _read_mutate(reader)
        case "alter":
            action = _read_alter(reader)
        case "sync_pinned_part_uuids":
            action = SyncPinnedPartUuids()
        case "clone_part_from_shard":
            part = reader.line("", reader.part)
            reader.expect("source_shard: ")
            action = ClonePartFromShard(part, reader.raw())
        case _:
            raise reader.error(f"unknown type of entry {escape(word[:40])}")
    reader.expect("\n")
    return action


def _read_merge(reader: FormatReader, version: int) -> MergeParts:
    sources: list[PartName] = []
    while not reader.accept("into\n"):
        sources.append(reader.line("", reader.part))
    if not sources:
        raise reader.error("a merge without a source")
    result = reader.line("", reader.part)
    deduplicate = False
    if version >= MERGE_VERSION_OF_DEDUPLICATE:
        deduplicate = reader.line("deduplicate: ", reader.flag)
    merge_type, result_uuid = MergeType.REGULAR, None
    by_columns: tuple[str, ...] = ()
    cleanup = False
    patches: tuple[str, ...] = ()
    while version >= MERGE_VERSION_OF_DEDUPLICATE:
        if reader.accept("merge_type: "):
            merge_type = _merge_type(reader, reader.line("", reader.unsigned))
        elif reader.accept("into_uuid: "):
            result_uuid = _uuid(reader, reader.line("", reader.raw))
        elif reader.accept("deduplicate_by_columns: "):
            by_columns = reader.line("", reader.quoted_list)
        elif reader.accept("cleanup: "):
            cleanup = reader.line("", reader.flag)
        elif reader.accept("apply_patches: "):
            count = reader.line("", reader.count)
            patches = tuple(reader.line("", reader.word) for _ in range(count))
        else:
            break
    return MergeParts(
        tuple(sources), result, deduplicate, merge_type, result_uuid, by_columns, cleanup, patches
    )


def _read_mutate(reader: FormatReader) -> MutatePart:
    source = reader.line("", reader.part)
    reader.expect("to\n")
    result = reader.line("", reader.part)
    result_uuid, alter_version = None, None
    while True:
        if reader.accept("to_uuid\n"):
            result_uuid = _uuid(reader, reader.line("", reader.raw))
        elif reader.accept("alter_version\n"):
            alter_version = reader.line("", reader.integer)
        else:
            return MutatePart(source, result, result_uuid, alter_version)


def _read_replace_range(reader: FormatReader) -> ReplaceRange:
    span = reader.line("drop_range_name: ", reader.part)
    database = reader.line("from_database: ", reader.escaped)
    table = reader.line("from_table: ", reader.escaped)
    sources = reader.line("source_parts: ", reader.parts)
    results = reader.line("new_parts: ", reader.parts)
    checksums = reader.line("part_checksums: ", reader.strings)
    if not len(sources) == len(results) == len(checksums):
        raise reader.error("source parts, new parts and checksums are not equally many")
    for checksum in checksums:
        _checksum(reader, checksum)
    reader.expect("columns_version: ")
    return ReplaceRange(span, database, table, sources, results, checksums, reader.integer())


def _read_alter(reader: FormatReader) -> AlterMetadata:
    reader.expect("alter_version\n")
    alter_version = reader.line("", reader.integer)
    reader.expect("have_mutation\n")
    have_mutation = reader.line("", reader.flag)
    reader.expect("columns_str_size:\n")
    columns = reader.line("", reader.sized)
    reader.expect("metadata_str_size:\n")
    return AlterMetadata(alter_version, have_mutation, columns, reader.sized())


def _merge_type(reader: FormatReader, number: int) -> MergeType:
    try:
        return MergeType(number)
    except ValueError:
        raise reader.error(f"unknown merge type {number}") from None


def _uuid(reader: FormatReader, text: str) -> UUID:
    if not _UUID.match(text):
        raise reader.error(f"expected a UUID, not {escape(text[:40])}")
    return UUID(text)


def _checksum(reader: FormatReader, text: str) -> str:
    if not _CHECKSUM.match(text):
        raise reader.error(f"expected a checksum of 32 hexadecimal digits, not {escape(text[:40])}")
    return text
