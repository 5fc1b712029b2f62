"""Settings of a table by which chDB refuses an ALTER.

Settings are each replica's own. Who made the ALTER was asked by those of its replica; another one, whose
settings do not allow it, has no choice: its queue would stand still for as long as they stay so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from engine.errors import Code, SqlError
from engine.names import TableName, quote_string
from engine.part_storage.workers import Connection
from engine.replication.table_definition import TableDefinition

LOCAL_REFUSALS: Mapping[int, tuple[str, str]] = {
    Code.SUPPORT_IS_DISABLED: ("deduplicate_merge_projection_mode", "'rebuild'"),
    Code.ALTER_OF_COLUMN_IS_FORBIDDEN: ("alter_column_secondary_index_mode", "'rebuild'"),
}
"""By the code of chDB's error the setting, and a value that lets the ALTER pass."""

NULLABLE_KEY = "allow_nullable_key"


def where_mutated(settings: Mapping[str, str]) -> dict[str, str]:
    """What a scratch table has instead of its table's `settings`, to bring a part to the columns of an ALTER
    that is agreed on."""
    setting, value = LOCAL_REFUSALS[Code.ALTER_OF_COLUMN_IS_FORBIDDEN]
    return {setting: value} if settings.get(setting) == "'throw'" else {}


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
