"""The seam between replication and the network: how a part comes from another replica.

Implemented over HTTP by `engine.node`, in memory by `engine.testing`.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from engine.errors import Unavailable
from engine.replication.host import ReplicaHost
from engine.replication.part_header import PartHeader
from engine.replication.part_name import PartName
from engine.replication.part_store import IncomingPart, Part
from engine.replication.paths import ReplicaPaths


class PartUnavailable(Unavailable):
    """The peer does not have the part any more, cannot be reached, or has too much to do: ask another."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """The header in Keeper that a part was compared with, and the replica whose it is."""

    replica: ReplicaPaths
    header: PartHeader


class PartReceiver(Protocol):
    """Where a part goes that comes from a peer: a `PartStore`, or its `detached/`."""

    def receive(self, name: PartName) -> AbstractAsyncContextManager[IncomingPart]: ...


class PartFetcher(Protocol):
    """Fetches parts."""

    async def fetch(
        self,
        source: ReplicaHost,
        replica: ReplicaPaths,
        part: PartName,
        *,
        into: PartReceiver,
        expected: PartHeader | None,
    ) -> Part:
        """Stage `part` from `replica`, which answers at `source`. Raises PartUnavailable, or PartDiffers when
        what came is not what `expected` (Keeper's header) says; nothing is left of it then."""
        ...
