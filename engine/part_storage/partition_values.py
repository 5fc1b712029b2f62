"""Which partition `ALTER TABLE … PARTITION <expression>` names."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import SqlError
from engine.part_storage.scratch_tables import ScratchTables
from engine.part_storage.table_state import TableState
from engine.part_storage.workers import Connection
from engine.replication.part_name import is_partition_id
from engine.sql.tokens import TokenKind, literal_value, scan

INVALID_PARTITION_VALUE = 248


def partition_ids(
    connection: Connection, state: TableState, scratch: ScratchTables, expression: str
) -> Sequence[str]:
    """See `PartStore.partition_ids`."""
    tokens = [token for token in scan(expression) if token.is_significant]
    words = [token.text.upper() if token.kind is TokenKind.WORD else "" for token in tokens]
    if words == ["ALL"]:
        return sorted({name.partition_id for name in state.active})
    if len(tokens) == 2 and words[0] == "ID" and tokens[1].kind is TokenKind.STRING:
        partition_id = literal_value(tokens[1])
        if not is_partition_id(partition_id):
            raise SqlError(INVALID_PARTITION_VALUE, f"{partition_id!r} is no id of a partition")
        return [partition_id]
    raise SqlError(INVALID_PARTITION_VALUE, f"Cannot tell the partition of {expression[:200]}")
