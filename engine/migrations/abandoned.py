"""A host that was abandoned may do its task after all: before it is sent again the queue is asked.

For one whose first task still stands in the queue a repetition might become a second time.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.ddl.client import DDLQueueClient
from engine.errors import SqlError
from engine.migrations.errors import MigrationRefused
from engine.migrations.states import CellState, LedgerRow


async def require_gone(client: DDLQueueClient, rows: Sequence[LedgerRow]) -> None:
    """Raises MigrationRefused if a host of the abandoned `rows` may do its task yet; Keeper's errors."""
    for row in rows:
        if row.state is not CellState.ABANDONED or not row.entry:
            continue
        try:
            status = await client.status(row.entry)
        except SqlError:
            continue  # gone, and nothing is known of it
        host, what = row.host.readable, f"{row.version}_{row.title} statement {row.statement}"
        if not status.is_gone or status.outcome(row.host).state.is_reported:
            raise MigrationRefused(
                f"{what} was abandoned on {host}, and its task still stands in the queue as {row.entry}: "
                "sent again, a host that comes back would do it twice.",
                hint="Start the host, which does it then; or wait until the cleaner has removed it, by the "
                "queue's limit of age (`oncluster cleanup apply --kind ddl`).",
            )
