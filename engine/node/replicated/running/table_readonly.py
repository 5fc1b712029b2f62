"""`table_readonly`, a setting that only plain tables have: a replica has to take what others have written."""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import Code, SqlError
from engine.node.statements.asked_settings import flag


def refuse_table_readonly(settings: Mapping[str, str]) -> None:
    """Settings of a replicated table, literals by name. Raises SqlError 48. Source: ClickHouse's
    StorageReplicatedMergeTree, which refuses it to CREATE, ATTACH and ALTER."""
    if flag(settings, "table_readonly", False):
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            "The setting table_readonly is not supported for replicated tables.",
            hint="Users whose profile has readonly = 1 only read.",
        )
