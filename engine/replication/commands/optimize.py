"""OPTIMIZE."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from engine.replication.commands.waiting import DEFAULT_INACTIVE_TIMEOUT_S, Sync
from engine.replication.replica.context import ReplicaContext


class Extent(enum.Enum):
    """What OPTIMIZE merges."""

    WORTHWHILE = "worthwhile"
    """What merge selection finds worth it, or with a partition all of its parts if they are several."""
    FINAL = "final"
    """All parts of each partition, a single one with itself."""


@dataclass(frozen=True, slots=True)
class OptimizeOptions:
    """`partition_id` None is the whole table. `throw_if_noop` is `optimize_throw_if_noop`."""

    partition_id: str | None = None
    extent: Extent = Extent.WORTHWHILE
    deduplicate: bool = False
    deduplicate_by_columns: tuple[str, ...] = ()
    cleanup: bool = False
    throw_if_noop: bool = False
    sync: Sync = Sync.OWN
    inactive_timeout_s: float = DEFAULT_INACTIVE_TIMEOUT_S


async def optimize(ctx: ReplicaContext, options: OptimizeOptions) -> None:
    raise NotImplementedError
