"""The picture as JSON values: what the command line prints and the page's data route answers."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from engine.operations.overview.model import ClusterOverview, HostView
from engine.operations.records import FindingRecord


def overview_json(overview: ClusterOverview) -> dict[str, Any]:
    """Field names are those of the dataclasses; enums are their values."""
    return {field.name: as_json(getattr(overview, field.name)) for field in dataclasses.fields(overview)}


def as_json(value: Any) -> Any:
    """Dataclasses as objects, tuples as lists."""
    match value:
        case FindingRecord():
            return {
                **value.finding.to_json(),
                "scope": value.scope,
                "first_seen_ms": value.first_seen_ms,
                "last_seen_ms": value.last_seen_ms,
                "resolved_ms": value.resolved_ms,
            }
        case enum.Enum():
            return value.value
        case Mapping():
            return {str(as_json(key)): as_json(item) for key, item in value.items()}
        case list() | tuple():
            return [as_json(item) for item in value]
        case _ if dataclasses.is_dataclass(value):
            fields = {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
            return fields | ({"level": value.level.value} if isinstance(value, HostView) else {})
        case _:
            return value
