"""What is copied from another table, and how an entry of the log records it."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import Code, SqlError
from engine.keeper.base import Keeper
from engine.keeper.checks import MAX_REQUEST_BYTES
from engine.replication.columns import DefaultKind
from engine.replication.log_actions import ReplaceRange
from engine.replication.part_name import MAX_BLOCK_NUMBER, MAX_LEVEL, PartName
from engine.replication.part_store import Part, PartStore
from engine.replication.paths import TablePaths
from engine.replication.replica.context import ReplicaContext
from engine.replication.table_definition import TableDefinition
from engine.sql.cursor import Cursor

_NO_COLUMNS_VERSION = -1
_BYTES_OF_A_COPY = 500
"""In the transaction that adds it, beside the table's path."""


def nothing_dropped(partition_id: str) -> PartName:
    """The range of one block that stands for none."""
    return PartName(partition_id, 0, 0, MAX_LEVEL, MAX_BLOCK_NUMBER)


def replace_range_of(
    span: PartName, source_name: tuple[str, str], copies: Sequence[tuple[Part, Part]]
) -> ReplaceRange:
    return ReplaceRange(
        range=span,
        from_database=source_name[0],
        from_table=source_name[1],
        sources=tuple(part.name for part, _ in copies),
        results=tuple(copy.name for _, copy in copies),
        checksums=tuple(copy.digest.hash_text.upper() for _, copy in copies),
        columns_version=_NO_COLUMNS_VERSION,
    )


def most_copies(paths: TablePaths) -> int:
    """So many parts one transaction carries: each has two nodes, a lock, and a line of the entry."""
    return MAX_REQUEST_BYTES * 3 // 4 // (3 * len(paths.root.encode()) + _BYTES_OF_A_COPY)


def too_many(what: str, parts: int, most: int) -> SqlError:
    return SqlError(
        Code.TOO_MANY_PARTS,
        f"{what}: {parts} parts are more than one transaction of Keeper carries ({most}).",
        hint="OPTIMIZE TABLE … PARTITION … FINAL makes one part of them.",
    )


def parts_of(store: PartStore, partition_id: str) -> list[Part]:
    return [part for name, part in sorted(store.active.items()) if name.partition_id == partition_id]


def attached_node(paths: TablePaths, part: Part) -> str:
    """By this a copy that was attached once is known again, as in ClickHouse."""
    return f"{paths.blocks}/{part.name.partition_id}_replace_from_{part.digest.hash_text.upper()}"


async def not_attached_yet(ctx: ReplicaContext, keeper: Keeper, parts: Sequence[Part]) -> list[Part]:
    by_node = {attached_node(ctx.paths, part): part for part in parts}
    stats = await keeper.exists_many(list(by_node))
    return [part for part, stat in zip(by_node.values(), stats, strict=True) if stat is None]


def check_same_structure(source: TableDefinition, destination: TableDefinition) -> None:
    """Raises SqlError 122 and 36 where parts of `source` would be none of `destination`, which may have more
    indexes and projections. Source: ClickHouse's checkStructureAndGetMergeTreeData."""
    if _stored(source) != _stored(destination):
        raise SqlError(Code.INCOMPATIBLE_COLUMNS, "Tables have different structure")
    for what in ("partition_key", "primary_key", "sorting_key"):
        if getattr(source.metadata, what) != getattr(destination.metadata, what):
            raise SqlError(Code.BAD_ARGUMENTS, f"Tables have different {what.replace('_', ' ')}")
    for words, theirs, ours in (
        ("secondary indices", source.metadata.indices, destination.metadata.indices),
        ("projections", source.metadata.projections, destination.metadata.projections),
    ):
        if not _items(theirs) <= _items(ours):
            raise SqlError(Code.BAD_ARGUMENTS, f"Tables have different {words}")


def _stored(definition: TableDefinition) -> list[tuple[str, str]]:
    """Names and types of the columns that parts have, in whatever order."""
    return sorted(
        (column.name, column.type)
        for column in definition.columns.columns
        if column.default_kind not in (DefaultKind.ALIAS, DefaultKind.EPHEMERAL)
    )


def _items(text: str) -> set[str]:
    """Of a list of declarations in metadata."""
    cursor = Cursor(text)
    found = set()
    while not cursor.at_end:
        begins = cursor.token.start
        cursor.skip_to(",")
        found.add(text[begins : cursor.last_end])
        cursor.at += 1
    return found
