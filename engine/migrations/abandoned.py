"""A host that was abandoned may do its task after all: before it is sent again the queue is asked.

The ledger keeps what the person said. So a repetition would be a second time for a host that came back, and
for one whose first task still stands in the queue it might become that.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.ddl.client import DDLQueueClient
from engine.ddl.outcome import HostState
from engine.errors import SqlError
from engine.migrations.errors import MigrationRefused
from engine.migrations.states import CellState, LedgerRow


async def require_not_done_after_all(client: DDLQueueClient, rows: Sequence[LedgerRow]) -> None:
    """Raises MigrationRefused if a host of the abandoned `rows` has done its task, or may do it yet; Keeper's
    errors."""
    for row in rows:
        if row.state is not CellState.ABANDONED or not row.entry:
            continue
        try:
            status = await client.status(row.entry)
        except SqlError:
            continue  # gone, and nothing is known of it
        host, what = row.host.readable, f"{row.version}_{row.title} statement {row.statement}"
        if status.outcome(row.host).state is HostState.DONE:
            raise MigrationRefused(
                f"{what} was abandoned on {host}, which has done it after all.",
                hint=f"If nothing else is missing: `oncluster migrate mark {row.version} … --reason …`.",
            )
        if not status.is_gone:
            raise MigrationRefused(
                f"{what} was abandoned on {host}, and its task still stands in the queue as {row.entry}: "
                "sent again, a host that comes back would do it twice.",
                hint="Wait until the cleaner has removed it (`oncluster cleanup apply --kind ddl`).",
            )
