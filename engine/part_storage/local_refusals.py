"""Settings of a table by which chDB refuses an ALTER.

Settings are each replica's own. Who made the ALTER was asked by those of its replica; another one, whose
settings do not allow it, has no choice: its queue would stand still for as long as they stay so. What is said
of projections chDB looks at whenever it opens the table, so that such a setting keeps the value that allows
the ALTER: with another one the node would not start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from engine.errors import Code, SqlError
from engine.names import TableName, quote_string
from engine.part_storage.workers import Connection
from engine.replication.table_definition import TableDefinition

_THROW = "'throw'"
_REBUILD = "'rebuild'"
_REFUSALS: Mapping[int, Mapping[str, tuple[str, str]]] = {
    Code.SUPPORT_IS_DISABLED: {"deduplicate_merge_projection_mode": (_THROW, _REBUILD)},
    Code.ALTER_OF_COLUMN_IS_FORBIDDEN: {"alter_column_secondary_index_mode": (_REBUILD, _REBUILD)},
    Code.LIMIT_EXCEEDED: {"max_projections": ("25", "1000000")},
    Code.BAD_ARGUMENTS: {
        "allow_part_offset_column_in_projections": ("1", "1"),
        "allow_commit_order_projection": ("0", "1"),
        "enable_block_number_column": ("0", "1"),
        "enable_block_offset_column": ("0", "1"),
        "compatibility_allow_sampling_expression_not_in_primary_key": ("0", "1"),
    },
}
"""By the code of chDB's error, and by setting: its default, and a value that lets the ALTER pass."""

NULLABLE_KEY = "allow_nullable_key"


def lenient(settings: Mapping[str, str], code: int) -> dict[str, str]:
    """Of a table that has `settings`, those by which chDB may refuse an ALTER with `code`, each with a value
    that lets it pass."""
    return {
        name: passing
        for name, (default, passing) in _REFUSALS.get(code, {}).items()
        if _may_refuse(settings.get(name, default), passing)
    }


def where_mutated(settings: Mapping[str, str]) -> dict[str, str]:
    """What a scratch table has instead of its table's `settings`, to bring a part to the columns of an ALTER
    that is agreed on."""
    return lenient(settings, Code.ALTER_OF_COLUMN_IS_FORBIDDEN)


def is_for_the_alter_alone(name: str) -> bool:
    """Whether the table may have another value of the setting as soon as the ALTER is done."""
    return name.endswith("_mode")


def _may_refuse(value: str, passing: str) -> bool:
    return value == _THROW if passing == _REBUILD else value not in (passing, "true")


def check_sorting_key(
    connection: Connection,
    scratch: TableName,
    before: TableDefinition,
    after: TableDefinition,
    *,
    changed: Collection[str],
) -> None:
    """Raises SqlError 44 for a new sorting key, of `scratch`, that a table of the settings of `before` may
    not have. `changed` are settings that the table has got since chDB has opened it.

    A scratch table is attached, and chDB takes a table that it has attached for one that may have Nullable in
    its sorting key, whatever its setting says. Of one that it has made it reads the setting once, then. It
    would refuse the ALTER of the table itself, for ever.
    """
    is_on = dict(before.settings).get(NULLABLE_KEY, "0") not in ("0", "false")
    if _keys(before) == _keys(after) or (is_on and NULLABLE_KEY not in changed):
        return
    key = connection.text(
        f"SELECT sorting_key FROM system.tables WHERE database = {quote_string(scratch.database)}"
        f" AND name = {quote_string(scratch.table)}"
    )
    [described] = connection.rows(f"DESCRIBE TABLE (SELECT tuple({key}) FROM {scratch.quoted})")
    if "Nullable(" in described[1]:
        raise SqlError(
            Code.ILLEGAL_COLUMN,
            f"Sorting key contains nullable columns, but merge tree setting `{NULLABLE_KEY}` is disabled.",
            hint=f"{NULLABLE_KEY} = 1 holds from the next start of the node on." if is_on else "",
        )


def _keys(definition: TableDefinition) -> tuple[str, str]:
    return definition.metadata.primary_key, definition.metadata.sorting_key
