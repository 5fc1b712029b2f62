"""Whether a part of another table has marks of a kind that this table takes.

chDB refuses to show a part of the other kind. By then the log would have it, and each replica would try for
ever: so it is not staged.

Source: ClickHouse's MergeTreeData::canReplacePartition.
"""

from __future__ import annotations

from pathlib import Path

from engine.errors import Code, SqlError
from engine.replication.table_definition import TableDefinition

_OF_FIXED_GRANULES = (".mrk", ".cmrk")
_MIXED = "enable_mixed_granularity_parts"


def check_granularity(directory: Path, definition: TableDefinition, *, what: str) -> None:
    """Raises SqlError 36."""
    is_fixed = any(file.suffix in _OF_FIXED_GRANULES for file in directory.iterdir())
    if not definition.metadata.index_granularity_bytes:
        is_taken = is_fixed
    else:
        is_taken = not is_fixed or dict(definition.settings).get(_MIXED, "1") not in ("0", "false")
    if not is_taken:
        raise SqlError(
            Code.BAD_ARGUMENTS,
            f"Part {what} has inconsistent granularity with table",
            hint="One of the two tables has index_granularity_bytes = 0. INSERT … SELECT copies the rows.",
        )
