"""What CREATE OR REPLACE and REPLACE TABLE have in common, whatever the engine of the new table.

Source: ClickHouse's InterpreterCreateQuery::doCreateOrReplaceTable.
"""

from __future__ import annotations

import enum
import re
from uuid import UUID

from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.replicated.running.local_tables import LocalTable
from engine.sql.edit import Edit, apply_edits
from engine.sql.parse import draft_of

PREFIX = "_tmp_replace_"
_TEMPORARY = re.compile(rf"{PREFIX}[0-9a-f]{{32}}\Z")


class Taking(enum.Enum):
    """What a new table's name has to be before."""

    A_FREE_NAME = "CREATE"
    WHATEVER_IS_THERE = "CREATE OR REPLACE"
    A_TABLES_PLACE = "REPLACE"


def temporary_name(name: TableName, uuid: UUID) -> TableName:
    """Of the table with this UUID, until it takes the place of `name`."""
    return TableName(name.database, f"{PREFIX}{uuid.hex}")


def is_temporary(name: TableName) -> bool:
    """Whether `temporary_name` made it."""
    return _TEMPORARY.match(name.table) is not None


def create_of(sql: str, name: TableName, *, uuid: UUID | None = None) -> str:
    """CREATE TABLE of this name for one that replaces, with this UUID if it has none."""
    ref = draft_of(sql).refs[0]  # whatever stands before it says what is to be made
    clause = "" if uuid is None else f" UUID '{uuid}'"
    return apply_edits(sql, [Edit(0, ref.end, f"CREATE TABLE {name.quoted}{clause}")])


def check_place(name: TableName, old: LocalTable | None, taking: Taking) -> None:
    """`old` is what has the name. Raises SqlError: 60 and 57 as `taking` says, 48 for a view."""
    if old is None:
        if taking is Taking.A_TABLES_PLACE:
            raise SqlError(Code.UNKNOWN_TABLE, f"Table {name} does not exist.")
        return
    if taking is Taking.A_FREE_NAME:
        raise SqlError(Code.TABLE_ALREADY_EXISTS, f"Table {name} already exists.")
    if old.engine.endswith("View") or old.engine == "Dictionary":
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            f"{name} is no table but a {old.engine}: it cannot be replaced by a table.",
            hint="DROP it, then CREATE TABLE.",
        )
