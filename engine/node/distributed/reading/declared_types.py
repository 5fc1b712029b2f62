"""What this node reads of its own tables, with the types that the Distributed table has for them."""

from __future__ import annotations

from dataclasses import replace

from engine.distributed.select import RemoteSelect, SourceColumn
from engine.names import quote_string


def as_declared(select: RemoteSelect) -> RemoteSelect:
    """For what chDB reads itself: columns get the types of the Distributed table, as `url()` gives them."""
    return replace(select, columns=tuple((_cast(text, column), column) for text, column in select.columns))


def _cast(text: str, column: SourceColumn) -> str:
    if column.type.startswith("AggregateFunction"):
        return text
    return f"CAST({text}, {quote_string(column.type)})"
