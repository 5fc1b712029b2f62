"""Which partition `ALTER TABLE … PARTITION <expression>` names.

chDB is asked: a table whose columns are the values of the partition key gets the value as its only row, and
shows its `_partition_id`. Values and types are all that the id depends on. Whether it is a value of the key
at all, the table says by itself, asked to drop that partition: a CAST makes NULL of some that are none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.errors import Code, SqlError, is_passing
from engine.names import TableName, quote_identifier, quote_string
from engine.part_storage.alter_statements import split_by_commas
from engine.part_storage.scratch_tables import ScratchTables
from engine.part_storage.table_state import TableState
from engine.part_storage.workers import SCRATCH_DATABASE, Connection
from engine.replication.part_name import is_partition_id
from engine.replication.table_definition import parse_definition
from engine.sql.tokens import TokenKind, literal_value, scan

WHOLE_TABLE = "all"
"""The id of the one partition of a table without a partition key."""
_DATES = ("Date", "Nullable(Date)")
_NUMBER = re.compile(r"U?Int|Float")


def partition_ids(
    connection: Connection, state: TableState, scratch: ScratchTables, expression: str, number: int
) -> Sequence[str]:
    """See `PartStore.partition_ids`. `number` is one that no other call gets."""
    tokens = [token for token in scan(expression) if token.is_significant]
    words = [token.text.upper() if token.kind is TokenKind.WORD else "" for token in tokens]
    if words == ["ALL"]:
        return sorted({name.partition_id for name in state.active})
    if len(tokens) == 2 and words[0] == "ID" and tokens[1].kind is TokenKind.STRING:
        partition_id = literal_value(tokens[1])
        if not is_partition_id(partition_id):
            raise SqlError(Code.INVALID_PARTITION_VALUE, f"{partition_id!r} is no id of a partition")
        return [partition_id]
    if not tokens or any(token.text == ";" for token in tokens):
        raise _invalid(expression, "a value is expected")
    key = parse_definition(scratch.create_text(connection)).metadata.partition_key or ""
    size = len(split_by_commas(key))
    if not size:
        if [token.text for token in tokens] not in (["tuple", "(", ")"], ["(", ")"]):
            raise _invalid(expression, "the table has no partition key, so its partition is tuple()")
        return [WHOLE_TABLE]
    types = [row[1] for row in connection.rows(f"DESCRIBE TABLE (SELECT {key} FROM {state.table.quoted})")]
    table = TableName(SCRATCH_DATABASE, f"partition_{state.uuid.replace('-', '')}_{number}")
    columns = [quote_identifier(f"c{index}") for index in range(size)]
    declared = ", ".join(f"{name} {kind}" for name, kind in zip(columns, types, strict=True))
    value = f"({expression})"
    given = _type_of(connection, value, expression)
    if not given.startswith("Tuple(") or (size == 1 and types[0].startswith("Tuple(") and given == types[0]):
        value = f"tuple({value})"
    elements = []
    for index, kind in enumerate(types, start=1):
        element = f"tupleElement({value}, {index})"
        if kind in _DATES and _NUMBER.match(_type_of(connection, element, expression)):
            element = f"accurateCast({element}, 'UInt16')"  # else 202001 are seconds, of 1970-01-03
        elements.append(f"accurateCast({element}, {quote_string(kind)})")
    # Of a tuple of another size: refused by the first CAST.
    condition = f"NOT ignore(CAST({value} AS Tuple({', '.join(types)})))"
    values = ", ".join(elements)
    try:
        connection.execute(
            f"CREATE TABLE {table.quoted} ({declared}) ENGINE = MergeTree"
            f" PARTITION BY ({', '.join(columns)}) ORDER BY tuple() SETTINGS allow_nullable_key = 1,"
            " allow_floating_point_partition_key = 1"
        )
        connection.execute(f"ALTER TABLE {table.quoted} DROP PARTITION {expression}")
        connection.execute(f"INSERT INTO {table.quoted} SELECT {values} WHERE {condition}")
        return [connection.text(f"SELECT _partition_id FROM {table.quoted} LIMIT 1")]
    except SqlError as error:
        if error.code != Code.NOT_ENOUGH_SPACE or any("Nullable" in kind for kind in types):
            raise
        # It must be possible to name what is to be dropped. NULL has another id in the function.
        return [connection.text(f"SELECT partitionId({values}) WHERE {condition}")]
    finally:
        connection.execute(f"DROP TABLE IF EXISTS {table.quoted} SYNC")


def _type_of(connection: Connection, value: str, expression: str) -> str:
    try:
        return connection.text(f"SELECT toTypeName({value})")
    except SqlError as error:
        if is_passing(error):
            raise
        raise _invalid(expression, error.message) from None


def _invalid(expression: str, reason: str) -> SqlError:
    return SqlError(
        Code.INVALID_PARTITION_VALUE,
        f"Cannot tell the partition of {expression[:200]}: {reason}",
    )
