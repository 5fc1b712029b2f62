"""What Distributed tables still have to send, and the senders that do."""

from __future__ import annotations

from uuid import UUID

from engine.node.distributed.tables import DistributedTable


class Spools:
    """Of all tables of the node."""

    async def remove(self, uuid: UUID) -> None:
        """The table is dropped."""

    async def flush(self, table: DistributedTable) -> None:
        """Send everything now."""

    async def stop(self, uuid: UUID) -> None:
        """The table is detached."""

    async def truncate(self, table: DistributedTable) -> None:
        """Forget what is pending, broken files too."""
