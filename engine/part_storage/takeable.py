"""Which parts of a plain table a replicated one can take: those whose files are files, and no UUID is one.

Parts of replicated tables are sent and compared by their files, and `uuid.txt` has their name (`part_uuid`).
A table with `min_{bytes,rows,level}_for_full_part_storage` packs a part's files into one, and one with
`assign_part_uuids` has `uuid.txt` among the files whose checksums belong to the part.

Source: ClickHouse's MergeTreeData::choosePartFormat, MergedBlockOutputStream::finalizePartOnDisk.
"""

from __future__ import annotations

from pathlib import Path

from engine.errors import Code, Corrupt, SqlError
from engine.names import TableName
from engine.part_storage.part_files import CHECKSUMS_FILE
from engine.part_storage.part_uuid import UUID_FILE
from engine.replication.part_checksums import parse_checksums_file

_PACKED_FILE = "data.packed"
_FULL_STORAGE = ", ".join(f"min_{each}_for_full_part_storage = 0" for each in ("bytes", "rows", "level"))


def check_takeable(directory: Path, table: TableName, part: str) -> None:
    """Of a part of a plain table. Raises SqlError 48, with what makes other parts of them; FileNotFoundError
    where there is no part."""
    if (directory / _PACKED_FILE).exists():
        raise _refusal(table, part, "has all its files packed into one", _FULL_STORAGE)
    if _has_uuid(directory):
        raise _refusal(table, part, "has a UUID of its own", "assign_part_uuids = 0")


def _has_uuid(directory: Path) -> bool:
    if not (directory / UUID_FILE).exists():
        return False
    data = (directory / CHECKSUMS_FILE).read_bytes()
    try:
        return any(file.name == UUID_FILE for file in parse_checksums_file(data, where=str(directory)))
    except Corrupt:
        return False  # whoever takes the part says so


def _refusal(table: TableName, part: str, what: str, settings: str) -> SqlError:
    return SqlError(
        Code.NOT_IMPLEMENTED,
        f"Part {part} of table {table} {what}, which parts of replicated tables cannot have.",
        hint=f"ALTER TABLE {table.quoted} MODIFY SETTING {settings}; then OPTIMIZE TABLE {table.quoted} "
        "FINAL SETTINGS optimize_skip_merged_partitions = 0 writes its parts anew.",
    )
